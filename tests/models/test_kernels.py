"""Each kernel equals its formulas in float64: on a GPU, or in Triton's interpreter (make test-kernels)."""

from __future__ import annotations

import copy
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cnfgnn.algorithm.compute.adam import BETA_1, BETA_2, EPS, Adam
from cnfgnn.data.batch import Batch
from cnfgnn.data.graph import Graph
from cnfgnn.models.graphnet import MLP, Edges, GraphNetwork, Mask
from cnfgnn.models.gru import NodeModel
from cnfgnn.models.params import Params

CUDA = torch.cuda.is_available()
INTERPRETED = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(
    not (CUDA or INTERPRETED), reason="needs a GPU, or Triton's interpreter: make test-kernels"
)
DEVICE = torch.device("cuda" if CUDA else "cpu")
KINDS = [torch.float32, torch.bfloat16]
STEPS = 5


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Triton and PyTorch lack there: products in bf16 that are summed in float32, and an assembler."""
    if CUDA:
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    from cnfgnn.models.kernels import graph, gru

    bmm, dot, cast = torch.bmm, InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def cast_by_rounding(self: Any, x: Any, kind: Any) -> Any:  # the interpreter cuts digits off
        if (x.dtype.scalar, kind.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, x, kind)
        rounded = torch.tensor(x.data).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return TensorHandle(rounded, tl.bfloat16)

    def dot_of_floats(self: Any, a: Any, b: Any, *rest: Any) -> Any:  # it multiplies bits as whole numbers
        return dot(self, cast(self, a, tl.float32), cast(self, b, tl.float32), *rest)

    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast_by_rounding)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot_of_floats)
    monkeypatch.setattr(
        torch, "bmm", lambda a, b, kind=None: bmm(a.to(kind or a.dtype), b.to(kind or b.dtype))
    )
    monkeypatch.setattr(gru, "_tanh", lambda x, quick: 2 * tl.sigmoid(2 * x) - 1)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # it warns of processors without bf16
    # Each program costs the interpreter more than its rows do, so there are fewer programs with more rows.
    for size, rows in {"GATHERED": 16, "TILE": 16, "WINDOWS": 4}.items():
        monkeypatch.setattr(graph, size, rows)


def cases(shapes: list[tuple[Any, ...]], variations: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Every shape in both types and all variations; in the interpreter, which is slow, in one variation."""
    pairs = [(kind, *shape) for kind in KINDS for shape in shapes]
    if CUDA:
        return [(*pair, *variation) for pair in pairs for variation in variations]
    return [(*pair, *variations[k % len(variations)]) for k, pair in enumerate(pairs)]


def close(actual: Tensor, exact: Tensor, kind: torch.dtype, products: int = 8 * STEPS) -> None:
    """In the norm: single elements of a gradient may be as small as rounding errors of others.

    In bf16, each of so many products on the way there and back rounds two factors by up to 2^-9. Roundings
    are independent, so the square root of their number counts. A step of a GRU has two: of its state and of
    its gates.
    """
    assert torch.isfinite(actual).all()
    tolerance = 1e-5 if kind == torch.float32 else 2**-9 * (2 * products) ** 0.5
    assert (actual - exact).norm() <= tolerance * exact.norm() + 1e-6


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def a_batch(n: int, b: int, masked: bool, kind: torch.dtype = torch.float32) -> Batch:
    readings, clock = drawn(1, n, b, 2 * STEPS).to(kind), drawn(2, b, 2 * STEPS).sigmoid().to(kind)
    x = torch.stack(torch.broadcast_tensors(readings, clock), dim=-1)[:, :, :STEPS]
    weight = (drawn(3, n, b, STEPS) > -0.5).to(kind) if masked else None
    return Batch(x, readings[:, :, STEPS:], clock[:, STEPS:], weight)


