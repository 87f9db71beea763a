"""How numbers travel (`training.wire`): as they are computed, in two bytes, or in one.

They are narrowed where a verb or its answer sets out and widened where it arrives, here and nowhere else. In
one byte a number is a step between -127 and 127 of its node's own scale, one scale for each message. Weights
never take less than two: nodes go on from them, where of hidden states and gradients another comes at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cnfgnn.config.settings import Wire
from cnfgnn.models.params import is_personal

STATES = ("h_c", "h_G", "grad_h_c", "grad_h_G")
WEIGHTS = ("load", "weights")  # the verbs that carry them
SCALE = ".scale"
STEPS = 127


def narrowed(verb: str, tensors: Mapping[str, Tensor], wire: Wire) -> dict[str, Tensor]:
    """What is sent for these tensors of a verb or of its answer."""
    sent: dict[str, Tensor] = {}
    for name, x in tensors.items():
        if wire == "full" or not (name in STATES or (verb in WEIGHTS and not is_personal(name))):
            sent[name] = x
        elif wire == "bf16" or verb in WEIGHTS:
            sent[name] = x.bfloat16()
        else:
            x = x.detach().float()
            largest = x.abs().amax(dim=(1, 2)) if x.numel() else x.new_zeros(len(x))  # (n,)
            sent[name + SCALE] = scale = largest / STEPS
            steps = x / scale.clamp(min=torch.finfo(scale.dtype).tiny)[:, None, None]
            sent[name] = steps.round().clamp(-STEPS, STEPS).to(torch.int8)
    return sent


def widened(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What these were; two bytes stay two bytes, which compute as they are."""
    return {
        name: x if (scale := tensors.get(name + SCALE)) is None else x.to(scale) * scale[:, None, None]
        for name, x in tensors.items()
        if not name.endswith(SCALE)
    }
