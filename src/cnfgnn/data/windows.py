"""Training sequences as start rows into one series, split in time order; nothing is ever copied out."""

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

    starts maps each split to its start rows, ascending; between sites a window is known by its start. With
    `ahead` the targets lie in the future: a window needs observed inputs alone.
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
        """The one window whose targets follow a series of that many rows; it stands in the test split."""
        none = np.zeros(0, dtype=np.int64)
        last = np.array([rows - history], dtype=np.int64)
        return cls({"train": none, "validation": none, "test": last}, history, horizon, ahead=True)

    @classmethod
    def of(
        cls,
        rows: int,
        history: int = 12,
        horizon: int = 12,
        shares: tuple[float, float, float] = (0.7, 0.1, 0.2),
        source: str = "readings",
    ) -> Windows:
        """All windows of a series: by default the first 70 % train, 10 % validate, the last 20 % test."""
        for name, steps in {"history": history, "horizon": horizon}.items():
            if steps < 1:
                raise ConfigError(f"data.{name}", f"must be at least 1, not {steps}")
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
            raise ConfigError("data.shares", f"three shares that add up to 1, not {shares}")
        total = rows - history - horizon + 1
        train = round(total * shares[0])
        test = min(round(total * shares[2]), total - train)  # both may round up
        if total < 1 or train < 1:
            raise DataError(
                source,
                f"{rows} rows leave no training windows of {history} + {horizon} steps"
                f" (at least {history + horizon} rows are needed)",
            )
        cuts = {"train": (0, train), "validation": (train, total - test), "test": (total - test, total)}
        return cls({s: np.arange(*cuts[s], dtype=np.int64) for s in SPLITS}, history, horizon)


def observed_windows(
    observed: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64], windows: Windows
) -> npt.NDArray[np.bool_]:
    """(n, w): which windows have at least one observed input and one observed target; observed is (n, T)."""
    before = np.zeros((observed.shape[0], observed.shape[1] + 1), dtype=np.int32)
    np.cumsum(observed, axis=1, out=before[:, 1:])
    middle = starts + windows.history
    has: npt.NDArray[np.bool_] = before[:, middle] > before[:, starts]
    return has if windows.ahead else has & (before[:, middle + windows.horizon] > before[:, middle])
