"""`torchrun --nproc-per-node 2 -m cnfgnn train`: real processes that train, are killed, and resume."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cnfgnn.config import toml
from cnfgnn.config.settings import Config
from cnfgnn.data.export import write_folder
from cnfgnn.data.folder import load
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, train_run
from tests.commands import ENVIRONMENT
from tests.conftest import network, small
from tests.runs.processes_in_one import Together

pytestmark = pytest.mark.slow
chaos = partial(pytest.param, marks=pytest.mark.chaos)  # three processes import PyTorch each time
LONGEST_S = 240  # a test fails rather than hang


def started(*arguments: object) -> subprocess.Popen[str]:
    return torchrun_of(2, "-m", "cnfgnn", "train", *arguments)


def torchrun_of(processes: int, *command: object) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
    return subprocess.Popen(
        [str(word) for word in (*torchrun, *command)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that a signal reaches it as from a terminal
    )


class Ended:
    """How torchrun ended, and that none of its processes is left."""

    def __init__(self, torchrun: subprocess.Popen[str]) -> None:
        try:
            self.out, self.err = torchrun.communicate(timeout=LONGEST_S)
        finally:
            if torchrun.poll() is None:
                os.killpg(torchrun.pid, signal.SIGKILL)
        self.code = torchrun.returncode
        with pytest.raises(ProcessLookupError):
            os.killpg(torchrun.pid, 0)

    @property
    def sentences(self) -> list[str]:
        """What cnfgnn says about its end; torchrun adds a report of its own."""
        return [line for line in self.err.splitlines() if line.startswith(("cnfgnn:", "stopped;"))]

    @property
    def exit_codes(self) -> set[int]:
        """Those of the processes, in torchrun's report."""
        return {int(code) for code in re.findall(r"exitcode\s*: (-?\d+)", self.err)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    write_folder(network(n=5, seconds=3600), made)
    return made


def settings_file(config: Config, path: Path) -> Path:
    path.write_text(toml.dump(config))
    return path


def brief(method: str, **changes: Any) -> Config:
    epochs = {"training.client_rounds": 1, "training.server_rounds": 1}
    return small(method, **{**epochs, **changes})


def alone(config: Config, data: Path, out: Path, parts: int = 1) -> Path:
    """The same training in this process, with sensors that are divided into so many parts."""
    dataset = load(data)
    processes = Together(parts, dataset) if parts > 1 else None
    train_run(Run.create(out, config, dataset), dataset, Unwatched(), processes)
    return out


def assert_same_run(actual: Path, expected: Path, exactly: bool = False) -> None:
    one, other = (Run.open(folder) for folder in (actual, expected))
    assert one.finished
    rounds = [[done.loss for done in run.progress.history] for run in (one, other)]
    assert rounds[0] == (rounds[1] if exactly else pytest.approx(rounds[1], rel=1e-6))
    assert one.test()["overall"] == pytest.approx(other.test()["overall"], rel=1e-6)
    assert one.test()["intervals"]["80"]["overall"] == pytest.approx(
        other.test()["intervals"]["80"]["overall"], rel=1e-6
    )
    tag = other.progress.best.tag
    for who in ("server", "site-0", "owner-0"):
        states = [run.store(who).read(tag) for run in (one, other)]
        assert list(states[0]) == list(states[1])
        for name, tensor in states[1].items():
            tolerance = 0.0 if exactly else 1e-6
            torch.testing.assert_close(
                states[0][name], tensor, rtol=tolerance, atol=tolerance, equal_nan=True, msg=name
            )


@pytest.mark.parametrize("method", [chaos("at-fedavg"), "cnfgnn-plus", chaos("gru-fmtl")])
def test_two_processes_give_the_result_of_one(method: str, folder: Path, tmp_path: Path) -> None:
    config = brief(method)
    settings = settings_file(config, tmp_path / "c.toml")
    end = Ended(started(folder, "--config", settings, "--out", tmp_path / "two"))
    assert end.code == 0, end.err
    assert_same_run(tmp_path / "two", alone(config, folder, tmp_path / "one"))
    assert end.out.count("next: cnfgnn forecast") == 1  # process 0 prints, the others do not
    assert end.err.count("round 1/2") == 1
    events = (tmp_path / "two" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in events] == ["start", "round", "round", "test"]


def until(condition: Callable[[], bool], torchrun: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + LONGEST_S
    while not condition():
        assert torchrun.poll() is None, torchrun.communicate()[1]
        assert time.monotonic() < give_up
        time.sleep(0.02)


def rounds_of(run: Path) -> int:
    return len(Run.open(run).progress.history) if (run / "manifest.json").exists() else 0


def process_of(torchrun: subprocess.Popen[str], rank: int) -> int:
    """The process id of one of torchrun's processes."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = entry.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1]
                environment = entry.joinpath("environ").read_bytes().split(b"\0")
            except OSError:  # it has ended meanwhile
                continue
            if int(parent) == torchrun.pid and f"RANK={rank}".encode() in environment:
                return int(entry.name)
    raise AssertionError(f"there is no process {rank}")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
def test_a_killed_process_ends_the_others_and_the_run_resumes(folder: Path, tmp_path: Path) -> None:
    config = brief("at-fedavg", **{"training.rounds": 6})
    expected = alone(config, folder, tmp_path / "expected", parts=2)
    run = tmp_path / "two"
    first = ("--config", settings_file(config, tmp_path / "c.toml"), "--out", run)
    for rank, arguments in ((1, first), (0, ("--resume", run))):
        before = rounds_of(run)
        torchrun = started(folder, *arguments)
        until(lambda before=before: rounds_of(run) > before, torchrun)  # type: ignore[misc]
        os.kill(process_of(torchrun, rank), signal.SIGKILL)
        end = Ended(torchrun)
        assert end.code != 0
        assert end.err.count("Traceback") == 1  # torchrun's own
    assert Ended(started("--resume", run)).code == 0
    assert_same_run(run, expected, exactly=True)


@pytest.mark.chaos
def test_ctrl_c_ends_all_processes_and_says_how_to_resume(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = settings_file(brief("at-fedavg", **{"training.rounds": 500}), tmp_path / "c.toml")
    torchrun = started(folder, "--config", config, "--out", run)
    until(lambda: rounds_of(run) > 0, torchrun)
    os.killpg(torchrun.pid, signal.SIGINT)
    end = Ended(torchrun)
    assert end.code != 0
    saved = r"(1 round is|\d+ rounds are) saved"
    [sentence] = end.sentences
    assert re.fullmatch(rf"stopped; {saved}; to resume: cnfgnn train --resume {run}", sentence)


@pytest.mark.parametrize(
    ("method", "data", "sentence"),
    [
        ("gru-central", "", "cannot be divided between processes: train it without torchrun"),
        chaos("at-fedavg", "nowhere", "nowhere"),
    ],
)
def test_a_problem_is_one_sentence_and_all_processes_end_with_its_code(
    method: str, data: str, sentence: str, folder: Path, tmp_path: Path
) -> None:
    config = settings_file(brief(method), tmp_path / "c.toml")
    end = Ended(started(folder / data, "--config", config, "--out", tmp_path / "run"))
    assert end.code != 0
    assert len(end.sentences) == 1
    assert sentence in end.sentences[0]
    assert end.exit_codes == {2}
    assert not (tmp_path / "run").exists()


FOLLOWER_FAILS = """
import sys
from cnfgnn.errors import CnfgnnError
from cnfgnn.runs.followers import Follower, several_processes

try:
    with several_processes() as processes:
        if not processes.leads:
            sys.exit(Follower(processes, None).follow())
        processes.ask(["no message"] * processes.count, lambda: None)
except CnfgnnError as problem:
    print(f"cnfgnn: {problem}", file=sys.stderr)
    sys.exit(problem.exit_code)
"""


@pytest.mark.chaos
def test_a_failure_in_another_process_ends_all_with_its_code(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FOLLOWER_FAILS)
    end = Ended(torchrun_of(3, script))
    assert end.sentences == ["cnfgnn: process 1: TypeError: there is no such message: str"]
    assert end.exit_codes == {3}
