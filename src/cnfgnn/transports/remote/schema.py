"""What each verb may carry, both ways: checked on the header, before an array is made.

A site knows how many nodes it has, and since `prepare` the model, the windows and the minibatches; from these
follow name, type and shape of everything that can come. The server knows what it asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from cnfgnn.algorithm.quantize import SCALE
from cnfgnn.algorithm.settings import NodeSettings, model_from_numbers
from cnfgnn.config.settings import Wire
from cnfgnn.data.windows import SPLITS
from cnfgnn.models.params import shared
from cnfgnn.transports.remote.header import MOST_HEADER, PREFIX, Declared, Malformed, Part
from cnfgnn.transports.remote.rules import AT_FIRST, NUMBERS, OF_A_PART

WHOLE, BYTE, DOUBLE = (frozenset({t}) for t in (torch.int64, torch.uint8, torch.float64))
FLOATS = frozenset({torch.float32, torch.float64})
SHORT = frozenset({torch.bfloat16})
STEPS, SCALES = frozenset({torch.int8}), frozenset({torch.float32})  # how a number travels in one byte
MOST_PARAMETERS = 1 << 31  # of all nodes of a site
MOST_WINDOWS = 1 << 24

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
    client_batch: int = 1
    server_batch: int = 1
    wire: Wire = "full"
    windows: Mapping[str, int] = field(default_factory=dict)  # by split
    model: Mapping[str, Shape] = field(default_factory=dict)  # parameter -> its shape in one model

    def after(self, call: Carried) -> Sizes:
        """What is known once this call, which has been checked, is carried out."""
        if call.verb != "prepare":
            return self
        model = NodeSettings.from_numbers(call.numbers).model
        with torch.device("meta"):  # shapes alone
            theta = model_from_numbers(call.numbers).init(torch.Generator())
        if self.n * sum(w.numel() for w in theta.values()) > MOST_PARAMETERS:
            raise Refused("prepare", "the model is too large")
        return replace(
            self,
            prepared=True,
            hidden=model.sent_width,
            embedding=model.embedding,
            horizon=call.numbers["horizon"],
            client_batch=call.numbers["client_batch"],
            server_batch=call.numbers["server_batch"],
            wire=call.numbers["wire"],
            windows={split: call.tensors[split].shape[1] for split in SPLITS},
            model={name: tuple(w.shape[1:]) for name, w in shared(theta).items()},
        )

    def states(self, name: str, shapes: Sequence[Shape]) -> Wanted:
        """Hidden states or their gradients, the way that was agreed on."""
        if self.wire != "int8":
            full = FLOATS | SHORT  # short also where they are kept so
            return {name: (full if self.wire == "full" else SHORT, shapes)}
        return {name: (STEPS, shapes), name + SCALE: (SCALES, [(self.n,)])}

    @property
    def weights(self) -> frozenset[torch.dtype]:
        """The types that weights may have."""
        return FLOATS if self.wire == "full" else SHORT

    def drawn(self, numbers: Mapping[str, Any]) -> int:
        """Windows in the minibatch that a call names; the last of an epoch may be smaller."""
        first: int = numbers["number"] * self.server_batch
        return max(0, min(self.server_batch, self.windows["train"] - first))


# ---- numbers ------------------------------------------------------------------------------------------


def _check_numbers(call: Carried) -> None:
    if call.verb not in NUMBERS:
        raise Refused(call.verb, "there is no such verb")
    rules = NUMBERS[call.verb]
    part = OF_A_PART.get(call.verb, {})
    if part.keys() & call.numbers.keys():
        rules = rules | part
    _check_names(call.verb, rules, call.numbers)
    for name, rule in rules.items():
        if not rule(call.numbers[name]):
            raise Refused(call.verb, f"{name} cannot be {call.numbers[name]!r:.60}")
    if "until" in rules and call.numbers["first"] >= call.numbers["until"]:
        raise Refused(call.verb, f"first cannot be {call.numbers['first']}, which is not before until")


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
            name: (known.weights, [(m, *shape)] if m in (1, n) else [(1, *shape), (n, *shape)])
            for name, shape in known.model.items()
        }
    if verb == "pull":
        anchors: Wanted = {f"anchor.{name}": (FLOATS, [(n, *shape)]) for name, shape in known.model.items()}
        return anchors | {"weight": (FLOATS, [(n,)])}
    if verb == "step":
        return known.states("grad_h_c", [(n, known.drawn(call.numbers), known.hidden)])
    if verb == "backward" or (verb == "embed" and "number" in call.numbers):
        return known.states("h_G", [(n, known.drawn(call.numbers), known.embedding)])
    if verb == "embed":
        splits = SPLITS if call.numbers["judge"] else SPLITS[:1]
        return known.states("h_G", [(n, known.windows[split], known.embedding) for split in splits])
    return {}


def _up(call: Carried, known: Sizes) -> Wanted:
    """What a site must answer to this call."""
    n, verb = known.n, call.verb
    if verb == "census":
        has: Wanted = {f"has.{s}": (BYTE, [(n, call.tensors[s].shape[1])]) for s in SPLITS}
        return has | {"moments": (DOUBLE, [(n, 3)])}
    if verb == "weights":
        return {name: (known.weights, [(n, *shape)]) for name, shape in known.model.items()}
    if verb == "encode":
        drawn = "number" in call.numbers
        width = known.drawn(call.numbers) if drawn else known.windows[call.numbers["split"]]
        return known.states("h_c", [(n, width, known.hidden)])
    if verb == "backward":
        return known.states("grad_h_G", [tuple(call.tensors["h_G"].shape)])
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
