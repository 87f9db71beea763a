"""Where states are kept: in memory, or in a folder where nothing is ever half-written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from cnfgnn.errors import DataError

KEPT_ROUNDS = 2  # besides `best`: the last one, and the one before it in case the last was cut off


class MemoryStore:
    """States of one owner, gone with the process."""

    def __init__(self) -> None:
        self.states: dict[str, dict[str, Tensor]] = {}

    def write(self, tag: str, tensors: Mapping[str, Tensor]) -> None:
        self.states[tag] = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for old in _outdated(self.states):
            del self.states[old]

    def read(self, tag: str) -> dict[str, Tensor]:
        if tag not in self.states:
            raise DataError("memory", f"there is no state {tag!r}")
        return {name: tensor.clone() for name, tensor in self.states[tag].items()}


class FolderStore:
    """States of one owner as safetensors files; written aside, flushed to disk, then renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(folder, f"cannot be created: {error.strerror}") from error

    def write(self, tag: str, tensors: Mapping[str, Tensor]) -> None:
        path = self._path(tag)
        aside = path.with_suffix(".partial")
        try:
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, aside)
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            aside.replace(path)
        except (OSError, SafetensorError) as error:
            raise DataError(path, f"cannot be written: {error}") from error
        for old in _outdated([p.stem for p in self.folder.glob("*.safetensors")]):
            self._path(old).unlink(missing_ok=True)

    def read(self, tag: str) -> dict[str, Tensor]:
        path = self._path(tag)
        if not path.is_file():
            raise DataError(path, "there is no such state")
        try:
            return dict(load_file(path))
        except (OSError, SafetensorError) as error:
            raise DataError(path, "is damaged and cannot be read") from error

    def _path(self, tag: str) -> Path:
        return self.folder / f"{tag}.safetensors"


def round_tag(r_g: int) -> str:
    return f"round-{r_g:05d}"


def _outdated(tags: Mapping[str, object] | list[str]) -> list[str]:
    return sorted(tag for tag in tags if tag.startswith("round-"))[:-KEPT_ROUNDS]
