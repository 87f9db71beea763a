"""Which verbs a task may ask a site for, by what it is said to be: one that evaluates cannot train.

The names are those of `algorithm/messages/verbs.py`. They are repeated here, and a test compares them,
because the process that answers for a site does without torch.
"""

from __future__ import annotations

from contextlib import suppress

from cnfgnn.algorithm.methods import ALIASES, METHODS, Method
from cnfgnn.errors import ConfigError
from cnfgnn.federation.permission_rules import TRAININGS

ASKS = ("census", "turn", "weights", "levels", "encode", "backward", "score")  # whose answers carry arrays
VERBS = frozenset(
    {*ASKS, "prepare", "load", "inform", "embed", "update", "step", "pull", "forecast"}
    | {"save", "restore", "inherit"}
)
_USE = frozenset({"census", "prepare", "restore", "load", "encode", "embed"})  # a trained model
_TRAIN = frozenset({"census", "prepare", "inherit", "save", "restore", "score"})  # with any method
_NETWORK = frozenset({"encode", "embed", "backward", "levels", "inform"})


def verbs_allowed(do: str, method: str = "") -> frozenset[str]:
    """The verbs of a task; of a training with a method that is not known here, those of all methods."""
    if do in TRAININGS:
        known = None
        with suppress(ConfigError):  # a package that cannot be loaded
            known = METHODS.get(ALIASES.get(method, method))
        return VERBS - {"turn", "forecast"} if known is None else _TRAIN | _training_verbs(known)
    if do == "evaluate":
        return _USE | {"score"}
    if do == "live":
        return _USE | {"turn", "forecast"}
    return _USE | {"forecast"} if do == "forecast" else frozenset()


def _training_verbs(method: Method) -> frozenset[str]:
    verbs = frozenset({"step"} if method.strategy == "split" else {"update"})
    if method.graph_network:
        verbs |= _NETWORK
    if method.sharing == "average":
        verbs |= {"load", "weights"}
    if method.sharing == "neighbours":
        verbs |= {"pull", "weights"}
    return verbs
