"""Training sequences as start rows into one series, split in time order; nothing is ever copied out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from cnfgnn.errors import ConfigError, DataError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Windows:
    """Window w covers rows starts[w] .. starts[w] + history + horizon - 1.

    starts maps each split to its start rows, ascending; between sites a window is known by its start.
    """

    starts: Mapping[Split, npt.NDArray[np.int64]]
    history: int = 12
    horizon: int = 12

    @property
    def length(self) -> int:
        return self.history + self.horizon

    def count(self, split: Split) -> int:
        return len(self.starts[split])

    def only(self, kept: Mapping[Split, npt.NDArray[np.bool_]]) -> Windows:
        """The windows where `kept` is True."""
        return Windows({s: self.starts[s][kept[s]] for s in SPLITS}, self.history, self.horizon)

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
        if history < 1 or horizon < 1:
            raise ConfigError("data.history", "history and horizon are at least 1")
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
    observed: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64], history: int, horizon: int
) -> npt.NDArray[np.bool_]:
    """(n, w): which windows have at least one observed input and one observed target; observed is (n, T)."""
    before = np.zeros((observed.shape[0], observed.shape[1] + 1), dtype=np.int32)
    np.cumsum(observed, axis=1, out=before[:, 1:])
    middle = starts + history
    inputs = before[:, middle] - before[:, starts]
    targets = before[:, middle + horizon] - before[:, middle]
    has: npt.NDArray[np.bool_] = (inputs > 0) & (targets > 0)
    return has
