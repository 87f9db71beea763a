"""The command line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import cnfgnn
from cnfgnn.algorithm.methods import ALIASES
from cnfgnn.errors import CnfgnnError

app = typer.Typer(no_args_is_help=True, add_completion=False, help=cnfgnn.__doc__)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    if version:
        print(f"cnfgnn {cnfgnn.__version__}")
        raise typer.Exit


@app.command()
def methods() -> None:
    """List the methods of the paper's tables."""
    table = Table("name", "in the paper", "sizes", "federated", "new sensors")
    names = {name: alias for alias, name in ALIASES.items()}
    for method in cnfgnn.METHODS.values():
        alias = f" (or {names[method.name]})" if method.name in names else ""
        yes_no = ["yes" if flag else "no" for flag in (method.federated, method.inductive)]
        table.add_row(method.name + alias, method.label, ", ".join(method.sizes), *yes_no)
    Console().print(table)


def main() -> None:
    """Run a command; what a person can mend is said in one sentence."""
    try:
        app()
    except CnfgnnError as problem:
        print(f"cnfgnn: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)
