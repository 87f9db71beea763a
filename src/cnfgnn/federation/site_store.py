"""Where a site keeps its nodes' states: in its kit, readable by its owner alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from cnfgnn.algorithm.store import newest
from cnfgnn.errors import RunError, StorageError
from cnfgnn.federation.site_status import SiteStatus
from cnfgnn.files import write_whole
from cnfgnn.runs.checkpoints import FolderStore

STATES = "states"
JOINED = "joined.json"


class Joined(NamedTuple):
    """The readings with which a site joined a run: how many of the run's time steps they reach, a digest of
    them, and each sensor's least and greatest. It is for the site alone, and is never sent."""

    rows: int
    sha256: str
    ranges: tuple[tuple[float, float] | None, ...]  # None: the sensor had no reading


class SiteStore(FolderStore):
    """A site's: see `newest`."""

    def __init__(self, kit: Path, run: str) -> None:
        super().__init__(kit / STATES / run)
        self.kit = kit

    def joined(self) -> Joined | None:
        """What the site joined the run with; None if it has not joined it yet."""
        path = self.folder / JOINED
        try:
            noted = json.loads(path.read_text(encoding="utf-8"))
            ranges = tuple(
                None if pair is None else (float(pair[0]), float(pair[1])) for pair in noted["ranges"]
            )
            return Joined(int(noted["rows"]), str(noted["sha256"]), ranges)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(path, f"cannot be read ({error.strerror or error})") from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise RunError(path, "is damaged and cannot be read") from error

    def note_joined(self, joined: Joined) -> None:
        self._make_folders()
        write_whole(self.folder / JOINED, json.dumps(joined._asdict()).encode())
        (self.folder / JOINED).chmod(0o600)

    def write(self, tag: str, tensors: Mapping[str, Tensor], keep: Collection[str]) -> None:
        try:
            self._make_folders()
            super().write(tag, tensors, keep)
            self._path(tag).chmod(0o600)
        except OSError as error:
            raise self._told(StorageError(self._path(tag), error)) from error
        except StorageError as problem:
            raise self._told(problem) from None

    def _told(self, problem: StorageError) -> StorageError:
        """The server only counts that an answer failed: the site's owner must learn that it was the disk."""
        logging.getLogger(__name__).error("a state could not be kept: %s", problem)
        SiteStatus(self.kit).note_problem("save", str(problem))
        return problem

    def _make_folders(self) -> None:
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(self, tag: str) -> dict[str, Tensor]:
        known = newest(tag, {path.stem for path in self.folder.glob("*.safetensors")})
        return {} if known is None else super().read(known)
