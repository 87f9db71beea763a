"""The one way into a group of nodes from outside: calls in, answers out, whatever carried them here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.quantize import dequantised
from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.messages.verbs import VERBS, Load, Pull, Update, Weights
from cnfgnn.algorithm.owner import Owner
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
    waiting = list(calls)
    while waiting:
        call = waiting.pop(0)
        if waiting and _averaged_in_groups(owner.nodes, call, waiting[0]):
            replies += [{}, update_and_average(owner.nodes, call, waiting.pop(0))]
            continue
        answered = answer(owner.nodes, call)
        reply = answered.reply | owner.follow(*answered)
        replies.append(answered.request.quantised(reply, owner.nodes.wire))
    return replies


def _averaged_in_groups(nodes: Clients, call: Call, after: Call) -> bool:
    """Whether this call and the one after it are an update and the question for the mean of its weights, and
    there are too many nodes for the weights of all of them."""
    together = call.verb == Update.name and after.verb == Weights.name and after.mean_by is not None
    return together and nodes.wire == "full" and len(nodes.groups) > 1


def update_and_average(nodes: Clients, update: Call, weights: Call) -> dict[str, Tensor]:
    """Have the nodes learn in groups, and add up their weights as the groups finish: (1, ...).

    The weights of a node are dropped after that: its next are those that the server sends it.
    """
    share = weights.mean_by
    assert share is not None
    share = (share / share.sum()).double()
    mean: dict[str, Tensor] = {}
    with _reported(nodes, update):
        request = Update.read(update.numbers)
        assert isinstance(request, Update)
        learned = nodes.learned(request.r_g, request.r_c, request.step, request.minibatches)
        for some, theta in learned:
            for name, w in theta.items():
                part = share[some].to(w) @ w.detach().flatten(1)
                mean[name] = mean.get(name, torch.zeros_like(part, dtype=torch.float64)) + part
        shapes = {name: w.shape[1:] for name, w in theta.items()}
        return {name: total.to(nodes.compute.dtype).view(1, *shapes[name]) for name, total in mean.items()}


def answer(nodes: Clients, call: Call) -> Answered:
    """Have the nodes carry out one call. Its answer is empty if the verb is a tell."""
    verb = VERBS.get(call.verb)
    if verb is None:
        raise NodeError(nodes.name, call.verb, "there is no such verb")
    with _reported(nodes, call):
        request, arrays = verb.read(call.numbers), _arrived(verb, call, nodes)
        return Answered(request, arrays, request.carry_out(nodes, arrays))


@contextmanager
def _reported(nodes: Clients, call: Call) -> Iterator[None]:
    """Report any failure of a call with the site and the verb."""
    try:
        yield
    except CnfgnnError:
        raise
    except Exception as error:  # any failure of a call from outside is reported with site and verb
        reason = (str(error).splitlines() or [""])[0][:300]  # torch appends a page of C++ frames
        raise NodeError(nodes.name, call.verb, f"{type(error).__name__}: {reason}") from error


def _arrived(verb: type[Verb], call: Call, nodes: Clients) -> Params:
    """The call's tensors on the device and in the type in which this group computes; weights of all nodes
    where these are held."""
    compute = nodes.compute

    def device(tensor: Tensor) -> torch.device:
        return nodes.home if verb in (Load, Pull) and len(tensor) > 1 else compute.device

    def dtype(tensor: Tensor) -> torch.dtype:
        stays = not tensor.is_floating_point() or (verb.stays_bf16 and tensor.dtype == torch.bfloat16)
        return tensor.dtype if stays else compute.dtype

    tensors = dequantised(call.tensors)
    return {name: tensor.to(device(tensor), dtype(tensor)) for name, tensor in tensors.items()}