@pytest.mark.parametrize(
    ("kind", "m", "n", "b", "hidden", "embedding", "masked", "fed"),
    cases(
        [
            (3, 3, 7, 32, 32),
            (1, 3, 7, 32, 32),
            (1, 1, 17, 32, 32),
            (1, 1, 1, 32, 32),
            (3, 3, 7, 20, 0),
            *[(2, 2, 5, 100, 0), (1, 2, 5, 64, 64)],  # the presets' widths
        ],
        [(False, False), (False, True), (True, True)],
    )
    + (
        [(torch.bfloat16, 4, 4, 300, 100, 0, True, True), (torch.bfloat16, 1, 4, 300, 64, 64, True, True)]
        if CUDA
        else []
    ),
)
def test_sequences(
    kind: torch.dtype,
    m: int,
    n: int,
    b: int,
    hidden: int,
    embedding: int,
    masked: bool,
    fed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if CUDA and kind == torch.float32 and hidden + embedding > 64:
        pytest.skip("so wide, weights stay on chip in bf16 alone")
    model = NodeModel(hidden=hidden, embedding=embedding)
    theta = {
        name: (w.to(DEVICE) + 0.1 * drawn(k, m, *w.shape[1:])).requires_grad_()
        for k, (name, w) in enumerate(model.init(torch.Generator().manual_seed(0)).items())
    }
    batch, h_G = a_batch(n, b, masked), drawn(7, n, b, embedding).requires_grad_() if embedding else None
    truth = torch.tensor([True, False, True, True, False], device=DEVICE) if fed else None

    def run(theta: Params, batch: Batch, h_G: Tensor | None, by_kernels: bool) -> list[Tensor]:
        monkeypatch.setattr(NodeModel, "_fits_kernels", lambda self, x: by_kernels)
        half = by_kernels and kind == torch.bfloat16
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=half):
            y_hat = model.decode(theta, batch, model.encode(theta, batch), h_G, truth)
        loss = (y_hat - batch.y).square().mean()
        return [y_hat, *torch.autograd.grad(loss, [*([] if h_G is None else [h_G]), *theta.values()])]

    def exactly(x: Tensor | None) -> Any:
        return None if x is None else x.detach().double().requires_grad_(x.requires_grad)

    exact = (
        {name: exactly(w) for name, w in theta.items()},
        a_batch(n, b, masked, torch.float64),
        exactly(h_G),
    )
    for ours, theirs in zip(run(theta, batch, h_G, True), run(*exact, False), strict=True):
        close(ours, theirs, kind)


def test_a_frozen_decoder_gives_the_gradient_of_its_start_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = NodeModel(hidden=16, embedding=16), a_batch(3, 6, masked=False)
    theta = {name: w.to(DEVICE) for name, w in model.init(torch.Generator().manual_seed(0)).items()}
    h_c, h_G = drawn(4, 3, 6, 16), drawn(5, 3, 6, 16).requires_grad_()
    grads = []
    for by_kernels in (True, False):
        monkeypatch.setattr(NodeModel, "_fits_kernels", lambda self, x, choice=by_kernels: choice)
        y_hat = model.decode(theta, batch, h_c, h_G, None)
        grads.append(torch.autograd.grad((y_hat - batch.y).square().mean(), h_G)[0])
    close(grads[0], grads[1], torch.float32)


