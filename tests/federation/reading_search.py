"""Searches bytes for readings: raw or scaled, in any floating-point type that might be sent, or as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.data.series import Scaler
from cnfgnn.data.windows import SPLITS

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
TYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
MIXED = np.uint64(0x9E3779B97F4A7C15)  # spreads words over a table
TABLE = 24  # bits
NUMBER = re.compile(rb"-?\d+\.\d+(?:[eE][-+]?\d+)?")
IN_A_ROW = 3  # numbers of a text that must all be readings


class Search:
    """A search for the readings (n T) of some sensors, NaN where missing, taken at times of day (T,).

    Eight bytes at any offset are a hit if they are one reading in fp64, or consecutive readings in a smaller
    type: of one sensor at successive steps, of successive sensors at one step, or each followed by its time
    of day as in windows. Four bytes are a hit if they are a marker. Text is a hit if three different
    consecutive numbers are readings up to the relative tolerance `close`, or if one number is a marker.
    """

    def __init__(
        self, readings: Floats, clock: Floats, scaler: Scaler, markers: list[float], close: float = 1e-6
    ) -> None:
        self.close = close
        scaled = (readings - scaler.mean) / scaler.std
        narrow = (readings.astype(np.float32) - np.float32(scaler.mean)) / np.float32(scaler.std)
        self.markers = np.array([*markers, *((np.array(markers) - scaler.mean) / scaler.std)])
        self.patterns: dict[str, Words] = {}
        for kind, values in (("raw", readings), ("scaled", scaled), ("scaled in fp32", narrow)):
            for name, words in _words(values.astype(np.float64), clock):
                self.patterns[f"{kind}, {name}"] = words
        self._index([readings, scaled])

    def _index(self, known: Sequence[Floats]) -> None:
        self.all = np.unique(np.concatenate(list(self.patterns.values())))
        self.table = np.zeros(1 << TABLE, dtype=np.bool_)
        self.table[_place(self.all)] = True
        self.known = np.unique(np.concatenate([values.ravel() for values in known]))
        self.known = self.known[np.isfinite(self.known)]

    def found(self, data: bytes) -> set[str]:
        """Which kinds of hits these bytes contain."""
        return self._in_words(data) | self._markers(data) | self._in_text(data)

    def _in_words(self, data: bytes) -> set[str]:
        hits = [np.zeros(0, dtype=np.uint64)]
        for offset in range(min(8, len(data))):
            words = np.frombuffer(data, dtype="<u8", offset=offset, count=(len(data) - offset) // 8)
            likely = words[self.table[_place(words)]]
            place = np.searchsorted(self.all, likely).clip(max=len(self.all) - 1)
            hits.append(likely[self.all[place] == likely])
        found = np.concatenate(hits)
        return {name for name, words in self.patterns.items() if len(found) and np.isin(found, words).any()}

    def _markers(self, data: bytes) -> set[str]:
        written = {f"marker {value} in fp32": np.float32(value).tobytes() for value in self.markers}
        return {name for name, pattern in written.items() if pattern in data}

    def _in_text(self, data: bytes) -> set[str]:
        numbers = np.array([float(text) for text in NUMBER.findall(data)])
        if not len(numbers):
            return set()
        found = {f"marker {v} as text" for v in self.markers if (abs(numbers - v) <= 1e-6 * abs(v)).any()}
        # a statistic of one event repeats its number as total, least and most: that is one number, not three
        numbers = numbers[np.insert(np.diff(numbers) != 0, 0, True)]
        place = np.clip(np.searchsorted(self.known, numbers), 1, len(self.known) - 1)
        gap = np.minimum(abs(self.known[place] - numbers), abs(self.known[place - 1] - numbers))
        hit = (gap <= self.close * abs(numbers)) & (numbers != 0)
        row = np.convolve(hit, np.ones(IN_A_ROW), "valid") if len(hit) >= IN_A_ROW else np.zeros(1)
        return found | ({"readings as text"} if row.max() >= IN_A_ROW else set())


class ProfileSearch(Search):
    """A search for weekly profiles, (k steps) of each kind, in one pass over the bytes."""

    def __init__(self, kinds: Mapping[str, Floats], scaler: Scaler) -> None:
        # zeros are everywhere: a match that contains one proves too little
        self.kinds = {kind: np.where(values == 0, np.nan, values) for kind, values in kinds.items()}
        self.close, self.markers = 1e-9, np.zeros(0)
        each = {k: Search(v, np.full(v.shape[1], 0.5), scaler, []) for k, v in self.kinds.items()}
        self.patterns = {f"{k}: {name}": w for k, s in each.items() for name, w in s.patterns.items()}
        self._index([search.known for search in each.values()])

    def example(self, kind: str) -> Floats:
        """Eight consecutive values of one kind."""
        runs = np.lib.stride_tricks.sliding_window_view(self.kinds[kind], 8, axis=1).reshape(-1, 8)
        first: Floats = runs[np.isfinite(runs).all(1)][0]
        return first


def profiles_of(
    experiment: Experiment, rows: list[int], state: Mapping[str, torch.Tensor]
) -> dict[str, Floats]:
    """The weekly profiles of some sensors, (k steps) of each kind: from the state that their owner keeps, and
    as their model receives them for every time and window, taken from a simulation."""
    [(_, owner)] = experiment.owners
    assert owner.data.usual is not None
    told = [owner.data.batch(split, slice(None)).usual_change for split in SPLITS]
    windows = torch.cat([usual[rows].flatten(0, 1) for usual in told if usual is not None])
    return {
        "usual at a time": owner.data.usual[rows].double().numpy(),
        "usual in a window": windows.double().numpy(),
        "usual_weeks": state["usual_weeks"].double().flatten(0, -2).numpy(),
    }


def encoded(values: Floats, dtype: torch.dtype) -> bytes:
    """The bytes of numbers in memory."""
    return (
        torch.from_numpy(np.ascontiguousarray(values)).to(dtype).flatten().view(torch.uint8).numpy().tobytes()
    )


def _words(values: Floats, clock: Floats) -> Iterator[tuple[str, Words]]:
    beside = np.stack([values, np.broadcast_to(clock, values.shape)], axis=-1)  # (n T 2)
    layouts: Mapping[str, Floats] = {
        "by time": values,
        "by sensor": np.ascontiguousarray(values.T),
        "with its time": beside.reshape(len(values), -1),
    }
    for name, dtype in TYPES.items():
        each = 8 // dtype.itemsize
        for layout, rows in layouts.items():
            step = 2 if layout == "with its time" and each > 1 else 1
            if rows.shape[1] < each or (each == 1 and layout != "by time"):
                continue
            runs = np.lib.stride_tricks.sliding_window_view(rows, each, axis=1)[:, ::step].reshape(-1, each)
            runs = runs[np.isfinite(runs).all(1) & (runs != 0).any(1)]
            yield f"{name} {layout}", np.frombuffer(encoded(runs, dtype), dtype="<u8")


def _place(words: Words) -> Words:
    with np.errstate(over="ignore"):
        return (words * MIXED) >> np.uint64(64 - TABLE)
