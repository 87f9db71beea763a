"""States of a group of nodes and of its owner as they are saved: flat and named, so any store can hold them.

h_G is left out: the server computes it again from what is saved, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cnfgnn.algorithm.fmtl import Pull, pull_of
from cnfgnn.errors import RunError
from cnfgnn.models.params import Params, is_personal, part

THETA, PERSONAL, OWNER = "theta.", "personal.", "owner."
TRUST = "trust"
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
    def of(cls, state: Mapping[str, Tensor], device: torch.device, source: str) -> NodeState:
        theta = part(state, THETA)
        check_without_personal(theta, source)
        return cls(theta, part(state, _ADAM, device), pull_of(state, device))


@dataclass(frozen=True)
class OwnerState:
    """Personal weights, what their optimiser remembers, and how far forecasts trust the network."""

    personal: Params
    adam: Mapping[str, Tensor]  # empty if optimisers are not kept
    trust: Tensor | None = None  # (n,); None if forecasts have no linear part

    def flat(self) -> dict[str, Tensor]:
        state = {PERSONAL + name: w for name, w in self.personal.items()}
        state |= {_ADAM + name: w for name, w in self.adam.items()}
        return state if self.trust is None else state | {TRUST: self.trust}

    @classmethod
    def of(cls, state: Mapping[str, Tensor], device: torch.device) -> OwnerState:
        trust = state[TRUST].to(device) if TRUST in state else None
        return cls(part(state, PERSONAL, device), part(state, _ADAM, device), trust)


def check_without_personal(theta: Params, source: str) -> None:
    """Refuse weights of a version that sent hidden states with personal weights in them."""
    if any(is_personal(name) for name in theta):
        problem = "was trained by a version in which hidden states contained personal weights"
        raise RunError(source, f"{problem}: train it again with this version")