@pytest.mark.parametrize(
    ("kind", "n", "e", "b", "hidden", "widths", "layers", "embedding", "absent", "mean"),
    cases(
        [
            (5, 12, 3, 16, (32, 32, 16), 2, 16),
            (7, 20, 5, 16, (32, 64, 16), 2, 16),
            (3, 1, 2, 16, (16, 16), 2, 16),
            (6, 10, 5, 16, (32, 32, 32, 16), 3, 16),
            (4, 6, 5, 16, (32, 32, 16), 1, 16),
            (5, 12, 3, 16, (32, 32, 16), 2, 24),  # an embedding whose width is no power of two
            (5, 12, 3, 16, (32, 32, 16), 2, 7),
            *[(4, 7, 3, 64, (256, 256, 128), 2, 64), (5, 9, 4, 32, (64, 64), 2, 16)],  # the presets' widths
            *(
                [(40, 200, 48, 64, (256, 256, 128), 2, 64), (40, 200, 48, 32, (64, 64), 2, 16)]
                if CUDA
                else []
            ),
        ],
        [(False, False), (True, False), (False, True), (True, True)],
    ),
)
def test_graph_network(
    kind: torch.dtype,
    n: int,
    e: int,
    b: int,
    hidden: int,
    widths: tuple[int, ...],
    layers: int,
    embedding: int,
    absent: bool,
    mean: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cnfgnn.models.kernels.graph import graph_network

    rng = np.random.default_rng(0)
    pairs = rng.choice(n * n, size=e, replace=False)
    graph = Edges.of(
        Graph(nodes=n, senders=pairs // n, receivers=pairs % n, weights=rng.random(e)), DEVICE, torch.float32
    )
    gn = (
        GraphNetwork(hidden, embedding, widths, layers, mean)
        .init(torch.Generator().manual_seed(3))
        .to(DEVICE)
    )
    h_c = drawn(1, n, b, hidden).requires_grad_()
    present = drawn(2, n, b) > -0.5 if absent else None
    slope = drawn(3, n, b, embedding)
    weights = list(gn.parameters())

    def with_gradients(h_G: Tensor, sources: list[Tensor]) -> list[Tensor]:
        return [h_G, *torch.autograd.grad((h_G * slope).sum(), sources)]

    on = rectifiers(monkeypatch)
    h_G = graph_network(gn, [w.to(kind) for w in weights], h_c, graph, Mask.of(present, graph))
    actual = with_gradients(h_G.float(), [h_c, *weights])
    exact_gn, exact_h_c = copy.deepcopy(gn).double(), h_c.detach().double().requires_grad_()
    exact = with_gradients(
        exact_graph_network(exact_gn, exact_h_c, graph, present, on), [exact_h_c, *exact_gn.parameters()]
    )
    products = 2 * (3 * layers * len(widths) + 1)
    for ours, theirs in zip(actual, exact, strict=True):
        close(ours, theirs, kind, products)


def rectifiers(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Which hidden units let a gradient through, layer by layer, as the kernels compute them."""
    from cnfgnn.models.kernels import graph

    on: list[Tensor] = []

    def noted(apply: Callable[..., Any]) -> Callable[..., Any]:
        def and_note(*args: Any) -> Any:
            result = apply(*args)
            on.append((result[0] if isinstance(result, tuple) else result) > 0)
            return result

        return and_note

    for function in (graph._FirstLayer, graph._Hidden):
        monkeypatch.setattr(function, "apply", noted(function.apply))
    return on


def exact_graph_network(
    gn: GraphNetwork, h_c: Tensor, graph: Edges, present: Tensor | None, on: list[Tensor]
) -> Tensor:
    """The Graph Network as its formulas have it, with rectifiers `on` where those of the kernels are.

    One that rounding flips changes up to two fifths of a gradient in a network of a few nodes.
    """
    senders, receivers, (n, b) = graph.senders.node, graph.receivers.node, h_c.shape[:2]
    there = h_c.new_ones(n, b, 1) if present is None else present[..., None].to(h_c)
    used, rest = there[senders] * there[receivers], iter(on)

    def mlp(module: MLP, *parts: Tensor) -> Tensor:
        x, (*hidden, last) = torch.cat(parts, dim=-1), module.layers
        for layer in hidden:
            x = layer(x) * next(rest)
        return last(x)

    def at_receivers(x: Tensor) -> Tensor:
        return x.new_zeros(n, b, x.shape[-1]).index_add(0, receivers, x)

    v, e, u = h_c * there, graph.weights.to(h_c).expand(-1, b, 1), h_c.new_zeros(1, b, 0)
    for block in gn.blocks:
        e_new = mlp(block.phi_e, e, v[receivers], v[senders], u.expand(len(senders), -1, -1)) * used
        incoming = at_receivers(e_new) / (at_receivers(used).clamp(min=1) if block.mean else 1)
        v_new = mlp(block.phi_v, incoming, v, u.expand(n, -1, -1)) * there
        v, e = torch.cat([v_new, v], -1), torch.cat([e_new, e], -1)
        if block.phi_u is not None:
            sums = [
                x.sum(0, keepdim=True) / (there.sum(0).clamp(min=1) if block.mean else 1)
                for x in (incoming, v_new)
            ]
            u = torch.cat([mlp(block.phi_u, *sums, u), u], -1)
    return gn.output(v)


@pytest.mark.parametrize("shape", [(3, 5, 7), (3, 5)])
@pytest.mark.parametrize("part", [False, True], ids=["whole", "part of a larger tensor"])
def test_adam_leaves_inactive_rows_unchanged(shape: tuple[int, ...], part: bool) -> None:
    from cnfgnn.models.kernels.adam import adam_step

    theta, grads = {"w": drawn(1, *shape)}, [drawn(k, *shape) for k in range(2, 8)]
    if part:  # as the gradients of a GRU are
        grads = [torch.stack([grad] * 2, dim=1)[:, 1] for grad in grads]
        grads += [torch.stack([grad] * 2, dim=2)[:, :, 1] for grad in grads]
    plain = Adam(theta, 1e-2)
    w, mean, square = (x.clone() for x in (theta["w"], plain.mean["w"], plain.square["w"]))
    steps, rate = plain.steps.clone(), plain.rate
    for k, grad in enumerate(grads):
        active = torch.tensor([True, k % 2 == 0, False], device=DEVICE)
        step_plainly(plain, theta, grad, active)
        steps += active
        adam_step(w, grad, mean, square, steps, active.double(), rate, (BETA_1, BETA_2), EPS)
    torch.testing.assert_close(w, theta["w"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mean, plain.mean["w"], rtol=1e-5, atol=1e-7)
    assert torch.equal(w[2], theta["w"][2])


def test_a_new_learning_rate_takes_effect_without_recompiling() -> None:
    from cnfgnn.models.kernels.adam import _adam, adam_step

    w, zeros = drawn(1, 2, 5), torch.zeros(2, 5, device=DEVICE)
    steps = torch.ones(2, dtype=torch.float64, device=DEVICE)
    rate, grad, moved, compiled = torch.zeros((), dtype=torch.float64, device=DEVICE), drawn(2, 2, 5), [], []
    for lr in (1e-3, 2e-3, 5e-4):
        before, mean, square = w.clone(), zeros.clone(), zeros.clone()
        adam_step(w, grad, mean, square, steps, steps, rate.fill_(lr), (BETA_1, BETA_2), EPS)
        moved.append(((w - before).abs() / lr).mean().item())
        if CUDA:
            compiled.append(len(next(iter(_adam.device_caches.values()))[0]))
    assert moved == pytest.approx([1.0] * 3, rel=1e-3)
    assert len(set(compiled)) <= 1, "each learning rate compiled a kernel of its own"


def test_adam_with_shared_weights_and_an_embedding_of_each_sensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes = {"shared": (1, 5, 7), "embedding": (4, 3)}
    theta = {name: drawn(k, *shape) for k, (name, shape) in enumerate(shapes.items())}
    twin = {name: w.cpu().double() for name, w in theta.items()}
    by_kernel, plain = Adam(theta, 1e-2), Adam(twin, 1e-2)
    monkeypatch.setattr("cnfgnn.algorithm.compute.adam.kernels.available", lambda device: True)
    for k in range(3):
        grads = {name: drawn(10 + k, *shape) for name, shape in shapes.items()}
        by_kernel.step(theta, grads)
        plain.step(twin, {name: g.cpu().double() for name, g in grads.items()})
    for name, w in theta.items():
        torch.testing.assert_close(w.cpu().double(), twin[name], rtol=1e-5, atol=1e-6)


def step_plainly(adam: Adam, theta: dict[str, Tensor], grad: Tensor, active: Tensor) -> None:
    """On the CPU, where no kernel is used."""
    twin = {"w": theta["w"].cpu()}
    plain = Adam(twin, float(adam.rate))
    plain.load({name: x.cpu() for name, x in adam.state().items()})
    plain.step(twin, {"w": grad.cpu()}, active.cpu())
    adam.load(plain.state())
    theta["w"].copy_(twin["w"])
