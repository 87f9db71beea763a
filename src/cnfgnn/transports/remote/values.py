"""What numbers may be in arrays of the right shape: finite, countable, and of a size one can believe."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call
from cnfgnn.algorithm.quantize import SCALE, STEPS
from cnfgnn.data.windows import SPLITS
from cnfgnn.transports.remote.codec import Answer
from cnfgnn.transports.remote.rules import AT_FIRST
from cnfgnn.transports.remote.schema import Refused

TOO_LARGE = 100.0  # times the weights that a site is compared with: no training does that in a round


def check_own(calls: Sequence[Call]) -> None:
    """At the server: what it says itself is numbers. Every site would refuse it, or answer with none, and it
    would wait for them for ever."""
    for call in calls:
        for name, tensor in call.tensors.items():
            if tensor.is_floating_point() and not _finite(tensor):
                raise FloatingPointError(f"{call.verb}: {name} has a value that is not a finite number")


def check_call_values(calls: Sequence[Call]) -> None:
    """At a site: windows are start rows in ascending order; a negative one would count from the end. Steps
    have a scale."""
    for call in calls:
        _check_scales(call.verb, call.tensors)
        if call.verb in AT_FIRST:
            for split in SPLITS:
                starts = call.tensors[split][0]
                if len(starts) and (starts[0] < 0 or not (starts[1:] > starts[:-1]).all()):
                    raise Refused(call.verb, f"the {split} windows are not in order")


def check_values(answers: Sequence[Answer]) -> None:
    """At the server: every number is one, and a census counts."""
    for answer in answers:
        for name, tensor in answer.tensors.items():
            if tensor.is_floating_point() and not _finite(tensor):
                raise Refused(answer.verb, f"{name} has a value that is not a finite number")
        _check_scales(answer.verb, answer.tensors)
        if answer.verb == "census" and answer.problem is None:
            _check_census(answer.tensors)


def _finite(tensor: Tensor) -> bool:
    if tensor.numel() == 0:
        return True
    ends = torch.stack(torch.aminmax(tensor))  # NaN is both; no second array is made
    return bool(ends.isfinite().all())


def _check_scales(verb: str, tensors: Mapping[str, Tensor]) -> None:
    """What travels in one byte is as large again as its scale says: that is where to look for nonsense."""
    for name, scale in tensors.items():
        if not name.endswith(SCALE):
            continue
        steps = tensors[name.removesuffix(SCALE)]
        if not ((scale >= 0) & (scale * STEPS).isfinite()).all():  # NaN is neither
            raise Refused(verb, f"{name} has a value that is no scale")
        if steps.numel() and steps.min() < -STEPS:
            raise Refused(verb, f"{name.removesuffix(SCALE)} has more steps than its scale")


def _check_census(tensors: Mapping[str, Tensor]) -> None:
    for split in SPLITS:
        has = tensors[f"has.{split}"]
        if has.numel() and has.max() > 1:
            raise Refused("census", f"has.{split} has a value that is neither 0 nor 1")
    count, total, squares = tensors["moments"].unbind(1)
    if (count < 0).any() or (count != count.round()).any():
        raise Refused("census", "a node counts its readings in parts")
    if (squares < 0).any() or (total.square() > count * squares * (1 + 1e-6)).any():  # Cauchy and Schwarz
        raise Refused("census", "the moments are those of no readings")


def norm(theta: Mapping[str, Tensor]) -> float:
    """The largest norm of one model's weights among these: (m, ...)."""
    parts = [torch.linalg.vector_norm(w.flatten(1), dim=1, dtype=torch.float64) for w in theta.values()]
    return float(torch.stack(parts).square().sum(0).sqrt().max()) if parts else 0.0


def too_large(
    weights: Mapping[str, Mapping[str, Tensor]], known: float | None = None, most: float = TOO_LARGE
) -> dict[str, str]:
    """Sites whose `weights` nobody can believe, and why; `weights` holds each site's answer.

    They are compared with `known`, the norm of weights known to be good: the last average, or the seed's own.
    Without it with the median site, which takes three: of two, either may be the one to believe.
    """
    norms = {site: norm(theta) for site, theta in weights.items() if theta}
    if known is None and len(norms) > 2:
        known = statistics.median(norms.values())
    if known is None:
        return {}
    return {
        site: f"its weights are {size / known if known else math.inf:.3g} times as large as they should be"
        for site, size in norms.items()
        if not size <= most * known
    }
