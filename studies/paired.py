"""Which of two runs forecasts better, and whether more than chance says so.

    cnfgnn evaluate runs/a --predictions a.parquet
    cnfgnn evaluate runs/b --predictions b.parquet
    python studies/paired.py a.parquet b.parquet
    python studies/paired.py a.parquet b.parquet --record experiments/records/paired/FILE.json --data NAME

Both are compared on the forecasts that both made. Errors of one day resemble each other, so whole days are
drawn with replacement (`--days 7`: whole weeks), and the difference a - b is computed again for each draw.
One of the two is called better only where the interval excludes zero; with fewer than 20 days, nothing is
said. "False alarms" says how often it would if neither run were better, that is, if they changed places on
days drawn at random: in 5 % of cases, if it were exact. Training seeds are not part of this: compare several.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from cnfgnn.runs.record import commit, write_json

DRAWS, LEVEL, SWAPS = 2000, 0.95, 400
LEAST = 20  # days, or other blocks, from which something is said
KEY = ["sensor", "issued", "step"]
COLUMNS = [*KEY, "observed", "truth", "forecast"]
Floats = npt.NDArray[np.float64]


class Row(NamedTuple):
    """The errors of two runs at one step ahead, the interval of their difference from so many days (with
    `--days`, blocks of days), what it says, and how often it would if neither were better."""

    step: str
    a: float
    b: float
    low: float
    high: float
    days: int
    alarms: float

    @property
    def verdict(self) -> str:
        if self.days < LEAST:
            return f"too few to draw from: {self.days}"
        if self.high < 0:
            return "a is better"
        return "b is better" if self.low > 0 else "no difference shown"


def compare(a: pd.DataFrame, b: pd.DataFrame, metric: str, masked: bool, days: int, seed: int) -> list[Row]:
    """A row for each step ahead, and one for all of them."""
    if (a["issued"].dt.tz is None) != (b["issued"].dt.tz is None):
        raise SystemExit("the times of one file are in UTC, those of the other in no time zone")
    if a.duplicated(KEY).any() or b.duplicated(KEY).any():
        raise SystemExit("a file has several forecasts of the same sensor, time and step")
    both = a.merge(b, on=KEY, suffixes=("_a", "_b"))
    for column in ("truth", "observed"):
        of_a, of_b = (both[f"{column}_{name}"].to_numpy(np.float32) for name in "ab")
        if not np.array_equal(of_a, of_b, equal_nan=True):
            raise SystemExit("the two files hold different readings, or count others as missing")
    both = both[both["observed_a"] if masked else both["truth_a"].notna()]
    if not len(both):
        raise SystemExit("the two files have no forecast of the same sensor, time and step in common")
    day = both["issued"].dt.floor("D")
    blocks = ((day - day.min()).dt.days // days).astype("category").cat
    steps = both["step"].astype("category").cat
    sums = []
    for forecast in ("forecast_a", "forecast_b", None):
        error = 1.0 if forecast is None else np.abs(both[forecast] - both["truth_a"]).to_numpy(np.float64)
        total = np.zeros((len(blocks.categories), len(steps.categories)))
        np.add.at(total, (blocks.codes, steps.codes), error**2 if metric == "rmse" else error)
        sums.append(total)
    every = {str(step): [place] for place, step in enumerate(steps.categories)}
    rows = []
    for name, columns in (every | {"all": list(range(len(every)))}).items():
        has = sums[-1][:, columns].any(axis=1)  # blocks with forecasts so many steps ahead
        of_blocks = [total[has][:, columns].sum(axis=1) for total in sums]
        weights = _draws(int(has.sum()), seed)
        alarms = _false_alarms(of_blocks, weights, metric, seed)
        bounds = map(float, _bounds(*of_blocks, weights, metric))
        rows.append(Row(name, *bounds, len(weights[0]), alarms))
    return rows


def _false_alarms(of_blocks: Sequence[Floats], weights: Floats, metric: str, seed: int) -> float:
    """How often the interval excludes zero if the two change places in blocks that are drawn at random."""
    *both, forecasts = (total[:, None] for total in of_blocks)
    swapped = np.random.default_rng(seed).random((len(forecasts), SWAPS)) < 0.5
    of_a, of_b = np.where(swapped, both, both[::-1])
    *_, low, high = _bounds(of_a, of_b, forecasts, weights, metric)
    return float(np.mean((low > 0) | (high < 0)))


def _bounds(of_a: Floats, of_b: Floats, forecasts: Floats, weights: Floats, metric: str) -> list[Floats]:
    """Two errors, and the interval of their difference, given what each block (b, ...) adds to their sums."""
    errors_a, errors_b = (weights @ total / (weights @ forecasts) for total in (of_a, of_b))
    if metric == "rmse":
        errors_a, errors_b = np.sqrt(errors_a), np.sqrt(errors_b)
    apart = errors_a - errors_b
    bounds = np.quantile(apart[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    low, high = apart[0] + (bounds - apart[0]) * _widening(len(weights[0]))
    return [errors_a[0], errors_b[0], low, high]


def _draws(count: int, seed: int) -> Floats:
    """(draws count): how often each block is drawn; the first draw is the data themselves."""
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), DRAWS)
    return np.concatenate([np.ones((1, count)), drawn])


def _widening(count: int) -> float:
    """How much too narrow intervals from so few draws are: as Student's t is wider than the normal."""
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    few = max(1, count - 1)
    return (1 + (z**2 + 1) / (4 * few)) * (count / few) ** 0.5


def _predictions(path: Path) -> pd.DataFrame:
    """What `cnfgnn evaluate --predictions` has written."""
    try:
        return pd.read_parquet(path, columns=COLUMNS)
    except Exception as problem:  # pyarrow raises many kinds
        first = str(problem).strip().partition("\n")[0]
        sys.exit(f"{path}: cannot be read as predictions, with the columns {', '.join(COLUMNS)} ({first})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--metric", choices=["rmse", "mae"], default="rmse")
    parser.add_argument("--unmasked", action="store_true", help="missing readings count as the file has them")
    parser.add_argument("--days", type=int, default=1, help="days that are drawn together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="also write the comparison there, for `make tables`")
    parser.add_argument("--data", help="what the record calls the data")
    given = parser.parse_args()
    if given.record is not None and given.data is None:
        parser.error("--record: say with --data what was forecast")
    if given.days < 1:
        parser.error(f"--days: at least 1, not {given.days}")
    names = {"a": Path(given.a).stem, "b": Path(given.b).stem}
    if given.record is not None and (given.days != 1 or names["a"] == names["b"]):
        parser.error("--record: a table has single days, and two files that are named after what they are")
    read = [_predictions(Path(path)) for path in (given.a, given.b)]
    rows = compare(*read, given.metric, not given.unmasked, given.days, given.seed)
    print(f"{given.metric}, {'unmasked' if given.unmasked else 'masked'}; a: {given.a}, b: {given.b}\n")
    print(f"| step | a | b | a - b, {LEVEL:.0%} interval | | false alarms |\n{'|---' * 6}|")
    for row in rows:
        interval = f"{row.low:+.3f} to {row.high:+.3f}"
        print(f"| {row.step} | {row.a:.3f} | {row.b:.3f} | {interval} | {row.verdict} | {row.alarms:.1%} |")
    if given.record is not None:
        error = given.metric if given.unmasked else f"masked_{given.metric}"
        steps = {row.step: row._asdict() | {"verdict": row.verdict} for row in rows}
        about = {"data": given.data, **names, "error": error, "seed": given.seed, "commit": commit()}
        write_json(given.record, about | {"steps": steps})


if __name__ == "__main__":
    main()
