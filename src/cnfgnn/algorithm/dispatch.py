"""The one way into a group of nodes from outside: calls in, answers out, whatever carried them here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cnfgnn.algorithm.calls import Call
from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.quantize import narrowed, widened
from cnfgnn.errors import CnfgnnError, NodeError

TELLS = ("prepare", "load", "embed", "update", "step", "pull", "forecast", "save", "restore")
ASKS = ("census", "weights", "encode", "backward", "score")
_REPLY = {"encode": "h_c", "backward": "grad_h_G", "score": "sums"}


def _at_home(call: Call, compute: Compute) -> dict[str, Tensor]:
    """The tensors where and in the type in which this group computes; whole numbers stay what they are, and
    so does bf16 of embeddings, which are kept for long."""

    def stays(dtype: torch.dtype) -> bool:
        return not dtype.is_floating_point or (dtype == torch.bfloat16 and call.verb == "embed")

    tensors = widened(call.tensors).items()
    return {k: t.to(compute.device, t.dtype if stays(t.dtype) else compute.dtype) for k, t in tensors}


def run(clients: Clients, calls: Sequence[Call]) -> list[dict[str, Tensor]]:
    """Carry out calls in order and answer each, with nothing where the verb is a tell."""
    replies: list[dict[str, Tensor]] = []
    for call in calls:
        if call.verb not in TELLS + ASKS:
            raise NodeError(clients.name, call.verb, "there is no such verb")
        verb: Callable[..., Tensor | dict[str, Tensor] | None] = getattr(clients, call.verb)
        try:
            answer = verb(**call.numbers, **_at_home(call, clients.compute))
        except CnfgnnError:
            raise
        except Exception as error:  # whatever a call from outside makes fail, it must say where
            reason = (str(error).splitlines() or [""])[0][:300]  # torch adds a page of its own insides
            raise NodeError(clients.name, call.verb, f"{type(error).__name__}: {reason}") from error
        if isinstance(answer, Tensor):
            answer = {_REPLY[call.verb]: answer}
        replies.append(narrowed(call.verb, answer or {}, clients.wire))
    return replies
