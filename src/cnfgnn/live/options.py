"""What the owner of a live service chooses: options of `cnfgnn live`, and `[live]` in a site's settings."""

# ruff: noqa: RUF009  (`setting` returns a dataclass field)

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

from cnfgnn.config.declarations import fields_of, setting
from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import ConfigError

SYSTEM, FEED = CLOCKS = ("system", "feed")
PORT = 8707
MOST_BYTES = 4 << 20  # of one upload or message
LIVE = "live"  # the folder of a service, in that of its run or in the kit of its site
LATEST = "latest.csv"  # the last forecast, in that folder
MQTT_PASSWORD = "CNFGNN_MQTT_PASSWORD"  # an environment variable


@dataclass(frozen=True)
class ServiceOptions:
    """Where a service listens, what it reads from, and which clock it follows."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 lets other machines ask.")
    port: int = setting(PORT, "Port to listen on; 0 chooses a free one.", at_least=0, at_most=65535)
    token_file: str = setting("", "A file with the token of requests; default STATE/token.")
    mqtt: str = setting(
        "", f"A broker: mqtt://host or mqtt://user@host:port, TLS: mqtts://; password in {MQTT_PASSWORD}."
    )
    mqtt_readings: str = setting("", "The topic that readings are read from.")
    mqtt_forecasts: str = setting("", "What the topics of forecasts begin with.")
    clock: str = setting(SYSTEM, "system: the machine's clock; feed: the times of a recording set the clock.")
    timezone: str = setting("", "The zone of the clock, if the run's times have none; like Europe/Paris.")
    poll: float = setting(
        1.0,
        "Seconds between looks at the folder.",
        at_least=0.05,
        at_most=3600,
        says="from 0.05 to 3600 seconds",
    )

    @property
    def feed(self) -> bool:
        return self.clock == FEED

    @property
    def zone(self) -> tzinfo:
        return ReadingOptions(timezone=self.timezone).zone or UTC

    def check_options(self, key: Callable[[str], str]) -> None:
        """Refuse invalid options; `key` is what an option is called where it is set."""
        if self.clock not in CLOCKS:
            raise ConfigError(key("clock"), f"there is no clock {self.clock!r}", CLOCKS)
        if not self.mqtt and (self.mqtt_readings or self.mqtt_forecasts):
            topics = f"{key('mqtt_readings')} and {key('mqtt_forecasts')}"
            raise ConfigError(key("mqtt"), f"is needed with {topics}")
        try:
            _ = self.zone
        except ConfigError as error:
            raise ConfigError(key("timezone"), error.problem) from None


@dataclass(frozen=True)
class LiveSettings(ServiceOptions):
    """How a service runs; fields without help are no options of the command."""

    data: Path | None = setting(
        None, "The folder or file of readings, which may grow; without it, that of the run."
    )
    state: Path | None = setting(None, "Folder of the service's database; default RUN/live.")
    latest: Path | None = setting(None, "The file with the last forecast; default latest.csv in that folder.")
    deadline: float | None = setting(
        None,
        "Seconds after a step at which its forecast is made; default a fifth of the step.",
        at_least=0,
        below=86_400,
        says="from 0 to a day in seconds",
    )
    speed: float = setting(1.0, "With --clock feed: how fast time passes.", above=0, at_most=100_000)
    client: str = "cnfgnn-live"  # its name at the broker, which keeps readings for it while it is away
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings of how files are read
    retrain: float | None = setting(  # in seconds
        None, "How often to train beside the service: hourly, daily, weekly, or as in 6h, 2d."
    )
    retrain_threads: int = setting(1, "With --retrain: how many threads it uses.", at_least=1, at_most=1024)
    retrain_nice: int = setting(
        10, "With --retrain: how much lower its priority is, as in nice(1).", at_least=0, at_most=19
    )
    hold_out: float = setting(
        3.0,
        "The last days, kept from a training, on which both models are compared.",
        above=0,
        at_most=365,
        says="above 0 and at most 365 days",
    )

    def check(self) -> None:
        """Refuse invalid settings."""
        for option in LIVE_OPTIONS.values():
            value = getattr(self, option.name)
            if option.range and value is not None and not option.accepts(value):
                raise ConfigError(_option(option.name), f"must be {option.expected}, not {value:g}")
        self.check_options(_option)
        if self.speed != 1 and not self.feed:
            raise ConfigError("--speed", "is for a recording: use it with --clock feed")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


LIVE_OPTIONS = {option.name: option for option in fields_of(LiveSettings)}
