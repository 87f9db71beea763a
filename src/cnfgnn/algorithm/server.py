"""Algorithm 1: what the server does in a global round, by alternating or by joint split learning.

It sees nodes only through the verbs of `nodes.py`. Without a graph network `Alternating` is the federated GRU
baselines: only its first step is left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import Tensor

from cnfgnn.algorithm.aggregation import Share
from cnfgnn.algorithm.hidden_states import Encodings, encodings
from cnfgnn.algorithm.learner import GraphLearner
from cnfgnn.algorithm.memory_plan import How, kept_dtype
from cnfgnn.algorithm.nodes import Nodes
from cnfgnn.algorithm.randomness import CLIENT_BATCHES, SERVER_BATCHES, Batches, Draw, decay
from cnfgnn.algorithm.store import Store
from cnfgnn.config.settings import TrainingConfig
from cnfgnn.data.windows import Split as SplitName
from cnfgnn.models.graphnet import Edges
from cnfgnn.models.params import Params, part


class Server(ABC):
    """What both strategies have: the nodes that train with their graph, and everyone who is evaluated with
    the whole graph. They differ in inductive learning only."""

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
        keeping: How = "full",
    ) -> None:
        self.nodes, self.graph = nodes, graph
        self.everyone, self.whole_graph = everyone, whole_graph
        self.gn, self.share, self.store, self.tick = gn, share, store, tick
        self.keeping, self.kept_dtype = keeping, kept_dtype(keeping, graph.weights.dtype)
        self.client_rounds, self.server_rounds = training.client_rounds, training.server_rounds
        self.average_every = training.average_every
        self.decay_rounds = training.rounds if training.schedule == "cosine" else 0
        device = graph.weights.device
        self.client_batches = Batches(seed, CLIENT_BATCHES, windows, training.client_batch, device)
        self.batches = Batches(seed, SERVER_BATCHES, windows, training.server_batch, device)
        self.theta_bar: Params | None = None  # what every node has, if they have the same
        self.step = 0  # minibatches of phases (1) and (3) since the start
        self.phase = 0  # the last one done of a round that has not ended
        self.reached: Callable[[int, int], None] = lambda r_g, phase: None

    def server_batches(self, r_g: int) -> Iterator[tuple[Draw, Tensor]]:
        """R_s epochs of minibatches: which draw, and the windows it stands for."""
        if self.gn is not None:
            self.gn.slow_down(decay(r_g, self.decay_rounds))
        for r_s in range(self.server_rounds):
            for draw in self.batches.epoch(r_g, r_s):
                yield draw, self.batches[draw]
                self.step += 1
                self.tick()

    @property
    @abstractmethod
    def phases(self) -> tuple[int, ...]:
        """Minibatches of a round's phases, those of a phase taking about as long as each other."""

    @property
    def minibatches(self) -> int:
        """In a round."""
        return sum(self.phases)

    def score(self, split: SplitName) -> Tensor:
        """Everybody's summed errors: (n t 8)."""
        self._embed_all(split)
        return self.everyone.score(split)

    def forecast(self) -> None:
        """Have every node forecast what lies ahead, for itself."""
        self._embed_all("test")
        self.everyone.forecast()
        self.everyone.flush()

    def ready(self, split: SplitName) -> None:
        """Let every node have what it takes to forecast a split's windows for itself."""
        self._embed_all(split)
        self.everyone.flush()

    def take(self, theta: Params, state: Mapping[str, Tensor]) -> None:
        """Go on from trained weights: the nodes' (shared or one row each), and the server's saved state."""
        self.everyone.load(theta, "evaluation", wire="full")  # as they were, or the run would be another
        if self.gn is not None:
            self.gn.load(state)

    def _embed_all(self, split: SplitName) -> None:
        """h_G of a split for everybody, on the whole graph."""
        if self.everyone is not self.nodes:
            self.nodes.flush()
            if self.theta_bar is not None:  # unseen nodes take the averaged weights
                self.everyone.load(self.theta_bar, "evaluation")
        if self.gn is not None:
            h_c = self.everyone.encode(split=split, purpose="evaluation")
            present = self.everyone.present(split)
            self.everyone.embed(self.gn.propagate(h_c, self.whole_graph, present), "evaluation")

    def save(self, tag: str, keep: Collection[str]) -> None:
        """Every owner keeps its state under the tag: first the nodes, then, once they have, the server."""
        self.nodes.save(tag, keep)
        self.nodes.flush()
        state = {f"theta_bar.{name}": w for name, w in (self.theta_bar or {}).items()}
        state |= {"step": torch.tensor(self.step), "phase": torch.tensor(self.phase)} | (
            {} if self.gn is None else self.gn.state()
        )
        self.store.write(tag, state, keep)

    def restore(self, tag: str, to_learn: bool = True) -> None:
        """Go on from what `save` kept, to the last bit; what only learning needs, if it will."""
        state = self.store.read(tag)
        self.nodes.restore(tag)
        self.step, self.phase = int(state["step"]), int(state.get("phase", 0))
        self.theta_bar = part(state, "theta_bar.", self.graph.weights.device) or None
        if self.theta_bar is not None:  # for a site that was away when the others kept theirs
            with self.nodes.recovering():
                self.nodes.load(self.theta_bar)
        if self.gn is not None:
            self.gn.load(state)


