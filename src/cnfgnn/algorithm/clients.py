"""Algorithm 2: what a group of nodes does. Axis 0 is the node axis, whether the group has one row or all.

The simulator holds every node in one such object, a federated site the nodes that it owns. The methods are
the verbs of `verbs.py`. All that a server can ask for is computed here, from the blurred copy of the readings
and from weights that were learned from it. Nothing here refers to the true readings or to what was
learned from them: they are with the owner (`owner.py`), which knows its nodes and not the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from cnfgnn.algorithm.adam import Adam
from cnfgnn.algorithm.calls import MemoryLimit
from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.cuda_graphs import RecordingPool, Replay
from cnfgnn.algorithm.fmtl import Pull, ToAnchor
from cnfgnn.algorithm.forecaster import Forecaster
from cnfgnn.algorithm.memory_plan import bytes_needed, check_limit, stored_dtype
from cnfgnn.algorithm.node_state import THETA, NodeState, check_without_personal
from cnfgnn.algorithm.randomness import (
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
from cnfgnn.algorithm.settings import NodeSettings
from cnfgnn.algorithm.store import Store
from cnfgnn.config.settings import Missing, Wire
from cnfgnn.data.series import PreparedSeries, Scaler, Series
from cnfgnn.data.windows import SPLITS, Split, Windows
from cnfgnn.models.params import Params, models, own, part, rows, shared
from cnfgnn.models.plus import levels, node_model


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
        self.theta: Params = {}
        self.adam: Adam | None = None
        self.h_G: Tensor | None = None  # of the training windows, fixed while the nodes learn
        self.evaluation_h_G: Tensor | None = None  # of the split that is evaluated next
        self.regulariser: Pull | None = None  # toward the weights of neighbours
        self._h_c: Tensor | None = None  # of all training windows, until the weights change
        self._decoder_grads: tuple[Draw, Params, Tensor] | None = None
        self._update_pool, self._backward_pool = RecordingPool(compute.device), RecordingPool(compute.device)

    # ---- set-up -------------------------------------------------------------------------------------

    def census(self, windows: Windows, missing: Missing) -> tuple[Tensor, dict[Split, Tensor]]:
        """(n 3): count, sum and sum of squares of the training readings; (n w): which windows a node has."""
        has = {
            split: torch.from_numpy(self.series.available(windows.starts[split], windows, missing))
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
        self.model = node_model(s.model, windows.history, windows.horizon, s.inputs)
        self.forecaster = Forecaster(self.model, self.compute, s.loss)
        self.sent = s.model.sent_width
        self.load(self.model.init(generator(s.seed, NODE_WEIGHTS)))
        self.adam, self.h_G, self.evaluation_h_G, self.regulariser = None, None, None, None
        self.stored_dtype = stored_dtype(s.state_format, dtype)
        sequences = self.series.nodes * count
        h_c, h_G = sequences * s.model.state_width, sequences * s.model.embedding_width
        self._memory_needed = bytes_needed(h_c, h_G, dtype)[s.state_format]

    # ---- ClientUpdate -------------------------------------------------------------------------------

    def update(self, r_g: int, r_c: int, step: int, minibatches: Minibatches | None = None) -> None:
        """r_c epochs over the nodes' own windows, with h_G fixed; or some of their minibatches."""
        first, until = self.client_batches.some(r_c, minibatches)
        self._own_weights()
        if self.adam is None or not (self.settings.keep_optimizer or first):
            self.adam = Adam(self.theta, self.settings.client_lr)
        self.adam.set_rate(self.settings.client_lr * decay(r_g, self.settings.decay_rounds))
        self.data.fit()
        learn = Replay(self._learn, self._update_pool)
        for number in range(first, until):
            windows = self.client_batches.numbered(r_g, number)
            learn(windows, self.at(self.h_G, windows), self.coins[step + number])
            self.tick()
        self._fix_weights()

    def _learn(self, windows: Tensor, h_G: Tensor | None, truth: Tensor | None) -> None:
        """One minibatch: every node takes a step along the gradient of its own loss."""
        assert self.adam is not None
        batch, has = self.data.batch("train", windows, h_G)
        for group in self.compute.node_slices(*batch.y.shape[:2]):
            theta = {name: w.detach()[group].requires_grad_() for name, w in self.theta.items()}
            losses = self.forecaster.losses(theta, batch.rows(group), rows_of(h_G, group), truth)
            gradients = torch.autograd.grad(losses.sum(), list(theta.values()))
            grads = dict(zip(theta, gradients, strict=True))
            if self.regulariser is not None:
                self.regulariser.add(theta, grads, group)
            self.adam.step(theta, grads, rows_of(active(has), group), group)

    # ---- ClientEncode -------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, draw: Draw | None = None, split: Split = "train") -> Tensor:
        """h_c of one minibatch, or of every window of the split."""
        if draw is not None:
            return self.encoded(self.theta, "train", self.server_batches[draw])[..., : self.sent]
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
        batch, _ = self.data.batch(split, windows)
        with self.compute.autocast(), torch.no_grad():
            groups = self.compute.node_slices(*batch.x.shape[:2])
            return torch.cat([self.model.encode(rows(theta, g), batch.rows(g)) for g in groups])

    # ---- ClientBackward -----------------------------------------------------------------------------

    def backward(self, h_G: Tensor, draw: Draw, step: int, learn: bool = False) -> Tensor:
        """d loss / d h_G, without the means at its end, which are not learned; with `learn` the nodes keep
        gradients of their own, too, for `step`."""
        windows, truth = self.server_batches[draw], self.coins[step]
        self.data.fit()
        if learn:
            return self._learned(self._backward_to_learn(h_G, draw, windows, truth))
        h_c = self.at(self._h_c, windows)
        if h_c is None:
            h_c = self.encoded(self.theta, "train", windows)
        grad_h_G = self._backward(windows, h_c, h_G.detach(), truth)
        assert grad_h_G is not None
        return self._learned(grad_h_G)

    def _learned(self, grad_h_G: Tensor) -> Tensor:
        """The part of a gradient that belongs to what the Graph Network learns."""
        return grad_h_G[..., : self.settings.model.embedding]

    def _grad_h_G(self, windows: Tensor, h_c: Tensor, h_G: Tensor, truth: Tensor | None) -> Tensor:
        batch, _ = self.data.batch("train", windows, h_G)
        grad_h_G = torch.empty_like(h_G)
        for group in self.compute.node_slices(*h_G.shape[:2]):
            theta, own_h_G = rows(self.theta, group), h_G[group].detach().requires_grad_()
            losses = self.forecaster.losses(theta, batch.rows(group), own_h_G, truth, h_c[group])
            grad_h_G[group] = torch.autograd.grad(losses.sum(), own_h_G)[0]
        return grad_h_G

    def _backward_to_learn(self, h_G: Tensor, draw: Draw, windows: Tensor, truth: Tensor | None) -> Tensor:
        """The first half of joint split learning: gradients of the decoder wait for those of the encoder."""
        batch, _ = self.data.batch("train", windows, h_G)
        h_G = h_G.detach().requires_grad_()
        self._own_weights()
        decoder = {name: w for name, w in self.theta.items() if not name.startswith("encoder")}
        h_c = self.encoded(self.theta, "train", windows).detach().requires_grad_()
        losses = self.forecaster.losses(self.theta, batch, h_G, truth, h_c)
        grad_h_G, grad_h_c, *grads = torch.autograd.grad(losses.sum(), [h_G, h_c, *decoder.values()])
        self._decoder_grads = draw, dict(zip(decoder, grads, strict=True)), grad_h_c
        return grad_h_G

    def step(self, grad_h_c: Tensor, draw: Draw) -> None:
        """The second half: the encoder's gradients from both sides, then one step of Adam."""
        if self._decoder_grads is None or self._decoder_grads[0] != draw:
            return  # these nodes were away during the first half
        _, grads, own_grad = self._decoder_grads
        self._decoder_grads = None
        batch, has = self.data.batch("train", self.server_batches[draw])
        encoder = {name: w for name, w in self.theta.items() if name.startswith("encoder")}
        with self.compute.autocast():
            h_c = self.model.encode(self.theta, batch)
        own_grad[..., : self.sent] += grad_h_c
        of_encoder = torch.autograd.grad(h_c, list(encoder.values()), own_grad.to(h_c.dtype))
        grads |= dict(zip(encoder, of_encoder, strict=True))
        if self.adam is None:
            self.adam = Adam(self.theta, self.settings.client_lr)
        self.adam.set_rate(self.settings.client_lr * decay(draw.r_g, self.settings.decay_rounds))
        self.adam.step(self.theta, grads, active(has))
        self._h_c = None

    # ---- weights and embeddings ---------------------------------------------------------------------

    def weights(self) -> Params:
        """Every node's weights, one row per node even if all rows are equal."""
        n = self.series.nodes
        return {name: w.detach().expand(n, *w.shape[1:]) for name, w in self.theta.items()}

    def load(self, theta: Params) -> None:
        """Continue with these weights; personal ones are the owner's and are left out."""
        # a copy: other groups in this process may hold the same tensors
        self.theta = {
            name: w.detach().to(self.compute.device, self.compute.dtype, copy=True)
            for name, w in shared(theta).items()
        }
        self._fix_weights()

    @torch.no_grad()
    def levels(self) -> Tensor:
        """The levels of all training windows: (n w k)."""
        parts = []
        for windows in self.data.chunks("train"):
            batch, _ = self.data.batch("train", windows)
            parts.append(levels(batch.x[..., 0]))
        return torch.cat(parts, dim=1)

    def inform(self, means: Tensor) -> None:
        """Use the means of the levels of all training windows in the nodes' linear forecasts."""
        self.data.inform(means)

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
        state = NodeState.of(saved, self.compute.device, f"{tag} of {self.name}")
        self.load(state.theta)
        self.data.restore(saved)
        self.h_G, self.regulariser = None, state.regulariser
        self.adam = state.optimiser(self.theta, self.series.nodes, self.settings.client_lr)

    def inherit(self, run: str, tag: str) -> None:
        """Begin with the weights of another run; nodes that took no part in it stay as they were prepared."""
        theta = part(self.store.earlier(run, tag), THETA)
        if not theta:
            return
        check_without_personal(theta, f"{tag} of {self.name}")
        first = self.theta  # drawn from the seed
        self.load({name: torch.where(w.isnan(), first[name].to(w), w) for name, w in theta.items()})

    # -------------------------------------------------------------------------------------------------

    def _check_memory(self) -> None:
        check_limit(MemoryLimit(self.name, self.memory_limit), self._memory_needed)

    def at(self, x: Tensor | None, windows: Tensor) -> Tensor | None:
        """Some windows of an array that is stored for all, in the type in which nodes compute."""
        return None if x is None else x[:, windows].to(self.compute.dtype)

    def _own_weights(self) -> None:
        """Give each node a copy of its own, ready to learn."""
        n = self.series.nodes
        theta = own(self.theta, n) if models(self.theta) != n else self.theta
        self.theta = {name: w.detach().requires_grad_() for name, w in theta.items()}
        self._h_c = None

    def _fix_weights(self) -> None:
        """Freeze weights that have changed, and drop what was computed from the old ones."""
        self.theta = {name: w.detach() for name, w in self.theta.items()}
        self._h_c, self._decoder_grads = None, None
        self._backward = Replay(self._grad_h_G, self._backward_pool)


def rows_of(x: Tensor | None, nodes: slice) -> Tensor | None:
    """Some rows of an array that may be absent."""
    return None if x is None else x[nodes]


def active(has: Tensor | None) -> Tensor | None:
    """(n,): the nodes that have at least one of these windows."""
    return None if has is None else has.any(dim=1)
