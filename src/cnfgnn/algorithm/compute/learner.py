"""The Graph Network with its optimiser: the only weights of the server, which never travel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cnfgnn.algorithm.compute.adam import Adam
from cnfgnn.algorithm.compute.cuda_graphs import Function, RecordingPool, Replay, ReplayBoth
from cnfgnn.algorithm.compute.device import Compute, slices
from cnfgnn.algorithm.compute.working_memory import network_windows
from cnfgnn.algorithm.messages.randomness import SERVER_WEIGHTS, generator
from cnfgnn.config.settings import ModelConfig
from cnfgnn.errors import ConfigError
from cnfgnn.models import kernels
from cnfgnn.models.graphnet import Edges, GraphNetwork, Mask, means
from cnfgnn.models.params import Packing, part

# (Edges + nodes) x windows in one pass without gradients: bounds memory and fits the caches of a CPU.
ROWS_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 21}


class _Inputs(NamedTuple):
    """What a minibatch is computed from, and its windows in parts that fit into memory."""

    h_c: Tensor
    present: Tensor | None
    parts: Sequence[slice]


class GraphLearner:
    """GN and its Adam, whose state is kept from round to round.

    In one minibatch a call returns h_G, and `descend` takes one step along d loss / d h_G. `made` makes a
    Graph Network of another package.
    """

    def __init__(
        self,
        model: ModelConfig,
        lr: float,
        seed: int,
        compute: Compute,
        made: Callable[[], nn.Module] | None = None,
    ) -> None:
        self.gn = _drawn(model, seed, made).to(compute.device, compute.dtype)
        learned = {name: w for name, w in self.gn.named_parameters() if w.requires_grad}
        if not learned:
            raise ConfigError("method", "its Graph Network has no weights that could be learned")
        self.names, weights = list(learned), list(learned.values())
        self.packing = Packing(weights)
        # one vector, so that Adam takes one pass
        self.weights = self.packing.pack(weights).detach().requires_grad_()
        for w, view in zip(weights, self.packing.views(self.weights.detach()), strict=True):
            w.data = view
        suited = made is None and _kernels_support(model.gn_widths)
        self.by_kernels = kernels.available(compute.device) and compute.bf16 and suited
        self.levels = model.level_width
        self.width = model.embedding_width
        self.lr, self.adam = lr, Adam({"gn": self.weights}, lr)
        self.compute = compute
        self._graph: Edges | None = None
        self._kept: tuple[Tensor, list[Tensor]] | None = None  # from the forward pass, for `descend`
        self._repeated: _Inputs | None = None  # from a forward pass that `descend` repeats part by part
        self._windows = partial(network_windows, model)
        self._learning, self._propagating = RecordingPool(compute.device), RecordingPool(compute.device)
        self._passes = ReplayBoth(self._forward, self._descend, self._learning)
        self._propagation: tuple[Edges, Replay] | None = None  # what was recorded for the last graph

    def __call__(self, h_c: Tensor, graph: Edges, present: Tensor | None) -> Tensor:
        """h_G of a minibatch: (n b h) -> (n b h); present is (n b), (n 1) or None."""
        if graph is not self._graph:
            self._graph = graph
            self._passes = ReplayBoth(self._forward, self._descend, self._learning)
        h_G = self._passes.forward(h_c.to(self.compute.dtype), _at(present, slice(None), h_c.device))
        assert h_G is not None
        return h_G

    def descend(self, grad_h_G: Tensor) -> Tensor | None:
        """Back-propagate and take one step; returns d loss / d h_c if h_c requires a gradient.

        `grad_h_G` has no columns for the means of levels, which depend on no weights.
        """
        if self.levels:
            grad_h_G = torch.nn.functional.pad(grad_h_G, (0, 2 * self.levels))
        return self._passes.backward(grad_h_G)

    def network(self, h_c: Tensor, graph: Edges, present: Tensor | None) -> Tensor:
        """h_G (n b h) of h_c (n b h), differentiable for both h_c and `weights`."""
        if self.by_kernels:
            h_G = self._network_by_kernels(h_c, graph, Mask.of(present, graph)).to(h_c.dtype)
            return self._with_means(h_G, h_c, graph, present)
        views = dict(zip(self.names, self.packing.views(self.weights), strict=True))
        with self.compute.autocast():
            h_G = functional_call(self.gn, views, (h_c, graph, present))
        shape = (*h_c.shape[:2], self.width - 2 * self.levels)
        if not isinstance(h_G, Tensor) or h_G.shape != shape:
            found = f"the shape {tuple(h_G.shape)}" if isinstance(h_G, Tensor) else type(h_G).__name__
            problem = f"its Graph Network returned {found}, not (nodes, windows, model.embedding)"
            raise ConfigError("method", f"{problem} = {shape}")
        return self._with_means(h_G.to(h_c.dtype), h_c, graph, present)

    def _network_by_kernels(self, h_c: Tensor, graph: Edges, mask: Mask) -> Tensor:
        from cnfgnn.models.kernels.graph import graph_network

        weights = self.packing.cast(self.weights, torch.bfloat16)
        assert isinstance(self.gn, GraphNetwork)
        return mask.nodes(graph_network(self.gn, weights, h_c, graph, mask))

    def _with_means(self, h_G: Tensor, h_c: Tensor, graph: Edges, present: Tensor | None) -> Tensor:
        """h_G, followed by the means of the levels in h_c."""
        if not self.levels:
            return h_G
        return torch.cat([h_G, means(h_c[..., : self.levels].detach(), graph, present)], dim=-1)

    def scale_rate(self, share: float) -> None:
        """Continue with this share of the learning rate."""
        self.adam.set_rate(self.lr * share)

    def step(self, grad: Tensor) -> None:
        """Take one step along the gradient of `weights`."""
        self.adam.step({"gn": self.weights}, {"gn": grad})

    def _forward(self, h_c: Tensor, present: Tensor | None) -> Tensor:
        assert self._graph is not None
        parts = list(slices(h_c.shape[1], self._windows(len(h_c), len(self._graph.weights), self.compute)))
        if len(parts) > 1:  # too large to store what all of them need on the way back
            self._repeated = _Inputs(h_c, present, parts)
            with torch.no_grad():
                return torch.cat([self._part(self._repeated, windows)[0] for windows in parts], dim=1)
        h_G = self.network(h_c, self._graph, present)
        self._kept = h_G, [h_c] if h_c.requires_grad else []
        return h_G.detach()

    def _part(self, inputs: _Inputs, windows: slice) -> tuple[Tensor, list[Tensor]]:
        """h_G of some windows of a minibatch, and their h_c if it needs a gradient."""
        assert self._graph is not None
        h_c = inputs.h_c[:, windows].detach().requires_grad_(inputs.h_c.requires_grad)
        h_G = self.network(h_c, self._graph, _at(inputs.present, windows, h_c.device))
        return h_G, [h_c] if h_c.requires_grad else []

    def _descend_in_parts(self, inputs: _Inputs, grad_h_G: Tensor) -> Tensor | None:
        """The same step with the memory of a few windows: each part is computed once more."""
        total, of_h_c = torch.zeros_like(self.weights), []
        for windows in inputs.parts:
            h_G, wanted = self._part(inputs, windows)
            grad, *more = torch.autograd.grad(h_G, [self.weights, *wanted], grad_h_G[:, windows])
            total += grad
            of_h_c += more
        self.step(total)
        return torch.cat(of_h_c, dim=1) if of_h_c else None

    def _descend(self, grad_h_G: Tensor) -> Tensor | None:
        if self._repeated is not None:
            repeated, self._repeated = self._repeated, None
            return self._descend_in_parts(repeated, grad_h_G)
        assert self._kept is not None
        (h_G, wanted), self._kept = self._kept, None  # kept alive, it would hold on to an old recording
        grad, *more = torch.autograd.grad(h_G, [self.weights, *wanted], grad_h_G)
        self.step(grad)
        return more[0] if wanted else None

    @torch.no_grad()
    def propagate(self, h_c: Tensor, graph: Edges, present: Tensor | None) -> Tensor:
        """h_G of every window, a few at a time: (n w h) -> (n w h)."""
        h_G = torch.empty(*h_c.shape[:2], self.width, dtype=h_c.dtype, device=h_c.device)
        at_once = ROWS_AT_ONCE.get(self.compute.device.type, ROWS_AT_ONCE["cpu"])
        fitting = self._windows(len(h_c), len(graph.weights), self.compute)
        width = max(1, min(fitting, at_once // (len(graph.weights) + len(h_c))))

        def network(h_c: Tensor, present: Tensor | None) -> Tensor:
            return self.network(h_c, graph, present)

        run: Function = network
        # Few windows are not recorded: a live service asks for them while another thread may use the GPU.
        if h_c.shape[1] > width:
            if self._propagation is None or self._propagation[0] is not graph:
                self._propagation = graph, Replay(network, self._propagating)
            run = self._propagation[1]
        for start in range(0, h_c.shape[1], width):
            windows = slice(start, start + width)
            part_of_h_G = run(h_c[:, windows].to(self.compute.dtype), _at(present, windows, h_c.device))
            assert part_of_h_G is not None
            h_G[:, windows] = part_of_h_G
        return h_G

    def level_means(self, levels: Tensor, graph: Edges, present: Tensor | None) -> Tensor:
        """(n w k) -> (n w 2k): the means of levels over neighbours and over all, a few windows at a time."""
        at_once = max(1, 8 * ROWS_AT_ONCE["cpu"] // (len(graph.weights) + len(levels)))
        parts = [
            means(levels[:, windows].to(self.compute.dtype), graph, _at(present, windows, levels.device))
            for windows in slices(levels.shape[1], at_once)
        ]
        return torch.cat(parts, dim=1)

    def state(self) -> dict[str, Tensor]:
        """Flat and named, for a checkpoint."""
        state = {f"gn.{name}": w for name, w in self.gn.state_dict().items()}
        state |= {f"adam.{name}": w for name, w in self.adam.state().items()}
        return {name: value.detach().clone() for name, value in state.items()}

    def load_weights(self, state: Mapping[str, Tensor]) -> None:
        """Use the weights of a saved state; the optimiser stays as it is."""
        self.gn.load_state_dict(part(state, "gn."))

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.load_weights(state)
        self.adam.load(part(state, "adam."))


def _drawn(model: ModelConfig, seed: int, made: Callable[[], nn.Module] | None) -> nn.Module:
    """The Graph Network, with weights from the seed."""
    if made is not None:
        with torch.random.fork_rng(devices=[]):  # it draws its weights as modules of PyTorch do
            torch.manual_seed(generator(seed, SERVER_WEIGHTS).initial_seed())
            network = made()
        if not isinstance(network, nn.Module):
            problem = f"its Graph Network is a {type(network).__name__}, not a torch.nn.Module"
            raise ConfigError("method", problem)
        return network
    width = model.sent_width
    network = GraphNetwork(width, model.embedding, model.gn_widths, model.gn_layers, model.gn_mean)
    zero_u = width if model.global_input == "zero" else 0
    return network.init(generator(seed, SERVER_WEIGHTS), zero_u)


def _at(present: Tensor | None, windows: Tensor | slice, device: torch.device) -> Tensor | None:
    """(n w) or (n 1) -> (n b) or (n 1)."""
    if present is None:
        return None
    return (present if present.shape[1] == 1 else present[:, windows]).to(device)


def _kernels_support(widths: Sequence[int]) -> bool:
    """Whether the kernels support hidden layers of these widths; embeddings may have any width."""
    return len(widths) > 1 and all(16 <= width <= 512 and width & (width - 1) == 0 for width in widths)
