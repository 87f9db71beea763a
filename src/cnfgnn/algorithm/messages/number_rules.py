"""Which numbers a verb carries, and which values they may have: read off the types of a request's fields.

    step: int                            a whole number from 0 on
    std: float                           any finite number
    learn: bool                          true or false; 1 is neither
    split: Split                         one of the words of a Literal
    r_c: Annotated[int, Declaration()]   a number, or a text, as declared
    draw: Draw                           the numbers of a NamedTuple or dataclass, each under its own name
    draw: Draw | None                    all of these numbers, or none of them

The values come from another machine. They are checked here, at the edge, so that the code behind can trust
the types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from cnfgnn.algorithm.messages.calls import Number
from cnfgnn.config.declarations import Setting, fields_of

T = TypeVar("T")

TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # a site uses it as a file name
MOST_TAGS = 8  # of saved states to keep: a server cannot fill the disk of a site with them
TAGS = re.compile(rf"({TAG.pattern}( {TAG.pattern}){{0,{MOST_TAGS - 1}}})?")


class InvalidCall(ValueError):
    """A call carries something that its verb does not allow."""


def write_numbers(request: Any) -> dict[str, Number]:
    """What a request carries, by name."""
    numbers: dict[str, Number] = {}
    for field in _fields(request.__class__):
        value = getattr(request, field.name)
        if value is not None:
            numbers |= write_numbers(value) if field.several else {field.key: value}
    return numbers


def read_numbers(request: type[T], numbers: Mapping[str, Number]) -> T:
    """The request that carries these numbers; InvalidCall if one is missing, unknown or out of range."""
    expected = number_fields(request, numbers)
    check_names(expected, numbers)
    for name, field in expected.items():
        if not field.accepts(numbers[name]):
            raise InvalidCall(f"{name} cannot be {numbers[name]!r:.60}")
    made: T = _made(request, numbers)
    return made


def number_fields(request: type, numbers: Mapping[str, object] | None = None) -> dict[str, Setting]:
    """The fields of all numbers that a request may carry, by name, or only of those that go with these."""
    found: dict[str, Setting] = {}
    for field in _fields(request):
        if not field.several:
            found[field.key] = field
        elif numbers is None or _is_in(field, numbers):
            found |= number_fields(field.kind, numbers)
    return found


def _made(kind: Any, numbers: Mapping[str, Number]) -> Any:
    values: dict[str, Any] = {}
    for field in _fields(kind):
        if not field.several:
            values[field.name] = numbers[field.key]
        elif _is_in(field, numbers):
            values[field.name] = _made(field.kind, numbers)
    return kind(**values)


@cache
def _fields(kind: Any) -> tuple[Setting, ...]:
    """The fields that travel: of settings, those that are sent to nodes."""
    return tuple(field for field in fields_of(kind) if field.sent_to_nodes or not field.help)


def _is_in(field: Setting, numbers: Mapping[str, object]) -> bool:
    return not field.optional or bool(number_fields(field.kind).keys() & numbers.keys())


def check_names(expected: Mapping[str, object], found: Mapping[str, object]) -> None:
    """Everything that is expected is there, and nothing else."""
    for name in found:
        if name not in expected:
            raise InvalidCall(f"it carries {name}, which this verb does not have")
    for name in expected:
        if name not in found:
            raise InvalidCall(f"{name} is missing")
