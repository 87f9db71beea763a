"""The stacked GRU equals torch.nn.GRU, node by node."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cnfgnn.data.batch import Batch
from cnfgnn.models.gru import NodeModel
from cnfgnn.models.params import Params, own, size

N, B, HISTORY, HORIZON = 3, 4, 12, 5


def weights(model: NodeModel, n: int, seed: int = 0) -> Params:
    """Different weights for each of n nodes."""
    generator = torch.Generator().manual_seed(seed)
    rows = [model.init(generator) for _ in range(n)]
    return {name: torch.cat([row[name] for row in rows]).double() for name in rows[0]}


def batch(missing: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, B, HISTORY, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(N, B, HORIZON, generator=generator, dtype=torch.float64)
    clock = torch.rand(B, HORIZON, generator=generator, dtype=torch.float64)
    weight = (torch.rand(N, B, HORIZON, generator=generator) > 0.4).double() if missing else None
    return Batch(x, y, clock, weight)


def torch_gru(theta: Params, part: str, node: int, model: NodeModel) -> nn.GRU:
    hidden = model.hidden if part == "encoder" else model.state
    gru = nn.GRU(model.features, hidden, model.layers, batch_first=True).double()
    state = {
        f"{kind}_l{layer}": theta[f"{part}.{layer}.{kind}"][node]
        for layer in range(model.layers)
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    gru.load_state_dict(state)
    return gru


def reference(theta: Params, model: NodeModel, b: Batch, h_G: Tensor | None, fed: Tensor | None) -> Tensor:
    """Forecasts by nn.GRU and nn.functional.linear, one node after the other."""
    forecasts = []
    for i in range(N):
        encoder, decoder = (torch_gru(theta, part, i, model) for part in ("encoder", "decoder"))
        _, state = encoder(b.x[i])  # (layers b h)
        if h_G is not None:
            state = torch.cat([state, h_G[i][None]], dim=-1)
        frame, steps = b.x[i, :, -1:], []
        for t in range(HORIZON):
            out, state = decoder(frame, state)
            steps.append(nn.functional.linear(out[:, 0], theta["output.weight"][i], theta["output.bias"][i]))
            value = steps[-1]
            if fed is not None and t + 1 < HORIZON:
                value = torch.where(fed[i, :, t, None], b.y[i, :, t : t + 1], value)
            frame = torch.cat([value, b.clock[:, t : t + 1]], dim=-1)[:, None]
        forecasts.append(torch.cat(steps, dim=-1))
    return torch.stack(forecasts)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [(NodeModel(), 63_873), (NodeModel(100, 1, 0), 62_501), (NodeModel(200, 2, 0), 727_401)],
)
def test_node_models_have_the_papers_numbers_of_parameters(model: NodeModel, parameters: int) -> None:
    assert size(model.init(torch.Generator().manual_seed(0))) == parameters


@pytest.mark.parametrize("model", [NodeModel(6, 1, 4), NodeModel(6, 1, 0), NodeModel(5, 2, 0)])
def test_forecasts_equal_torch_gru_on_every_node(model: NodeModel) -> None:
    theta, b = weights(model, N), batch()
    h_G = torch.randn(N, B, model.embedding, dtype=torch.float64) if model.embedding else None
    y_hat = model.decode(theta, b, model.encode(theta, b), h_G)
    torch.testing.assert_close(y_hat, reference(theta, model, b, h_G, None), rtol=0, atol=1e-13)


@pytest.mark.parametrize("model", [NodeModel(6, 1, 4), NodeModel(5, 2, 0)])
def test_a_shared_model_forecasts_like_copies_of_it(model: NodeModel) -> None:
    theta, b = weights(model, 1), batch()
    h_G = torch.randn(N, B, model.embedding, dtype=torch.float64) if model.embedding else None
    copies = own(theta, N)
    shared = model.decode(theta, b, model.encode(theta, b), h_G)
    apart = model.decode(copies, b, model.encode(copies, b), h_G)
    torch.testing.assert_close(shared, apart, rtol=0, atol=1e-13)


def test_without_embeddings_the_decoder_starts_from_zeros_in_their_place() -> None:
    model, b = NodeModel(6, 1, 4), batch()
    theta = weights(model, N)
    h_c = model.encode(theta, b)
    zeros = torch.zeros(N, B, 4, dtype=torch.float64)
    torch.testing.assert_close(model.decode(theta, b, h_c, None), model.decode(theta, b, h_c, zeros))


def test_scheduled_sampling_feeds_the_truth_at_the_drawn_steps() -> None:
    model, b = NodeModel(6, 1, 0), batch()
    theta, coins = weights(model, N), torch.tensor([True, False, True, True, False])
    y_hat = model.decode(theta, b, model.encode(theta, b), None, coins)
    fed = coins[1:].expand(N, B, -1)  # coin t feeds the truth of step t - 1
    torch.testing.assert_close(y_hat, reference(theta, model, b, None, fed), rtol=0, atol=1e-13)


def test_a_missing_truth_is_never_fed() -> None:
    model, b = NodeModel(6, 1, 0), batch(missing=True)
    assert b.weight is not None
    theta, coins = weights(model, N), torch.ones(HORIZON, dtype=torch.bool)
    y_hat = model.decode(theta, b, model.encode(theta, b), None, coins)
    torch.testing.assert_close(
        y_hat, reference(theta, model, b, None, b.weight[..., :-1] > 0), rtol=0, atol=1e-13
    )
    poisoned = Batch(b.x, torch.where(b.weight > 0, b.y, torch.nan), b.clock, b.weight)
    again = model.decode(theta, poisoned, model.encode(theta, b), None, coins)
    assert torch.equal(y_hat, again)


def test_the_gradient_of_a_node_does_not_depend_on_other_nodes() -> None:
    model, b = NodeModel(4, 1, 0), batch()
    theta = {name: w.requires_grad_() for name, w in weights(model, N).items()}
    loss = model.decode(theta, b, model.encode(theta, b), None).square().sum()
    together = torch.autograd.grad(loss, list(theta.values()))
    for i in range(N):
        row = {name: w[i : i + 1].detach().requires_grad_() for name, w in theta.items()}
        alone = Batch(b.x[i : i + 1], b.y[i : i + 1], b.clock)
        loss = model.decode(row, alone, model.encode(row, alone), None).square().sum()
        for grad, whole in zip(torch.autograd.grad(loss, list(row.values())), together, strict=True):
            torch.testing.assert_close(grad[0], whole[i], rtol=0, atol=1e-12)
