"""The state of a group of nodes as it is saved: flat and named, so that any store can hold it.

h_G is left out: the server computes it again from what is saved, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cnfgnn.algorithm.fmtl import Pull, pull_of
from cnfgnn.models.params import Params, part

THETA, OWNER = "theta.", "owner."
TRUST = "trust"  # of an owner in what the network adds to linear forecasts: (n,)
_ADAM = "adam."


@dataclass(frozen=True)
class NodeState:
    """Weights, what a kept optimiser remembers, and the pull toward neighbours."""

    theta: Params
    adam: Mapping[str, Tensor]  # empty if optimisers are not kept
    regulariser: Pull | None

    def flat(self) -> dict[str, Tensor]:
        state = {THETA + name: w for name, w in self.theta.items()}
        state |= {_ADAM + name: w for name, w in self.adam.items()}
        return state if self.regulariser is None else state | self.regulariser.state()

    @classmethod
    def of(cls, state: Mapping[str, Tensor], device: torch.device) -> NodeState:
        return cls(part(state, THETA), part(state, _ADAM, device), pull_of(state, device))
