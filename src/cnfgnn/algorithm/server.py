"""Algorithm 1: what the server does in a global round, in alternating training or in joint split learning.

The server sees nodes only through the verbs of `nodes.py`. Without a Graph Network only the first step of
`Alternating` is left: these are the federated GRU baselines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from cnfgnn.algorithm.aggregation import Share
from cnfgnn.algorithm.compute.learner import GraphLearner
from cnfgnn.algorithm.compute.memory_plan import stored_dtype
from cnfgnn.algorithm.hidden_states import Encodings, encodings
from cnfgnn.algorithm.messages.nodes import Nodes
from cnfgnn.algorithm.messages.randomness import (
    CLIENT_BATCHES,
    SERVER_BATCHES,
    Batches,
    Draw,
    Minibatches,
    decay,
)
from cnfgnn.algorithm.messages.settings import StateFormat
from cnfgnn.algorithm.messages.sums import Sums
from cnfgnn.algorithm.store import Store
from cnfgnn.config.settings import TrainingConfig
from cnfgnn.data.windows import Split as SplitName
from cnfgnn.models.graphnet import Edges
from cnfgnn.models.params import Params, part

TRIES = 3  # how often to evaluate or forecast, at most, until no node comes back in the middle of it
Used = TypeVar("Used")


class Server(ABC):
    """What both strategies have in common.

    `nodes` and `graph` are those that train, `everyone` and `whole_graph` those that are evaluated. They
    differ only in inductive training.
    """

    def __init__(
        self,
        nodes: Nodes,
        graph: Edges,
        everyone: Nodes,
        whole_graph: Edges,
        gn: GraphLearner | None,
        share: Share,
        training: TrainingConfig,
        seed: int,
        windows: int,
        store: Store,
        tick: Callable[[], None] = lambda: None,
        state_format: StateFormat = "full",
    ) -> None:
        self.nodes, self.graph = nodes, graph
        self.everyone, self.whole_graph = everyone, whole_graph
        self.gn, self.share, self.store, self.tick = gn, share, store, tick
        self.state_format, self.stored_dtype = state_format, stored_dtype(state_format, graph.weights.dtype)
        self.client_rounds, self.server_rounds = training.client_rounds, training.server_rounds
        self.average_every = training.average_every
        self.decay_rounds = training.rounds if training.schedule == "cosine" else 0
        device = graph.weights.device
        self.client_batches = Batches(seed, CLIENT_BATCHES, windows, training.client_batch, device)
        self.batches = Batches(seed, SERVER_BATCHES, windows, training.server_batch, device)
        self.theta_bar: Params | None = None  # the weights of every node, if all have the same
        self.step = 0  # minibatches of phases (1) and (3) since the start
        self.phase = 0  # the last phase that is done, in a round that has not ended
        self.reached: Callable[[int, int], None] = lambda r_g, phase: None

    def inform(self) -> None:
        """Send each node the means of its neighbours' and of all nodes' levels, which need no training."""
        if self.gn is not None and self.gn.levels:
            levels = self.nodes.levels()
            self.nodes.inform(self.gn.level_means(levels, self.graph, self.nodes.present("train")))

    def server_batches(self, r_g: int) -> Iterator[tuple[Draw, Tensor]]:
        """R_s epochs of minibatches: each draw, and the windows in it."""
        if self.gn is not None:
            self.gn.scale_rate(decay(r_g, self.decay_rounds))
        for r_s in range(self.server_rounds):
            for draw in self.batches.epoch(r_g, r_s):
                yield draw, self.batches[draw]
                self.step += 1
                self.tick()

    @property
    @abstractmethod
    def phases(self) -> tuple[int, ...]:
        """Minibatches in each phase of a round; within a phase all take about the same time."""

    @property
    def minibatches(self) -> int:
        """All minibatches of a round."""
        return sum(self.phases)

    def score(self, split: SplitName) -> Sums:
        """Summed errors of every node."""
        return self._embedded(split, lambda: self.everyone.score(split))

    def forecast(self, levels: Sequence[int] = (), tries: int = TRIES) -> None:
        """Have every node forecast the window ahead, for its owner, with intervals of these levels."""

        def forecast() -> None:
            self.everyone.forecast(levels)
            self.everyone.flush()

        self._embedded("test", forecast, tries)

    def ready(self, split: SplitName) -> None:
        """Give every node the embeddings that it needs to forecast the windows of a split."""
        self._embedded(split, self.everyone.flush)

    def load_trained(self, theta: Params, state: Mapping[str, Tensor]) -> None:
        """Continue from trained weights of the nodes (shared or a row each) and the server's saved state."""
        # not quantised again, so that the nodes get exactly the weights of the run
        self.everyone.load(theta, "evaluation", wire="full")
        if self.gn is not None:
            self.gn.load(state)

    def go_on_from(self, theta: Params, state: Mapping[str, Tensor]) -> None:
        """Begin a training with the weights of another one; optimisers start afresh.

        `theta` is what all nodes share; it is empty if each of them has begun with its own weights.
        """
        if theta:
            self.theta_bar = self.nodes.load(theta)
        if self.gn is not None:
            self.gn.load_weights(state)

    def _embedded(self, split: SplitName, use: Callable[[], Used], tries: int = TRIES) -> Used:
        """Send every node its h_G of a split, and use it. That is done once more if a node was away when
        hidden states were asked for and came back: it has no h_G, and those of the others lack its part."""
        for _ in range(tries):
            self._embed_all(split)
            encoded = self.everyone.up
            used = use()
            if self.gn is None or not bool((self.everyone.up & ~encoded).any()):
                break
        return used

    def _embed_all(self, split: SplitName) -> None:
        """Send every node its h_G of a split, computed on the whole graph."""
        if self.everyone is not self.nodes:
            self.nodes.flush()
            if self.theta_bar is not None:  # nodes that did not train use the averaged weights
                self.everyone.load(self.theta_bar, "evaluation")
        if self.gn is not None:
            h_c = self.everyone.encode(split=split, purpose="evaluation")
            present = self.everyone.present(split)
            self.everyone.embed(self.gn.propagate(h_c, self.whole_graph, present), for_evaluation=True)

    def save(self, tag: str, keep: Collection[str]) -> None:
        """Every party saves its own state under the tag: first the nodes, then the server."""
        self.nodes.save(tag, keep)
        self.nodes.flush()
        state = {f"theta_bar.{name}": w for name, w in (self.theta_bar or {}).items()}
        state |= {"step": torch.tensor(self.step), "phase": torch.tensor(self.phase)}
        if self.gn is not None:
            state |= self.gn.state()
        self.store.write(tag, state, keep)

    def restore(self, tag: str, to_learn: bool = True) -> None:
        """Continue from a saved state, bit for bit; `to_learn` also restores what only training needs."""
        state = self.store.read(tag)
        self.nodes.restore(tag)
        self.step, self.phase = int(state["step"]), int(state["phase"])
        self.theta_bar = part(state, "theta_bar.", self.graph.weights.device) or None
        if self.theta_bar is not None:  # for a site that was away when the others saved theirs
            with self.nodes.recovering():
                self.nodes.load(self.theta_bar)
        if self.gn is not None:
            self.gn.load(state)


