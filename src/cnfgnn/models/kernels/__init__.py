"""Kernels in Triton for what takes most of the time on a GPU; everything works without them."""

from __future__ import annotations

import functools
import importlib.util

import torch

ON_CHIP = (
    210 << 10
)  # bytes of shared memory that the largest kernel takes: Hopper has them, smaller GPUs have not
WIDEST = 128  # units of a GRU whose weights stay there


@functools.cache
def available(device: torch.device) -> bool:
    """Whether this device runs them: Triton is there (PyTorch for CUDA brings it) and so is the memory."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    properties = torch.cuda.get_device_properties(device)
    on_chip = getattr(properties, "shared_memory_per_block_optin", None)
    return bool(properties.major == 9 if on_chip is None else on_chip >= ON_CHIP)
