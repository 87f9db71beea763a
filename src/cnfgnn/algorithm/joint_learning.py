"""Joint split learning at a group of nodes: both sides take a step in every minibatch.

Gradients through the decoder are computed on the way to the server and wait for those through the encoder,
which come back from it. A minibatch consists of some hundred small kernels: on a GPU they are recorded once
and then replayed. A recording refers to tensors by their address, so weights are copied to the same place
after each averaging, and whatever replaces other tensors makes it `forget`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from cnfgnn.algorithm.compute.adam import Adam
from cnfgnn.algorithm.compute.cuda_graphs import RecordingPool, Replay
from cnfgnn.algorithm.learning_group import active
from cnfgnn.algorithm.messages.randomness import Draw
from cnfgnn.errors import ConfigError
from cnfgnn.models.params import Params, models, own, rows

if TYPE_CHECKING:
    from cnfgnn.algorithm.clients import Clients


class _Gradients(NamedTuple):
    """What waits for the second half of a minibatch: of the decoder's weights, and of h_c on this side."""

    decoder: Params
    h_c: Tensor


class JointLearning:
    """The two halves of a minibatch at the nodes."""

    def __init__(self, nodes: Clients) -> None:
        self.nodes = nodes
        self._pools = [RecordingPool(nodes.compute.device) for _ in range(3)]
        self._place: Params = {}  # (n, ...): where the nodes' weights are whenever they learn
        self._waiting: dict[int, _Gradients] = {}  # by the number of windows
        self._draw: Draw | None = None  # the minibatch whose second half is to come
        self.forget()

    @property
    def recorded(self) -> bool:
        """Whether minibatches are recorded; a recording cannot fetch weights from the machine's memory."""
        return self.nodes.home.type == "cuda"

    def forget(self) -> None:
        """Record anew: tensors that minibatches use have been replaced."""
        functions: list[Callable[..., Tensor | None]] = [self._encoded, self._to_server, self._from_server]
        if self.recorded:
            functions = [Replay(f, pool) for f, pool in zip(functions, self._pools, strict=True)]
        self._encode, self._there, self._back = functions
        self._waiting.clear()
        self._draw = None

    def interrupt(self) -> None:
        """The weights have changed: no second half is to come."""
        self._draw = None

    def own_weights(self, theta: Params) -> Params:
        """A copy of the weights for each node, where its minibatches expect them."""
        n = self.nodes.series.nodes
        if self._in_place(theta) or (models(theta) == n and not self.recorded):
            return theta
        at_home = {name: w.detach().to(self.nodes.home) for name, w in theta.items()}
        if not self.recorded:
            return own(at_home, n)
        if not self._place:
            self._place = own(at_home, n)
        for name, w in at_home.items():
            self._place[name].copy_(w)
        return dict(self._place)

    def _in_place(self, theta: Params) -> bool:
        return bool(self._place) and all(w is self._place[name] for name, w in theta.items())

    def encode(self, windows: Tensor) -> Tensor:
        """h_c of a minibatch."""
        if not self._in_place(self.nodes.theta):
            return self._encoded(windows)  # weights that all share, before the first minibatch with them
        h_c = self._encode(windows)
        assert h_c is not None
        return h_c

    def _encoded(self, windows: Tensor) -> Tensor:
        return self.nodes.encoded(self.nodes.theta, "train", windows)

    def backward(self, draw: Draw, windows: Tensor, h_G: Tensor, truth: Tensor | None) -> Tensor:
        """The first half: d loss / d h_G. Gradients of the decoder wait for those of the encoder."""
        grad_h_G = self._there(windows, h_G.detach(), truth)
        assert grad_h_G is not None
        self._draw = draw
        return grad_h_G

    def _to_server(self, windows: Tensor, h_G: Tensor, truth: Tensor | None) -> Tensor:
        nodes, parts = self.nodes, []
        for few in nodes.memory.within(*h_G.shape[:2]):
            theta = self._at_hand(few)
            own_h_G = h_G[few].detach().requires_grad_()
            batch = nodes.data.of_nodes(few).batch("train", windows, own_h_G)
            with torch.no_grad(), nodes.compute.autocast():
                h_c = nodes.model.encode(theta, batch)
            h_c = h_c.detach().requires_grad_()
            losses = nodes.forecaster.losses(theta, batch, own_h_G, truth, h_c)
            grad_h_G, grad_h_c, *grads = _gradients(losses.sum(), [own_h_G, h_c, *theta.values()])
            if grad_h_G is None or grad_h_c is None:
                raise ConfigError("method", "forecasts of its node model must depend on h_c and on h_G")
            used = {name: w.to(nodes.home) for name, w in zip(theta, grads, strict=True) if w is not None}
            parts.append((grad_h_G, grad_h_c, used))
        joined = {name: torch.cat([part[2][name] for part in parts]) for name in parts[0][2]}
        self._waiting[len(windows)] = _Gradients(joined, torch.cat([part[1] for part in parts]))
        return torch.cat([part[0] for part in parts])

    def step(self, draw: Draw, windows: Tensor, grad_h_c: Tensor) -> bool:
        """The second half: the encoder's gradients from both sides, then one step of Adam. Nodes that were
        away during the first half take none."""
        if self._draw != draw or len(windows) not in self._waiting:
            return False
        self._draw = None
        self._back(windows, grad_h_c)
        if not self.recorded:
            self._waiting.clear()
        return True

    def _from_server(self, windows: Tensor, grad_h_c: Tensor) -> None:
        nodes, waiting = self.nodes, self._waiting[len(windows)]
        assert nodes.adam is not None
        waiting.h_c[..., : nodes.sent] += grad_h_c
        for few in nodes.memory.within(*grad_h_c.shape[:2]):
            theta = self._at_hand(few)
            batch = nodes.data.of_nodes(few).batch("train", windows)
            with nodes.compute.autocast():
                h_c = nodes.model.encode(theta, batch)
            grads = rows(waiting.decoder, few, nodes.compute.device)
            of_encoder = _gradients(h_c, list(theta.values()), waiting.h_c[few].to(h_c.dtype))
            for name, grad in zip(theta, of_encoder, strict=True):
                if grad is not None:
                    grads[name] = grads[name] + grad if name in grads else grad
            if unused := theta.keys() - grads.keys():
                problem = f"its node model does not use some of its weights: {', '.join(sorted(unused))}"
                raise ConfigError("method", problem)
            adam = nodes.adam.rows(few, nodes.compute.device)
            adam.step(theta, grads, active(batch))
            self._put_back(few, theta, adam)

    def _at_hand(self, few: slice) -> Params:
        """The weights of some nodes on the device, ready to learn: views of those held, or copies."""
        theta = rows(self.nodes.theta, few, self.nodes.compute.device)
        return {name: w.detach().requires_grad_() for name, w in theta.items()}

    def _put_back(self, few: slice, theta: Params, adam: Adam) -> None:
        """Keep what some nodes have learned; if it was learned in place, it is kept already."""
        nodes = self.nodes
        if nodes.home == nodes.compute.device:
            return
        assert nodes.adam is not None
        nodes.adam.put(few, adam)
        for name, w in theta.items():
            nodes.theta[name][few] = w.detach().to(nodes.home)


def _gradients(
    output: Tensor, inputs: Sequence[Tensor], grad_output: Tensor | None = None
) -> Sequence[Tensor | None]:
    """What `torch.autograd.grad` returns: None for an input on which the output does not depend."""
    return torch.autograd.grad(output, inputs, grad_output, allow_unused=True)
