"""Triton kernels for what takes most of the time on a GPU; everything also works without them."""

from __future__ import annotations

import functools
import importlib.util

import torch

# Bytes of shared memory that the largest kernel needs; GPUs smaller than Hopper have less.
ON_CHIP = 210 << 10
WIDEST = 128  # units of the widest GRU whose weights fit there


@functools.cache
def available(device: torch.device) -> bool:
    """Whether this device can run them: it has enough memory, and Triton comes with PyTorch for CUDA."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    properties = torch.cuda.get_device_properties(device)
    on_chip = getattr(properties, "shared_memory_per_block_optin", None)
    if on_chip is None:
        return bool(properties.major == 9)
    return bool(on_chip >= ON_CHIP)
