"""Where and in which precision a party computes."""

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

from cnfgnn.config.settings import ComputeConfig, Precision
from cnfgnn.errors import ConfigError

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
TENSOR_CORES_SINCE = (8, 0)  # compute capability from which products come in tf32 and bf16
NO_BF16 = "compute.precision=bf16: this processor has no bf16 instructions, so products run in fp32"
# instruction sets of x86 as oneDNN names them
ISA_WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"}
# nodes x windows at once on a CPU: bounds memory; other devices take all at once, in few launches
SEQUENCES_AT_ONCE = {"cpu": 1 << 13}


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
        _check_precision(config.precision, device)
        # one switch for the whole process: torch has no narrower one
        torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
        dtype = torch.float64 if config.precision == "fp64" else torch.float32
        bf16 = config.precision == "bf16"
        if bf16 and device.type == "cpu" and not multiplies_bf16():
            bf16 = False
            _say_once(NO_BF16)
        return cls(device, dtype, bf16)

    def memory(self) -> int:
        """Bytes that the device has, in use or free; of a container, what it may have."""
        if self.device.type == "cuda":
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        try:
            limit = CONTAINER_LIMIT.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return whole
        return min(whole, int(limit)) if limit.isdigit() else whole

    def autocast(self) -> AbstractContextManager[None]:
        """Products in bf16 where asked; weights, states and losses stay in the stored type."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    def some(self, nodes: int, windows: int) -> Iterator[slice]:
        """All nodes, a few at a time: nodes are independent of each other, so it makes no difference."""
        at_once = max(1, SEQUENCES_AT_ONCE.get(self.device.type, nodes * windows) // max(1, windows))
        return (slice(start, min(start + at_once, nodes)) for start in range(0, nodes, at_once))


def multiplies_bf16() -> bool:
    """Whether this CPU has instructions for products in bf16, and PyTorch uses them.

    Without them PyTorch emulates such products many times slower than float32, or refuses them. Answered from
    what the processor says of itself, never from a measurement: a resumed run must compute as it did before.
    """
    usable = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    if usable is not None and not usable():
        return False
    if platform.machine() in ("x86_64", "AMD64"):
        # AVX-512 without its bf16 extension counts as usable above, and emulates
        asked = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile")]
        return any(has() for has in asked if has is not None) and not _isa_limited()
    return usable is not None


def _isa_limited() -> bool:
    """Whether oneDNN was told to do without the bf16 instructions of an x86 processor."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "")).upper()
    return limit in ISA_WITHOUT_BF16


@functools.cache
def _say_once(sentence: str) -> None:
    """To the log, which prints warnings to stderr unless the program using us has set it up otherwise."""
    logging.getLogger("cnfgnn").warning(sentence)


def _check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse what the device cannot do, rather than have it emulated or fail at the first product.

    A processor has no tf32 and computes in fp32 instead, which is no less exact: nothing to refuse.
    """
    if device.type == "cuda" and precision in ("tf32", "bf16"):
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < TENSOR_CORES_SINCE:
            name, since = torch.cuda.get_device_name(device), ".".join(map(str, TENSOR_CORES_SINCE))
            raise ConfigError(
                "compute.precision",
                f"{name} (compute capability {major}.{minor}) has no {precision}, which came with {since}",
                ["fp32", "fp64"],
            )
    if device.type == "mps" and precision == "fp64":
        raise ConfigError("compute.precision", "this device has no fp64", ["fp32", "bf16"])


@contextmanager
def caller_settings_restored() -> Iterator[None]:
    """Leave the process as it was, also after an error: what follows in it is somebody else's program.

    `Compute.of` sets the precision of products for the whole process, layers of torch draw from the generator
    that everybody shares before they are given their own weights, and sympy, which torch imports at need,
    adds a filter of warnings.
    """
    precision = torch.get_float32_matmul_precision()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
