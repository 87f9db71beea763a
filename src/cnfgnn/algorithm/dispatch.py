"""The one way into a group of nodes from outside: calls in, answers out, whatever carried them here."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call
from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.quantize import dequantised
from cnfgnn.algorithm.verbs import VERBS, Verb
from cnfgnn.errors import CnfgnnError, NodeError


def run(clients: Clients, calls: Sequence[Call]) -> list[dict[str, Tensor]]:
    """Carry out calls in order. Each has an answer, which is empty if the verb is a tell."""
    replies: list[dict[str, Tensor]] = []
    for call in calls:
        verb = VERBS.get(call.verb)
        if verb is None:
            raise NodeError(clients.name, call.verb, "there is no such verb")
        try:
            reply = verb.read(call.numbers).carry_out(clients, _arrived(verb, call, clients.compute))
        except CnfgnnError:
            raise
        except Exception as error:  # any failure of a call from outside is reported with site and verb
            reason = (str(error).splitlines() or [""])[0][:300]  # torch appends a page of C++ frames
            raise NodeError(clients.name, call.verb, f"{type(error).__name__}: {reason}") from error
        replies.append(verb.quantised(reply, clients.wire))
    return replies


def _arrived(verb: type[Verb], call: Call, compute: Compute) -> dict[str, Tensor]:
    """The call's tensors on the device and in the type in which this group computes."""

    def dtype(tensor: Tensor) -> torch.dtype:
        stays = not tensor.is_floating_point() or (verb.stays_bf16 and tensor.dtype == torch.bfloat16)
        return tensor.dtype if stays else compute.dtype

    tensors = dequantised(call.tensors)
    return {name: tensor.to(compute.device, dtype(tensor)) for name, tensor in tensors.items()}
