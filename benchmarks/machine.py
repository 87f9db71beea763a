"""What the machine can do, measured in the same run: large products, copies, and the memory it took."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import torch

GIB = 2**30


def clock(device: torch.device) -> float:
    """Seconds, once everything asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def best_of(work: Callable[[], object], device: torch.device, tries: int = 5, each: int = 3) -> float:
    """Seconds of one call: the least of several tries, each the mean of a few calls."""
    work()
    seconds = []
    for _ in range(tries):
        begun = clock(device)
        for _ in range(each):
            work()
        seconds.append((clock(device) - begun) / each)
    return min(seconds)


def gemm_rate(device: torch.device, precision: str) -> float:
    """Operations a second of one large square matrix product (2 n^3 of them), as torch does it."""
    n = 8192 if device.type == "cuda" else 2048
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        return 2 * n**3 / best_of(lambda: torch.mm(a, b, out=out), device)
    finally:
        torch.set_float32_matmul_precision(before)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second through memory: each copied byte is read once and written once."""
    x = torch.ones((GIB if device.type == "cuda" else GIB // 4) // 4, device=device)
    y = torch.empty_like(x)
    return 2 * x.numel() * x.element_size() / best_of(lambda: y.copy_(x), device)


def forget_peak(device: torch.device) -> None:
    """Begin a new peak, where the device can: the process's own only grows."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: torch.device) -> int:
    """On CUDA since `forget_peak`, of tensors; on the CPU since the process began, of everything."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
