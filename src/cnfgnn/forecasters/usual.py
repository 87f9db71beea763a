"""What a sensor usually reads: its weekly profile, and what of the days and weeks before comes back.

A school holiday, a run of warm days or a new timetable change the course of a day for more than one day. So
each sensor compares the course of its anomalies, that is, of its readings minus its profile, with the course
that they had at the same time of earlier days and weeks, and learns one weight for each of these lags. The
course, and not the level: the last readings tell the level better than any earlier day. Where days do not
resemble those before them, the weights are zero and the profile is left as it is.

A missing reading is filled in the same spirit: with the profile and what is left of the last anomaly, which
fades with its age. A short gap is then filled with almost the last reading, a long one with the profile.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DAY_S = 86_400.0
LAGS = DAY_S * np.array([1, 2, 3, 4, 5, 6, 7, 14, 21, 28, 364])  # in seconds
MOST_ROWS = 2016  # a week of five minutes: a live service keeps no older readings
FOLDS = 5
HALF_LIVES = 2.0 ** np.arange(-1, 11)  # in steps
PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4, 1e5)  # of squared weights, on scaled readings

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def rows_before(times: Floats, among: Floats, step: float, horizon: int) -> Ints:
    """(k r): the row of the times `among` (T,) that lies each lag before each of these times (r,); -1 where
    there is none. What was read then must be known when the forecast is made, and recent enough."""
    rows = np.full((len(LAGS), len(times)), -1, dtype=np.int64)
    for place, lag in enumerate(LAGS):
        if horizon * step <= lag <= MOST_ROWS * step:
            found = np.searchsorted(among, times - lag).clip(max=len(among) - 1)
            rows[place] = np.where(among[found] == times - lag, found, -1)
    return rows


def usual_readings(
    profile: Floats, weights: Floats, values: npt.NDArray[np.floating], absent: Bools, rows: Ints
) -> Floats:
    """(n r): what the sensors usually read at some rows, from their profile (n r) there, the weights of their
    lags (n k), and readings (n T) of which `rows` (k r) names those of each lag."""
    usual = profile.copy()
    for of_lag, weight in zip(rows, weights.T, strict=True):
        if weight.any():
            unknown = (of_lag < 0) | absent[:, of_lag]
            usual += weight[:, None] * np.nan_to_num(np.where(unknown, np.nan, values[:, of_lag]) - profile)
    return usual


def fit_lags(readings: Floats, profile: Floats, rows: Ints, ahead: int) -> Floats:
    """(k,): the weights of one sensor's lags.

    readings  (T,)   scaled, NaN for those that are missing or that nothing may be learned from
    profile   (T,)   scaled
    rows      (k T)  the rows that lie each lag before
    ahead     steps over which courses are compared
    """
    anomaly = readings - profile
    known = ~np.isnan(anomaly)
    usable = 2 * (rows[:, known] >= 0).sum(axis=1) >= max(1, known.sum())
    weights = np.zeros(len(rows))
    if not usable.any():
        return weights
    earlier = np.where(rows[usable] >= 0, readings[rows[usable]], np.nan) - profile
    x, y = earlier[:, ahead:] - earlier[:, :-ahead], anomaly[ahead:] - anomaly[:-ahead]
    # Where a lag is not there yet, the others stand in for it, and would count too much once it is.
    has = ~np.isnan(y) & (rows[usable, ahead:] >= 0).all(axis=0)
    weights[usable] = _ridge(np.nan_to_num(x[:, has]), y[has])
    return weights


def fit_half_life(anomaly: Floats, horizon: int) -> float:
    """The number of steps after which half of one sensor's anomaly (T,), NaN where unknown, is still there:
    that which forecasts later anomalies best."""
    lags = np.unique([1, horizon // 4, horizon // 2, horizon, 2 * horizon])
    pairs = [(lag, anomaly[:-lag], anomaly[lag:]) for lag in lags if 0 < lag < len(anomaly)]
    pairs = [(lag, x, y) for lag, x, y in pairs if not np.isnan(x * y).all()]
    if not pairs:
        return float(HALF_LIVES[-1])
    errors = [
        sum(float(np.nanmean(np.square(y - 0.5 ** (lag / half_life) * x))) for lag, x, y in pairs)
        for half_life in HALF_LIVES
    ]
    return float(HALF_LIVES[np.argmin(errors)])


def _ridge(x: Floats, y: Floats) -> Floats:
    """(k b), (b,) -> (k,): with the penalty that is best in cross-validation; zeros if none is better."""
    eye, fold = np.eye(len(x)), np.arange(len(y)) * FOLDS // max(1, len(y))
    parts = [(x[:, fold == f] @ x[:, fold == f].T, x[:, fold == f] @ y[fold == f]) for f in range(FOLDS)]
    gram, cross = sum(g for g, _ in parts), sum(c for _, c in parts)
    least, weights = 0.0, np.zeros(len(x))
    for penalty in PENALTIES:
        error = 0.0  # relative to that of zeros
        for g, c in parts:
            w = np.linalg.solve(gram - g + penalty * eye, cross - c)
            error += float(w @ g @ w - 2 * c @ w)
        if error < least:
            least, weights = error, np.linalg.solve(gram + penalty * eye, cross)
    return weights
