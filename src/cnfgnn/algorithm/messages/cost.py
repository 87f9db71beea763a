"""The paper's formulas for bytes and operations (section 4.1), to compare the ledger with."""

from __future__ import annotations

from dataclasses import dataclass

from cnfgnn.models.gru import NodeModel

FLOAT = 4  # bytes
GIB = 2**30


@dataclass(frozen=True)
class Size:
    """What the formulas depend on: the parameters of a node model, and the elements of one node's hidden
    states over the training windows (the paper lists these as gigabytes, but they are elements)."""

    nodes: int
    edges: int  # directed, without self loops
    parameters: int
    hidden: int  # training windows x width of h_c

    def weights_both_ways(self) -> int:
        return 2 * self.nodes * self.parameters * FLOAT

    def states(self) -> int:
        """Bytes of every node's hidden states, sent once in one direction."""
        return self.nodes * self.hidden * FLOAT


def training_bytes(method: str, size: Size, rounds: int, server_rounds: int = 1) -> int:
    """Bytes that cross in so many global rounds, counted per node as in the paper.

    The paper counts FMTL between peers: every edge carries the sender's weights. With a server in the middle
    other bytes cross.
    """
    per_round = {
        "gru-central": 0,  # readings are moved once instead, which the paper does not count
        "gru-gn-central": 0,
        "gru-local": 0,
        "gru-fedavg": size.weights_both_ways(),
        "gru-fmtl": size.edges * size.parameters * FLOAT,
        "sl": server_rounds * 4 * size.states(),
        "sl-fedavg": size.weights_both_ways() + server_rounds * 4 * size.states(),
        "at": (1 + 2 * server_rounds + 1) * size.states(),
        "at-fedavg": size.weights_both_ways() + (1 + 2 * server_rounds + 1) * size.states(),
    }
    return rounds * per_round[method]


def operations(model: NodeModel, history: int = 12, horizon: int = 12) -> int:
    """Multiply-adds of one window on one node: 3(h + i)h + 13h for each GRU step and layer, and the output.

    The paper's "GFLOPS on device" are these, summed over the 207 nodes of METR-LA.
    """

    def steps(count: int, hidden: int) -> int:
        inputs = [model.features] + [hidden] * (model.layers - 1)
        return count * sum(3 * (hidden + i) * hidden + 13 * hidden for i in inputs)

    return steps(history, model.hidden) + steps(horizon, model.state) + horizon * model.state
