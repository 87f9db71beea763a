"""The one way into a group of nodes from outside: calls in, answers out, whatever carried them here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call
from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.quantize import dequantised
from cnfgnn.algorithm.verbs import VERBS, Verb
from cnfgnn.errors import CnfgnnError, NodeError
from cnfgnn.models.params import Params


class Answered(NamedTuple):
    """A call that the nodes have answered: the request, the arrays that came with it, and the answer."""

    request: Verb
    arrays: Params
    reply: Params


def run(owner: Owner, calls: Sequence[Call]) -> list[dict[str, Tensor]]:
    """Carry out calls in order: the nodes answer each, and their owner follows."""
    replies: list[dict[str, Tensor]] = []
    for call in calls:
        answered = answer(owner.nodes, call)
        reply = answered.reply | owner.follow(*answered)
        replies.append(answered.request.quantised(reply, owner.nodes.wire))
    return replies


def answer(nodes: Clients, call: Call) -> Answered:
    """Have the nodes carry out one call. Its answer is empty if the verb is a tell."""
    verb = VERBS.get(call.verb)
    if verb is None:
        raise NodeError(nodes.name, call.verb, "there is no such verb")
    try:
        request, arrays = verb.read(call.numbers), _arrived(verb, call, nodes.compute)
        return Answered(request, arrays, request.carry_out(nodes, arrays))
    except CnfgnnError:
        raise
    except Exception as error:  # any failure of a call from outside is reported with site and verb
        reason = (str(error).splitlines() or [""])[0][:300]  # torch appends a page of C++ frames
        raise NodeError(nodes.name, call.verb, f"{type(error).__name__}: {reason}") from error


def _arrived(verb: type[Verb], call: Call, compute: Compute) -> Params:
    """The call's tensors on the device and in the type in which this group computes."""

    def dtype(tensor: Tensor) -> torch.dtype:
        stays = not tensor.is_floating_point() or (verb.stays_bf16 and tensor.dtype == torch.bfloat16)
        return tensor.dtype if stays else compute.dtype

    tensors = dequantised(call.tensors)
    return {name: tensor.to(compute.device, dtype(tensor)) for name, tensor in tensors.items()}
