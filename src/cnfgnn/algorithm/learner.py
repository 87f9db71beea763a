"""The graph network with its optimiser: the only weights the server has, and they never travel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cnfgnn.algorithm.compute import Compute
from cnfgnn.algorithm.draws import SERVER_WEIGHTS, generator
from cnfgnn.algorithm.replay import graphed
from cnfgnn.config import ModelConfig
from cnfgnn.models.graphnet import Edges, GraphNetwork
from cnfgnn.models.params import part

# edges x windows in one forward pass without gradients: bounds memory; a device wants few, full launches
EDGES_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 19}


class GraphLearner:
    """GN and its Adam, whose state is kept from round to round."""

    def __init__(self, model: ModelConfig, lr: float, seed: int, compute: Compute) -> None:
        gn = GraphNetwork(model.hidden, model.embedding, model.gn_widths, model.gn_layers)
        self.gn = gn.init(generator(seed, SERVER_WEIGHTS)).to(compute.device, compute.dtype)
        self.adam = torch.optim.Adam(self.gn.parameters(), lr=lr, fused=compute.device.type == "cuda")
        self.compute = compute
        self._recorded: dict[tuple[object, ...], Callable[..., Tensor]] = {}

    def __call__(
        self, h_c: Tensor, graph: Edges, present: Tensor | None, windows: Tensor | slice = slice(None)
    ) -> Tensor:
        """h_G of some windows: (n w h) -> (n b h); present is (n w), (n 1) or None."""
        h_c = h_c[:, windows].to(self.compute.dtype)
        if present is not None:
            present = (present if present.shape[1] == 1 else present[:, windows]).to(h_c.device)
        if h_c.is_cuda and torch.is_grad_enabled():
            return self._replayed(h_c, graph, present).to(h_c.dtype)
        with self.compute.autocast():
            h_G: Tensor = self.gn(h_c, graph, present)
        return h_G.to(h_c.dtype)

    def _replayed(self, h_c: Tensor, graph: Edges, present: Tensor | None) -> Tensor:
        """The same from a recording, made the first time a shape comes up."""
        key = (id(graph), h_c.shape, h_c.requires_grad, None if present is None else present.shape)
        if key not in self._recorded:
            self._recorded[key] = graphed(self.gn, (graph,), h_c, present, self.compute.bf16)
        return self._recorded[key](h_c, *([] if present is None else [present]))

    @torch.no_grad()
    def propagate(self, h_c: Tensor, graph: Edges, present: Tensor | None) -> Tensor:
        """h_G of every window, a few at a time: (n w h) -> (n w h)."""
        h_G = torch.empty(*h_c.shape[:2], self.gn.output.out_features, dtype=h_c.dtype, device=h_c.device)
        width = max(1, EDGES_AT_ONCE.get(h_c.device.type, 1 << 17) // max(1, len(graph.weights)))
        for start in range(0, h_c.shape[1], width):
            some = slice(start, start + width)
            h_G[:, some] = self(h_c, graph, present, some)
        return h_G

    def descend(self, h_G: Tensor, grad_h_G: Tensor) -> None:
        """Back-propagate through the graph network and take one step."""
        self.adam.zero_grad(set_to_none=True)
        h_G.backward(grad_h_G)
        self.adam.step()

    def state(self) -> dict[str, Tensor]:
        """Flat and named, for a checkpoint."""
        state = {f"gn.{name}": w for name, w in self.gn.state_dict().items()}
        for number, moments in self.adam.state_dict()["state"].items():
            state |= {f"adam.{number}.{name}": value for name, value in moments.items()}
        return {name: value.detach().clone() for name, value in state.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.gn.load_state_dict(part(state, "gn."))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in part(state, "adam.").items():
            number, kind = name.split(".")
            moments.setdefault(int(number), {})[kind] = value.clone()  # torch would go on writing into ours
        self.adam.load_state_dict(self.adam.state_dict() | {"state": moments})
