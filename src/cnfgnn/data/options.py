"""What a person says about files that could be read in two ways."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta, timezone, tzinfo
from typing import Any, get_args
from zoneinfo import ZoneInfo

from cnfgnn.config.settings import Dates, Decimal
from cnfgnn.errors import ConfigError

OFFSET = re.compile(r"([+-])(\d\d):([0-5]\d)", re.A)
CHOICES: dict[str, tuple[str, ...]] = {"dates": get_args(Dates), "decimal": get_args(Decimal)}


@dataclass(frozen=True)
class ReadingOptions:
    """How to read what the files leave open; the settings data.dates, data.decimal and data.timezone.

    A site of a federation has them under [reading] in its site.toml, and sentences about its files say so.
    """

    dates: Dates = "auto"
    decimal: Decimal = "auto"
    timezone: str = ""
    place: str = field(
        default="", compare=False
    )  # the site.toml that they stand in; empty: settings of a run

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:  # whatever a site.toml says
                raise ConfigError(self.key(name), f"cannot be {value!r}", choices)
        _ = self.zone

    @property
    def zone(self) -> tzinfo | None:
        """The time zone of the clocks that wrote the times; None: not known."""
        name: Any = self.timezone
        if name == "":
            return None
        if isinstance(name, str) and (match := OFFSET.fullmatch(name)) and int(match[2]) < 24:
            ahead = timedelta(hours=int(match[2]), minutes=int(match[3]))
            return timezone(-ahead if match[1] == "-" else ahead)
        try:
            return ZoneInfo(name)
        except Exception:  # zoneinfo raises many kinds, by what the name looks like
            problem = f"there is no time zone {name!r}: give one like Europe/Paris, or an offset like +01:00"
            raise ConfigError(self.key("timezone"), problem) from None

    def key(self, name: str) -> str:
        return f"{self.place}: reading.{name}" if self.place else f"data.{name}"

    def hint(self, name: str, value: str) -> str:
        """How a person sets an option."""
        return (
            f'{name} = "{value}" under [reading] in {self.place}'
            if self.place
            else f"--set data.{name}={value}"
        )
