"""What the machine can do, measured in the same run: large products, copies, and the memory it took."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from cnfgnn.algorithm.compute import multiplies_bf16

GIB = 2**30
WITHIN = 4.0  # seconds that a calibration takes at most, but for a single call that takes longer
SMALLEST_PRODUCT = 128


def clock(device: torch.device) -> float:
    """Seconds, once everything asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def best_of(
    work: Callable[[], object], device: torch.device, tries: int = 5, each: int = 3, within: float = WITHIN
) -> float:
    """Seconds of one call: the least of several tries, each the mean of a few calls.

    A call that is slow is tried less often, and one that takes longer than `within` counts by itself.
    """
    begun = clock(device)
    work()
    first = clock(device) - begun  # it may have to warm up
    if first > within:
        return first
    seconds, until = [], begun + within
    while len(seconds) < tries and (not seconds or clock(device) < until):
        begun = clock(device)
        for _ in range(each):
            work()
        seconds.append((clock(device) - begun) / each)
    return min(seconds)


def gemm_rate(device: torch.device, precision: str) -> float:
    """Operations a second of one large square matrix product (2 n^3 of them), as torch does it.

    On a CPU the product is doubled in size until it takes a good while or is large enough: what a server does
    in a moment takes a small processor, or one that emulates bf16, minutes.
    """
    largest = 8192 if device.type == "cuda" else 2048
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        n = largest if device.type == "cuda" else SMALLEST_PRODUCT
        while True:
            a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
            out = torch.empty_like(a)
            seconds = best_of(partial(torch.mm, a, b, out=out), device)
            if 2 * n > largest or 8 * seconds > WITHIN / 8:
                return 2 * n**3 / seconds
            n *= 2
    finally:
        torch.set_float32_matmul_precision(before)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second through memory: each copied byte is read once and written once."""
    x = torch.ones((GIB if device.type == "cuda" else GIB // 4) // 4, device=device)
    y = torch.empty_like(x)
    return 2 * x.numel() * x.element_size() / best_of(lambda: y.copy_(x), device)


def without_missing(precisions: Sequence[str], device: torch.device) -> list[str]:
    """The precisions that this device computes in; says which are left out."""
    if device.type != "cpu" or "bf16" not in precisions or multiplies_bf16():
        return list(precisions)
    print("bf16 is left out: this processor has no bf16 instructions", flush=True)
    return [precision for precision in precisions if precision != "bf16"]


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
