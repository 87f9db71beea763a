"""Kernels in Triton for what takes most of the time on a GPU; everything works without them."""

from __future__ import annotations

import functools
import importlib.util

import torch


@functools.cache
def available(device: torch.device) -> bool:
    """Whether this device runs them: Triton is there (it comes with PyTorch for CUDA) and bf16 is fast."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
