"""The command that writes a page about one or more runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cnfgnn.errors import ConfigError
from cnfgnn.files import check_can_be_written, write_whole

if TYPE_CHECKING:
    from cnfgnn.runs.folder import Run


def report(
    runs: Annotated[list[Path], typer.Argument(help="One or more run folders.")],
    data: Annotated[
        Path | None, typer.Option(help="The readings that the runs were trained on, if they have been moved.")
    ] = None,
    sensor: Annotated[
        list[str] | None,
        typer.Option(
            help="Show this sensor in full where there are too many for all of them; can be repeated."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write a self-contained HTML page: a map of errors, forecasts, learning curves, traffic and settings."""
    write_report(runs, data, out, sensor or [])


def write_report(folders: list[Path], data: Path | None, out: Path, sensors: Sequence[str] = ()) -> None:
    """Write the page about some runs and print its path; `sensors` are to be shown in full in any case."""
    from cnfgnn.data.source import open_data
    from cnfgnn.report.page import page
    from cnfgnn.report.views import views
    from cnfgnn.runs.folder import Run

    check_can_be_written(out)
    opened = [Run.open(folder) for folder in folders]
    _check_known(sensors, opened)
    shown = views(opened, None if data is None else open_data(opened[0].config, data))
    for view in shown:
        if view.no_predictions:
            print(f"{view.name}: without forecasts, because {view.no_predictions}", file=sys.stderr)
    write_whole(out, page(_title(folders), shown, named=sensors).encode())
    print(f"report {out}")


def _check_known(sensors: Sequence[str], runs: Sequence[Run]) -> None:
    """Refuse a sensor that no run has."""
    known = {sensor for run in runs for sensor in run.data.sensors}
    for sensor in sensors:
        if sensor not in known:
            raise ConfigError("--sensor", f"no run has a sensor {sensor!r}")


def _title(folders: list[Path]) -> str:
    names = [folder.absolute().name for folder in folders]
    if len(names) <= 3:
        return ", ".join(names)
    return f"{len(names)} runs in {folders[0].absolute().parent.name}"
