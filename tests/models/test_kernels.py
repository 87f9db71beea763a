"""Each kernel equals its plain version: on a GPU, or in Triton's interpreter (make test-kernels)."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
import torch
from torch import Tensor

from cnfgnn.algorithm.compute.adam import BETA_1, BETA_2, EPS, Adam
from cnfgnn.data.batch import Batch
from cnfgnn.data.graph import Graph
from cnfgnn.models.graphnet import Edges, GraphNetwork, Mask
from cnfgnn.models.gru import NodeModel

CUDA = torch.cuda.is_available()
INTERPRETED = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(
    not (CUDA or INTERPRETED), reason="needs a GPU, or Triton's interpreter: make test-kernels"
)
DEVICE = torch.device("cuda" if CUDA else "cpu")
KINDS = [torch.float32, torch.bfloat16] if CUDA else [torch.float32]
STEPS = 5


def close(actual: Tensor, expected: Tensor, kind: torch.dtype) -> None:
    """In the norm: single elements of a gradient may be as small as rounding errors of others."""
    assert torch.isfinite(actual).all()
    tolerance = 1e-5 if kind == torch.float32 else 2e-2
    assert (actual - expected).norm() <= tolerance * expected.norm() + 1e-6


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def a_batch(n: int, b: int, masked: bool) -> Batch:
    readings, clock = drawn(1, n, b, 2 * STEPS), drawn(2, b, 2 * STEPS).sigmoid()
    x = torch.stack(torch.broadcast_tensors(readings, clock), dim=-1)[:, :, :STEPS]
    weight = (drawn(3, n, b, STEPS) > -0.5).float() if masked else None
    return Batch(x, readings[:, :, STEPS:], clock[:, STEPS:], weight)


@pytest.mark.parametrize(
    ("kind", "m", "n", "b", "hidden", "embedding"),
    [
        *(
            (kind, *shape)
            for kind in KINDS
            for shape in [
                (3, 3, 7, 32, 32),
                (1, 3, 7, 32, 32),
                (2, 2, 17, 32, 32),
                (1, 1, 1, 32, 32),
                (3, 3, 7, 20, 0),
            ]
        ),
        # 128 units wide, weights stay on chip in bf16 alone
        *([(torch.bfloat16, 4, 4, 300, 100, 0), (torch.bfloat16, 1, 4, 300, 64, 64)] if CUDA else []),
    ],
)
@pytest.mark.parametrize(("masked", "fed"), [(False, False), (False, True), (True, True)])
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
    model = NodeModel(hidden=hidden, embedding=embedding)
    theta = {
        name: (w.to(DEVICE) + 0.1 * drawn(k, m, *w.shape[1:])).requires_grad_()
        for k, (name, w) in enumerate(model.init(torch.Generator().manual_seed(0)).items())
    }
    batch, h_G = a_batch(n, b, masked), drawn(7, n, b, embedding).requires_grad_() if embedding else None
    truth = torch.tensor([True, False, True, True, False], device=DEVICE) if fed else None
    sources = [*([] if h_G is None else [h_G]), *theta.values()]

    def run(by_kernels: bool) -> list[Tensor]:
        monkeypatch.setattr(NodeModel, "_fits_kernels", lambda self, x: by_kernels)
        half = by_kernels and kind == torch.bfloat16
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=half):
            y_hat = model.decode(theta, batch, model.encode(theta, batch), h_G, truth)
        loss = (y_hat - batch.y).square().mean()
        return [y_hat, *torch.autograd.grad(loss, sources)]

    for actual, expected in zip(run(True), run(False), strict=True):
        close(actual, expected, kind)


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
    ("kind", "n", "e", "b", "widths", "layers", "embedding"),
    [
        *(
            (kind, *shape)
            for kind in KINDS
            for shape in [
                (5, 12, 3, (32, 32, 16), 2, 16),
                (7, 20, 11, (32, 64, 16), 2, 16),
                (3, 1, 2, (16, 16), 2, 16),
                (6, 10, 9, (32, 32, 32, 16), 3, 16),
                (4, 6, 5, (32, 32, 16), 1, 16),
                (5, 12, 3, (32, 32, 16), 2, 24),  # an embedding whose width is no power of two
                (5, 12, 3, (32, 32, 16), 2, 7),
            ]
        ),
        *([(kind, 40, 200, 48, (64, 64, 32), 2, 16) for kind in KINDS] if CUDA else []),
        # the presets' widths: in float32, where no run uses kernels, rounding flips too many rectifiers
        *([(torch.bfloat16, 40, 200, 48, (256, 256, 128), 2, 48)] if CUDA else []),
    ],
)
@pytest.mark.parametrize(("absent", "mean"), [(0.0, False), (0.3, False), (0.0, True), (0.3, True)])
def test_graph_network(
    kind: torch.dtype,
    n: int,
    e: int,
    b: int,
    widths: tuple[int, ...],
    layers: int,
    embedding: int,
    absent: float,
    mean: bool,
) -> None:
    from cnfgnn.models.kernels.graph import graph_network

    rng = np.random.default_rng(0)
    pairs = rng.choice(n * n, size=e, replace=False)
    graph = Edges.of(
        Graph(nodes=n, senders=pairs // n, receivers=pairs % n, weights=rng.random(e)), DEVICE, torch.float32
    )
    gn = GraphNetwork(16, embedding, widths, layers, mean).init(torch.Generator().manual_seed(3)).to(DEVICE)
    h_c = drawn(1, n, b, 16).requires_grad_()
    present = None if absent == 0 else drawn(2, n, b) > -0.5
    slope = drawn(3, n, b, embedding)
    weights = list(gn.parameters())

    def with_gradients(h_G: Tensor) -> list[Tensor]:
        return [h_G, *torch.autograd.grad((h_G * slope).sum(), [h_c, *weights])]

    expected = with_gradients(gn(h_c, graph, present))
    mask = Mask.of(present, graph)
    actual = with_gradients(graph_network(gn, [w.to(kind) for w in weights], h_c, graph, mask).float())
    if kind == torch.float32:
        for ours, theirs in zip(actual, expected, strict=True):
            close(ours, theirs, kind)
        return
    with torch.autocast(DEVICE.type, torch.bfloat16):  # small gradients suffer from rounding, here as there
        rounded = with_gradients(gn(h_c, graph, present).float())
    # In a network of a few nodes, one rectifier that rounding flips changes a fifth of a gradient.
    allowed = 5e-2 if n >= 40 else 0.25
    for ours, plain, exact in zip(actual, rounded, expected, strict=True):
        assert (ours - exact).norm() <= 1.5 * (plain - exact).norm() + allowed * exact.norm()


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
