"""How a field is declared: a setting, a key of a file that people write, or a number of a message.

A declaration is one field of a dataclass or a NamedTuple: its name, type, default and range, and one sentence
of help. Everything else is derived from it: reading files and `--set`, the checks, `cnfgnn settings`, the
numbers that travel with a verb, and what a site accepts from the wire.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from cnfgnn.errors import ConfigError

LARGEST = 2**63 - 1  # the largest whole number that fits into a message, a tensor or a seed
LIMITS = {
    "at_least": ("at least", operator.ge),
    "above": ("greater than", operator.gt),
    "at_most": ("at most", operator.le),
    "below": ("below", operator.lt),
}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What is declared of a field besides its name, type and default.

    help           one sentence for the person who sets it
    at_least       the smallest valid value; for a list, of each item
    above          all valid values are greater than this one
    at_most        the largest valid value; for a list, of each item
    below          all valid values are less than this one
    not_empty      an empty list is refused
    form           what a text must match
    says           the valid values in words, if type and range do not say it all
    parse          makes the value of what a file has, or of its texts; its ConfigError says what is wrong
    key            its name in files and messages, if that is another than the field's
    sent_to_nodes  the server sends the value to the nodes with `prepare`
    hidden         a study of the paper's deviations: valid everywhere, but listed only on request
    """

    help: str = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    not_empty: bool = False
    form: re.Pattern[str] | None = None
    says: str = ""
    parse: Callable[[Any], Any] | None = None
    key: str = ""
    sent_to_nodes: bool = False
    hidden: bool = False


def setting(default: T, help: str, **declared: Any) -> T:
    """Declare a field of a frozen dataclass: `rounds: int = setting(50, "...", at_least=1)`."""
    return dataclasses.field(default=default, metadata={"": Declaration(help=help, **declared)})


@dataclass(frozen=True, kw_only=True)
class Setting(Declaration):
    """A declared field: its key, dotted as in `--set training.rounds=3`, and the values that it takes."""

    name: str  # of the field
    kind: Any  # the field's type
    default: Any
    optional: bool  # whether it may be None
    several: bool  # whether its type is a dataclass or a NamedTuple, with fields of its own

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
    def can_be_set(self) -> bool:
        """Whether the type is one that a file of settings can hold."""
        if get_origin(self.kind) is tuple:
            items = set(get_args(self.kind)) - {Ellipsis}
            return not self.optional and items in ({int}, {float})
        words = bool(self.choices) and all(isinstance(word, str) for word in self.choices)
        return not self.optional and (words or self.kind in (int, float, bool, str))

    @property
    def range(self) -> str:
        """The valid values in words; empty if the type says it all."""
        if self.choices:
            return ", ".join(self.choices)
        if self.at_least is not None and self.at_most is not None and self.at_most < LARGEST:
            return f"{self.at_least} to {self.at_most}"
        return " and ".join(self._limits(None))

    def _limits(self, value: Any) -> list[str]:
        """The limits in words: those that a value exceeds, or all of them."""
        found = []
        for name, (words, holds) in LIMITS.items():
            limit = getattr(self, name)
            if limit is not None and (value is None or not holds(value, limit)):
                found.append("below 2^63" if limit == LARGEST else f"{words} {limit}")
        return found

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
        if self.kind in (str, bool):
            if not isinstance(value, self.kind):
                raise ConfigError(self.key, f"takes {self.type_name}, not {value!r}")
            return value
        return self._read_number(self.kind, value)

    def _read_list(self, value: Any) -> tuple[Any, ...]:
        kinds = get_args(self.kind)
        any_length = kinds[-1] is Ellipsis
        if any_length and is_number(value):
            value = [value]
        if not isinstance(value, list | tuple) or not all(is_number(item) for item in value):
            raise ConfigError(self.key, f"takes a list of numbers, not {value!r}")
        if not any_length and len(value) != len(kinds):
            raise ConfigError(self.key, f"takes {len(kinds)} numbers, not {len(value)}")
        return tuple(self._read_number(kinds[0], item) for item in value)

    def _read_number(self, kind: type, value: Any) -> int | float:
        if not is_number(value) or (kind is int and int(value) != value):
            raise ConfigError(self.key, f"takes a {'whole ' if kind is int else ''}number, not {value!r}")
        return int(value) if kind is int else float(value)

    def check(self, value: Any) -> None:
        """Refuse a value of the right type that is out of range."""
        if self.not_empty and not value:
            raise ConfigError(self.key, "needs at least one number")
        for item in value if isinstance(value, tuple) else [value]:
            if isinstance(item, float) and not math.isfinite(item):
                raise ConfigError(self.key, f"must be a finite number, not {item}")
            for limit in self._limits(item):
                raise ConfigError(self.key, f"must be {limit}, not {item}")

    def accepts(self, value: object) -> bool:
        """Whether a value that came over the network has the field's type and lies in its range.

        Stricter than `read`: true is not a number, 1.0 is not a whole number, and -1 is one only where that
        is declared. A text needs a declared form, and lists do not travel.
        """
        if self.kind is int:
            least = self.at_least or 0
            return type(value) is int and least <= value <= LARGEST and not self._limits(value)
        if self.kind is float:
            return is_number(value) and not self._limits(value)
        if self.kind is bool:
            return isinstance(value, bool)
        if self.kind is str:
            return self.form is not None and self._is_text(value)
        return isinstance(value, str) and value in self.choices

    def _is_text(self, value: object) -> bool:
        return isinstance(value, str) and (self.form is None or bool(self.form.fullmatch(value)))

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        words = self.type_name if self.kind is bool else f"a {self.type_name}"
        if self.range:
            words += f" from {self.range}" if " to " in self.range else f", {self.range}"
        return self.says or words

    def taken(self, value: Any, key: str) -> Any:
        """What a file has under this key, if it is exactly of the field's type and in its range."""
        if self.kind == tuple[str, ...]:
            if not isinstance(value, list) or not all(map(self._is_text, value)):
                raise ConfigError(key, f"it must be {self.expected}")
            value = tuple(value)
        if self.parse is not None:
            try:
                return self.parse(value)
            except ConfigError as error:
                part = error.key if error.key.startswith(".") else ""
                raise ConfigError(key + part, error.problem) from None
        if self.several:
            return value if isinstance(value, self.kind) else read_table(self.kind, value, key)
        if self.choices or (self.kind is str and not self.says):
            return dataclasses.replace(self, key=key).read(value)
        if isinstance(value, tuple):
            return value
        if not (self._is_text(value) if self.kind is str else self.accepts(value)):
            raise ConfigError(key, f"it must be {self.expected}")
        return self.kind(value)


