"""The work in a round: operations of its matrix products, and bytes that must pass through memory.

A multiply-add counts as 2 operations; everything but matrix products is left out. With n nodes, e edges, w
training windows, history t, horizon T, hidden sizes h (encoder) and s = h + width of h_G (decoder), d = 2
inputs, and a graph network whose layers have MLPs of widths a-b-c over v, e', u inputs:

    encoder  = t 2 * 3h (d + h)                                           a node and window
    decoder  = T (2 * 3s (d + s) + 2 s)                                   a node and window
    network  = sum over layers of 2 e (k b a + ab)                        a window; k layers came before;
             + 2 n (2 v a + bc) + 2 n ((c + v) a + ab + bc)               phi_e's first layer comes before
             + the same for u, once, and 2 n v_out h_G at the end         the gather, its last after the sum

    (1) update    R_c 3 n w (encoder + decoder)       forward, and backward for weights and for inputs
    (2) encode    n w encoder
    (3) split     R_s w (3 network + 2 n decoder)     the decoder's weights are fixed: backward for inputs
    (4) embed     w network
    validate      n v (encoder + decoder) + v network, over v validation windows

Bytes are the least that a phase can move: every input is read once and every output written once, for each
minibatch if there are minibatches, because the weights and optimiser states of all nodes do not fit a cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.models.graphnet import GraphNetwork
from cnfgnn.models.gru import NodeModel
from cnfgnn.models.params import size

PHASES = ("(1) update", "average", "(2) encode", "(3) split", "(4) embed", "validate")
FLOAT = 4  # bytes: states and weights are float32 in every precision


@dataclass(frozen=True)
class Shape:
    """The sizes that the counts depend on; the defaults are the paper's model."""

    nodes: int
    edges: int
    windows: int  # of the training split
    validated: int  # windows of the validation split
    client_batch: int = 128
    server_batch: int = 48
    client_rounds: int = 1
    server_rounds: int = 1
    history: int = 12
    horizon: int = 12
    hidden: int = 64
    embedding: int = 64
    widths: tuple[int, ...] = (256, 256, 128)
    layers: int = 2

    @classmethod
    def of(cls, experiment: Experiment, nodes: int, edges: int) -> Shape:
        t, m, windows = experiment.config.training, experiment.config.model, experiment.windows
        sizes = (nodes, edges, windows.count("train"), windows.count("validation"))
        batches = (t.client_batch, t.server_batch, t.client_rounds, t.server_rounds)
        model = (m.hidden, m.embedding, m.gn_widths, m.gn_layers)
        return cls(*sizes, *batches, windows.history, windows.horizon, *model)


def encoder(s: Shape, features: int = 2) -> int:
    return s.history * 2 * 3 * s.hidden * (features + s.hidden)


def decoder(s: Shape, features: int = 2) -> int:
    state = s.hidden + s.embedding
    return s.horizon * (2 * 3 * state * (features + state) + 2 * state)


def network(s: Shape) -> int:
    first, out = s.widths[0], s.widths[-1]
    rest = sum(a * b for a, b in zip(s.widths, s.widths[1:], strict=False))
    last = s.widths[-2] * out if len(s.widths) > 1 else 0
    v, u, products = s.hidden, 0, 0
    for layer in range(s.layers):
        products += s.edges * (layer * s.widths[max(-2, -len(s.widths))] * first + rest - last)
        products += s.nodes * (2 * v * first + last) + u * first
        products += s.nodes * ((out + v) * first + rest) + u * first
        if layer + 1 < s.layers:  # nothing uses the last global update
            products += (2 * out + u) * first + rest
        v, u = v + out, u + out
    return 2 * (products + s.nodes * v * s.embedding)


def operations(s: Shape) -> dict[str, float]:
    """Operations of each phase, and of the round."""
    sequences = s.nodes * s.windows
    counts = {
        "(1) update": s.client_rounds * 3 * sequences * (encoder(s) + decoder(s)),
        "average": 2 * s.nodes * _node_parameters(s),
        "(2) encode": sequences * encoder(s),
        "(3) split": s.server_rounds * (s.windows * 3 * network(s) + 2 * sequences * decoder(s)),
        "(4) embed": s.windows * network(s),
        "validate": s.validated * (s.nodes * (encoder(s) + decoder(s)) + network(s)),
    }
    return {phase: float(counts[phase]) for phase in PHASES} | {"round": float(sum(counts.values()))}


def least_bytes(s: Shape) -> dict[str, float]:
    """Bytes that each phase must move through memory."""
    states, embeddings = s.nodes * s.windows * s.hidden, s.nodes * s.windows * s.embedding
    windows = s.nodes * s.windows * (s.history + s.horizon)  # of readings, cut anew for each minibatch
    node, server = s.nodes * _node_parameters(s), _server_parameters(s)
    client_steps = s.client_rounds * -(-s.windows // s.client_batch)
    server_steps = s.server_rounds * -(-s.windows // s.server_batch)
    validated = s.nodes * s.validated
    counts = {
        # weights and both moments read and written at every step; windows and their h_G read
        "(1) update": client_steps * 6 * node + s.client_rounds * (windows + embeddings),
        "average": node + _node_parameters(s),
        "(2) encode": s.nodes * (s.windows + s.history) + states,
        # h_c read by the server and by the nodes; h_G and its gradient written by one and read by the other
        "(3) split": server_steps * 6 * server + s.server_rounds * (windows + 2 * states + 4 * embeddings),
        "(4) embed": states + embeddings,
        "validate": validated * (s.history + s.horizon + 2 * s.hidden + 2 * s.embedding),
    }
    in_bytes = {phase: float(FLOAT * counts[phase]) for phase in PHASES}
    return in_bytes | {"round": sum(in_bytes.values())}


def _node_parameters(s: Shape) -> int:
    return size(NodeModel(s.hidden, 1, s.embedding).init(torch.Generator()))


def _server_parameters(s: Shape) -> int:
    return sum(w.numel() for w in GraphNetwork(s.hidden, s.embedding, s.widths, s.layers).parameters())
