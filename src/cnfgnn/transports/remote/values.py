"""Checks the values in arrays of the right type and shape: finite, countable and of a plausible size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.quantize import SCALE, STEPS
from cnfgnn.algorithm.messages.verbs import Census, Prepare
from cnfgnn.data.windows import SPLITS
from cnfgnn.transports.remote.schema import Refused

TOO_LARGE = 100.0  # times the norm of weights known to be good: no round of training changes them that much


def check_outgoing(calls: Sequence[Call]) -> None:
    """At the server: reject non-finite outgoing tensors.

    Every site would refuse them, or answer with such values, and the server would wait forever.
    """
    for call in calls:
        for name, tensor in call.tensors.items():
            if tensor.is_floating_point() and not _finite(tensor):
                raise FloatingPointError(f"{call.verb}: {name} has a value that is not a finite number")


def check_call_values(calls: Sequence[Call]) -> None:
    """At a site: start rows of windows ascend from 0, since a negative one would index from the end; numbers
    in int8 have a valid scale."""
    for call in calls:
        _check_scales(call.verb, call.tensors)
        if call.verb in (Census.name, Prepare.name):
            for split in SPLITS:
                starts = call.tensors[split][0]
                if len(starts) and (starts[0] < 0 or not (starts[1:] > starts[:-1]).all()):
                    raise Refused(call.verb, f"the {split} windows are not in order")


def check_values(verb: str, tensors: Mapping[str, Tensor]) -> None:
    """At the server: all values of an answer are finite, and the counts of a census are counts."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not _finite(tensor):
            raise Refused(verb, f"{name} has a value that is not a finite number")
    _check_scales(verb, tensors)
    for name in [name for name in tensors if name.split(".")[0] == "has"]:
        if tensors[name].numel() and tensors[name].max() > 1:
            raise Refused(verb, f"{name} has a value that is neither 0 nor 1")
    if verb == Census.name and tensors:
        _check_census(tensors)


def _finite(tensor: Tensor) -> bool:
    if tensor.numel() == 0:
        return True
    ends = torch.stack(torch.aminmax(tensor))  # both are NaN if any value is; allocates no second array
    return bool(ends.isfinite().all())


def _check_scales(verb: str, tensors: Mapping[str, Tensor]) -> None:
    """Arrays in int8 are as large as their scale makes them, so it is the scale that has to be checked."""
    for name in [name for name in tensors if name.endswith(SCALE)]:
        scale, steps = tensors[name], tensors[name.removesuffix(SCALE)]
        if not ((scale >= 0) & (scale * STEPS).isfinite()).all():  # NaN fails both
            raise Refused(verb, f"{name} has a value that is not a valid scale")
        if steps.numel() and steps.min() < -STEPS:
            raise Refused(verb, f"{name.removesuffix(SCALE)} has a value below -{STEPS}")


def _check_census(tensors: Mapping[str, Tensor]) -> None:
    count, total, squares = tensors["moments"].unbind(1)
    if (count < 0).any() or (count != count.round()).any():
        raise Refused(Census.name, "the reading count must be a non-negative integer")
    if (squares < 0).any() or (total.square() > count * squares * (1 + 1e-6)).any():  # Cauchy-Schwarz
        raise Refused(Census.name, "no readings can have these sums")


def norm(theta: Mapping[str, Tensor]) -> float:
    """The largest norm of one model's weights among these: (m, ...)."""
    return float(norms(theta).max()) if theta else 0.0


def norms(theta: Mapping[str, Tensor]) -> Tensor:
    """The norm of each model's weights: (m, ...) -> (m,)."""
    parts = [torch.linalg.vector_norm(w.flatten(1), dim=1, dtype=torch.float64) for w in theta.values()]
    return torch.stack(parts).square().sum(0).sqrt()


def too_large(norms: Mapping[str, float], known: float | None = None) -> dict[str, str]:
    """Sites whose weights are implausibly large, each with a reason; `norms` has the largest of each site.

    They are compared with `known`, the norm of weights known to be good: those of the last average, or those
    drawn from the seed. Without it they are compared with the median site, which takes at least three: of two
    sites, either may be the wrong one.
    """
    if known is None and len(norms) > 2:
        known = statistics.median(norms.values())
    if known is None:
        return {}
    return {
        site: f"its weights are {size / known if known else math.inf:.3g} times as large as they should be"
        for site, size in norms.items()
        if not size <= TOO_LARGE * known
    }
