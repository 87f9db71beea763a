"""What the machine can do, measured in the same run: large products, copies and peak memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from cnfgnn.algorithm.compute.device import multiplies_bf16

GIB = 2**30
WITHIN = 4.0  # seconds for a calibration, unless a single call takes longer
SMALLEST_PRODUCT = 128


class Seconds:
    """Which seconds are measured; on a busy machine, those of the processor vary less."""

    of_processor = False


def clock(device: torch.device) -> float:
    """Seconds on a clock, or of this process, read after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if Seconds.of_processor else time.perf_counter()


def best_of(
    work: Callable[[], object], device: torch.device, tries: int = 5, each: int = 3, within: float = WITHIN
) -> float:
    """Seconds of one call: the smallest of several attempts, each the mean of a few calls.

    A slow call gets fewer attempts; one that takes longer than `within` is measured once.
    """
    begun = clock(device)
    work()
    first = clock(device) - begun  # the first call may include warm-up
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
    """Operations per second of one large square matrix product (2 n^3 operations) in torch.

    On a CPU the size is doubled until the product takes long enough to measure or is large enough: a small
    processor, or one that emulates bf16, would take minutes for the largest size.
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
    """Bytes per second through memory; a copied byte is read once and written once."""
    x = torch.ones((GIB if device.type == "cuda" else GIB // 4) // 4, device=device)
    y = torch.empty_like(x)
    return 2 * x.numel() * x.element_size() / best_of(lambda: y.copy_(x), device)


def without_missing(precisions: Sequence[str], device: torch.device) -> list[str]:
    """The precisions that this device supports; prints which are left out."""
    if device.type != "cpu" or "bf16" not in precisions or multiplies_bf16():
        return list(precisions)
    print("bf16 is left out: this processor has no bf16 instructions", flush=True)
    return [precision for precision in precisions if precision != "bf16"]


def forget_peak(device: torch.device) -> None:
    """Reset the peak where the device can; the peak of a process cannot be reset."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: torch.device) -> int:
    """Peak memory: on CUDA of tensors since `forget_peak`, on a CPU of the whole process since it started."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
