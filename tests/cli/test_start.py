"""How the command line starts and how it is stopped: what it imports, Ctrl-C while it imports, `| head`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import COMMAND, ENVIRONMENT
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

SLOW_PACKAGES = {"torch", "pandas", "matplotlib", "plotly", "tensorboard", "pyarrow", "numpy", "nvflare"}
STOPPED = b"cnfgnn: stopped\n"

# Sends a signal to itself when a module is about to be imported, and runs the command line meanwhile.
INTERRUPTED = """
import os, runpy, signal, sys
moment, number = sys.argv.pop(1), signal.SIGINT
def watch(event, arguments):
    if event == "import" and arguments[0] == moment:
        os.kill(os.getpid(), number)
sys.addaudithook(watch)
runpy.run_module("cnfgnn", run_name="__main__", alter_sys=True)
"""
# Prints which of the slow packages were imported once the command has ended.
LISTED = """
import runpy, sys
try:
    runpy.run_module("cnfgnn", run_name="__main__", alter_sys=True)
except SystemExit as end:
    print(end.code, *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(arguments, env=ENVIRONMENT, timeout=300, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["federation", "--help"], ["settings"], ["methods"]]
)
def test_help_and_settings_import_no_slow_package(arguments: list[str]) -> None:
    done = run(sys.executable, "-c", LISTED, *arguments, capture_output=True)
    code, *imported = done.stderr.decode().split()
    assert (code, done.returncode) == ("0", 0)
    assert "typer" in imported
    assert not SLOW_PACKAGES & set(imported)
    assert done.stdout


@pytest.mark.slow
def test_training_needs_neither_pages_nor_figures(tmp_path: Path) -> None:
    small = ["city.sensors=2", "city.days=1", "training.rounds=1", "model.hidden=3", "model.embedding=3"]
    changes = [f"--set={change}" for change in [*small, "model.gn_widths=[4]"]]
    command = [sys.executable, "-c", LISTED, "train", "--out", str(tmp_path / "run"), *changes]
    code, *imported = run(*command, capture_output=True).stderr.decode().splitlines()[-1].split()
    assert code == "0"
    assert not {"matplotlib", "plotly", "nvflare"} & set(imported)


@pytest.mark.parametrize("module", ["cnfgnn", "cnfgnn.cli.main", "cnfgnn.__main__"])
def test_importing_the_package_or_its_command_line_imports_no_slow_package(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = run(sys.executable, "-c", code, capture_output=True)
    assert "cnfgnn" in done.stdout.decode().split()
    assert not SLOW_PACKAGES & set(done.stdout.decode().split())


@pytest.mark.parametrize(
    "moment",
    [
        *("cnfgnn.cli.main", "rich.progress"),  # what every command imports
        "torch._C",  # what this one imports
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "cnfgnn.data.source",
                "pandas",
                "typer",
                "cnfgnn.cli.federation",
                "numpy",
                "torch",
                "torch.autograd",
                "cnfgnn.runs.folder",
            )
        ),
    ],
)
def test_ctrl_c_while_a_command_imports_is_one_line(moment: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, moment, "train", "--out", str(tmp_path / "run")]
    done = run(*command, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", STOPPED)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_from_outside_while_torch_is_loaded_is_one_line(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [*COMMAND, "train", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    try:
        maps = Path(f"/proc/{process.pid}/maps")  # empty once the process has ended
        wait_for(lambda: b"libtorch" in maps.read_bytes(), "torch is loaded")
        process.send_signal(number)
        said, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, said, errors) == (130, b"", STOPPED)


def test_a_process_that_ignores_ctrl_c_keeps_ignoring_it() -> None:
    """As under nohup, or started with & in a script."""
    shell = 'trap "" INT; exec "$@"'
    command = ["bash", "-c", shell, "-", sys.executable, "-c", INTERRUPTED, "typer", "--version"]
    done = run(*command, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", [["--help"], ["settings"]])
def test_output_that_nobody_reads_ends_a_command_quietly(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run(*COMMAND, *arguments, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_first_line_of_a_pipe() -> None:
    line = 'set -o pipefail; "$@" | head -1; echo "${PIPESTATUS[0]}" >&2'
    done = run("bash", "-c", line, "-", *COMMAND, "settings", capture_output=True)
    assert done.stdout == b"# The method to train; `cnfgnn methods` lists them.\n"
    assert done.stderr in (b"0\n", b"141\n")  # head may be gone before the last line is written, or after


def test_errors_that_nobody_reads_end_a_run_quietly(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    out = tmp_path / "said"
    with out.open("wb") as file:
        done = run(*COMMAND, "settings", "--method", "none", stdout=file, stderr=writing)
    os.close(writing)
    assert (done.returncode, out.read_bytes()) == (141, b"")


def test_a_name_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    done = run(*COMMAND, "data", "synthesize", "n" * 300, cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr.decode()) == (2, f"cnfgnn: {'n' * 300}: File name too long\n")


def test_a_broken_connection_is_not_mistaken_for_a_closed_pipe() -> None:
    code = """
import socket, cnfgnn.__main__, cnfgnn.cli.main

def break_a_connection():
    near, far = socket.socketpair()
    far.close()
    near.sendall(b"to nobody")
cnfgnn.cli.main.main = break_a_connection
cnfgnn.__main__.main()
"""
    done = run(sys.executable, "-c", code, capture_output=True)
    assert done.returncode == 1
    assert b"BrokenPipeError" in done.stderr
