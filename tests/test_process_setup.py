"""Calls from Python leave their process unchanged; our own processes change process-wide settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ENVIRONMENT

# Everything that is set for a whole process and that somebody else may rely on.
STATE = """
import ctypes, gc, hashlib, logging, os, random, signal, sys, threading, warnings
import numpy, torch
import cnfgnn, cnfgnn.api
from tests.conftest import network, small

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.malloc.restype, LIBC.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
LIBC.free.argtypes = [ctypes.c_void_p]

class Mallinfo(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]

def maps_large_blocks():
    "Whether the C library maps a block of 64 MiB from the kernel, as it does unless told otherwise."
    if not hasattr(LIBC, "mallinfo2"):
        return None
    LIBC.mallinfo2.restype = Mallinfo
    before = LIBC.mallinfo2().hblks
    block = LIBC.malloc(64 << 20)
    after = LIBC.mallinfo2().hblks
    LIBC.free(block)
    return after > before

def of(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]

def state():
    mask = os.umask(0o022)
    os.umask(mask)
    return {
        "matmul": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark),
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "autograd": (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_anomaly_enabled()),
        "torch random": of(torch.get_rng_state().tolist()),
        "numpy random": of(numpy.random.get_state()[1].tolist()),
        "python random": of(random.getstate()),
        "numpy errors": numpy.geterr(),
        "warnings": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "signals": {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)},
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "files": (os.getcwd(), mask, dict(os.environ), list(sys.path), sys.stdout, sys.stderr),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "memory": maps_large_blocks(),
        "running threads": sorted(thread.name for thread in threading.enumerate()),
    }
"""
CALLS = (
    STATE
    + """
class Stopped(cnfgnn.runs.train.Unwatched):
    def tick(self):
        raise KeyboardInterrupt

DATA = network(rows=110)
TF32 = {"compute.precision": "tf32", "training.rounds": 1}
run = os.path.join(sys.argv[1], "run")
calls = [
    lambda: cnfgnn.fit(DATA, small("at-fedavg", **TF32)),
    lambda: cnfgnn.fit(DATA, small("at-fedavg", **TF32), out=run),
    lambda: cnfgnn.resume(run, DATA),
    lambda: cnfgnn.evaluate(run, DATA),
    lambda: cnfgnn.forecast(run, DATA),
    lambda: cnfgnn.fit(DATA, small("at-fedavg", **TF32), watcher=Stopped()),
    lambda: cnfgnn.fit(DATA, small("at-fedavg", **TF32), out=run + "-stopped", watcher=Stopped()),
    lambda: cnfgnn.fit(DATA, small("at-fedavg", **TF32), training__client_batch=10_000),
    lambda: cnfgnn.evaluate(run, network(rows=110, seconds=60)),
]
before = state()
assert before["memory"] is not False
ended = []
for call in calls:
    try:
        call()
        ended.append("done")
    except BaseException as error:
        ended.append(type(error).__name__)
    after = state()
    for name, value in before.items():
        assert after[name] == value, (name, value, after[name])
print(*ended)
"""
)
COMMAND_LINE = (
    STATE
    + """
sys.argv = ["cnfgnn", "--version"]
try:
    __import__("cnfgnn.cli.main").cli.main.main()
except SystemExit:
    pass
print(maps_large_blocks())
"""
)


def said(script: str, folder: Path) -> list[str]:
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env=ENVIRONMENT | {"PYTHONPATH": root},
        cwd=folder,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()


@pytest.mark.slow
def test_calls_from_python_leave_the_process_as_it_was_also_when_they_fail(tmp_path: Path) -> None:
    done, stopped = ["done"] * 5, ["KeyboardInterrupt"] * 2
    assert said(CALLS, tmp_path) == [*done, *stopped, "ConfigError", "DataError"]


@pytest.mark.slow
def test_the_command_line_keeps_freed_memory(tmp_path: Path) -> None:
    maps = said(COMMAND_LINE, tmp_path)[-1]
    if maps == "None":
        pytest.skip("this C library does not say how it keeps memory")
    assert maps == "False"


def test_threads_wait_shortly_if_cnfgnn_is_imported_before_pytorch(tmp_path: Path) -> None:
    """Unless told otherwise."""
    script = """
import cnfgnn
print("torch" in sys.modules, os.environ.get("GOMP_SPINCOUNT"))
"""
    for name, text, spins in (
        ("OTHER", "", "5000"),
        ("GOMP_SPINCOUNT", "7", "7"),
        ("OMP_WAIT_POLICY", "active", "None"),
    ):
        begun = f"import os, sys; os.environ.pop('GOMP_SPINCOUNT', None); os.environ[{name!r}] = {text!r}"
        assert said(begun + script, tmp_path)[-2:] == ["False", spins]
