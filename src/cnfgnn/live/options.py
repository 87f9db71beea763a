"""What the owner of a live service chooses: options of `cnfgnn live`, and `[live]` in a site's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, tzinfo

from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import ConfigError
from cnfgnn.live.clock import CLOCKS, FEED, SYSTEM

PORT = 8707
LIVE = "live"  # the folder of a service, in that of its run or in the kit of its site
MQTT_PASSWORD = "CNFGNN_MQTT_PASSWORD"  # an environment variable


@dataclass(frozen=True)
class ServiceOptions:
    """Where a service listens, what it reads from, and which clock it follows."""

    host: str = "127.0.0.1"
    port: int = PORT  # 0: any free one
    token_file: str = ""  # of requests; empty: `token` in the service's folder, made at the first start
    mqtt: str = ""  # a broker: mqtt://[user@]host[:port], mqtts:// with TLS
    mqtt_readings: str = ""  # the topic that readings are read from
    mqtt_forecasts: str = ""  # what the topics of forecasts begin with
    clock: str = SYSTEM  # the machine's, or "feed": the readings are a recording, whose times set it
    timezone: str = ""  # of the clock, if the times of the readings have none
    poll: float = 1.0  # seconds between looks at the folder of the readings

    @property
    def feed(self) -> bool:
        return self.clock == FEED

    @property
    def zone(self) -> tzinfo:
        return ReadingOptions(timezone=self.timezone).zone or UTC

    def check_options(self, key: Callable[[str], str]) -> None:
        """Refuse what cannot be meant; `key` is what an option is called where it is set."""
        if not 0 <= self.port <= 65535:
            raise ConfigError(key("port"), "it must be from 0 to 65535; 0 chooses a free port")
        if not 0.05 <= self.poll <= 3600:
            raise ConfigError(key("poll"), "it must be from 0.05 to 3600 seconds")
        if self.clock not in CLOCKS:
            raise ConfigError(key("clock"), f"there is no clock {self.clock!r}", CLOCKS)
        if not self.mqtt and (self.mqtt_readings or self.mqtt_forecasts):
            topics = f"{key('mqtt_readings')} and {key('mqtt_forecasts')}"
            raise ConfigError(key("mqtt"), f"is needed with {topics}")
        try:
            _ = self.zone
        except ConfigError as error:
            raise ConfigError(key("timezone"), error.problem) from None


def command_option(name: str) -> str:
    """What an option is called on a command line."""
    return f"--{name.replace('_', '-')}"