class Alternating(Server):
    """CNFGNN: the nodes learn while h_G is fixed, then the Graph Network learns while the nodes are fixed."""

    @property
    def phases(self) -> tuple[int, ...]:
        """Minibatches of the nodes, and of the Graph Network."""
        of_nodes = self.client_rounds * len(self.client_batches)
        if self.gn is None:
            return (of_nodes,)
        return of_nodes, self.server_rounds * len(self.batches)

    def round(self, r_g: int) -> None:
        done = self.phase  # the last phase that was done before an interruption
        if r_g == 1 and done < 1:
            self.inform()
        # (1) Federated learning of on-node models.
        if done < 1:
            self.update(r_g)
            self._reach(r_g, 1)
        if self.gn is not None:
            # (2) Temporal encoding update.
            with self.nodes.recovering(done == 3):
                encoded = self.encode()
            # (3) Split Learning of GN.
            if done < 3:
                for draw, _ in self.server_batches(r_g):
                    h_c, present = encoded[draw]
                    h_G = self.gn(h_c, self.graph, present)
                    following = self.batches.after(draw, self.server_rounds)
                    self.gn.descend(encoded.backward(h_G, draw, self.step, following))
                self._reach(r_g, 3)
            # (4) On-node graph embedding update.
            self.embed(encoded)
        self.phase = 0

    def update(self, r_g: int) -> None:
        """R_c epochs at the nodes, which share their weights at the end or every few minibatches."""
        total = self.client_rounds * len(self.client_batches)
        every = self.average_every or total
        for first in range(0, total, every):
            minibatches = None  # all of them
            if every < total:
                minibatches = Minibatches(first, min(first + every, total))
            self.nodes.update(r_g, self.client_rounds, self.step, minibatches)
            self.theta_bar = self.share(self.nodes)
        self.step += total

    def _reach(self, r_g: int, phase: int) -> None:
        self.phase = phase
        self.reached(r_g, phase)

    def encode(self) -> Encodings:
        """h_c of all training windows."""
        return encodings(self.state_format, self.nodes, self.batches, self.stored_dtype)

    def embed(self, encoded: Encodings) -> None:
        """Send the nodes h_G of all training windows."""
        assert self.gn is not None
        for piece, (h_c, present) in encoded.pieces():
            h_G = self.gn.propagate(h_c, self.graph, present)
            self.nodes.embed(h_G.to(self.stored_dtype), draw=piece)

    def go_on_from(self, theta: Params, state: Mapping[str, Tensor]) -> None:
        super().go_on_from(theta, state)
        if self.gn is not None:  # the nodes learned with embeddings: without, round 1 would undo that
            self.embed(self.encode())

    def restore(self, tag: str, to_learn: bool = True) -> None:
        super().restore(tag, to_learn)
        if self.gn is not None and to_learn and not self.phase:
            with self.nodes.recovering():  # repeat (2) and (4): the same weights give the same h_G
                self.embed(self.encode())


class Split(Server):
    """Joint split learning: both sides take a step in every minibatch."""

    @property
    def phases(self) -> tuple[int, ...]:
        return (self.server_rounds * len(self.batches),)

    def round(self, r_g: int) -> None:
        assert self.gn is not None
        if r_g == 1:
            self.inform()
        for taken, (draw, windows) in enumerate(self.server_batches(r_g), start=1):
            h_c = self.nodes.encode(draw).requires_grad_()
            h_G = self.gn(h_c, self.graph, self.nodes.present("train", windows))
            grad_h_c = self.gn.descend(self.nodes.backward(h_G, draw, self.step, learn=True))
            assert grad_h_c is not None
            self.nodes.step(grad_h_c, draw)
            if taken == self.minibatches or (self.average_every and taken % self.average_every == 0):
                self.theta_bar = self.share(self.nodes)
