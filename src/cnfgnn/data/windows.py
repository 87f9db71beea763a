"""Windows: training sequences as start rows into one series, split in time order and never copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from cnfgnn.errors import ConfigError, DataError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Windows:
    """Window w covers rows starts[w] .. starts[w] + history + horizon - 1.

    starts maps each split to its start rows, ascending; sites refer to a window by its start. With `ahead`,
    the targets lie in the future, and a window needs observed inputs only.
    """

    starts: Mapping[Split, npt.NDArray[np.int64]]
    history: int = 12
    horizon: int = 12
    ahead: bool = False

    @property
    def length(self) -> int:
        return self.history + self.horizon

    def count(self, split: Split) -> int:
        return len(self.starts[split])

    def only(self, kept: Mapping[Split, npt.NDArray[np.bool_]]) -> Windows:
        """The windows where `kept` is True."""
        return replace(self, starts={s: self.starts[s][kept[s]] for s in SPLITS})

    @classmethod
    def next(cls, rows: int, history: int, horizon: int) -> Windows:
        """The one window whose targets follow a series of that many rows, as the test split."""
        return cls.to_forecast(np.array([rows - history], dtype=np.int64), history, horizon)

    @classmethod
    def to_forecast(cls, starts: npt.NDArray[np.int64], history: int, horizon: int) -> Windows:
        """The windows that begin at these rows, as the test split; nothing is trained on."""
        none = np.zeros(0, dtype=np.int64)
        return cls({"train": none, "validation": none, "test": starts}, history, horizon, ahead=True)

    @classmethod
    def of(
        cls,
        rows: int,
        history: int = 12,
        horizon: int = 12,
        shares: tuple[float, float, float] = (0.7, 0.1, 0.2),
        source: str = "readings",
    ) -> Windows:
        """All windows of a series; by default 70 % train, the next 10 % validate and the last 20 % test."""
        for name, steps in {"history": history, "horizon": horizon}.items():
            if steps < 1:
                raise ConfigError(f"data.{name}", f"must be at least 1, not {steps}")
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
            raise ConfigError("data.shares", f"must be three shares that add up to 1, not {shares}")
        total = rows - history - horizon + 1
        train, test = _sizes(total, shares)
        if total < 1 or train < 1:
            raise DataError(
                source,
                f"{rows} rows leave no training windows of {history} + {horizon} steps"
                f"{_remedy(history, horizon, shares)}",
            )
        cuts = {"train": (0, train), "validation": (train, total - test), "test": (total - test, total)}
        return cls({s: np.arange(*cuts[s], dtype=np.int64) for s in SPLITS}, history, horizon)


def fewest_rows(history: int, horizon: int) -> int:
    """The fewest rows with one window each to train, validate and test on."""
    return history + horizon - 1 + len(SPLITS)


def check_splits(windows: Windows, shares: tuple[float, float, float], source: str) -> None:
    """Refuse an empty split: there would be nothing to train on, to choose a round by or to evaluate."""
    for split, kind in zip(SPLITS, ("training", "validation", "test"), strict=True):
        if windows.count(split) == 0:
            rows = max((int(s[-1]) for s in windows.starts.values() if len(s)), default=0) + windows.length
            steps = f"{windows.history} + {windows.horizon} steps"
            remedy = _remedy(windows.history, windows.horizon, shares)
            raise DataError(source, f"{rows} rows leave no {kind} windows of {steps}{remedy}")


def _sizes(total: int, shares: tuple[float, float, float]) -> tuple[int, int]:
    """How many of `total` windows train and test; the others validate.

    If a share of a few windows rounds to zero, it takes one from the largest split.
    """
    train = round(total * shares[0])
    test = min(round(total * shares[2]), total - train)  # both shares may round up
    counts = [train, total - train - test, test]
    if total >= len(SPLITS):
        for split, share in enumerate(shares):
            if share > 0 and counts[split] == 0:
                counts[counts.index(max(counts))] -= 1
                counts[split] = 1
    return counts[0], counts[2]


def _remedy(history: int, horizon: int, shares: tuple[float, float, float]) -> str:
    if min(shares) <= 0:
        return ": set each of the three data.shares above 0"
    fewest = fewest_rows(history, horizon)
    return f": at least {fewest} rows are needed, or a smaller data.history or data.horizon"


def heard_windows(
    observed: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64], windows: Windows
) -> npt.NDArray[np.bool_]:
    """(n w): which windows have at least one observed input; observed is (n T)."""
    before = np.zeros((observed.shape[0], observed.shape[1] + 1), dtype=np.int32)
    np.cumsum(observed, axis=1, out=before[:, 1:])
    heard: npt.NDArray[np.bool_] = before[:, starts + windows.history] > before[:, starts]
    return heard


def reported_steps(horizon: int) -> tuple[int, ...]:
    """The steps ahead that tables and pages show: a quarter, half and all of the horizon."""
    return tuple(sorted({horizon // 4, horizon // 2, horizon} - {0}))
