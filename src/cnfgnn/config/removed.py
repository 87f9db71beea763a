"""Settings of earlier versions that no longer exist, so that files written with them can still be read.

A run folder names every setting there was when it was written. One that is gone is accepted at the value that
the program now always uses, and refused at any other: the run would not be what its folder says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cnfgnn.errors import ConfigError


@dataclass(frozen=True)
class Removed:
    """The values that are still accepted, and what to do instead of setting another."""

    accepted: tuple[Any, ...]
    instead: str


REMOVED: Mapping[str, Removed] = {
    # Only a label: the sizes themselves are model.hidden and model.layers, which the same file names.
    "size": Removed(("63k", "727k"), "choose the size of a GRU baseline with --size"),
    "city.dropout": Removed((0.01,), "call cnfgnn.city(dropout=...) in Python"),
    "city.noise": Removed((1.0,), "call cnfgnn.city(noise=...) in Python"),
}


def is_removed(key: str) -> bool:
    """Whether a key named a setting in an earlier version."""
    return key in REMOVED


def fixed_value(key: str) -> Any:
    """The value that a former setting now has in every configuration."""
    return REMOVED[key].accepted[0]


def check_removed(key: str, value: Any) -> None:
    """Raise ConfigError unless the program behaves as this value of a former setting asked for."""
    removed = REMOVED[key]
    if isinstance(value, bool) or value not in removed.accepted:
        raise ConfigError(
            key,
            f"is no longer a setting, and {value!r} is not what it always is now: {removed.instead}",
            removed.accepted,
        )
