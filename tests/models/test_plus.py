"""The extended node model: each extension on its own, and all together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from cnfgnn.config.settings import ModelConfig
from cnfgnn.data.batch import Batch
from cnfgnn.models.gru import NodeModel
from cnfgnn.models.params import Params, own
from cnfgnn.models.plus import SENSOR_EMBEDDING, PlusModel, node_model

N, B, HISTORY, HORIZON = 3, 5, 6, 4
SMALL = ModelConfig(hidden=6, embedding=4)
ALL = replace(
    SMALL,
    encoder="perceptron",
    decoder="direct",
    change=True,
    gaps=True,
    profile=True,
    calendar=3,
    personal=2,
)
EACH = [
    replace(SMALL, encoder="perceptron"),
    replace(SMALL, decoder="direct"),
    replace(SMALL, change=True),
    replace(SMALL, gaps=True),
    replace(SMALL, profile=True),
    replace(SMALL, encoder="perceptron", gaps=True),
    replace(SMALL, calendar=3),
    replace(SMALL, personal=2),
    ALL,
]


def model(config: ModelConfig) -> PlusModel:
    return PlusModel(config, HISTORY, HORIZON)


def batch(seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(N, B, HISTORY, 2, generator=g), torch.randn(N, B, HORIZON, generator=g)
    moment = torch.stack([torch.arange(B) * 50, torch.arange(B) % 7], dim=1)
    clock, usual = torch.rand(B, HORIZON, generator=g), torch.randn(N, B, 1 + HORIZON, generator=g)
    gaps = torch.rand(N, B, HISTORY, generator=g) < 0.3
    return Batch(*map(torch.Tensor.double, (x, y, clock)), None, moment, gaps.double(), usual.double())


def weights(one: PlusModel) -> Params:
    """One model for all, but the embedding of each sensor differs."""
    theta = {name: w.double() for name, w in one.init(torch.Generator().manual_seed(1)).items()}
    if one.config.personal:
        shape = (N, *theta[SENSOR_EMBEDDING].shape[1:])
        theta[SENSOR_EMBEDDING] = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    return theta


def test_without_extensions_it_equals_the_papers_model() -> None:
    plain, same = NodeModel(6, 1, 4), model(SMALL)
    theta = {name: w.double() for name, w in plain.init(torch.Generator().manual_seed(3)).items()}
    assert {name: w.shape for name, w in same.init(torch.Generator()).items()} == {
        name: w.shape for name, w in theta.items()
    }
    h_G, coins = torch.randn(N, B, 4).double(), torch.tensor([True, False, True, True])
    torch.testing.assert_close(same.encode(theta, batch()), plain.encode(theta, batch()))
    for truth in (None, coins):
        torch.testing.assert_close(
            same.forecast(theta, batch(), h_G, truth), plain.forecast(theta, batch(), h_G, truth)
        )
    assert isinstance(node_model(replace(SMALL, sent=3), HISTORY, HORIZON), NodeModel)


@pytest.mark.parametrize("config", EACH)
def test_shared_weights_forecast_like_copies_of_them(config: ModelConfig) -> None:
    one, b = model(config), batch()
    theta = weights(one)
    h_G = torch.randn(N, B, 4).double()
    torch.testing.assert_close(one.forecast(theta, b, h_G), one.forecast(own(theta, N), b, h_G))


@pytest.mark.parametrize("config", EACH)
def test_a_nodes_forecast_does_not_depend_on_other_nodes(config: ModelConfig) -> None:
    one, b = model(config), batch()
    theta = weights(one)
    y_hat = one.forecast(theta, b, None)
    assert y_hat.shape == (N, B, HORIZON)
    for node in range(N):
        alone = {name: w[node : node + 1] if name == SENSOR_EMBEDDING else w for name, w in theta.items()}
        some = slice(node, node + 1)
        torch.testing.assert_close(one.forecast(alone, b.rows(some), None), y_hat[some])


def test_sensor_calendar_and_change_affect_the_forecast() -> None:
    b = batch()
    same = Batch(b.x[:1].expand(N, -1, -1, -1), b.y, b.clock, None, b.moment)
    one = model(replace(SMALL, personal=2))
    theta = weights(one)
    rows = one.forecast(theta, same, None)
    assert all(not torch.allclose(first, second) for first, second in pairwise(rows))
    one = model(replace(SMALL, calendar=3))
    later = Batch(b.x, b.y, b.clock, None, (b.moment + 1) % 7)
    assert not torch.allclose(one.forecast(weights(one), b, None), one.forecast(weights(one), later, None))
    one = model(replace(SMALL, decoder="direct", change=True))
    theta = {name: torch.zeros_like(w) for name, w in weights(one).items()}
    last = b.x[:, :, -1, :1].expand(-1, -1, HORIZON)
    assert torch.equal(one.forecast(theta, b, None), last)
