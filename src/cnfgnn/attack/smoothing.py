"""Remove noise from an estimate of blurred readings: neighbouring readings are alike, their noise is not.

A smoother replaces each reading by a weighted sum of those up to `REACH` steps before and after it. Its
weights are fitted to one sensor that helps the attacker, or follow from the size of the noise alone, which is
no secret.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

REACH = 12  # readings before and after
RIDGE = 1e-6  # relative to the size of the equations: keeps them solvable


@dataclass(frozen=True, eq=False)
class Colluder:
    """A sensor that helps the server: its row, and its true readings (T,) with NaN where one is missing."""

    row: int
    readings: Tensor


def smoothed_like(estimate: Tensor, example: Tensor, truth: Tensor) -> Tensor:
    """Smooth (n T) as is best for one example (T,) with known true readings (T,), NaN where unknown.

    Each series is measured from its own mean. NaN stays NaN.
    """
    features, truth_level = neighbours(_centred(example[None]))[0], _level(example[None])[0]
    counts = ~(truth.isnan() | example.isnan())
    if not bool(counts.any()):
        return estimate
    wanted = truth[counts] - truth_level
    ones = torch.ones(len(wanted), 1, dtype=truth.dtype)
    weights = _least_squares(torch.cat([features[counts], ones], dim=1), wanted)
    smooth = neighbours(_centred(estimate)) @ weights[:-1] + weights[-1] + _level(estimate)[:, None]
    return smooth.masked_fill(estimate.isnan(), torch.nan)


def smoothed_by_noise(estimate: Tensor, sigma: Tensor) -> Tensor:
    """Smooth (n T) given the standard deviation (n,) of its noise: Wiener's filter.

    The noise of two readings is independent, so it is in the covariance of a reading with itself alone; the
    rest of the covariances is that of the readings.
    """
    centred = _centred(estimate)
    known = (~estimate.isnan()).to(centred.dtype)
    lags = torch.arange(2 * REACH + 1)
    covariances = torch.stack([_covariance(centred, known, int(lag)) for lag in lags], dim=1)  # (n 2R+1)
    noise = sigma.to(centred.dtype).square()
    signal = covariances.clone()
    signal[:, 0] = (signal[:, 0] - noise).clamp(min=0.0)
    matrix = covariances[:, (lags[:, None] - lags[None]).abs()]  # (n 2R+1 2R+1)
    ridge = (RIDGE * covariances[:, :1, None]).clamp(min=torch.finfo(matrix.dtype).tiny)
    matrix = matrix + ridge * torch.eye(len(lags), dtype=matrix.dtype)
    wanted = signal[:, (lags - REACH).abs()]
    weights: Tensor = torch.linalg.solve(matrix, wanted[..., None])  # (n 2R+1 1)
    smooth = (neighbours(centred) @ weights)[..., 0] + _level(estimate)[:, None]
    return smooth.masked_fill(estimate.isnan(), torch.nan)


def bridged(estimate: Tensor, observed: Tensor) -> Tensor:
    """(n T): straight lines across the readings that are known to be missing; NaN stays NaN.

    Nodes repeat the last reading in a gap, and its noise with it, which a smoother would take for a signal.
    """
    lines = estimate.clone()
    for line, there in zip(lines, observed & ~estimate.isnan(), strict=True):
        gaps = (~there & ~line.isnan()).nonzero().flatten()
        if len(gaps) and bool(there.any()):
            known = there.nonzero().flatten()
            line[gaps] = torch.from_numpy(np.interp(gaps.numpy(), known.numpy(), line[known].numpy()))
    return lines


def _level(series: Tensor) -> Tensor:
    """(n,): the mean of what is known."""
    return torch.nan_to_num(series.nanmean(dim=1))


def _centred(series: Tensor) -> Tensor:
    """(n T) around zero, with zero where nothing is known."""
    return torch.nan_to_num(series - _level(series)[:, None])


def neighbours(series: Tensor) -> Tensor:
    """(n T) -> (n T 2R+1): each reading with those around it; beyond the ends, the first and the last one."""
    padded = torch.nn.functional.pad(series[:, None], (REACH, REACH), mode="replicate")[:, 0]
    return padded.unfold(1, 2 * REACH + 1, 1)


def _covariance(centred: Tensor, known: Tensor, lag: int) -> Tensor:
    """(n,): the mean product of readings that are `lag` steps apart."""
    length = centred.shape[1] - lag
    products = (centred[:, :length] * centred[:, lag:]).sum(dim=1)
    return products / (known[:, :length] * known[:, lag:]).sum(dim=1).clamp(min=1)


def _least_squares(features: Tensor, wanted: Tensor) -> Tensor:
    gram = features.mT @ features
    gram = gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weights: Tensor = torch.linalg.solve(gram, features.mT @ wanted)
    return weights
