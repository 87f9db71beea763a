"""The command line: its commands are in the other modules of this package.

Commands import what they need when they run, so that --help waits neither for PyTorch nor for pandas.
"""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

import cnfgnn
from cnfgnn.cli.attack import attack
from cnfgnn.cli.data import data_app
from cnfgnn.cli.demo import demo
from cnfgnn.cli.federation import federation_app
from cnfgnn.cli.live import live_app, replay
from cnfgnn.cli.privacy import privacy
from cnfgnn.cli.report import report
from cnfgnn.cli.settings import methods, settings
from cnfgnn.cli.studies import compare, reproduce
from cnfgnn.cli.train import evaluate, forecast, runs, train
from cnfgnn.errors import CnfgnnError, ConfigError, MachineError
from cnfgnn.process_setup import end_with_parent, keep_freed_memory

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=cnfgnn.__doc__
)
for command in (
    demo,
    train,
    evaluate,
    forecast,
    runs,
    settings,
    methods,
    compare,
    reproduce,
    report,
    attack,
    privacy,
    replay,
):
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(federation_app, name="federation")
app.add_typer(live_app, name="live")


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"cnfgnn {cnfgnn.__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; an error that the user can fix is printed as one sentence."""
    try:
        end_with_parent()
        keep_freed_memory()
        app(standalone_mode=True)
    except CnfgnnError as problem:
        print(f"cnfgnn: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
    except OSError as problem:
        if problem.errno != errno.ENAMETOOLONG:
            raise
        print(f"cnfgnn: {problem.filename}: {problem.strerror}", file=sys.stderr)
        sys.exit(ConfigError.exit_code)
    except (MemoryError, RuntimeError) as problem:
        failure = MachineError.of(problem)
        if failure is None:
            raise
        print(f"cnfgnn: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)
