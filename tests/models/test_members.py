"""Several networks side by side in one node model: each is what it would be alone, forecasts are means."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.forecaster import Forecaster
from cnfgnn.config.settings import Config, Loss, ModelConfig
from cnfgnn.data.batch import Batch
from cnfgnn.errors import ConfigError
from cnfgnn.models.params import Params, own
from cnfgnn.models.plus import SENSOR_EMBEDDING, PlusModel
from tests.models.test_plus import ALL, HISTORY, HORIZON, SMALL, B, N, batch

K = 3
CONFIGS = [
    SMALL,
    replace(SMALL, calendar=3, personal=2, gaps=True, profile=True, embedding=0),
    replace(ALL, levels=True, sent=4),
    replace(ALL, linear=True, levels=True),
]


def members(config: ModelConfig) -> PlusModel:
    return PlusModel(replace(config, members=K), HISTORY, HORIZON)


def readings() -> Batch:
    return replace(batch(), linear_change=0.1 * torch.randn(N, B, HORIZON).double())


def weights(model: PlusModel, m: int) -> Params:
    """Shared by all nodes (m = 1) or not (m = n); embeddings of sensors always differ."""
    theta = {name: w.double() for name, w in own(model.init(torch.Generator().manual_seed(1)), N).items()}
    for name in theta:
        if name == SENSOR_EMBEDDING or "output" in name or m == N:
            theta[name] += 0.1 * torch.randn(theta[name].shape, dtype=torch.float64)
        if m == 1 and name != SENSOR_EMBEDDING:
            theta[name] = theta[name][:1]
    return theta


def of_member(theta: Params, k: int) -> Params:
    return {name: w[:, k] for name, w in theta.items()}


def alone(x: Tensor, k: int, common: int, sent: int) -> Tensor:
    """What one member has of a state in which the sent parts of all members come first."""
    rest = x[..., common:]
    first, last = rest[..., : K * sent].chunk(K, -1), rest[..., K * sent :].chunk(K, -1)
    return torch.cat([x[..., :common], first[k], last[k]], dim=-1)


@pytest.mark.parametrize("m", [1, N])
@pytest.mark.parametrize("config", CONFIGS)
def test_members_encode_and_forecast_as_if_they_were_alone_and_their_mean_is_the_forecast(
    config: ModelConfig, m: int
) -> None:
    torch.manual_seed(4)
    together, one, data = members(config), PlusModel(config, HISTORY, HORIZON), readings()
    theta, wide = weights(together, m), together.config
    h_c = together.encode(theta, data)
    assert h_c.shape[-1] == wide.state_width == wide.level_width + K * config.hidden
    h_G = torch.randn(N, B, wide.embedding_width).double() if config.embedding else None
    forecasts = []
    for k in range(K):
        own_h_c = alone(h_c, k, config.level_width, config.sent_by_member)
        torch.testing.assert_close(own_h_c, one.encode(of_member(theta, k), data))
        own_h_G = None
        if h_G is not None:
            means = h_G[..., K * config.embedding :]
            learned = h_G[..., k * config.embedding : (k + 1) * config.embedding]
            own_h_G = torch.cat([learned, means], dim=-1)
        forecasts.append(one.forecast(of_member(theta, k), data, own_h_G))
    assert not torch.allclose(forecasts[0], forecasts[1])
    torch.testing.assert_close(together.decoded(theta, data, h_c, h_G), torch.stack(forecasts))
    mean = torch.stack(forecasts).mean(dim=0)
    torch.testing.assert_close(together.forecast(theta, data, h_G), mean)


def test_the_first_member_is_drawn_like_a_model_without_others() -> None:
    drawn = members(ALL).init(torch.Generator().manual_seed(2))
    first = PlusModel(ALL, HISTORY, HORIZON).init(torch.Generator().manual_seed(2))
    for name, w in first.items():
        assert torch.equal(drawn[name][:, 0], w)
        assert name == SENSOR_EMBEDDING or not torch.equal(drawn[name][:, 1], w)


@pytest.mark.parametrize("kind", ["square", "absolute"])
def test_each_member_gets_the_gradient_of_its_own_loss(kind: Loss) -> None:
    torch.manual_seed(5)
    config, data = replace(ALL, levels=True), readings()
    together, one = members(config), PlusModel(config, HISTORY, HORIZON)
    theta = {name: w.requires_grad_() for name, w in weights(together, N).items()}
    compute = Compute.of(
        Config().with_changes({"compute.device": "cpu", "compute.precision": "fp64"}).compute
    )
    losses = Forecaster(together, compute, kind).losses(theta, data, None, None)
    grads = dict(zip(theta, torch.autograd.grad(losses.sum(), list(theta.values())), strict=True))
    for k in range(K):
        apart = {name: w.detach()[:, k].clone().requires_grad_() for name, w in theta.items()}
        loss = data.losses(one.forecast(apart, data, None), kind).sum()
        for name, grad in zip(apart, torch.autograd.grad(loss, list(apart.values())), strict=True):
            torch.testing.assert_close(grads[name][:, k], grad)


def test_several_members_have_one_layer_each() -> None:
    with pytest.raises(ConfigError, match=r"model\.layers: a node model with model\.members=2 has one layer"):
        Config().with_changes({"model.members": 2, "model.layers": 2, "model.embedding": 0})
    with pytest.raises(ConfigError, match=r"model\.members: must be at least 1"):
        Config().with_changes({"model.members": 0})
