"""Saved states of a group of nodes that is divided into parts: joined to one for all nodes, and cut again.

A tensor of a state has a row for each node, or it is the same for all of them. Intervals alone have their
nodes on other axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.intervals import Intervals
from cnfgnn.algorithm.owner import INTERVALS
from cnfgnn.models.params import part

LEAST_NODES = 2  # of a part: the rows of a single one could not be told from what is the same for all


def joined_state(parts: Sequence[Mapping[str, Tensor]], sizes: Sequence[int]) -> dict[str, Tensor]:
    """The state of all nodes, from those of parts with so many nodes each, in the order of the nodes."""
    if len(parts) == 1:
        return dict(parts[0])
    joined = {}
    for name in parts[0]:
        if not name.startswith(INTERVALS):
            tensors = [state[name] for state in parts]
            per_node = all(_has_rows(tensor, size) for tensor, size in zip(tensors, sizes, strict=True))
            joined[name] = torch.cat([tensor.cpu() for tensor in tensors]) if per_node else tensors[0]
    intervals = [kept for state in parts if (kept := part(state, INTERVALS))]
    if intervals:
        of_all = Intervals.joined([Intervals.of(kept) for kept in intervals]).state()
        joined |= {INTERVALS + name: tensor for name, tensor in of_all.items()}
    return joined


def state_of_rows(state: Mapping[str, Tensor], rows: slice, nodes: int) -> dict[str, Tensor]:
    """The state of some nodes, from that of so many."""
    if rows == slice(0, nodes):
        return dict(state)
    cut = {
        name: tensor[rows] if _has_rows(tensor, nodes) else tensor
        for name, tensor in state.items()
        if not name.startswith(INTERVALS)
    }
    if kept := part(state, INTERVALS):
        of_rows = Intervals.of(kept).select(np.arange(nodes)[rows]).state()
        cut |= {INTERVALS + name: tensor for name, tensor in of_rows.items()}
    return cut


def _has_rows(tensor: Tensor, nodes: int) -> bool:
    return tensor.dim() > 0 and len(tensor) == nodes
