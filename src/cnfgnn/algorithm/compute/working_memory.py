"""How much is computed at a time: nodes that learn together, windows that the Graph Network takes together.

Nodes are independent of each other, and so are windows in the Graph Network. Computing fewer of them at a
time changes sums only in their rounding. Beside hidden states, which `memory_plan.py` bounds by
`compute.memory`, a run may use as much again: a quarter for nodes that learn, a quarter for the Graph
Network, and half for the weights and optimisers that nodes keep from one minibatch or round to the next. If
these need more, they are in the machine's memory instead of the device's, and travel whenever they are used.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from cnfgnn.algorithm.compute.device import Compute, slices
from cnfgnn.config.settings import ModelConfig
from cnfgnn.forecasters.linear import FOLDS
from cnfgnn.models import kernels
from cnfgnn.models.gru import EncoderDecoder, NodeModel
from cnfgnn.models.plus import PlusModel

NODES, NETWORK, KEPT = 0.25, 0.25, 0.5  # shares of the memory for all that is not hidden states
COPIES = 5  # of the weights of a node that learns: with gradients, two moments and one intermediate result
CELL = 6  # numbers that the backward pass of a GRU needs for each unit and step
SPARE = 1.25  # intermediate results that live only for a moment
LEAST = 1 << 28  # bytes for all that is not hidden states: less would take longer and save nothing

TRAINED = 4  # numbers for each edge or node and unit of a perceptron, with gradients


def limit(compute: Compute) -> int:
    """Bytes for all that is not hidden states."""
    return max(LEAST, compute.limit)


class NodeMemory:
    """How many nodes learn together, with a model of so many parameters and windows of so many steps."""

    def __init__(
        self, model: EncoderDecoder, parameters: int, history: int, horizon: int, compute: Compute
    ) -> None:
        self.compute, self.parameters = compute, parameters
        self._limit = limit(compute)
        self._budget = NODES * self._limit / 2  # one half for weights, one for what a minibatch leaves
        half = compute.bf16 and kernels.available(compute.device)
        size = torch.bfloat16.itemsize if half else compute.dtype.itemsize
        inputs = 4 * (history + horizon)
        if isinstance(model, PlusModel) and model.config.linear:
            inputs += (2 * FOLDS + 6) * horizon
        stored = _stored(model, history, horizon) * size
        self._sequence = SPARE * (stored + inputs * compute.dtype.itemsize)

    def groups(self, nodes: int) -> list[slice]:
        """Groups of nodes whose weights, gradients and optimisers fit into memory."""
        return list(slices(nodes, int(self._budget / (COPIES * self._weights))))

    def within(self, nodes: int, windows: int) -> Iterator[slice]:
        """The nodes of a group, as many at a time as fit with what a minibatch leaves for the way back."""
        return self.compute.node_slices(nodes, windows, int(self._budget / self._sequence))

    def home(self, nodes: int, optimisers: bool) -> torch.device:
        """Where the weights of all nodes are between minibatches, and their optimisers if they are kept."""
        kept = nodes * self._weights * (3 if optimisers else 1)
        return self.compute.device if kept <= KEPT * self._limit else torch.device("cpu")

    @property
    def _weights(self) -> int:
        return self.parameters * self.compute.dtype.itemsize


def _stored(model: EncoderDecoder, history: int, horizon: int) -> int:
    """Numbers that the backward pass needs of one sequence: a window of one node."""
    if isinstance(model, NodeModel):
        return CELL * model.layers * (history * model.hidden + horizon * model.state)
    if not isinstance(model, PlusModel):  # of another package, taken for a GRU
        return CELL * (history * model.hidden + horizon * (model.hidden + model.embedding))
    encoder = 2 * model.features + 4 * model.hidden
    if model.config.encoder == "gru":
        encoder = (CELL * model.hidden + model.features) * history
    decoder = 4 * model.state
    if model.config.decoder == "autoregressive":
        decoder = CELL * model.state * horizon
    return encoder + decoder


def network_windows(model: ModelConfig, nodes: int, edges: int, compute: Compute) -> int:
    """How many windows pass the Graph Network together when it learns; at least one."""
    widths = model.gn_widths
    of_edge = model.gn_layers * sum(widths) + (model.gn_layers - 1) * widths[0]
    of_node = model.gn_layers * (TRAINED * sum(widths) + 2 * model.sent_width)
    size = torch.bfloat16.itemsize if compute.bf16 else compute.dtype.itemsize
    each = SPARE * (edges * (of_edge + TRAINED // 2 * max(widths)) + nodes * of_node) * size
    return max(1, int(NETWORK * limit(compute) / max(1.0, each)))
