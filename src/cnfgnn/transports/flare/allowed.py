"""What each verb may carry, both ways: checked on the header, before an array is made.

A site knows how many nodes it has, and since `prepare` the model, the windows and the minibatches; from these
follow name, type and shape of everything that can come. The server knows what it asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from cnfgnn.config import MOST_UNITS
from cnfgnn.data.windows import SPLITS
from cnfgnn.models.params import shared
from cnfgnn.models.plus import model_told
from cnfgnn.transports.flare.header import MOST_HEADER, PREFIX, Declared, Malformed, Part

WHOLE, BYTE, DOUBLE = (frozenset({t}) for t in (torch.int64, torch.uint8, torch.float64))
FLOATS = frozenset({torch.float32, torch.float64})
STATES = FLOATS | {torch.bfloat16}  # h_c, h_G and their gradients
MOST_PARAMETERS = 1 << 31  # of all nodes of a site
MOST_LAYERS, MOST_STEPS, MOST_WINDOWS = 100, 1 << 16, 1 << 24
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # a site makes a file name of it

Rule = Callable[[Any], bool]
Shape = tuple[int, ...]
Wanted = dict[str, tuple[frozenset[torch.dtype], Sequence[Shape]]]
"""Tensor by name: the types and the shapes that it may have."""


class Refused(Malformed):
    """A well-formed message with something in it that its verb does not allow."""

    def __init__(self, verb: str, reason: str) -> None:
        super().__init__(f"{verb}: {reason}")
        self.verb, self.reason = verb, reason


class Array(Protocol):
    """A tensor, or what a header says of one."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def shape(self) -> Shape: ...


class Carried(Protocol):
    """A Call, or what a header says of one."""

    @property
    def verb(self) -> str: ...

    @property
    def numbers(self) -> Mapping[str, Any]: ...

    @property
    def tensors(self) -> Mapping[str, Array]: ...


@dataclass(frozen=True)
class Sizes:
    """What is known of a site with n nodes; all but n comes with `prepare`."""

    n: int
    prepared: bool = False
    hidden: int = 0  # of all layers: the width of h_c
    embedding: int = 0
    horizon: int = 0
    server_batch: int = 1
    windows: Mapping[str, int] = field(default_factory=dict)  # by split
    model: Mapping[str, Shape] = field(default_factory=dict)  # parameter -> its shape in one model

    def after(self, call: Carried) -> Sizes:
        """What is known once this call, which has been checked, is carried out."""
        if call.verb != "prepare":
            return self
        hidden, layers, sent = (call.numbers[name] for name in ("hidden", "layers", "sent"))
        with torch.device("meta"):  # shapes alone
            theta = model_told(call.numbers).init(torch.Generator())
        if self.n * sum(w.numel() for w in theta.values()) > MOST_PARAMETERS:
            raise Refused("prepare", "the model is too large")
        return replace(
            self,
            prepared=True,
            hidden=sent or hidden * layers,
            embedding=call.numbers["embedding"],
            horizon=call.numbers["horizon"],
            server_batch=call.numbers["server_batch"],
            windows={split: call.tensors[split].shape[1] for split in SPLITS},
            model={name: tuple(w.shape[1:]) for name, w in shared(theta).items()},
        )

    def drawn(self, numbers: Mapping[str, Any]) -> int:
        """Windows in the minibatch that a call names; the last of an epoch may be smaller."""
        first: int = numbers["number"] * self.server_batch
        return max(0, min(self.server_batch, self.windows["train"] - first))


