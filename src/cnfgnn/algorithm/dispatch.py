"""The one way into a group of nodes from outside: calls in, answers out, whatever carried them here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.nodes import Call
from cnfgnn.errors import CnfgnnError, NodeError

TELLS = ("prepare", "load", "embed", "update", "step", "pull", "forecast", "save", "restore")
ASKS = ("census", "weights", "encode", "backward", "score")
_REPLY = {"encode": "h_c", "backward": "grad_h_G", "score": "sums"}


def run(clients: Clients, calls: Sequence[Call]) -> list[dict[str, Tensor]]:
    """Carry out calls in order and answer each, with nothing where the verb is a tell."""
    replies: list[dict[str, Tensor]] = []
    for call in calls:
        if call.verb not in TELLS + ASKS:
            raise NodeError(clients.name, call.verb, "there is no such verb")
        verb: Callable[..., Tensor | dict[str, Tensor] | None] = getattr(clients, call.verb)
        try:
            answer = verb(**call.numbers, **call.tensors)
        except CnfgnnError:
            raise
        except (TypeError, ValueError, RuntimeError, KeyError, IndexError) as error:
            raise NodeError(clients.name, call.verb, str(error)) from error
        if isinstance(answer, Tensor):
            answer = {_REPLY[call.verb]: answer}
        replies.append(answer or {})
    return replies
