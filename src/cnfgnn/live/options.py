"""What the owner of a live service chooses: options of `cnfgnn live`, and `[live]` in a site's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Annotated, Any

from cnfgnn.config.declarations import Declaration, fields_of
from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import ConfigError

SYSTEM, FEED = CLOCKS = ("system", "feed")
PORT = 8707
MOST_BYTES = 4 << 20  # of one upload or message
LIVE = "live"  # the folder of a service, in that of its run or in the kit of its site
LATEST = "latest.csv"  # the last forecast, in that folder
MQTT_PASSWORD = "CNFGNN_MQTT_PASSWORD"  # an environment variable
FREE = "a whole number from 0 to 65535; 0 chooses a free port"
Port = Annotated[int, Declaration(at_least=0, at_most=65535, says=FREE)]
Poll = Annotated[float, Declaration(at_least=0.05, at_most=3600, says="from 0.05 to 3600 seconds")]
HoldOut = Annotated[float, Declaration(above=0, at_most=365, says="above 0 and at most 365 days")]
Deadline = Annotated[float, Declaration(at_least=0, below=86_400, says="from 0 to a day in seconds")]
Speed = Annotated[float, Declaration(above=0, at_most=100_000, says="above 0 and at most 100000")]


@dataclass(frozen=True)
class ServiceOptions:
    """Where a service listens, what it reads from, and which clock it follows."""

    host: str = "127.0.0.1"
    port: Port = PORT  # 0: any free one
    token_file: str = ""  # of requests; empty: `token` in the service's folder, made at the first start
    mqtt: str = ""  # a broker: mqtt://[user@]host[:port], mqtts:// with TLS
    mqtt_readings: str = ""  # the topic that readings are read from
    mqtt_forecasts: str = ""  # what the topics of forecasts begin with
    clock: str = SYSTEM  # the machine's, or "feed": the readings are a recording, whose times set it
    timezone: str = ""  # of the clock, if the times of the readings have none
    poll: Poll = 1.0  # seconds between looks at the folder of the readings

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
    """How a service runs.

    data       a folder or file of readings; None: those that the run was trained on
    state      the folder of its database; None: `live` in the run's folder
    latest     the file that always holds the last forecast; None: latest.csv in the state's folder
    deadline   seconds after a step at which its forecast is made whoever is missing; None: a fifth of a step
    speed      of a recording
    client     its name at the broker, which keeps readings for it while the service is away
    changes    settings of how files are read
    retrain    seconds between the beginnings of two retrainings; None: nothing is trained
    retrain_threads  that a trainer may compute with
    retrain_nice     how much lower its priority is than the service's, on the scale of nice(1)
    hold_out   days at the end that a retraining does not learn from, but is judged by
    """

    data: Path | None = None
    state: Path | None = None
    latest: Path | None = None
    deadline: Deadline | None = None
    speed: Speed = 1.0
    client: str = "cnfgnn-live"
    most_bytes: int = MOST_BYTES
    changes: Mapping[str, Any] = field(default_factory=dict)
    retrain: float | None = None
    retrain_threads: int = 1
    retrain_nice: int = 10
    hold_out: HoldOut = 3.0

    def check(self) -> None:
        """Refuse invalid settings."""
        for option in fields_of(LiveSettings):
            value = getattr(self, option.name)
            if option.says and value is not None and not option.accepts(value):
                raise ConfigError(_option(option.name), f"must be {option.says}, not {value:g}")
        self.check_options(_option)
        if self.speed != 1 and not self.feed:
            raise ConfigError("--speed", "is for a recording: use it with --clock feed")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