# ---- numbers ------------------------------------------------------------------------------------------


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
_MISSING: dict[str, Rule] = {"missing": _one_of("as-truth", "masked")}
_PLAN: dict[str, Rule] = {"history": _whole(1, MOST_STEPS), "horizon": _whole(1, MOST_STEPS), "ahead": _flag}
_SPLIT: dict[str, Rule] = {"split": _one_of(*SPLITS)}
_SETTINGS: dict[str, Rule] = {
    "seed": _whole(0),
    "hidden": _whole(1, MOST_UNITS),
    "layers": _whole(1, MOST_LAYERS),
    "embedding": _whole(0, MOST_UNITS),
    "client_batch": _whole(1),
    "server_batch": _whole(1),
    "client_lr": _real(0),
    "keep_optimizer": _flag,
    "sampling": lambda value: _real()(value) and value >= 0,
    "keeping": _one_of("full", "bf16", "recomputed"),
    "wire": _one_of("full", "bf16"),
    "encoder": _one_of("gru", "perceptron"),
    "decoder": _one_of("autoregressive", "direct"),
    **dict.fromkeys(("change", "personal_head"), _flag),
    **dict.fromkeys(("calendar", "personal", "sent"), _whole(0, MOST_UNITS)),
    "loss": _one_of("square", "absolute"),
    "decay_rounds": _whole(0),
    "mean": _real(),
    "std": _real(0),
}
NUMBERS: dict[str, dict[str, Rule]] = {
    "census": _PLAN | _MISSING,
    "prepare": _PLAN | _MISSING | _SETTINGS,
    "load": {},
    "embed": {"judge": _flag},
    "update": {"r_g": _whole(0), "r_c": _whole(1), "step": _whole(0)},
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
MAY_DRAW = {"embed", "encode"}  # of one minibatch, or of all windows
AT_FIRST = {"census", "prepare"}  # before anything is known


def _check_numbers(call: Carried) -> None:
    if call.verb not in NUMBERS:
        raise Refused(call.verb, "there is no such verb")
    rules = NUMBERS[call.verb]
    if call.verb in MAY_DRAW and _DRAW.keys() & call.numbers.keys():
        rules = rules | _DRAW
    _check_names(call.verb, rules, call.numbers)
    for name, rule in rules.items():
        if not rule(call.numbers[name]):
            raise Refused(call.verb, f"{name} cannot be {call.numbers[name]!r:.60}")


def _check_names(verb: str, wanted: Mapping[str, object], found: Mapping[str, object]) -> None:
    for name in found:
        if name not in wanted:
            raise Refused(verb, f"it carries {name}, which does not belong there")
    for name in wanted:
        if name not in found:
            raise Refused(verb, f"{name} is missing")


# ---- tensors ------------------------------------------------------------------------------------------


def _down(call: Carried, known: Sizes) -> Wanted:
    """What comes to a site with this call."""
    n, verb = known.n, call.verb
    if verb in AT_FIRST:
        counts = {s: call.tensors[s].shape[-1] for s in SPLITS if s in call.tensors}
        return {s: (WHOLE, [(1, min(counts.get(s, 0), MOST_WINDOWS))]) for s in SPLITS}
    if verb == "load":
        m = next((array.shape[0] for array in call.tensors.values()), 1)
        return {
            name: (FLOATS, [(m, *shape)] if m in (1, n) else [(1, *shape), (n, *shape)])
            for name, shape in known.model.items()
        }
    if verb == "pull":
        anchors: Wanted = {f"anchor.{name}": (FLOATS, [(n, *shape)]) for name, shape in known.model.items()}
        return anchors | {"weight": (FLOATS, [(n,)])}
    if verb == "step":
        return {"grad_h_c": (STATES, [(n, known.drawn(call.numbers), known.hidden)])}
    if verb == "backward" or (verb == "embed" and "number" in call.numbers):
        return {"h_G": (STATES, [(n, known.drawn(call.numbers), known.embedding)])}
    if verb == "embed":
        splits = SPLITS if call.numbers["judge"] else SPLITS[:1]
        return {"h_G": (STATES, [(n, known.windows[split], known.embedding) for split in splits])}
    return {}


def _up(call: Carried, known: Sizes) -> Wanted:
    """What a site must answer to this call."""
    n, verb = known.n, call.verb
    if verb == "census":
        has: Wanted = {f"has.{s}": (BYTE, [(n, call.tensors[s].shape[1])]) for s in SPLITS}
        return has | {"moments": (DOUBLE, [(n, 3)])}
    if verb == "weights":
        return {name: (FLOATS, [(n, *shape)]) for name, shape in known.model.items()}
    if verb == "encode":
        drawn = "number" in call.numbers
        width = known.drawn(call.numbers) if drawn else known.windows[call.numbers["split"]]
        return {"h_c": (STATES, [(n, width, known.hidden)])}
    if verb == "backward":
        return {"grad_h_G": (STATES, [tuple(call.tensors["h_G"].shape)])}
    if verb == "score":
        return {"sums": (DOUBLE, [(n, known.horizon, 8)])}
    return {}


def _check_tensors(verb: str, wanted: Wanted, found: Mapping[str, Array]) -> None:
    _check_names(verb, wanted, found)
    for name, (dtypes, shapes) in wanted.items():
        array = found[name]
        if array.dtype not in dtypes:
            raise Refused(verb, f"{name} cannot be of {str(array.dtype).removeprefix('torch.')}")
        if tuple(array.shape) not in shapes:
            expected = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
            raise Refused(verb, f"{name} has the shape {tuple(array.shape)} where {expected} belongs")


# ---- the two checks -----------------------------------------------------------------------------------


def check_calls(calls: Sequence[Carried], known: Sizes) -> Sizes:
    """Refuse what may not come to a site; says what is known once the calls are carried out."""
    for call in calls:
        _check_numbers(call)
        if not known.prepared and call.verb not in AT_FIRST:
            raise Refused(call.verb, "the site has not been prepared")
        if "number" in call.numbers and not known.drawn(call.numbers):
            raise Refused(call.verb, f"there is no minibatch {call.numbers['number']}")
        _check_tensors(call.verb, _down(call, known), call.tensors)
        known = known.after(call)
    return known


def check_answers(answers: Sequence[Part], calls: Sequence[Carried], known: Sizes) -> None:
    """Refuse what does not answer these calls, of which the site had to know `known` beforehand."""
    if len(answers) > len(calls):
        raise Refused(calls[-1].verb, f"{len(answers)} answers came to {len(calls)} calls")
    for answer, call in zip(answers, calls, strict=False):
        if answer.problem is not None:
            return  # of whichever verb: a site that refuses a message says so at once
        if answer.verb != call.verb:
            raise Refused(call.verb, f"the answer is to {answer.verb}")
        known = known.after(call)
        _check_tensors(call.verb, _up(call, known), answer.tensors)
    if len(answers) < len(calls):
        raise Refused(calls[len(answers)].verb, "there is no answer")


def largest_answer(calls: Sequence[Carried], known: Sizes) -> int:
    """Bytes that the answers to these calls take at most: nobody needs to receive more."""
    total = PREFIX.size + MOST_HEADER
    for call in calls:
        known = known.after(call)
        for dtypes, shapes in _up(call, known).values():
            total += max(Declared(dtype, shape).room for dtype in dtypes for shape in shapes)
    return total
