"""Remove noise from blurred readings by a network that learns from the blurred readings alone.

It needs no true reading to learn what to remove. Where noise is normal and its size is known, the error of an
estimate can be told without the truth (Stein's unbiased risk estimate): it is the squared distance of the
estimate from the blurred reading, less the variance of the noise, plus twice this variance times the
derivative of the estimate by that reading. So the network learns to make this small. Besides the readings
before and after, it sees those of the sensors that are most alike, and the time of day: this is what makes it
better than a smoother of one series.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cnfgnn.attack.smoothing import REACH

ALIKE, ALIKE_REACH = 6, 3  # other sensors, and their readings before and after
WIDTH, NAMES = 128, 8
BATCH = 1024
RATE = 2e-3
AT_ONCE = 1 << 14


def smoothed_by_network(
    estimate: Tensor,
    observed: Tensor,
    sigma: Tensor,
    clock: Tensor,
    device: torch.device,
    seed: int = 0,
    steps: int = 2000,
    tick: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """Smooth (n T), NaN where unknown, whose noise has the standard deviations sigma (n,).

    observed  (n T)  where there is a reading; elsewhere nothing is smoothed
    clock     (T,)   share of the day that has passed
    """
    there = observed & ~estimate.isnan()
    if not bool(there.any()):
        return estimate
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _Denoiser(_Surroundings(estimate, there, sigma, clock)).to(device)
        chooser = torch.Generator().manual_seed(seed)
    _train(network, there.nonzero(), chooser, steps, device, tick)
    smooth = estimate.clone()
    places = there.nonzero()
    with torch.no_grad():
        for some in places.split(AT_ONCE):
            node, row = some.to(device).unbind(dim=1)
            found = network(network.around.own(node, row), node, row).double().cpu()
            smooth[some[:, 0], some[:, 1]] = found * network.around.unit + network.around.level[some[:, 0]]
    return smooth


class _Surroundings(nn.Module):
    """The readings around each reading: in units of their spread, 0 where there is none."""

    readings: Tensor
    there: Tensor
    alike: Tensor
    noise: Tensor
    angle: Tensor

    def __init__(self, estimate: Tensor, there: Tensor, sigma: Tensor, clock: Tensor) -> None:
        super().__init__()
        counts = there.sum(dim=1).clamp(min=1)
        self.level = torch.where(there, estimate, 0.0).sum(dim=1) / counts  # (n,)
        centred = torch.where(there, estimate - self.level[:, None], 0.0)
        self.unit = max(float(centred[there].square().mean().sqrt()), torch.finfo(torch.float32).tiny)
        scaled = (centred / self.unit).float()
        size = scaled.norm(dim=1).clamp(min=1e-6)
        likeness = (scaled @ scaled.T / size / size[:, None]).fill_diagonal_(-2.0)
        most = min(ALIKE, len(scaled) - 1)
        self.register_buffer("alike", likeness.argsort(dim=1, descending=True)[:, :most])
        pad = (REACH, REACH)
        self.register_buffer("readings", nn.functional.pad(scaled, pad))
        self.register_buffer("there", nn.functional.pad(there.float(), pad))
        self.register_buffer("noise", (sigma.double() / self.unit).float())
        self.register_buffer("angle", 2 * torch.pi * clock.float())

    @property
    def width(self) -> int:
        others = self.alike.shape[1] * (2 * ALIKE_REACH + 1)
        return 2 * (2 * REACH + 1) + 2 * others + 2

    def own(self, node: Tensor, row: Tensor) -> Tensor:
        """(b 2R+1): the readings of the sensor itself around these."""
        return self.readings[node[:, None], self._rows(row, REACH)]

    def rest(self, node: Tensor, row: Tensor) -> Tensor:
        """All else that is known around them, none of which depends on the noise of these readings."""
        own, near = self._rows(row, REACH), self._rows(row, ALIKE_REACH)
        others = self.alike[node][:, :, None]
        angle = self.angle[row]
        parts = [
            self.there[node[:, None], own],
            self.readings[others, near[:, None]].flatten(1),
            self.there[others, near[:, None]].flatten(1),
            torch.stack([angle.sin(), angle.cos()], dim=1),
        ]
        return torch.cat(parts, dim=1)

    def _rows(self, row: Tensor, reach: int) -> Tensor:
        return row[:, None] + torch.arange(REACH - reach, REACH + reach + 1, device=row.device)


class _Denoiser(nn.Module):
    """A perceptron that corrects a reading by what is around it."""

    def __init__(self, around: _Surroundings) -> None:
        super().__init__()
        self.around = around
        self.names = nn.Embedding(len(around.readings), NAMES)
        layers = [nn.Linear(around.width + NAMES, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU()]
        last = nn.Linear(WIDTH, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(*layers, last)

    def forward(self, own: Tensor, node: Tensor, row: Tensor) -> Tensor:
        """(b,): estimates of the readings in the middle of `own` (b 2R+1)."""
        seen = torch.cat([own, self.around.rest(node, row), self.names(node)], dim=1)
        found: Tensor = own[:, REACH] + self.layers(seen)[:, 0]
        return found


def _train(
    network: _Denoiser,
    places: Tensor,
    chooser: torch.Generator,
    steps: int,
    device: torch.device,
    tick: Callable[[float], None],
) -> None:
    optimiser = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
    around = network.around
    for step in range(steps):
        drawn = places[torch.randint(len(places), (BATCH,), generator=chooser)]
        node, row = drawn.to(device).unbind(dim=1)
        own = around.own(node, row).requires_grad_()
        found = network(own, node, row)
        (follows,) = torch.autograd.grad(found.sum(), own, create_graph=True)
        distance = (found - own[:, REACH].detach()).square()
        risk = distance + 2 * around.noise[node].square() * follows[:, REACH]
        optimiser.zero_grad()
        risk.mean().backward()
        optimiser.step()
        schedule.step()
        tick((step + 1) / steps)
