"""The command that shows everything at once: three methods on a small synthetic city, a table and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cnfgnn.cli.report import write_report
from cnfgnn.cli.studies import compare


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the runs and the page.")] = Path("runs/demo"),
) -> None:
    """Train three methods on a small synthetic city, print a table and write a page.

    Needs no data and takes about a minute on two cores. Runs that have already finished are kept, so a
    second call only prints the table and writes the page again.
    """
    from cnfgnn.studies.experiments import experiment_file

    compare(experiment_file("demo"), out)
    runs = sorted(folder for folder in out.glob("*-seed*") if folder.is_dir())
    page = out / "report.html"
    write_report(runs, None, page)
    print(f"open {page} in a browser, then try your own readings: cnfgnn train FOLDER --out runs/mine")
