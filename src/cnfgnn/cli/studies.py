"""Commands that carry out a plan of runs: compare, and the paper's tables."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cnfgnn.cli import progress
from cnfgnn.config import toml

TABLES = "forecasting, cost, inductive, strategies, rounds, deviations, beyond, histograms or subgraphs"
JobsOption = Annotated[int, typer.Option(min=1, help="Runs at the same time, each in its own process.")]


def compare(
    plan: Annotated[Path, typer.Argument(help="A TOML file: methods, seeds, settings.")],
    out: Annotated[Path | None, typer.Option(help="Where the runs go; done ones are kept.")] = None,
    jobs: JobsOption = 1,
) -> None:
    """Train several methods on the same data and print them side by side."""
    from cnfgnn.data.source import open_data
    from cnfgnn.runs.baselines import last_value
    from cnfgnn.studies.execute import run_plan
    from cnfgnn.studies.plan import Plan

    read, folder = Plan.read(plan), out or Path("runs") / plan.stem
    begun = time.perf_counter()
    config = read.cases()[0].config
    data = open_data(config)
    with _stoppable():
        rows = run_plan(read, data, folder, progress.PlanWatcher(), jobs)
    table = Table(
        *("method", "masked RMSE", "masked MAE", "RMSE", "bytes", "masked RMSE of each seed"),
        title=f"{plan.stem}: test errors, {_of_seeds(len(read.seeds))}; bytes until the best round",
    )
    floor = last_value(data, config.data).overall
    figures = [progress.number(value) for value in (floor.masked_rmse, floor.masked_mae, floor.rmse)]
    table.add_row("last value", *figures, "-", progress.number(floor.masked_rmse))
    for row in rows:
        figures = [progress.number(row.median(name)) for name in ("masked_rmse", "masked_mae", "rmse")]
        moved = progress.size(int(statistics.median(b.per_node for b in row.training_bytes)))
        each = ", ".join(progress.number(errors.masked_rmse) for errors in row.errors)
        table.add_row(row.case.name, *figures, moved, each)
    progress.out().print(table)
    print(f"{time.perf_counter() - begun:.0f} s; runs in {folder}")


def reproduce(
    table: Annotated[str, typer.Argument(help=TABLES)],
    data: Annotated[Path | None, typer.Argument(help="Readings; else the synthetic city.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="See whether all of it works.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many: 1, 2 ...; else the plan's.")] = None,
    like: Annotated[str | None, typer.Option(help="Published settings of metr-la or pems-bay.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="One setting of all runs.")] = None,
    jobs: JobsOption = 1,
    done: Annotated[bool, typer.Option("--done", help="Show the runs that are done; start none.")] = False,
    out: Annotated[Path | None, typer.Option(help="The folder of runs, tables, figures, page.")] = None,
) -> None:
    """Make a table of the paper with its figures and a page, ours beside the published figures.

    The plan is experiments/TABLE.toml. Runs that are done are kept: after Ctrl-C or a crash the same command
    goes on where it was.
    """
    from cnfgnn.studies.reproduce import Request
    from cnfgnn.studies.reproduce import reproduce as run_study

    wanted = dict(toml.parse_change(text) for text in changes or [])
    wish = Request(data, out, quick, seeds, like, wanted, jobs, not done)
    with _stoppable():
        outcome, folder = run_study(table, wish, progress.PlanWatcher())
    for made in outcome.tables:
        progress.print_study(made)
        for note in made.notes:
            print(note)
        print()
    print(f"{folder}: {table}.md, {table}.json, {table}.html and more")


def _of_seeds(count: int) -> str:
    return "one seed" if count == 1 else f"median of {count} seeds"


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C or a polite kill ends with a sentence."""
    try:
        yield
    except KeyboardInterrupt:
        print("\nstopped; what was done is kept: the same command goes on", file=sys.stderr)
        raise typer.Exit(130) from None
