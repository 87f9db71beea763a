"""Where and in which precision a party computes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from cnfgnn.config import ComputeConfig
from cnfgnn.errors import ConfigError


@dataclass(frozen=True)
class Compute:
    """A device, the type of stored numbers, and whether products run in bf16."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    bf16: bool = False

    @classmethod
    def of(cls, config: ComputeConfig) -> Compute:
        name = config.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                "compute.device",
                f"{name!r} is not available here",
                ["auto", "cpu", *(["cuda"] if torch.cuda.is_available() else [])],
            ) from error
        # one switch for the whole process: torch has no narrower one
        torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
        dtype = torch.float64 if config.precision == "fp64" else torch.float32
        return cls(device, dtype, config.precision == "bf16")

    def autocast(self) -> AbstractContextManager[None]:
        """Products in bf16 where asked; weights, states and losses stay in the stored type."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)
