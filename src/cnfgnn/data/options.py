"""Options for files that could be read in two ways."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta, timezone, tzinfo
from typing import Any, get_args
from zoneinfo import ZoneInfo

from cnfgnn.config.settings import Dates, Decimal
from cnfgnn.data.refusals import KnownSteps, Refusals
from cnfgnn.errors import ConfigError

OFFSET = re.compile(r"([+-])(\d\d):([0-5]\d)", re.A)
CHOICES: dict[str, tuple[str, ...]] = {"dates": get_args(Dates), "decimal": get_args(Decimal)}


@dataclass(frozen=True)
class ReadingOptions:
    """How to read ambiguous files: the settings data.dates, data.decimal, data.timezone, data.target and
    data.inputs.

    A site of a federation sets them under [reading] in its site.toml; `place` is the path of that file, and
    error messages then refer to it. An empty `place` stands for the settings of a run.

    With `refusals`, lines that cannot be read are left out and noted there, and the last of several rows of
    one time counts. Without, as in training, the first of them is an error.

    `known` are the time steps to put the readings on; without, these follow from the readings.
    """

    dates: Dates = "auto"
    decimal: Decimal = "auto"
    timezone: str = ""
    target: str = ""  # the variable to forecast; empty if the files leave no choice
    inputs: str = "all"  # further inputs to use: all, none, or their names
    place: str = field(default="", compare=False)
    refusals: Refusals | None = field(default=None, compare=False, repr=False)
    known: KnownSteps | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:  # a site.toml may hold anything
                raise ConfigError(self.key(name), f"cannot be {value!r}", choices)
        for name in ("target", "inputs"):
            if not isinstance(value := getattr(self, name), str):
                raise ConfigError(self.key(name), f"takes text, not {value!r}")
        _ = self.zone

    @property
    def zone(self) -> tzinfo | None:
        """The time zone of the timestamps; None if it is not known."""
        name: Any = self.timezone
        if name == "":
            return None
        if isinstance(name, str) and (match := OFFSET.fullmatch(name)) and int(match[2]) < 24:
            ahead = timedelta(hours=int(match[2]), minutes=int(match[3]))
            return timezone(-ahead if match[1] == "-" else ahead)
        try:
            return ZoneInfo(name)
        except Exception:  # zoneinfo raises different types for different invalid names
            problem = f"there is no time zone {name!r}: use a name like Europe/Paris or an offset like +01:00"
            raise ConfigError(self.key("timezone"), problem) from None

    def wants(self, name: str) -> bool:
        """Whether the further input of this name is to be used."""
        return self.inputs == "all" or name in self.wanted

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names that data.inputs lists; none for "all" and "none"."""
        if self.inputs in ("all", "none"):
            return ()
        return tuple(name.strip() for name in self.inputs.split(",") if name.strip())

    def key(self, name: str) -> str:
        """What an option is called where the user sets it."""
        return f"{self.place}: reading.{name}" if self.place else f"data.{name}"

    def hint(self, name: str, value: str) -> str:
        """How the user sets an option."""
        if self.place:
            return f'{name} = "{value}" under [reading] in {self.place}'
        return f"--set data.{name}={value}"
