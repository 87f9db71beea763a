"""Which numbers a verb carries, and which values they may have: read off the types of a request's fields.

    step: int                     a whole number from 0 on
    std: float                    any finite number
    learn: bool                   true or false; 1 is neither
    split: Split                  one of the words of a Literal
    r_c: Annotated[int, RULE]     whatever the rule allows
    draw: Draw                    the numbers of a NamedTuple, each under its own name
    draw: Draw | None             all of these numbers, or none of them

The values come from another machine. They are checked here, at the edge, so that the code behind can trust
the types.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, get_args, get_origin, get_type_hints

from cnfgnn.algorithm.messages.calls import Number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Rule = Callable[[object], bool]
Request = TypeVar("Request", bound="DataclassInstance")

LARGEST = 2**63 - 1
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # a site uses it as a file name
MOST_TAGS = 8  # of saved states to keep: a server cannot fill the disk of a site with them


class InvalidCall(ValueError):
    """A call carries something that its verb does not allow."""


# ---- rules ----------------------------------------------------------------------------------------------


def whole(least: int, most: int = LARGEST) -> Rule:
    return lambda value: type(value) is int and least <= value <= most


def real(above: float = -math.inf) -> Rule:
    def holds(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return math.isfinite(value) and value > above

    return holds


def one_of(*choices: str) -> Rule:
    return lambda value: isinstance(value, str) and value in choices


def flag(value: object) -> bool:
    return isinstance(value, bool)


def tag(value: object) -> bool:
    return isinstance(value, str) and TAG.fullmatch(value) is not None


def tags(value: object) -> bool:
    """Up to `MOST_TAGS` tags, with spaces between them."""
    if not isinstance(value, str):
        return False
    words = value.split()
    return len(words) <= MOST_TAGS and all(tag(word) for word in words)


# ---- fields ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Several numbers that are one value in Python: the rule of each, and how to read and write them."""

    rules: Mapping[str, Rule]
    read: Callable[[Mapping[str, Number]], object]
    write: Callable[..., Mapping[str, Number]]


@dataclass(frozen=True)
class NumberField:
    """A field of a request, and the numbers that it travels as."""

    name: str
    numbers: Group
    optional: bool = False

    def is_in(self, numbers: Mapping[str, object]) -> bool:
        return not self.optional or bool(self.numbers.rules.keys() & numbers.keys())


@cache
def number_fields(request: type[DataclassInstance]) -> tuple[NumberField, ...]:
    """The fields of a request, in their order."""
    hints = get_type_hints(request, include_extras=True)
    return tuple(_field(field.name, hints[field.name]) for field in fields(request))


def _field(name: str, hint: object) -> NumberField:
    optional = get_origin(hint) is types.UnionType
    if optional:
        hint, _ = get_args(hint)  # X | None
    if isinstance(hint, type) and issubclass(hint, tuple):
        return NumberField(name, _named_tuple(hint), optional)
    if get_origin(hint) is Annotated and isinstance(get_args(hint)[1], Group):
        return NumberField(name, get_args(hint)[1], optional)
    alone = Group({name: _rule(hint)}, lambda numbers: numbers[name], lambda value: {name: value})
    return NumberField(name, alone, optional)


def _named_tuple(made: type[tuple[object, ...]]) -> Group:
    hints = get_type_hints(made, include_extras=True)
    rules = {name: _rule(hint) for name, hint in hints.items()}
    make: Callable[..., object] = made
    return Group(rules, lambda numbers: make(**numbers), lambda value: dict(zip(rules, value, strict=True)))


def _rule(hint: object) -> Rule:
    if get_origin(hint) is Annotated:
        rule: Rule = get_args(hint)[1]
        return rule
    if get_origin(hint) is Literal:
        return one_of(*get_args(hint))
    if hint is bool:
        return flag
    if hint is int:
        return whole(0)
    if hint is float:
        return real()
    raise TypeError(f"no rule for numbers of type {hint}")


# ---- requests to numbers and back -----------------------------------------------------------------------


def write_numbers(request: DataclassInstance) -> dict[str, Number]:
    """What a request carries, by name."""
    numbers: dict[str, Number] = {}
    for field in number_fields(type(request)):
        value = vars(request)[field.name]
        if value is not None:
            numbers |= field.numbers.write(value)
    return numbers


def read_numbers(request: type[Request], numbers: Mapping[str, Number]) -> Request:
    """The request that carries these numbers; InvalidCall if one is missing, unknown or out of range."""
    carried = [field for field in number_fields(request) if field.is_in(numbers)]
    rules: dict[str, Rule] = {}
    for field in carried:
        rules |= field.numbers.rules
    check_names(rules, numbers)
    for name, rule in rules.items():
        if not rule(numbers[name]):
            raise InvalidCall(f"{name} cannot be {numbers[name]!r:.60}")
    values = {
        field.name: field.numbers.read({name: numbers[name] for name in field.numbers.rules})
        for field in carried
    }
    make: Callable[..., Request] = request
    return make(**values)


def check_names(expected: Mapping[str, object], found: Mapping[str, object]) -> None:
    """Everything that is expected is there, and nothing else."""
    for name in found:
        if name not in expected:
            raise InvalidCall(f"it carries {name}, which this verb does not have")
    for name in expected:
        if name not in found:
            raise InvalidCall(f"{name} is missing")