def read_table(kind: Callable[..., T], table: Any, name: str = "", **known: Any) -> T:
    """An object with the values of a table that people write; ConfigError names the key and what is allowed.

    `known` are the fields that the table cannot have.
    """
    fields = {field.key: field for field in fields_of(kind) if field.name not in known}
    if not isinstance(table, dict):
        raise ConfigError(name, f"it must be a table, [{name}]", fields)
    prefix = f"{name}." if name else ""
    for key in table:
        if key not in fields:
            raise ConfigError(f"{prefix}{key}", "unknown key", fields)
    for key, field in fields.items():
        if key in table:
            known[field.name] = field.taken(table[key], f"{prefix}{key}")
        elif field.default is inspect.Parameter.empty:
            raise ConfigError(f"{prefix}{key}", "it is missing")
    return kind(**known)


@functools.cache
def fields_of(kind: Any) -> tuple[Setting, ...]:
    """The fields of a dataclass or a NamedTuple, in their order.

    What is declared of a field is in its default, which `setting` makes, or in its type:
    `Annotated[int, Declaration(at_least=1)]`, or the setting whose value it is instead of a declaration.
    """
    declared: dict[str, Any] = getattr(kind, "__dataclass_fields__", {})
    hints, found = get_type_hints(kind, include_extras=True), []
    for name, parameter in inspect.signature(kind).parameters.items():
        hint, about = hints[name], declared[name].metadata.get("") if name in declared else None
        optional = get_origin(hint) in (types.UnionType, Union)
        if optional:
            hint, _ = get_args(hint)  # X | None
        if get_origin(hint) is Annotated:
            hint, about = get_args(hint)
        about = about or Declaration()
        own = {"key": about.key.rpartition(".")[2] or name, "name": name, "kind": hint, "optional": optional}
        several = dataclasses.is_dataclass(hint) or hasattr(hint, "_fields")
        found.append(Setting(**vars(about) | own | {"several": several, "default": parameter.default}))
    return tuple(found)


def settings_of(section: Any, prefix: str = "") -> tuple[Setting, ...]:
    """The settings that a dataclass and the sections within it declare, in the order of their fields."""
    found: list[Setting] = []
    for field in fields_of(section):
        if field.several:
            found += settings_of(field.kind, f"{prefix}{field.key}.")
        elif field.help:
            found.append(dataclasses.replace(field, key=prefix + field.key))
    return tuple(found)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number that fits into a float; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 if isinstance(value, int) else math.isfinite(value)
