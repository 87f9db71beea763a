"""Split learning gives the gradients that one backward pass through the whole system gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute.adam import BETA_1
from cnfgnn.algorithm.compute.learner import GraphLearner
from cnfgnn.algorithm.methods import Method, register
from cnfgnn.algorithm.server import Server
from cnfgnn.config import outside
from cnfgnn.data.batch import Batch
from cnfgnn.data.dataset import Dataset
from cnfgnn.models.gru import EncoderDecoder
from cnfgnn.models.params import Params, own
from cnfgnn.runs.simulation import simulate
from cnfgnn.testing.small_networks import HORIZON
from cnfgnn.transports.in_process import InProcess
from tests.conftest import small


def set_up(data: Dataset, method: str) -> tuple[Server, Clients]:
    strategy = simulate(data, small(method)).strategy
    assert isinstance(strategy, Server)
    strategy.nodes.flush()
    transport = strategy.nodes.transport
    assert isinstance(transport, InProcess)
    return strategy, transport.groups[0][1].nodes


def first_gradients(gn: GraphLearner) -> list[Tensor]:
    """After one step Adam's mean is (1 - beta_1) times the gradient."""
    return [mean / (1 - BETA_1) for mean in gn.packing.views(gn.adam.mean["gn"])]


def end_to_end(server: Server, clients: Clients) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Gradients of the summed node losses for every node's weights and the graph network's."""
    assert server.gn is not None
    _, windows = next(server.server_batches(1))
    theta = {name: w.requires_grad_() for name, w in own(clients.theta, clients.series.nodes).items()}
    batch = clients.data.batch("train", windows)
    h_c = clients.model.encode(theta, batch)
    h_G = server.gn.gn(h_c, server.graph, clients.data.heard_in("train", windows))
    loss = clients.forecaster.losses(theta, batch, h_G, clients.coins[0], h_c).sum()
    weights = list(server.gn.gn.parameters())
    grads = torch.autograd.grad(loss, [*theta.values(), *weights])
    return dict(zip(theta, grads, strict=False)), list(grads[len(theta) :])


class Tied(EncoderDecoder):
    """A node model with weights of any names, one of which the encoder and the decoder share."""

    hidden, embedding = 8, 4

    def __init__(self, *_: object) -> None:
        pass

    def init(self, generator: torch.Generator) -> Params:
        shapes = {"both": (1, 8, 8), "first": (1, 1, 8), "encoder_of_h_G": (1, 4, 8)}
        return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}

    def encode(self, theta: Mapping[str, Tensor], batch: Batch) -> Tensor:
        return torch.tanh(batch.x[:, :, -1, :1] @ theta["first"] @ theta["both"])

    def decode(
        self, theta: Mapping[str, Tensor], batch: Batch, h_c: Tensor, h_G: Tensor | None, truth: Any = None
    ) -> Tensor:
        from_graph = 0 if h_G is None else h_G @ theta["encoder_of_h_G"]
        return ((h_c + from_graph) @ theta["both"])[..., :HORIZON]


@pytest.fixture
def tied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "_registered", {})
    settings = {"model.embedding": 4, "training.optimizer_state": "kept"}
    register(Method("tied", "Tied", "split", "keep", True, settings=settings, node_model=Tied))


@pytest.mark.parametrize("method", ["sl", "tied"])
@pytest.mark.usefixtures("tied")
def test_joint_split_learning_equals_end_to_end_autograd(data: Dataset, method: str) -> None:
    server, clients = set_up(data, method)
    node_grads, gn_grads = end_to_end(server, clients)
    assert server.gn is not None
    draw, windows = next(server.server_batches(1))
    h_c = server.nodes.encode(draw).requires_grad_()
    h_G = server.gn(h_c, server.graph, server.nodes.present("train", windows))
    grad_h_c = server.gn.descend(server.nodes.backward(h_G, draw, 0, learn=True))
    assert grad_h_c is not None
    server.nodes.step(grad_h_c, draw)
    server.nodes.flush()
    assert clients.adam is not None
    for name, expected in node_grads.items():  # after one step Adam's mean is (1 - beta_1) times the gradient
        actual = clients.adam.mean[name] / (1 - BETA_1)
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    for actual, expected in zip(first_gradients(server.gn), gn_grads, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_the_graph_network_s_gradient_in_alternating_training_equals_end_to_end_autograd(
    data: Dataset,
) -> None:
    server, clients = set_up(data, "at")
    _, gn_grads = end_to_end(server, clients)
    assert server.gn is not None
    h_c = server.nodes.encode()
    draw, windows = next(server.server_batches(1))
    h_G = server.gn(h_c[:, windows], server.graph, server.nodes.present("train", windows))
    before = {name: w.clone() for name, w in clients.theta.items()}
    server.gn.descend(server.nodes.backward(h_G, draw, 0))
    for actual, expected in zip(first_gradients(server.gn), gn_grads, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    for name, w in clients.theta.items():  # nodes do not learn in this phase
        assert torch.equal(w, before[name])
