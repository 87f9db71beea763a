"""Whole rounds equal a naive version: loops over nodes and windows, torch's own Adam, plain sums."""

from __future__ import annotations

import math

import numpy as np
import torch
from benchmarks.naive import graph_network
from torch import Tensor

from cnfgnn.algorithm.messages.randomness import (
    CLIENT_BATCHES,
    COINS,
    NODE_WEIGHTS,
    SERVER_BATCHES,
    SERVER_WEIGHTS,
    generator,
    mix,
)
from cnfgnn.algorithm.server import Server
from cnfgnn.config.settings import Config
from cnfgnn.data.batch import Batch
from cnfgnn.data.dataset import Dataset
from cnfgnn.models.graphnet import Edges, GraphNetwork
from cnfgnn.models.gru import NodeModel
from cnfgnn.models.params import Params
from cnfgnn.runs.simulation import simulate
from tests.conftest import HISTORY, HORIZON, small


class Naive:
    """at-fedavg on masked readings, one node and one window at a time."""

    def __init__(self, data: Dataset, config: Config) -> None:
        values = data.readings.values.astype(np.float64).T
        self.graph, self.config, self.n = data.graph, config, len(values)
        observed = ~np.isnan(values)
        total = values.shape[1] - HISTORY - HORIZON + 1
        starts = range(round(0.7 * total))
        self.has = np.array([[row[s : s + HISTORY].any() for s in starts] for row in observed])
        assert not self.has.all(), "the test means ragged windows"
        self.starts = np.array(starts)[self.has.any(axis=0)]
        self.has = self.has[:, self.has.any(axis=0)]
        known = values[:, : len(starts) + HISTORY - 1][observed[:, : len(starts) + HISTORY - 1]]
        self.mean, self.std = known.mean(), known.std()
        filled = values.copy()
        for row in filled:
            for t in range(1, len(row)):
                row[t] = row[t - 1] if np.isnan(row[t]) else row[t]
        self.series = torch.tensor(np.nan_to_num((filled - self.mean) / self.std))
        self.observed = torch.tensor(observed)
        self.clock = torch.arange(values.shape[1], dtype=torch.float64) * 300 / 86400 % 1
        model = config.model
        self.model = NodeModel(model.hidden, 1, model.embedding)
        first = self.model.init(generator(config.seed, NODE_WEIGHTS))
        self.theta: Params = {name: w.double() for name, w in first.items()}
        gn = GraphNetwork(model.hidden, model.embedding, model.gn_widths)
        self.gn = gn.init(generator(config.seed, SERVER_WEIGHTS)).double()
        self.gn_adam = torch.optim.Adam(self.gn.parameters(), lr=config.training.server_lr)
        self.h_G = torch.zeros(self.n, len(self.starts), model.embedding, dtype=torch.float64)
        self.step = 0

    def round(self, r_g: int) -> None:
        begun, trained = self.step, []
        for i in range(self.n):
            self.step = begun
            trained.append(self.client_update(i, r_g))
        count = self.has.sum(axis=1)
        self.theta = {
            name: sum(count[i] * trained[i][name] for i in range(self.n)) / count.sum() for name in self.theta
        }
        everything = list(range(len(self.starts)))
        with torch.no_grad():
            h_c = torch.cat([self.model.encode(self.theta, self.cut(i, everything)) for i in range(self.n)])
        for epoch in range(self.config.training.server_rounds):
            for windows in self.epoch(SERVER_BATCHES, r_g, epoch, self.config.training.server_batch):
                h_G = self.propagate(h_c, windows)
                rows = [h_c[i : i + 1, windows] for i in range(self.n)]
                losses = [self.loss(i, self.theta, windows, h_G[i], rows[i]) for i in range(self.n)]
                self.gn_adam.zero_grad()
                torch.stack(losses).sum().backward()
                self.gn_adam.step()
                self.step += 1
        with torch.no_grad():
            self.h_G = self.propagate(h_c, everything)

    def client_update(self, i: int, r_g: int) -> Params:
        theta = {name: w.clone().requires_grad_() for name, w in self.theta.items()}
        adam = torch.optim.Adam(theta.values(), lr=self.config.training.client_lr)
        for epoch in range(self.config.training.client_rounds):
            for windows in self.epoch(CLIENT_BATCHES, r_g, epoch, self.config.training.client_batch):
                loss = self.loss(i, theta, windows, self.h_G[i, windows])
                weight = self.cut(i, windows).weight
                if weight is not None and weight.any():
                    adam.zero_grad()
                    loss.backward()
                    adam.step()
                self.step += 1
        return {name: w.detach() for name, w in theta.items()}

    def epoch(self, purpose: int, r_g: int, epoch: int, size: int) -> list[list[int]]:
        shuffle = generator(self.config.seed, purpose, r_g, epoch)
        order = torch.randperm(len(self.starts), generator=shuffle).tolist()
        return [order[k : k + size] for k in range(0, len(order), size)]

    def cut(self, i: int, windows: list[int]) -> Batch:
        spans = [slice(self.starts[w], self.starts[w] + HISTORY) for w in windows]
        after = [slice(span.stop, span.stop + HORIZON) for span in spans]
        x = torch.stack([torch.stack([self.series[i, s], self.clock[s]], dim=-1) for s in spans])
        counts = [self.observed[i, s] for s in after]
        clock = torch.stack([self.clock[s] for s in after])
        y = torch.stack([self.series[i, s] for s in after])
        return Batch(x[None], y[None], clock, torch.stack(counts)[None].double())

    def loss(
        self, i: int, theta: Params, windows: list[int], h_G: Tensor, h_c: Tensor | None = None
    ) -> Tensor:
        k, batch = self.config.training.sampling, self.cut(i, windows)
        p = k / (k + math.exp(self.step / k))
        truth = torch.tensor([mix(self.config.seed, COINS, self.step, t) / 2**64 < p for t in range(HORIZON)])
        h_c = self.model.encode(theta, batch) if h_c is None else h_c
        y_hat = self.model.decode(theta, batch, h_c, h_G[None], truth)
        assert batch.weight is not None
        total: Tensor = ((y_hat - batch.y).square() * batch.weight).sum() / batch.weight.sum().clamp(min=1)
        return total

    def propagate(self, h_c: Tensor, windows: list[int]) -> Tensor:
        """h_G of each window on the graph of those who are heard in it."""
        columns = []
        for w in windows:
            here = np.flatnonzero(self.has[:, w])
            edges = Edges.of(self.graph.subgraph(here), torch.device("cpu"), torch.float64)
            h_G = graph_network(self.gn, h_c[here, w : w + 1], edges)
            column = torch.zeros(self.n, 1, h_G.shape[-1], dtype=torch.float64)
            columns.append(column.index_put((torch.tensor(here),), h_G))
        return torch.cat(columns, dim=1)


def test_two_rounds_of_at_fedavg_equal_the_naive_version(data: Dataset) -> None:
    config = small("at-fedavg")
    experiment, naive = simulate(data, config), Naive(data, config)
    server = experiment.strategy
    assert isinstance(server, Server)
    assert experiment.scaler.mean == naive.mean
    assert abs(experiment.scaler.std - naive.std) < 1e-12
    for r_g in (1, 2):
        server.round(r_g)
        naive.round(r_g)
    server.nodes.flush()
    assert server.step == naive.step
    assert server.theta_bar is not None
    assert server.gn is not None
    for name, w in naive.theta.items():
        torch.testing.assert_close(server.theta_bar[name], w, rtol=0, atol=1e-9)
    for ours, theirs in zip(server.gn.gn.parameters(), naive.gn.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)
    h_G = experiment.owners[0][1].nodes.h_G
    assert h_G is not None
    here = torch.tensor(naive.has)
    torch.testing.assert_close(h_G[here], naive.h_G[here], rtol=0, atol=1e-8)
