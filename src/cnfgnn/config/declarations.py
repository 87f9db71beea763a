"""How a setting is declared, and what follows from its declaration.

A declaration is one dataclass field: its name, type, default and range, one sentence of help, and whether
the server sends it to the nodes. Everything else is derived from it: reading files and `--set`, the checks,
`cnfgnn settings`, the numbers that travel with `prepare`, and what a site accepts from the wire.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from cnfgnn.errors import ConfigError

LARGEST = 2**63 - 1  # the largest whole number that fits into a message, a tensor or a seed
T = TypeVar("T")


@dataclass(frozen=True)
class Declaration:
    """What `setting` records about a field besides its name, type and default."""

    help: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    not_empty: bool = False
    sent_to_nodes: bool = False
    hidden: bool = False


def setting(
    default: T,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    not_empty: bool = False,
    sent_to_nodes: bool = False,
    hidden: bool = False,
) -> T:
    """Declare a setting as a field of a frozen dataclass: `rounds: int = setting(50, "...", at_least=1)`.

    Args:
        default: The value of a configuration in which nobody has set another.
        help: One sentence for the person who sets it.
        at_least: The smallest valid value; for a list, of each item.
        above: All valid values are greater than this one.
        at_most: The largest valid value; for a list, of each item.
        not_empty: Refuse an empty list.
        sent_to_nodes: The server sends the value to the nodes with `prepare`.
        hidden: A study of the paper's deviations: valid everywhere, but listed only on request.
    """
    declaration = Declaration(help, at_least, above, at_most, not_empty, sent_to_nodes, hidden)
    return dataclasses.field(default=default, metadata={"declaration": declaration})


@dataclass(frozen=True)
class Setting:
    """A declared setting: its key in the configuration, and the values that it takes."""

    key: str  # dotted, as in `--set training.rounds=3`
    name: str  # without its section
    kind: Any  # the field's type
    default: Any
    declaration: Declaration

    @property
    def help(self) -> str:
        """One sentence that says what the setting does."""
        return self.declaration.help

    @property
    def sent_to_nodes(self) -> bool:
        """Whether the server sends the value to the nodes."""
        return self.declaration.sent_to_nodes

    @property
    def hidden(self) -> bool:
        """Whether it is listed only on request."""
        return self.declaration.hidden

    @property
    def choices(self) -> tuple[str, ...]:
        """The valid words, if the setting takes one of a few."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def type_name(self) -> str:
        """The type in words."""
        if get_origin(self.kind) is tuple:
            items = get_args(self.kind)
            number = "whole numbers" if items[0] is int else "numbers"
            return f"list of {number}" if items[-1] is Ellipsis else f"list of {len(items)} {number}"
        if self.choices:
            return "one of a few words"
        names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
        return names[self.kind]

    @property
    def range(self) -> str:
        """The valid values in words; empty if the type says it all."""
        if self.choices:
            return ", ".join(self.choices)
        least, most = self.declaration.at_least, self.declaration.at_most
        if least is not None and most is not None and most < LARGEST:
            return f"{least} to {most}"
        return " and ".join(limit.text for limit in self._limits)

    @property
    def _limits(self) -> list[Limit]:
        declared, limits = self.declaration, []
        if (least := declared.at_least) is not None:
            limits.append(Limit(f"at least {least}", lambda value: value >= least))
        if (above := declared.above) is not None:
            limits.append(Limit(f"greater than {above}", lambda value: value > above))
        if (most := declared.at_most) is not None:
            text = "below 2^63" if most == LARGEST else f"at most {most}"
            limits.append(Limit(text, lambda value: value <= most))
        return limits

    def read(self, value: Any) -> Any:
        """A value from a file or `--set` as the setting's type.

        A whole number may stand for a float and a single number for a list; nothing else is converted.
        """
        if get_origin(self.kind) is tuple:
            return self._read_list(value)
        if self.choices:
            if value not in self.choices:
                raise ConfigError(self.key, f"cannot be {value!r}", self.choices)
            return value
        if self.kind is str:
            if not isinstance(value, str):
                raise ConfigError(self.key, f"takes text, not {value!r}")
            return value
        if self.kind is bool:
            if not isinstance(value, bool):
                raise ConfigError(self.key, f"takes true or false, not {value!r}")
            return value
        return self._read_number(self.kind, value)

    def _read_list(self, value: Any) -> tuple[Any, ...]:
        kinds = get_args(self.kind)
        any_length = kinds[-1] is Ellipsis
        if any_length and _is_number(value):
            value = [value]
        if not isinstance(value, list | tuple) or not all(_is_number(item) for item in value):
            raise ConfigError(self.key, f"takes a list of numbers, not {value!r}")
        if not any_length and len(value) != len(kinds):
            raise ConfigError(self.key, f"takes {len(kinds)} numbers, not {len(value)}")
        return tuple(self._read_number(kinds[0], item) for item in value)

    def _read_number(self, kind: type, value: Any) -> int | float:
        if kind is int:
            if not _is_number(value) or int(value) != value:
                raise ConfigError(self.key, f"takes a whole number, not {value!r}")
            return int(value)
        if not _is_number(value):
            raise ConfigError(self.key, f"takes a number, not {value!r}")
        return float(value)

    def check(self, value: Any) -> None:
        """Refuse a value of the right type that is out of range."""
        if self.declaration.not_empty and not value:
            raise ConfigError(self.key, "needs at least one number")
        for item in value if isinstance(value, tuple) else [value]:
            if isinstance(item, float) and not math.isfinite(item):
                raise ConfigError(self.key, f"must be a finite number, not {item}")
            for limit in self._limits:
                if not limit.holds(item):
                    raise ConfigError(self.key, f"must be {limit.text}, not {item}")

    def accepts(self, value: object) -> bool:
        """Whether a value that came over the network has the setting's type and lies in its range.

        Stricter than `read`: true is not a number, 1.0 is not a whole number, and lists do not travel.
        """
        if self.choices:
            return isinstance(value, str) and value in self.choices
        if self.kind is bool:
            return isinstance(value, bool)
        if self.kind is int:
            return type(value) is int and abs(value) <= LARGEST and self._in_range(value)
        if self.kind is float:
            return _is_number(value) and self._in_range(value)
        return False

    def _in_range(self, value: object) -> bool:
        return all(limit.holds(value) for limit in self._limits)


@dataclass(frozen=True)
class Limit:
    """One end of a range: in words, and as a test of a number."""

    text: str
    holds: Callable[[Any], bool]


@functools.cache
def settings_of(section: type, prefix: str = "") -> tuple[Setting, ...]:
    """The settings that a dataclass and the sections within it declare, in the order of their fields."""
    kinds = get_type_hints(section)
    found: list[Setting] = []
    for field in dataclasses.fields(section):
        kind = kinds[field.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            found += settings_of(kind, f"{prefix}{field.name}.")
        elif "declaration" in field.metadata:
            key, declaration = prefix + field.name, field.metadata["declaration"]
            found.append(Setting(key, field.name, kind, field.default, declaration))
    return tuple(found)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)
