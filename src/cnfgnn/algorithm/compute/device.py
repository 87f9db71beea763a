"""The device and the precision in which a party computes."""

from __future__ import annotations

import functools
import logging
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from cnfgnn.algorithm.messages.cost import GIB
from cnfgnn.config.settings import ComputeConfig, Precision
from cnfgnn.errors import ConfigError

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
TENSOR_CORES_SINCE = (8, 0)  # the compute capability that introduced tf32 and bf16
NO_BF16 = "compute.precision=bf16: this processor has no bf16 instructions, so products run in fp32"
# instruction sets of x86 as oneDNN names them
ISA_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"}
# nodes x windows at a time on a CPU: more would not fit its caches; other devices take what memory allows
SEQUENCES_AT_ONCE = {"cpu": 1 << 13}
SHARE = 0.5  # of the device's memory, if no limit is set: the rest is for all that is not hidden states


@dataclass(frozen=True)
class Compute:
    """A device, the type of stored numbers, whether products run in bf16, and GiB of memory for hidden
    states (0: half of the device's). As much again is for everything else, see `working_memory.py`."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    bf16: bool = False
    gib: float = 0.0

    @classmethod
    def of(cls, config: ComputeConfig) -> Compute:
        name = config.device
        has_cuda = torch.cuda.is_available()
        if name == "auto":
            name = "cuda" if has_cuda else "cpu"
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            available = ["auto", "cpu", "cuda"] if has_cuda else ["auto", "cpu"]
            raise ConfigError("compute.device", f"{name!r} is not available here", available) from error
        _check_precision(config.precision, device)
        # for the whole process: torch has no narrower switch
        torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
        dtype = torch.float64 if config.precision == "fp64" else torch.float32
        bf16 = config.precision == "bf16"
        if bf16 and device.type == "cpu" and not multiplies_bf16():
            bf16 = False
            _warn_once(NO_BF16)
        return cls(device, dtype, bf16, config.memory)

    def memory(self) -> int:
        """Bytes of memory that the device has, used or free; in a container, its limit."""
        if self.device.type == "cuda":
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        try:
            limit = CONTAINER_LIMIT.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return whole
        return min(whole, int(limit)) if limit.isdigit() else whole

    @property
    def limit(self) -> int:
        """Bytes for hidden states: half of what the device has if no limit is set. Half of all of it, not of
        what is free, because a resumed run must compute as before."""
        return int(self.gib * GIB) if self.gib else int(SHARE * self.memory())

    def autocast(self) -> AbstractContextManager[None]:
        """Matrix products in bf16 if asked for; weights, states and losses keep their type."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    def node_slices(self, nodes: int, windows: int, most: int | None = None) -> Iterator[slice]:
        """All nodes, a few at a time, with `most` sequences (nodes x windows) at once, or those of one node;
        nodes are independent, so the result is the same."""
        sequences = SEQUENCES_AT_ONCE.get(self.device.type, nodes * windows)
        if most is not None:
            sequences = min(sequences, most)
        return slices(nodes, sequences // max(1, windows))


def slices(count: int, at_once: int) -> Iterator[slice]:
    """0 .. count - 1 in order, so many at once, but at least one."""
    step = max(1, at_once)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def multiplies_bf16() -> bool:
    """Whether this CPU has instructions for products in bf16, and PyTorch uses them.

    Without them PyTorch emulates such products, many times slower than float32, or refuses them. The answer
    comes from the processor's features, never from a measurement: a resumed run must compute as before.
    """
    usable = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    if usable is not None and not usable():
        return False
    if platform.machine() in ("x86_64", "AMD64"):
        # AVX-512 without its bf16 extension passes the test above, but only emulates bf16
        asked = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile")]
        return any(has() for has in asked if has is not None) and not _isa_limited()
    return usable is not None


def _isa_limited() -> bool:
    """Whether an environment variable keeps oneDNN from using the bf16 instructions of an x86 processor."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "")).upper()
    return limit in ISA_WITHOUT_BF16


@functools.cache
def _warn_once(sentence: str) -> None:
    """Log a warning once. It goes to stderr unless the calling program configures logging."""
    logging.getLogger("cnfgnn").warning(sentence)


def _check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse a precision that the device lacks, rather than emulate it or fail at the first product.

    A CPU has no tf32, but fp32 is at least as precise, so tf32 is accepted there.
    """
    if device.type == "cuda" and precision in ("tf32", "bf16"):
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < TENSOR_CORES_SINCE:
            name, since = torch.cuda.get_device_name(device), ".".join(map(str, TENSOR_CORES_SINCE))
            device_has = f"{name} (compute capability {major}.{minor}) has no {precision}"
            problem = f"{device_has}, which needs {since} or later"
            raise ConfigError("compute.precision", problem, ["fp32", "fp64"])
    if device.type == "mps" and precision == "fp64":
        raise ConfigError("compute.precision", "this device does not support fp64", ["fp32", "bf16"])


@contextmanager
def caller_settings_restored() -> Iterator[None]:
    """Leave the process as it was, also after an error: the caller's program continues in it.

    `Compute.of` sets the precision of products for the whole process, torch layers draw from the global
    generator before they are given their own weights, and sympy, which torch imports when needed, adds a
    warning filter.
    """
    precision = torch.get_float32_matmul_precision()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
