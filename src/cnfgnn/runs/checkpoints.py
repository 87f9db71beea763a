"""Checkpoints: the states that owners save in files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cnfgnn.errors import RunError
from cnfgnn.files import make_folder, write_whole


class FolderStore:
    """The checkpoints of one owner as safetensors files, each with a digest of its content."""

    mode = 0o666  # of the files, less what the umask takes away

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, tag: str, tensors: Mapping[str, Tensor], keep: Collection[str]) -> None:
        """Save a checkpoint under a tag and delete all others but those in `keep`."""
        make_folder(self.folder)
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_whole(self._path(tag), save(plain, {"sha256": _digest(plain)}), self.mode)
        for path in self.folder.glob("*.safetensors"):
            if path.stem != tag and path.stem not in keep:
                path.unlink(missing_ok=True)

    def read(self, tag: str) -> dict[str, Tensor]:
        """Load a checkpoint; one that is missing or damaged raises a RunError."""
        path = self._path(tag)
        if not path.is_file():
            raise RunError(path, "this checkpoint is missing")
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a dict
                digest = (file.metadata() or {}).get("sha256")
        except (OSError, SafetensorError) as error:
            raise RunError(path, "this checkpoint is damaged and cannot be read") from error
        if digest != _digest(tensors):
            raise RunError(path, "this checkpoint is damaged: its content does not match its digest")
        return tensors

    def has(self, tag: str) -> bool:
        """Whether there is a checkpoint of that tag."""
        return self._path(tag).is_file()

    def earlier(self, run: str, tag: str) -> dict[str, Tensor]:
        """Nothing: a run of the simulator gives weights to another one by itself (`runs/warm_start.py`)."""
        return {}

    def _path(self, tag: str) -> Path:
        return self.folder / f"{tag}.safetensors"


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """A digest of names, types, shapes and every byte."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return sha.hexdigest()
