"""The elementwise work of a GRU step: PyTorch's operations beside torch.compile and numba.

Products are left out: only gates, state and their gradients are computed, forward and backward, for m models
with B sequences and a state of h. For each version it reports

    start       seconds to load it and to take the first step, in a new process with an empty cache
    again       the same in the next process, which finds what the first one has compiled
    forward,    medians of steps; the versions take turns, so that other work on the machine slows all of
    backward    them down alike
    difference  the largest, from the result in float64
    installed   what it adds to an installation; torch.compile also needs a C++ compiler

Versions that this machine lacks (no compiler, no numba) are left out. Seconds are
those of the processor: use one thread, because those of several would add up.

    OMP_NUM_THREADS=1 python benchmarks/gates.py
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module, metadata
from importlib.util import find_spec
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cnfgnn.models.cell import activated, gradients
from cnfgnn.process_setup import keep_freed_memory
from shapes import OneSentence

MIB = 2**20
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
Backward = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Version(NamedTuple):
    """The two directions of a step, as `activated` and `gradients` of models/cell.py."""

    forward: Forward
    backward: Backward


def plain_forward(gates: Tensor, n: Tensor, h: Tensor) -> Tensor:
    """`activated` as one would write it for a compiler, which makes one pass of it."""
    size = h.shape[-1]
    r_z = torch.sigmoid(gates[..., : 2 * size])
    n.copy_(torch.tanh(n + r_z[..., :size] * gates[..., 2 * size :]))
    gates[..., : 2 * size] = r_z
    return n + r_z[..., size:] * (h - n)


def plain_backward(d: Tensor, gates: Tensor, n: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    r, z, h_n = gates.split(h.shape[-1], dim=-1)
    d_n = d * (1 - z) * (1 - n * n)
    d_r, d_z = d_n * h_n * r * (1 - r), d * (h - n) * z * (1 - z)
    return torch.cat([d_r, d_z, d_n * r], dim=-1), d_n


def with_compile() -> Version:
    return Version(torch.compile(plain_forward), torch.compile(plain_backward))


def with_numba() -> Version:
    """Loops over rows that LLVM vectorises; tanh is Eigen's rational function, because a call is not."""
    jit = import_module("numba").njit(fastmath=True, cache=True)
    one, half, most = np.float32(1), np.float32(0.5), np.float32(7.9053111)
    a1, a3, a5, a7 = map(np.float32, (4.89352456e-03, 6.37261929e-04, 1.48572236e-05, 5.12229709e-08))
    a9, a11, a13 = map(np.float32, (-8.60467152e-11, 2.00018790e-13, -2.76076848e-16))
    b0, b2, b4, b6 = map(np.float32, (4.89352519e-03, 2.26843463e-03, 1.18534706e-04, 1.19825839e-06))

    @jit  # type: ignore[untyped-decorator]
    def tanh(x: Any) -> Any:
        x = min(max(x, -most), most)
        s = x * x
        p = x * (((((((a13 * s + a11) * s + a9) * s + a7) * s + a5) * s + a3) * s) + a1)
        return p / (((b6 * s + b4) * s + b2) * s + b0)

    @jit  # type: ignore[untyped-decorator]
    def forward(gates: Any, n: Any, h: Any, new: Any) -> None:
        size = h.shape[1]
        for row in range(h.shape[0]):
            for k in range(size):
                r = half + half * tanh(half * gates[row, k])
                z = half + half * tanh(half * gates[row, size + k])
                c = tanh(n[row, k] + r * gates[row, 2 * size + k])
                gates[row, k], gates[row, size + k], n[row, k] = r, z, c
                new[row, k] = c + z * (h[row, k] - c)

    @jit  # type: ignore[untyped-decorator]
    def backward(d: Any, gates: Any, n: Any, h: Any, d_gates: Any, d_n: Any) -> None:
        size = h.shape[1]
        for row in range(h.shape[0]):
            for k in range(size):
                r, z, c, e = gates[row, k], gates[row, size + k], n[row, k], d[row, k]
                of_n = e * (one - z) * (one - c * c)
                d_gates[row, k] = of_n * gates[row, 2 * size + k] * r * (one - r)
                d_gates[row, size + k] = e * (h[row, k] - c) * z * (one - z)
                d_gates[row, 2 * size + k] = of_n * r
                d_n[row, k] = of_n

    def rows(*tensors: Tensor) -> list[Any]:
        return [x.flatten(0, 1).numpy() for x in tensors]

    def forward_of_tensors(gates: Tensor, n: Tensor, h: Tensor) -> Tensor:
        new = torch.empty_like(h)
        forward(*rows(gates, n, h, new))
        return new

    def backward_of_tensors(d: Tensor, gates: Tensor, n: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        d_gates, d_n = torch.empty_like(gates), torch.empty_like(n)
        backward(*rows(d, gates, n, h, d_gates, d_n))
        return d_gates, d_n

    return Version(forward_of_tensors, backward_of_tensors)


VERSIONS: Mapping[str, Callable[[], Version]] = {
    "PyTorch": lambda: Version(activated, gradients),
    "torch.compile": with_compile,
    "numba": with_numba,
}
ADDED: Mapping[str, tuple[str, ...]] = {"PyTorch": (), "torch.compile": (), "numba": ("numba", "llvmlite")}


def available() -> list[str]:
    """The versions that this machine can run; prints which are left out."""
    missing = {
        "torch.compile": None if shutil.which(os.environ.get("CXX", "c++")) else "there is no C++ compiler",
        "numba": None if find_spec("numba") else "it is not installed",
    }
    for name, problem in missing.items():
        if problem is not None:
            print(f"{name} is left out: {problem}", flush=True)
    return [name for name in VERSIONS if missing.get(name) is None]


def drawn(m: int, b: int, h: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gates, n, h and the gradient d."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((m, b, 3 * h), (m, b, h), (m, b, h), (m, b, h))
    gates, n, state, d = (torch.randn(shape, generator=generator) for shape in shapes)
    return gates, n, state, d


def both(version: Version, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Everything that the two directions of a step compute."""
    gates, n, h, d = (x.clone() for x in inputs)
    with torch.no_grad():
        new = version.forward(gates, n, h)
        return [gates, n, new, *version.backward(d, gates, n, h)]


def processor_seconds() -> float:
    """Of this process and of those that it has started, such as a compiler."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def start(name: str, sizes: tuple[int, int, int]) -> float:
    """Seconds to load a version and to take the first step."""
    inputs, begun = drawn(*sizes), processor_seconds()
    both(VERSIONS[name](), inputs)
    return processor_seconds() - begun


def starts(name: str, sizes: tuple[int, int, int]) -> tuple[float, float]:
    """Of a new process with an empty cache, and of another one after it."""
    command = [sys.executable, __file__, "--start", name, "--sizes", *map(str, sizes)]
    done = [subprocess.run(command, check=True, stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (float(process.stdout.splitlines()[-1]) for process in done)
    return first, second


@contextmanager
def own_caches() -> Iterator[None]:
    """Compile into an empty folder, in this process and in those that it starts."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": folder, "NUMBA_CACHE_DIR": folder}
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes whose time would not be counted
        yield


def installed_mib(packages: tuple[str, ...]) -> float:
    """MiB of the files of some packages."""
    files = [file for name in packages for file in metadata.files(name) or ()]
    return sum(file.size or 0 for file in files) / MIB


def interleaved(
    versions: Mapping[str, Version], inputs: tuple[Tensor, ...], times: int
) -> dict[str, dict[str, float]]:
    """Milliseconds of each direction of each version: medians of `times` turns."""
    found: dict[str, dict[str, list[float]]] = {name: {"forward": [], "backward": []} for name in versions}
    for _ in range(times):
        for name, version in versions.items():
            gates, n, h, d = (x.clone() for x in inputs)
            with torch.no_grad():
                begun = time.process_time()
                version.forward(gates, n, h)
                half = time.process_time()
                version.backward(d, gates, n, h)
                found[name]["backward"].append(time.process_time() - half)
            found[name]["forward"].append(half - begun)
    return {
        name: {f"{way}_ms": 1e3 * median(seconds) for way, seconds in ways.items()}
        for name, ways in found.items()
    }


def difference(version: Version, inputs: tuple[Tensor, ...]) -> float:
    """The largest difference from the same step in float64."""
    exact = both(Version(plain_forward, plain_backward), tuple(x.double() for x in inputs))
    pairs = zip(both(version, inputs), exact, strict=True)
    return max(float((a.double() - b).abs().max()) for a, b in pairs)


def measured(sizes: tuple[int, int, int], times: int) -> dict[str, dict[str, float]]:
    """All measurements of each version; there is nothing to load for PyTorch's own operations."""
    results: dict[str, dict[str, float]] = {name: {} for name in available()}
    for name, row in results.items():
        if name != "PyTorch":
            row["start_s"], row["again_s"] = starts(name, sizes)
    keep_freed_memory()
    inputs, versions = drawn(*sizes), {name: VERSIONS[name]() for name in results}
    for name, version in versions.items():
        results[name]["difference"] = difference(version, inputs)
        results[name]["installed_mib"] = installed_mib(ADDED[name])
    for name, speeds in interleaved(versions, inputs, times).items():
        results[name] |= speeds
    return results


def main() -> None:
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs=3, default=(16, 128, 128), metavar=("m", "B", "h"))
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    parser.add_argument("--start", choices=VERSIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = tuple(options.sizes)
    if options.start:
        print(start(options.start, sizes))
        return
    with own_caches():
        results = measured(sizes, options.times)
    print("| version | start s | again s | forward ms | backward ms | difference | MiB installed |")
    print("|---|---|---|---|---|---|---|")
    for name, row in results.items():
        loaded = " | ".join(f"{row[key]:.1f}" if key in row else "" for key in ("start_s", "again_s"))
        ways = f"{row['forward_ms']:.2f} | {row['backward_ms']:.2f}"
        print(f"| {name} | {loaded} | {ways} | {row['difference']:.1e} | {row['installed_mib']:.0f} |")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
