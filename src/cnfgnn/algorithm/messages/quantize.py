"""The format of numbers in messages (`training.wire`): as they are computed, in bf16, or in int8.

Numbers are quantised where a call or its answer is sent and dequantised where it arrives, here and nowhere
else. In int8 a number is a step between -127 and 127 of a scale. Each array of a message has one scale for
each node and each number of a state. Weights are never int8: the rounding error would accumulate from round
to round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from cnfgnn.config.settings import Wire

SCALE = ".scale"  # after the name of an array in int8: the name of its scales
STEPS = 127


def quantised(
    tensors: Mapping[str, Tensor], wire: Wire, states: Collection[str], weights: Collection[str]
) -> dict[str, Tensor]:
    """What is sent for these tensors, of which some are hidden states or gradients and some are weights."""
    sent: dict[str, Tensor] = {}
    for name, x in tensors.items():
        if wire == "full" or (name not in states and name not in weights):
            sent[name] = x
        elif wire == "bf16" or name in weights:
            sent[name] = x.bfloat16()
        else:
            sent[name + SCALE], sent[name] = _steps(x)
    return sent


def _steps(x: Tensor) -> tuple[Tensor, Tensor]:
    """(n b h) as scales (n h) and steps (n b h)."""
    x = x.detach().float()
    largest = x.abs().amax(dim=1) if x.numel() else x.new_zeros(len(x), x.shape[-1])  # (n h)
    scale = largest / STEPS
    steps = x / scale.clamp(min=torch.finfo(scale.dtype).tiny)[:, None]
    return scale, steps.round().clamp(-STEPS, STEPS).to(torch.int8)


def dequantised(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that were sent; bf16 stays bf16, which can be computed with as it is."""
    found: dict[str, Tensor] = {}
    for name, x in tensors.items():
        if name.endswith(SCALE):
            continue
        scale = tensors.get(name + SCALE)
        found[name] = x if scale is None else x.to(scale) * scale[:, None]
    return found
