"""Everything random, as a function of seed and purpose, so that server and nodes agree without messages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from cnfgnn.config.declarations import Declaration

NODE_WEIGHTS, SERVER_WEIGHTS, CLIENT_BATCHES, SERVER_BATCHES, COINS = range(1, 6)
COINS_AT_ONCE = 256  # minibatches
_WORD = (1 << 64) - 1


def mix(*numbers: int) -> int:
    """One 64-bit number from several, each bit depending on all of them (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + (number & _WORD) + 0x9E3779B97F4A7C15) & _WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _WORD
        state ^= state >> 31
    return state


def generator(*numbers: int) -> torch.Generator:
    """A separate CPU generator for each purpose."""
    return torch.Generator().manual_seed(mix(*numbers) >> 1)


class Draw(NamedTuple):
    """The name of a minibatch: these three numbers are sent, never the windows in it."""

    r_g: int
    epoch: int
    number: int


class Minibatches(NamedTuple):
    """Some of the minibatches of several epochs, counted from the first of the first epoch."""

    first: int
    until: Annotated[int, Declaration(at_least=1)]  # one more than the last


class Batches:
    """The windows of an epoch in random order, in minibatches of which the last may be smaller."""

    def __init__(self, seed: int, purpose: int, windows: int, size: int, device: torch.device) -> None:
        self.seed, self.purpose = seed, purpose
        self.windows, self.size, self.device = windows, size, device
        self._order: tuple[tuple[int, int], Tensor] | None = None

    def __len__(self) -> int:
        """Minibatches in an epoch."""
        return math.ceil(self.windows / self.size)

    def epoch(self, r_g: int, epoch: int) -> Iterator[Draw]:
        return (Draw(r_g, epoch, number) for number in range(len(self)))

    def after(self, draw: Draw, epochs: int) -> Draw | None:
        """The minibatch after this one; None after the last of so many epochs."""
        epoch, number = divmod(draw.epoch * len(self) + draw.number + 1, len(self))
        return Draw(draw.r_g, epoch, number) if epoch < epochs else None

    def some(self, epochs: int, minibatches: Minibatches | None) -> tuple[int, int]:
        """The first of these minibatches, and one more than the last; None stands for all of the epochs."""
        until = epochs * len(self)
        return (0, until) if minibatches is None else (minibatches.first, min(minibatches.until, until))

    def numbered(self, r_g: int, number: int) -> Tensor:
        """The windows of a minibatch, counted from the first of the first epoch of a round."""
        epoch, in_epoch = divmod(number, len(self))
        return self[Draw(r_g, epoch, in_epoch)]

    def __getitem__(self, draw: Draw) -> Tensor:
        """(b,): the windows of one minibatch, as positions in the training split."""
        key = (draw.r_g, draw.epoch)
        if self._order is None or self._order[0] != key:
            shuffle = generator(self.seed, self.purpose, *key)
            self._order = key, to_device(torch.randperm(self.windows, generator=shuffle), self.device)
        return self._order[1][draw.number * self.size : (draw.number + 1) * self.size]


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """A copy on the device, made without waiting for the work that is queued there."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def truth_probability(step: int, k: float) -> float:
    """Scheduled sampling (Bengio et al. 2015) as in DCRNN: k / (k + exp(step / k)); 0 if k is 0."""
    return 0.0 if k == 0 else k / (k + math.exp(min(step / k, 700.0)))


class Coins:
    """Which decoder steps are fed the truth: one coin per minibatch and step, the same for all nodes.

    Coins are tossed in blocks, because copying them to the device for every minibatch would be too slow.
    """

    def __init__(self, seed: int, horizon: int, k: float, device: torch.device) -> None:
        self.seed, self.horizon, self.k, self.device = seed, horizon, k, device
        self._block: tuple[int, Tensor] | None = None

    def __getitem__(self, step: int) -> Tensor | None:
        """(t,) for the minibatch with this number; None once the truth is never fed any more."""
        number = step // COINS_AT_ONCE
        first = number * COINS_AT_ONCE
        if truth_probability(first, self.k) < 1e-12:
            return None
        if self._block is None or self._block[0] != number:
            tosses = [self._tossed(s) for s in range(first, first + COINS_AT_ONCE)]
            self._block = number, to_device(torch.tensor(tosses), self.device)
        return self._block[1][step - first]

    def _tossed(self, step: int) -> list[bool]:
        p = truth_probability(step, self.k)
        return [mix(self.seed, COINS, step, t) / 2**64 < p for t in range(self.horizon)]


def decay(r_g: int, rounds: int) -> float:
    """The share of the learning rate in a round: half a cosine from 1 to 0; always 1 if `rounds` is 0."""
    return 1.0 if rounds == 0 else 0.5 * (1 + math.cos(math.pi * min(r_g - 1, rounds) / rounds))