class Alternating(Server):
    """CNFGNN: nodes learn while h_G stands still, then the graph network while the nodes do."""

    @property
    def phases(self) -> tuple[int, ...]:
        """Minibatches of a round: of the nodes, and of the graph network."""
        served = () if self.gn is None else (self.server_rounds * len(self.batches),)
        return (self.client_rounds * len(self.client_batches), *served)

    def round(self, r_g: int) -> None:
        done = self.phase  # of this round, before an interruption
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
                    self.gn.descend(self.nodes.backward(h_G, draw, self.step))
                self._reach(r_g, 3)
            # (4) On-node graph embedding update.
            self.embed(encoded)
        self.phase = 0

    def update(self, r_g: int) -> None:
        """R_c epochs at the nodes, which then share their weights; or share them more often on the way."""
        minibatches = self.client_rounds * len(self.client_batches)
        every = self.average_every or minibatches
        for first in range(0, minibatches, every):
            whole = every >= minibatches
            until = None if whole else min(first + every, minibatches)
            self.nodes.update(r_g, self.client_rounds, self.step, first, until)
            self.theta_bar = self.share(self.nodes)
        self.step += minibatches

    def _reach(self, r_g: int, phase: int) -> None:
        self.phase = phase
        self.reached(r_g, phase)

    def encode(self) -> Encodings:
        """h_c of all training windows."""
        return encodings(self.keeping, self.nodes, self.batches, self.kept_dtype)

    def embed(self, encoded: Encodings) -> None:
        """h_G of all training windows, to the nodes."""
        assert self.gn is not None
        for piece in encoded.pieces:
            h_c, present = encoded[piece]
            h_G = self.gn.propagate(h_c, self.graph, present)
            self.nodes.embed(h_G.to(self.kept_dtype), draw=piece)

    def restore(self, tag: str, to_learn: bool = True) -> None:
        super().restore(tag, to_learn)
        if self.gn is not None and to_learn and not self.phase:
            with self.nodes.recovering():  # (2) and (4) once more: the same weights give the same h_G
                self.embed(self.encode())


class Split(Server):
    """Joint split learning: every minibatch goes to the server and back, and both sides take a step."""

    @property
    def phases(self) -> tuple[int, ...]:
        return (self.server_rounds * len(self.batches),)

    def round(self, r_g: int) -> None:
        assert self.gn is not None
        for taken, (draw, windows) in enumerate(self.server_batches(r_g), start=1):
            h_c = self.nodes.encode(draw).requires_grad_()
            h_G = self.gn(h_c, self.graph, self.nodes.present("train", windows))
            grad_h_c = self.gn.descend(self.nodes.backward(h_G, draw, self.step, learn=True))
            assert grad_h_c is not None
            self.nodes.step(grad_h_c, draw)
            if taken == self.minibatches or (self.average_every and taken % self.average_every == 0):
                self.theta_bar = self.share(self.nodes)
