"""The command line and plans in tests: in this process for what they say, in another for how they end."""

from __future__ import annotations

import os
import sys

from typer.testing import CliRunner

from cnfgnn.cli.main import app
from cnfgnn.errors import CnfgnnError
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched

COMMAND = [sys.executable, "-m", "cnfgnn"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
A_PLAN = """
methods = ["cnfgnn", "gru-local"]
seeds = [1, 2]
[city]
sensors = 3
days = 0.5
[data]
history = 4
horizon = 4
[model]
hidden = 4
[training]
rounds = 2
client_rounds = 1
[only.cnfgnn.model]
embedding = 3
"""


def said(*arguments: object, fails: bool = False) -> str:
    """What a command prints, in this process; or the one sentence with which it ends."""
    if fails:
        return refused(*arguments)[1]
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


def refused(*arguments: object) -> tuple[int, str]:
    """The exit code and the one sentence with which a command ends, in this process."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert isinstance(result.exception, CnfgnnError), result.output
    assert "\n" not in str(result.exception)
    return result.exception.exit_code, str(result.exception)


class Unobserved:
    """Nobody waits for the plan."""

    def plan(self, runs: int, done: int) -> None: ...

    def attack(self, run: Run, name: str) -> None: ...

    def watcher(self, run: Run) -> Unwatched:
        return Unwatched()

    def process(self, run: Run) -> None: ...

    def done(self, run: Run, problem: str | None) -> None: ...

    def end(self) -> None: ...
