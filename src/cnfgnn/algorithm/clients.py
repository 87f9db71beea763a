"""Algorithm 2: what a group of nodes does. Axis 0 is the node axis, whether the group has one row or all.

The simulator holds every node in one such object, a federated site the nodes that it owns. The methods are
the verbs of `verbs.py`. All that a server can ask for is computed here, from the blurred copy of the readings
and from weights that were learned from it. Nothing here refers to the true readings or to what was
learned from them: they are with the owner (`owner.py`), which knows its nodes and not the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor

from cnfgnn.algorithm.compute.adam import Adam
from cnfgnn.algorithm.compute.cuda_graphs import RecordingPool, Replay
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.compute.memory_plan import bytes_needed, check_limit, stored_dtype
from cnfgnn.algorithm.compute.working_memory import NodeMemory
from cnfgnn.algorithm.fmtl import Pull, ToAnchor
from cnfgnn.algorithm.forecaster import Forecaster
from cnfgnn.algorithm.joint_learning import JointLearning
from cnfgnn.algorithm.learning_group import LearningGroup, rows_of
from cnfgnn.algorithm.messages.calls import MemoryLimit
from cnfgnn.algorithm.messages.randomness import (
    CLIENT_BATCHES,
    NODE_WEIGHTS,
    SERVER_BATCHES,
    Batches,
    Coins,
    Draw,
    Minibatches,
    decay,
    generator,
)
from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.algorithm.node_state import THETA, NodeState
from cnfgnn.algorithm.store import Store
from cnfgnn.config.settings import Missing, Wire
from cnfgnn.data.prepared_series import PreparedSeries
from cnfgnn.data.series import Scaler, Series
from cnfgnn.data.windows import SPLITS, Split, Windows
from cnfgnn.errors import NodeError
from cnfgnn.models.params import Params, models, of_one_model, own, part, rows, size
from cnfgnn.models.plus import levels


class Clients:
    """A group of n nodes with a copy of their readings, their weights and the embeddings received last."""

    def __init__(
        self,
        series: Series,
        compute: Compute,
        store: Store,
        name: str = "site",
        tick: Callable[[], None] = lambda: None,
        memory_limit: int = 0,
    ) -> None:
        self.series, self.compute, self.store, self.name = series, compute, store, name
        self.memory_limit = memory_limit  # bytes of hidden states and embeddings; 0: no limit
        self.tick = tick  # called after every minibatch
        self.wire: Wire = "full"  # until `prepare` sets it
        self.home = compute.device  # where the weights of all nodes are held
        self.theta: Params = {}
        self.adam: Adam | None = None
        self.h_G: Tensor | None = None  # of the training windows, fixed while the nodes learn
        self.evaluation_h_G: Tensor | None = None  # of the split that is evaluated next
        self.regulariser: Pull | None = None  # toward the weights of neighbours
        self._h_c: Tensor | None = None  # of all training windows, until the weights change
        self._backward: Callable[..., Tensor | None] = self._grad_h_G
        self._update_pool, self._backward_pool = RecordingPool(compute.device), RecordingPool(compute.device)
        self.joint = JointLearning(self)

    # ---- set-up -------------------------------------------------------------------------------------

    def census(self, windows: Windows, missing: Missing) -> tuple[Tensor, dict[Split, Tensor]]:
        """(n 3): count, sum and sum of squares of the training readings; (n w): in which windows a node has
        an observed input."""
        has = {
            split: torch.from_numpy(self.series.heard(windows.starts[split], windows, missing))
            for split in SPLITS
        }
        return torch.from_numpy(self.series.moments(windows, missing)), has

    def prepare(self, settings: NodeSettings, mean: float, std: float, windows: Windows) -> None:
        """Scale the readings, number the windows and draw weights from the seed."""
        self.settings = s = settings
        self.wire, self.windows = s.wire, windows
        device, dtype, count = self.compute.device, self.compute.dtype, windows.count("train")
        self.data = PreparedSeries(
            self.series, Scaler(mean, std), s.missing, windows, dtype, device, s.model, s.inputs
        )
        self.client_batches = Batches(s.seed, CLIENT_BATCHES, count, s.client_batch, device)
        self.server_batches = Batches(s.seed, SERVER_BATCHES, count, s.server_batch, device)
        self.coins = Coins(s.seed, self.data.horizon, s.sampling, device)
        self.model = s.node_model(windows.history, windows.horizon)
        self.forecaster = Forecaster(self.model, self.compute, s.loss)
        self.sent = s.model.sent_width
        theta = of_one_model(self.model.init(generator(s.seed, NODE_WEIGHTS)))
        parameters = size(theta)
        self.memory = NodeMemory(self.model, parameters, windows.history, windows.horizon, self.compute)
        self.home = self.memory.home(self.series.nodes, s.keep_optimizer)
        self.joint = JointLearning(self)
        self.load(theta)
        self.adam, self.h_G, self.evaluation_h_G, self.regulariser = None, None, None, None
        self.stored_dtype = stored_dtype(s.state_format, dtype)
        sequences = self.series.nodes * count
        h_c, h_G = sequences * s.model.state_width, sequences * s.model.embedding_width
        self._memory_needed = bytes_needed(h_c, h_G, dtype)[s.state_format]

    def turn(self, row: int) -> Tensor:
        """(n 1): which nodes have the window whose history ends with this row. Only live nodes turn."""
        raise NodeError(self.name, "turn", "this is not a live task")

    # ---- ClientUpdate -------------------------------------------------------------------------------

    def update(self, r_g: int, r_c: int, step: int, minibatches: Minibatches | None = None) -> None:
        """r_c epochs over the nodes' own windows, with h_G fixed; or some of their minibatches."""
        theta = self.theta
        for nodes, learned in self.learned(r_g, r_c, step, minibatches):
            if nodes.stop - nodes.start == self.series.nodes:
                theta = learned
            elif not self._in_place:
                if models(theta) == 1:
                    theta = {name: self._row_each(w) for name, w in theta.items()}
                for name, w in learned.items():
                    theta[name][nodes] = w.detach().to(self.home)
        self.theta = theta
        self._fix_weights()

    def learned(
        self, r_g: int, r_c: int, step: int, minibatches: Minibatches | None = None
    ) -> Iterator[tuple[slice, Params]]:
        """An update, in groups of nodes that fit into memory together: each group, and the weights that its
        nodes have at its end. The next group may overwrite them."""
        first, until = self.client_batches.some(r_c, minibatches)
        groups, rate = self.groups, self.settings.client_lr
        last = minibatches is None or minibatches.until >= r_c * len(self.client_batches)
        self._begin_optimisers(first, last)
        self.data.fit()
        self._h_c = None
        for place, nodes in enumerate(groups):
            group = self._group(nodes)
            group.adam.set_rate(rate * decay(r_g, self.settings.decay_rounds))
            learn = Replay(group.learn, self._update_pool)
            for number in range(first, until):
                windows = self.client_batches.numbered(r_g, number)
                learn(windows, self.at(group.h_G, windows), self.coins[step + number])
                if (place * (until - first) + number - first + 1) % len(groups) == 0:
                    self.tick()
            if self.adam is not None and self.home != self.compute.device:
                self.adam.put(nodes, group.adam)
            elif self.adam is None and len(groups) == 1:
                self.adam = group.adam
            yield nodes, group.theta
            del group, learn  # before the next group is made: only one fits into memory

    @property
    def groups(self) -> list[slice]:
        """The groups of nodes that learn one after the other."""
        return self.memory.groups(self.series.nodes)

    def _begin_optimisers(self, first: int, last: bool) -> None:
        """Make optimisers for an update that starts with minibatch `first`, unless those at hand go on.

        With several groups, they are kept only if they are needed again: by the next round, or by the next
        minibatches of this one.
        """
        keep = self.settings.keep_optimizer
        if self.adam is None or not (keep or first):
            self.adam = None
            if len(self.groups) > 1 and (keep or not last):
                self.adam = self._optimisers()

    def _optimisers(self) -> Adam:
        return Adam.of_nodes(self.theta, self.series.nodes, self.settings.client_lr, self.home)

    def _group(self, nodes: slice) -> LearningGroup:
        """Some of the nodes, ready to learn. Their weights are a view of this group's where it has a row for
        each node on the device, else a copy."""
        device, count = self.compute.device, nodes.stop - nodes.start
        theta = rows(self.theta, nodes, device)
        if not self._in_place:
            theta = own(theta, count)
        theta = {name: w.detach().requires_grad_() for name, w in theta.items()}
        adam = Adam(theta, self.settings.client_lr) if self.adam is None else self.adam.rows(nodes, device)
        h_G = rows_of(self.h_G, nodes)
        return LearningGroup(
            nodes, theta, adam, self.data.of_nodes(nodes), h_G, self.forecaster, self.memory, self.regulariser
        )

    @property
    def _in_place(self) -> bool:
        """Whether nodes that learn change the weights that are held here."""
        return models(self.theta) == self.series.nodes and self.home == self.compute.device

    def _row_each(self, w: Tensor) -> Tensor:
        """Room for the weights of all nodes, for a tensor that they share until now."""
        return w.new_empty(self.series.nodes, *w.shape[1:], device=self.home)

    # ---- ClientEncode -------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, draw: Draw | None = None, split: Split = "train") -> Tensor:
        """h_c of one minibatch, or of every window of the split."""
        if draw is not None:
            return self.joint.encode(self.server_batches[draw])[..., : self.sent]
        if split == "train":
            self._check_memory()
        shape = (self.series.nodes, len(self.data.starts[split]), self.model.hidden * self.model.layers)
        h_c = torch.empty(shape, dtype=self.stored_dtype, device=self.compute.device)
        for windows in self.data.chunks(split):
            h_c[:, windows] = self.encoded(self.theta, split, windows)
        if split == "train":
            self._h_c = h_c
        return h_c[..., : self.sent]

    def encoded(self, theta: Params, split: Split, windows: Tensor | slice) -> Tensor:
        """The whole h_c of some windows with these weights; only its first `sent` numbers leave."""
        parts = []
        with self.compute.autocast(), torch.no_grad():
            for nodes in self.memory.within(self.series.nodes, len(self.data.starts[split][windows])):
                batch = self.data.of_nodes(nodes).batch(split, windows)
                parts.append(self.model.encode(rows(theta, nodes, self.compute.device), batch))
        return torch.cat(parts)

    # ---- ClientBackward -----------------------------------------------------------------------------

    def backward(self, h_G: Tensor, draw: Draw, step: int, learn: bool = False) -> Tensor:
        """d loss / d h_G, without the means at its end, which are not learned; with `learn` the nodes keep
        gradients of their own, too, for `step`."""
        windows, truth = self.server_batches[draw], self.coins[step]
        self.data.fit()
        if learn:
            self.theta, self._h_c = self.joint.own_weights(self.theta), None
            return self._learned(self.joint.backward(draw, windows, h_G, truth))
        h_c = self.at(self._h_c, windows)
        if h_c is None:
            h_c = self.encoded(self.theta, "train", windows)
        grad_h_G = self._backward(windows, h_c, h_G.detach(), truth)
        assert grad_h_G is not None
        return self._learned(grad_h_G)

    def _learned(self, grad_h_G: Tensor) -> Tensor:
        """The part of a gradient that belongs to what the Graph Network learns."""
        return grad_h_G[..., : self.settings.model.learned_width]

    def _grad_h_G(self, windows: Tensor, h_c: Tensor, h_G: Tensor, truth: Tensor | None) -> Tensor:
        parts: list[Tensor] = []
        for nodes in self.memory.within(*h_G.shape[:2]):
            theta = rows(self.theta, nodes, self.compute.device)
            batch = self.data.of_nodes(nodes).batch("train", windows, h_G[nodes])
            own_h_G = h_G[nodes].detach().requires_grad_()
            losses = self.forecaster.losses(theta, batch, own_h_G, truth, h_c[nodes])
            parts += torch.autograd.grad(losses, own_h_G, torch.ones_like(losses))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def step(self, grad_h_c: Tensor, draw: Draw) -> None:
        """Finish a `backward(learn=True)` with the server's part of the gradient at the encoder's output."""
        if self.adam is None:
            self.adam = self._optimisers()
        self.adam.set_rate(self.settings.client_lr * decay(draw.r_g, self.settings.decay_rounds))
        if self.joint.step(draw, self.server_batches[draw], grad_h_c):
            self._h_c = None

    # ---- weights and embeddings ---------------------------------------------------------------------

    def weights(self) -> Params:
        """Every node's weights, one row per node even if all rows are equal."""
        n = self.series.nodes
        return {name: w.detach().expand(n, *w.shape[1:]) for name, w in self.theta.items()}

    def load(self, theta: Params) -> None:
        """Continue with these weights."""
        # a copy: other groups in this process may hold the same tensors
        self.theta = {
            name: w.detach().to(self._device_of(w), self.compute.dtype, copy=True)
            for name, w in theta.items()
        }
        self._fix_weights()

    @torch.no_grad()
    def levels(self) -> Tensor:
        """The levels of all training windows: (n w k)."""
        parts = []
        for windows in self.data.chunks("train"):
            batch = self.data.batch("train", windows)
            parts.append(levels(batch.x[..., 0]))
        return torch.cat(parts, dim=1)

    def inform(self, means: Tensor) -> None:
        """Use the means of the levels of all training windows in the nodes' linear forecasts."""
        self.data.inform(means)
        self.joint.forget()

    def embed(self, h_G: Tensor, for_evaluation: bool = False, draw: Draw | None = None) -> None:
        """Keep h_G of all windows, or of one minibatch of them."""
        if for_evaluation:
            self.evaluation_h_G = h_G
        elif draw is None:
            self._check_memory()
            self.h_G, self._h_c = h_G.to(self.stored_dtype), None  # h_c is not needed after phase (4)
        else:
            if self.h_G is None:
                self._check_memory()
                shape = (self.series.nodes, self.client_batches.windows, h_G.shape[-1])
                self.h_G = torch.zeros(shape, dtype=self.stored_dtype, device=self.compute.device)
            self.h_G[:, self.server_batches[draw]] = h_G.to(self.stored_dtype)

    def pull(self, anchor: Params, weight: Tensor) -> None:
        """Stay near the anchor during the next updates."""
        self.regulariser = ToAnchor(anchor, weight)

    # ---- evaluation, checkpoints --------------------------------------------------------------------

    def score(self, split: Split) -> Tensor:
        """(n t 8): errors against the copy, summed over all windows; nothing of a single window leaves."""
        self.data.fit()
        sums = self.forecaster.summed_errors(self.theta, self.data, self.evaluation_h_G, split)
        self.evaluation_h_G = None  # it was sent for this evaluation; the next one has its own
        return sums

    def save(self, tag: str, keep: Collection[str]) -> None:
        """Save the state under this tag, and delete all others but those to keep."""
        adam = self.adam.state() if self.adam is not None and self.settings.keep_optimizer else {}
        self.data.fit()
        state = NodeState(self.theta, adam, self.regulariser).flat()
        self.store.write(tag, state | self.data.state(), keep)

    def restore(self, tag: str) -> None:
        """Go back to a saved state; nodes that joined after it was saved stay as they were prepared."""
        saved = self.store.read(tag)
        if not saved:
            return
        state = NodeState.of(saved, self.home)
        self.load(state.theta)
        self.data.restore(saved)
        self.h_G, self.regulariser, self.adam = None, state.regulariser, None
        if state.adam:
            self.adam = self._optimisers()
            self.adam.load(state.adam)
        self.joint.forget()

    def inherit(self, run: str, tag: str) -> None:
        """Begin with the weights of another run; nodes that took no part in it stay as they were prepared."""
        theta = part(self.store.earlier(run, tag), THETA)
        if not theta:
            return
        first = self.theta  # drawn from the seed
        self.load({name: torch.where(w.isnan(), first[name].to(w), w) for name, w in theta.items()})

    # -------------------------------------------------------------------------------------------------

    def _check_memory(self) -> None:
        check_limit(MemoryLimit(self.name, self.memory_limit), self._memory_needed)

    def at(self, x: Tensor | None, windows: Tensor) -> Tensor | None:
        """Some windows of an array that is stored for all, in the type in which nodes compute."""
        return None if x is None else x[:, windows].to(self.compute.dtype)

    def _fix_weights(self) -> None:
        """Freeze weights that have changed, and drop what was computed from the old ones."""
        self.theta = {name: w.detach() for name, w in self.theta.items()}
        self._h_c = None
        self.joint.interrupt()
        if self.home == self.compute.device:
            self._backward = Replay(self._grad_h_G, self._backward_pool)
        else:  # a recording cannot fetch weights from the machine's memory
            self._backward = self._grad_h_G

    def _device_of(self, w: Tensor) -> torch.device:
        """Where weights are held: one model for all on the device, those of all nodes at their home."""
        return self.compute.device if len(w) == 1 else self.home
