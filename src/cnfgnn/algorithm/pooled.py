"""The centralised bound: one model trained on the readings of all nodes, without verbs.

With a blur it is trained on the copies, as by a server that was sent them, and evaluated by their owner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from cnfgnn.algorithm.compute.adam import Adam
from cnfgnn.algorithm.compute.cuda_graphs import RecordingPool, Replay
from cnfgnn.algorithm.compute.learner import GraphLearner
from cnfgnn.algorithm.messages.randomness import decay
from cnfgnn.algorithm.messages.sums import Sums
from cnfgnn.algorithm.node_state import OWNER
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.store import Store
from cnfgnn.config.settings import TrainingConfig
from cnfgnn.data.windows import Split
from cnfgnn.models.graphnet import Edges
from cnfgnn.models.params import Params, own, part
from cnfgnn.models.plus import SENSOR_EMBEDDING


class Pooled:
    """One node model for all (m = 1), and the Graph Network if there is one, trained end to end.

    Only the embedding of each sensor (`model.personal`) has a row for each node.
    """

    def __init__(
        self, owner: Owner, graph: Edges, gn: GraphLearner | None, training: TrainingConfig, store: Store
    ) -> None:
        self.owner, self.clients, self.graph, self.gn, self.store = owner, owner.nodes, graph, gn, store
        clients, theta = self.clients, dict(self.clients.theta)
        if SENSOR_EMBEDDING in theta:
            theta |= own({SENSOR_EMBEDDING: theta[SENSOR_EMBEDDING]}, clients.series.nodes)
        self.theta: Params = {name: w.detach().requires_grad_() for name, w in theta.items()}
        self.adam = Adam(self.theta, training.client_lr)
        self.step = 0
        # never called: its rounds have no phases
        self.reached: Callable[[int, int], None] = lambda r_g, phase: None
        self._memory = RecordingPool(clients.compute.device)
        self._minibatch = Replay(self._learn, self._memory)

    def round(self, r_g: int) -> None:
        """One epoch over all windows."""
        clients = self.clients
        if r_g == 1:
            self._inform()
        self._set_rates(r_g)
        for draw in clients.client_batches.epoch(r_g, 0):
            self._minibatch(clients.client_batches[draw], clients.coins[self.step])
            self.step += 1
            clients.tick()
        clients.load(self.theta)

    def _inform(self) -> None:
        """Use the means of neighbours' and of all nodes' levels in linear forecasts, as nodes do in a
        federation, where the server sends these means."""
        if self.gn is not None and self.gn.levels:
            clients = self.clients
            means = self.gn.level_means(clients.levels(), self.graph, clients.data.heard["train"])
            clients.inform(means)
            if self.owner.data is not clients.data:
                self.owner.data.inform(means)
            clients.data.fit()

    def _set_rates(self, r_g: int) -> None:
        settings = self.clients.settings
        if settings.decay_rounds:
            share = decay(r_g, settings.decay_rounds)
            self.adam.set_rate(settings.client_lr * share)
            if self.gn is not None:
                self.gn.scale_rate(share)

    def _learn(self, windows: Tensor, truth: Tensor | None) -> None:
        """One minibatch: all weights take a step along the gradient of the nodes' summed losses."""
        clients, weights = self.clients, list(self.theta.values())
        batch = clients.data.batch("train", windows)
        with clients.compute.autocast():
            h_c = clients.model.encode(self.theta, batch)
        if self.gn is None:
            loss = clients.forecaster.losses(self.theta, batch, None, truth, h_c).sum()
            grads = list(torch.autograd.grad(loss, weights))
        else:
            sent = h_c.to(batch.x.dtype)[..., : clients.sent]
            h_G = self.gn.network(sent, self.graph, clients.data.heard_in("train", windows))
            if self.gn.levels:  # what the network adds to is the linear forecast that uses the means in h_G
                batch = clients.data.with_linear_forecast(batch, "train", windows, h_G)
            loss = clients.forecaster.losses(self.theta, batch, h_G, truth, h_c).sum()
            *grads, of_gn = torch.autograd.grad(loss, [*weights, self.gn.weights])
            self.gn.step(of_gn)
        self.adam.step(self.theta, dict(zip(self.theta, grads, strict=True)))

    def score(self, split: Split) -> Sums:
        """Summed errors of every node."""
        self.ready(split)
        owner, clients = self.owner, self.clients
        clients.data.fit()
        of_copy = clients.forecaster.summed_errors(clients.theta, clients.data, owner.h_G, split)
        owner.evaluate(split, of_copy)
        assert owner.errors is not None
        return Sums(of_copy, owner.errors)

    def forecast(self, levels: Sequence[int] = ()) -> None:
        """Forecast the window ahead at every node; forecasts stay with their owner."""
        self.ready("test")
        self.owner.forecast(levels)

    def load_trained(self, theta: Params, state: Mapping[str, Tensor]) -> None:
        """Continue from trained weights."""
        self.clients.load(theta)
        if self.gn is not None:
            self.gn.load(state)

    def go_on_from(self, theta: Params, state: Mapping[str, Tensor]) -> None:
        """Begin a training with the weights of another one; the optimiser starts afresh."""
        with torch.no_grad():
            for name, w in theta.items():
                self.theta[name].copy_(w)
        if self.gn is not None:
            self.gn.load_weights(state)
        self.clients.load(self.theta)

    def ready(self, split: Split) -> None:
        """Give every node the embeddings that it needs to forecast the windows of a split."""
        if self.gn is None:
            return
        clients = self.clients
        parts = [clients.encoded(clients.theta, split, windows) for windows in clients.data.chunks(split)]
        h_c = torch.cat(parts, dim=1).to(clients.stored_dtype)[..., : clients.sent]
        self.owner.h_G = self.gn.propagate(h_c, self.graph, clients.data.heard[split])

    @property
    def phases(self) -> tuple[int, ...]:
        """Minibatches of a round, in one phase."""
        return (self.minibatches,)

    @property
    def minibatches(self) -> int:
        """Minibatches of a round."""
        return len(self.clients.client_batches)

    def save(self, tag: str, keep: Collection[str]) -> None:
        """Save everything: the nodes have no state of their own."""
        state = {f"theta_bar.{name}": w for name, w in self.theta.items()}
        state |= {f"node_adam.{name}": w for name, w in self.adam.state().items()}
        self.clients.data.fit()
        of_copies = self.clients.data.state()
        state |= {"step": torch.tensor(self.step)} | of_copies
        there = of_copies if self.owner.data is self.clients.data else {}
        of_owner = self.owner.state()
        state |= {OWNER + name: tensor for name, tensor in of_owner.items() if name not in there}
        if self.gn is not None:
            state |= self.gn.state()
        self.store.write(tag, state, keep)

    def restore(self, tag: str, to_learn: bool = True) -> None:
        """Continue from a saved state, bit for bit."""
        state = self.store.read(tag)
        with torch.no_grad():
            for name, w in part(state, "theta_bar.").items():
                self.theta[name].copy_(w)
        self.adam.load(part(state, "node_adam.", self.clients.compute.device))
        self.step = int(state["step"])
        self.clients.data.restore(state)
        self.owner.load(part(state, OWNER))
        if self.gn is not None:
            self.gn.load(state)
        self.clients.load(self.theta)
