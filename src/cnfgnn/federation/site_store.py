"""Where a site keeps its nodes' states: in its kit, readable by its owner alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from cnfgnn.storage import FolderStore, newest

STATES = "states"


class SiteStore(FolderStore):
    """A site's: see `newest`."""

    def __init__(self, kit: Path, run: str) -> None:
        super().__init__(kit / STATES / run)

    def write(self, tag: str, tensors: Mapping[str, Tensor], keep: Collection[str]) -> None:
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().write(tag, tensors, keep)
        self._path(tag).chmod(0o600)

    def read(self, tag: str) -> dict[str, Tensor]:
        known = newest(tag, {path.stem for path in self.folder.glob("*.safetensors")})
        return {} if known is None else super().read(known)
