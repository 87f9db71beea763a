"""The centralized bound takes the steps that torch's own Adam takes on the gradient of everything."""

from __future__ import annotations

import pytest
import torch

from cnfgnn.algorithm.pooled import Pooled
from cnfgnn.data.dataset import Dataset
from cnfgnn.models.graphnet import Edges, means
from cnfgnn.runs.simulation import simulate
from tests.conftest import small


@pytest.mark.parametrize("method", ["gru-central", "gru-gn-central", "cnfgnn-plus-central"])
def test_a_round_equals_end_to_end_training(method: str, data: Dataset) -> None:
    config = small(method, **{"training.schedule": "constant"})
    experiment = simulate(data, config)
    pooled, clients = experiment.strategy, experiment.owners[0][1].nodes
    assert isinstance(pooled, Pooled)
    training = experiment.config.training
    theta = {name: w.detach().clone().requires_grad_() for name, w in pooled.theta.items()}
    optimizers = [torch.optim.Adam(theta.values(), lr=training.client_lr)]
    gn = None
    if pooled.gn is not None:
        gn = simulate(data, config).strategy.gn.gn  # type: ignore[attr-defined]
        optimizers.append(torch.optim.Adam(gn.parameters(), lr=training.server_lr))
    pooled.round(1)
    assert pooled.step == pooled.minibatches
    clients.data.fit()  # as before an evaluation
    edges = Edges.of(data.graph, torch.device("cpu"), torch.float64)
    for step, draw in enumerate(clients.client_batches.epoch(1, 0)):
        windows = clients.client_batches[draw]
        batch = clients.data.batch("train", windows)
        h_c = clients.model.encode(theta, batch)
        present, h_G = clients.data.heard_in("train", windows), None
        if gn is not None:
            h_G = gn(h_c[..., : clients.sent], edges, present)
            if count := experiment.config.model.level_width:
                h_G = torch.cat([h_G, means(h_c[..., :count].detach(), edges, present)], dim=-1)
            batch = clients.data.batch("train", windows, h_G)  # as nodes have it in a federation
        loss = clients.forecaster.losses(theta, batch, h_G, clients.coins[step], h_c).sum()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    for name, w in theta.items():
        torch.testing.assert_close(pooled.theta[name], w, rtol=0, atol=1e-11)
    if gn is not None and pooled.gn is not None:
        for ours, theirs in zip(pooled.gn.gn.parameters(), gn.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)
