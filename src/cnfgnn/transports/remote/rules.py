"""Which numbers each verb carries, and what they may be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, get_args

from cnfgnn.algorithm.settings import NODE_SETTING_RULES
from cnfgnn.config.settings import Missing
from cnfgnn.data.windows import SPLITS

MOST_STEPS = 1 << 16
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # a site makes a file name of it

Rule = Callable[[Any], bool]


def _whole(least: int, most: int = 2**63 - 1) -> Rule:
    return lambda value: type(value) is int and least <= value <= most


def _real(above: float | None = None) -> Rule:
    def holds(value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isfinite(value) and (above is None or value > above)

    return holds


def _one_of(*choices: str) -> Rule:
    return lambda value: value in choices and isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _tag(value: Any) -> bool:
    return isinstance(value, str) and TAG.fullmatch(value) is not None


def _tags(value: Any) -> bool:
    return isinstance(value, str) and all(map(_tag, value.split()))


_DRAW: dict[str, Rule] = {"r_g": _whole(0), "epoch": _whole(0), "number": _whole(0)}
_MISSING: dict[str, Rule] = {"missing": _one_of(*get_args(Missing))}
_PLAN: dict[str, Rule] = {"history": _whole(1, MOST_STEPS), "horizon": _whole(1, MOST_STEPS), "ahead": _flag}
_SPLIT: dict[str, Rule] = {"split": _one_of(*SPLITS)}
_SETTINGS: dict[str, Rule] = {
    **NODE_SETTING_RULES,
    "mean": _real(),
    "std": _real(0),
}
NUMBERS: dict[str, dict[str, Rule]] = {
    "census": _PLAN | _MISSING,
    "prepare": _PLAN | _MISSING | _SETTINGS,
    "load": {},
    "embed": {"judge": _flag},
    "update": {"r_g": _whole(0), "r_c": _whole(1), "step": _whole(0)},  # and which part, or all
    "step": _DRAW,
    "pull": {},
    "forecast": {},
    "save": {"tag": _tag, "keep": _tags},
    "restore": {"tag": _tag},
    "weights": {},
    "encode": _SPLIT,
    "backward": _DRAW | {"step": _whole(0), "learn": _flag},
    "score": _SPLIT,
}
_PART: dict[str, Rule] = {"first": _whole(0), "until": _whole(1)}
OF_A_PART = {"embed": _DRAW, "encode": _DRAW, "update": _PART}  # of one minibatch or some, or of all windows
AT_FIRST = {"census", "prepare"}  # before anything is known
