"""Where a site keeps the states of its nodes: in its kit, readable by its owner only."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.node_state import THETA, TRUST
from cnfgnn.algorithm.owner import INTERVALS as INTERVAL_STATE
from cnfgnn.algorithm.store import newest
from cnfgnn.data.inputs import INPUT_SCALES
from cnfgnn.data.prepared_series import LINEAR, USUAL
from cnfgnn.data.quality import Ranges
from cnfgnn.errors import CnfgnnError, RunError, StorageError
from cnfgnn.federation.site.errors import AnyError, for_server
from cnfgnn.federation.site.status import STATES, SiteStatus
from cnfgnn.files import read_json_or_empty, write_whole
from cnfgnn.forecasters.intervals import Intervals
from cnfgnn.models.params import part
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.warm_start import InOrder

JOINED = "joined.json"
OWNER = "owner"
RANGES = "ranges.json"  # of the owner
INTERVALS = "intervals"  # a folder of the owner


class JoinRecord(NamedTuple):
    """The copy of the readings with which a site joined a run. The record stays at the site."""

    rows: int  # how many of the run's time steps the readings reach
    sha256: str  # a digest of the copy
    sensors: tuple[str, ...]  # in the order of the rows of its states


class SiteStore(FolderStore):
    """The states of one run. Reading a missing tag gives the newest earlier state, see `newest`.

    Its errors are sent to the server: they are logged at the site in full and raised without local paths.
    `sensors` are the site's, in the order of the rows. The last `added` of them joined after the training.
    """

    mode = 0o600

    def __init__(self, kit: Path, run: str, sensors: Sequence[str] = (), added: int = 0) -> None:
        super().__init__(kit / STATES / run)
        self.kit, self.sensors, self.added = kit, sensors, added

    def read_join_record(self) -> JoinRecord | None:
        """What the site joined the run with; None if it has not joined it yet."""
        path = self.folder / JOINED
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            sensors = tuple(str(sensor) for sensor in content["sensors"])
            return JoinRecord(int(content["rows"]), str(content["sha256"]), sensors)
        except FileNotFoundError:
            return None
        except OSError as error:
            problem = RunError(path, f"cannot be read ({error.strerror or error})")
            raise self._reported("join", problem) from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise self._reported("join", RunError(path, "is damaged and cannot be read")) from error

    def write_join_record(self, record: JoinRecord) -> None:
        self._write_json(JOINED, record._asdict())

    def _write_json(self, name: str, content: Mapping[str, object]) -> None:
        path = self.folder / name
        try:
            self._make_folders()
            write_whole(path, json.dumps(content).encode(), self.mode)
        except OSError as error:
            raise self._reported("join", StorageError(path, error)) from error
        except StorageError as error:
            raise self._reported("join", error) from None

    def write(self, tag: str, tensors: Mapping[str, Tensor], keep: Collection[str]) -> None:
        try:
            self._make_folders()
            super().write(tag, tensors, keep)
        except OSError as error:
            raise self._reported("save", StorageError(self._path(tag), error)) from error
        except StorageError as error:
            raise self._reported("save", error) from None

    def read(self, tag: str) -> dict[str, Tensor]:
        available = newest(tag, {path.stem for path in self.folder.glob("*.safetensors")})
        if available is None:
            return {}
        try:
            return with_new_sensors(super().read(available), self.added)
        except CnfgnnError as error:
            raise self._reported("restore", error) from None

    def earlier(self, run: str, tag: str) -> dict[str, Tensor]:
        other = SiteStore(self.kit, run)
        joined = other.read_join_record()
        return {} if joined is None else _in_order(other.read(tag), joined.sensors, self.sensors)

    def _reported(self, verb: str, error: AnyError) -> AnyError:
        """Tell the site's owner about an error, and return it as the server may see it."""
        logging.getLogger(__name__).error("%r failed: %s", verb, error)
        SiteStatus(self.kit).record_problem(verb, str(error))
        return for_server(error, self.kit)

    def _make_folders(self) -> None:
        within = self.folder.relative_to(self.kit)
        for folder in reversed([self.kit / within, *(self.kit / parent for parent in within.parents)]):
            folder.mkdir(mode=0o700, exist_ok=True)


class OwnerStore(SiteStore):
    """The states of the owner in one run: weekly profiles, intervals and the range of each sensor.

    They have a folder of their own, and the store of the nodes does not lead to it.
    """

    def __init__(self, kit: Path, run: str, sensors: Sequence[str] = (), added: int = 0) -> None:
        super().__init__(kit, f"{run}/{OWNER}", sensors, added)
        self._intervals = SiteStore(kit, f"{run}/{OWNER}/{INTERVALS}")

    def read_ranges(self) -> Ranges:
        """Each sensor's lowest and highest true reading in training; empty if it is not known."""
        stored = read_json_or_empty(self.folder / RANGES)
        return {str(sensor): _range(pair) for sensor, pair in stored.items()}

    def write_ranges(self, ranges: Ranges) -> None:
        self._write_json(RANGES, ranges)

    def read_intervals(self, tag: str) -> dict[str, Tensor]:
        """The intervals of a saved state as readings since then have adapted them; empty if unknown."""
        kept = self._intervals.read(tag) if self._intervals.has(tag) else {}
        return _intervals_with_new(kept, self.added)

    def write_intervals(self, tag: str, state: Mapping[str, Tensor]) -> None:
        """Keep adapted intervals in place of those that were kept before."""
        self._intervals.write(tag, state, ())


def with_new_sensors(state: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """A saved state with so many further rows: the weights that all share, full trust in the network, and
    NaN for what is computed from readings."""
    if not count:
        return dict(state)
    found: dict[str, Tensor] = _intervals_with_new(part(state, INTERVAL_STATE), count)
    found = {INTERVAL_STATE + name: x for name, x in found.items()}
    for name, x in state.items():
        if name.startswith(THETA):
            found[name] = x
        elif name == TRUST:
            found[name] = _with_rows(x, count, 1.0)
        elif name == INPUT_SCALES or name.startswith((LINEAR, USUAL)):
            found[name] = _with_rows(x, count, torch.nan)
    return found  # what an optimiser remembers is left out: these nodes do not train


def _with_rows(x: Tensor, count: int, value: float) -> Tensor:
    return torch.cat([x, x.new_full((count, *x.shape[1:]), value)])


def _intervals_with_new(kept: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    if not kept or not count:
        return dict(kept)
    intervals = Intervals.of(kept)
    known = np.arange(intervals.reach.shape[-1])
    return intervals.select(np.concatenate([known, np.full(count, -1)])).state()


def _in_order(state: Mapping[str, Tensor], before: Sequence[str], now: Sequence[str]) -> dict[str, Tensor]:
    """The rows of sensors that are still there, in today's order; weights that all share stay as they are."""
    in_order = InOrder(before, now)
    weights = {name: w for name, w in state.items() if name.startswith(THETA)}
    if any(len(w) not in (1, len(before)) for w in weights.values()):
        return {}
    return {name: w if len(w) == 1 else in_order(w, torch.nan) for name, w in weights.items()}


def _range(pair: Sequence[float] | None) -> tuple[float, float] | None:
    return (float(pair[0]), float(pair[1])) if pair else None
