"""A network that learns to turn one hidden state back into the readings of its window.

It is trained on pairs of hidden states and readings: on made-up readings, which the attacker encodes with the
weights that all nodes share; or on the readings of one sensor that helps the attacker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cnfgnn.attack.estimates import Estimate, from_windows
from cnfgnn.attack.recording import Recording
from cnfgnn.attack.replica import Received, rounding
from cnfgnn.attack.synthetic_windows import SyntheticWindows
from cnfgnn.data.windows import Split

STEPS = 2000  # minibatches of training
BATCH = 512
WIDTH = 256
RATE = 2e-3
SMALL = 1e-3
FURTHEST = 6.0  # standard deviations: no reading is estimated further from the mean
WINDOWS_AT_ONCE = 1 << 15
Tick = Callable[[float], None]


@dataclass(frozen=True, eq=False)
class Colluder:
    """A sensor that helps the server: its row, and its true readings (T,) with NaN where one is missing."""

    row: int
    readings: Tensor


@dataclass(frozen=True, eq=False)
class Pairs:
    """Examples to learn from: what the network sees (b f), the readings (b t), and which of them count."""

    seen: Tensor
    readings: Tensor
    counts: Tensor


def from_synthetic(
    recording: Recording,
    split: Split,
    rows: Tensor,
    device: torch.device,
    seed: int = 0,
    steps: int = STEPS,
    tick: Tick = lambda share: None,
) -> Estimate:
    """Trained on made-up readings: nobody's readings are needed."""
    received = Received.of(recording, split, rows, device)
    replica = received.replica
    made_up = SyntheticWindows(replica.history + replica.horizon, replica.scaler, seed)
    noise = rounding(received.h_c, replica.settings.wire).mean(dim=0)  # (s,)
    chooser = torch.Generator().manual_seed(seed)
    nodes = [received.among(torch.tensor([node], device=device)) for node in range(len(rows))]

    def pairs() -> Pairs:
        """A minibatch as one of the nodes would have it: its times and its gaps, but made-up readings."""
        one = nodes[int(torch.randint(len(rows), (1,), generator=chooser))]
        windows = torch.randint(len(received.starts), (BATCH,), generator=chooser).to(device)
        drawn = made_up.draw(BATCH)
        profile = None
        if replica.uses_profile:
            profile = made_up.profiles(drawn, replica.horizon).to(device, torch.float32)[None]
        absent = one.replica.absent[0, one.inputs[windows]]
        readings = _filled(drawn[:, : replica.history].to(device, torch.float32), absent)
        with torch.no_grad():
            batch = one.replica.batch(one.starts[windows], readings[None], profile)
            h_c = one.replica.encode(one.theta, batch)[0]
        h_c = h_c + noise * torch.randn(h_c.shape, generator=chooser).to(device)
        return Pairs(_seen(one, h_c[None], windows)[0], readings, ~absent)

    network = _trained(pairs, received, seed, steps, tick)
    return _applied("synthetic", network, received, split)


def from_colluder(
    recording: Recording,
    split: Split,
    rows: Tensor,
    colluder: Colluder,
    device: torch.device,
    seed: int = 0,
    steps: int = STEPS,
    tick: Tick = lambda share: None,
) -> Estimate:
    """Trained on the true readings of one sensor and on the hidden states that it sent."""
    own = Received.of(recording, split, torch.tensor([colluder.row]), device)
    windows = torch.arange(len(own.starts), device=device)
    truth = colluder.readings.to(device)[own.inputs]
    counts = ~truth.isnan()
    readings = torch.nan_to_num(own.replica.scaled(torch.nan_to_num(truth, nan=own.replica.scaler.mean)))
    seen = _seen(own, own.h_c, windows)[0]
    chooser = torch.Generator().manual_seed(seed)

    def pairs() -> Pairs:
        some = torch.randint(len(windows), (BATCH,), generator=chooser).to(device)
        return Pairs(seen[some], readings[some], counts[some])

    received = Received.of(recording, split, rows, device)
    network = _trained(pairs, own, seed, steps, tick)
    return _applied("colluding", network, received, split)


class _Inverter(nn.Module):
    """A perceptron behind a fixed scaling of what it sees."""

    mean: Tensor
    std: Tensor

    def __init__(self, example: Tensor, history: int) -> None:
        super().__init__()
        self.register_buffer("mean", example.mean(dim=0))
        std = example.std(dim=0)
        self.register_buffer("std", torch.where(std > SMALL, std, 1.0))  # what never varies is not amplified
        layers = [nn.Linear(example.shape[1], WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(WIDTH, history))

    def forward(self, seen: Tensor) -> Tensor:
        found: Tensor = self.layers((seen - self.mean) / self.std)
        return found.clamp(-FURTHEST, FURTHEST) if not self.training else found


def _trained(pairs: Callable[[], Pairs], received: Received, seed: int, steps: int, tick: Tick) -> _Inverter:
    """Fit a network to pairs that are drawn anew for every step."""
    some = torch.arange(min(len(received.starts), BATCH), device=received.starts.device)
    example = _seen(received, received.h_c[:, some], some).flatten(0, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _Inverter(example.cpu(), received.replica.history).to(example.device)
    optimiser = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for step in range(steps):
        drawn = pairs()
        error = (network(drawn.seen) - drawn.readings).square() * drawn.counts
        optimiser.zero_grad()
        (error.sum() / drawn.counts.sum().clamp(min=1)).backward()
        optimiser.step()
        schedule.step()
        tick((step + 1) / steps)
    return network.eval()


@torch.no_grad()
def _applied(name: str, network: _Inverter, received: Received, split: Split) -> Estimate:
    replica, count = received.replica, len(received.starts)
    width = max(1, WINDOWS_AT_ONCE // replica.nodes)
    parts = []
    for first in range(0, count, width):
        some = torch.arange(first, min(first + width, count), device=replica.device)
        parts.append(replica.unscaled(network(_seen(received, received.h_c[:, some], some))).cpu())
    windows, starts = torch.cat(parts, dim=1), received.starts.cpu()
    readings = from_windows(windows, starts, len(replica.clock))
    return Estimate(name, split, replica.rows, starts, replica.history, readings, windows)


def _seen(received: Received, h_c: Tensor, windows: Tensor) -> Tensor:
    """(n b f): the hidden states of some windows beside what is public about them."""
    replica = received.replica
    angle = 2 * torch.pi * replica.clock[received.starts[windows] + replica.history - 1]
    clock = torch.stack([angle.sin(), angle.cos()], dim=-1).expand(len(h_c), -1, -1)
    absent = replica.absent[:, received.inputs[windows]].to(h_c.dtype)
    return torch.cat([h_c, clock, absent], dim=-1)


def _filled(readings: Tensor, absent: Tensor) -> Tensor:
    """Replace each absent reading by the last one before it in the window, as nodes do; (b t)."""
    steps = torch.arange(readings.shape[1], device=readings.device)
    last = torch.where(absent, -1, steps).cummax(dim=1).values
    return readings.gather(1, last.clamp(min=0))
