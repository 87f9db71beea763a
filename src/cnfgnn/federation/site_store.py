"""Where a site keeps its nodes' states: in its kit, readable by its owner alone."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from cnfgnn.errors import StorageError
from cnfgnn.federation.site_status import SiteStatus
from cnfgnn.storage import FolderStore

STATES = "states"


class SiteStore(FolderStore):
    """A site may have been away when others kept a state: it goes on from the last one that it has."""

    def __init__(self, kit: Path, run: str) -> None:
        super().__init__(kit / STATES / run)
        self.kit = kit

    def write(self, tag: str, tensors: Mapping[str, Tensor], keep: Collection[str]) -> None:
        try:
            for folder in (self.folder.parent, self.folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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

    def read(self, tag: str) -> dict[str, Tensor]:
        if not self.has(tag):
            there = (path.stem for path in self.folder.glob("round-*.safetensors"))
            earlier = [other for other in there if _age(other) < _age(tag)]
            if not earlier:
                return {}
            tag = max(earlier, key=_age)
        return super().read(tag)


def _age(tag: str) -> str:
    """In the order in which states are kept: a round's phases come before its end."""
    return tag if "-phase-" in tag else f"{tag}-phase-~"
