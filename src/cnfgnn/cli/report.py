"""The command that writes a page about one or more runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cnfgnn.errors import DataError, RunError, StorageError
from cnfgnn.files import write_whole


def report(
    runs: Annotated[list[Path], typer.Argument(help="One or more run folders.")],
    data: Annotated[
        Path | None, typer.Option(help="The readings that the runs were trained on, if they have been moved.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write a self-contained HTML page: a map of errors, forecasts, learning curves, traffic and settings."""
    write_report(runs, data, out)


def write_report(folders: list[Path], data: Path | None, out: Path) -> None:
    """Write the page about some runs and print its path."""
    from cnfgnn.data.source import open_data
    from cnfgnn.report.page import page
    from cnfgnn.report.views import views
    from cnfgnn.runs.folder import Run

    if not out.absolute().parent.is_dir():
        raise StorageError(out, "there is no such folder")
    try:
        opened = [Run.open(folder) for folder in folders]
        shown = views(opened, None if data is None else open_data(opened[0].config, data))
    except RunError as problem:  # runs are the input of this command, so its exit code is that of bad input
        raise DataError(problem.run, problem.problem) from problem
    for view in shown:
        if view.no_predictions:
            print(f"{view.name}: without forecasts, because {view.no_predictions}", file=sys.stderr)
    write_whole(out, page(_title(folders), shown).encode())
    print(f"report {out}")


def _title(folders: list[Path]) -> str:
    names = [folder.absolute().name for folder in folders]
    if len(names) <= 3:
        return ", ".join(names)
    return f"{len(names)} runs in {folders[0].absolute().parent.name}"
