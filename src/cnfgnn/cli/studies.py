"""The commands that run a whole plan: compare methods, and reproduce the paper's tables."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from cnfgnn.cli import progress
from cnfgnn.cli.settings import LIKE_HELP
from cnfgnn.config import toml
from cnfgnn.errors import ConfigError

if TYPE_CHECKING:
    from cnfgnn.runs.scores import Scores
    from cnfgnn.studies.plan import Row

TABLES = (
    "forecasting, cost, inductive, strategies, rounds, deviations, beyond, privacy, histograms or subgraphs"
)
JobsOption = Annotated[
    int, typer.Option(min=1, help="Number of runs to train in parallel, each in its own process.")
]


def compare(
    plan: Annotated[Path, typer.Argument(help="A TOML file with methods, seeds and settings.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the runs; finished ones are kept.")] = None,
    jobs: JobsOption = 1,
) -> None:
    """Train several methods on the same data and print their errors side by side.

    With choose = "validation" in the plan, they are validation errors, and the test error only of the best.
    """
    from cnfgnn.data.source import open_data
    from cnfgnn.runs.baselines import all_baselines
    from cnfgnn.studies.execute import run_plan
    from cnfgnn.studies.lines import METHOD, interval_tables, line_of
    from cnfgnn.studies.plan import Plan

    read, folder = Plan.read(plan), out or Path("runs") / plan.stem
    begun = time.perf_counter()
    config = read.cases()[0].config
    data = open_data(config)
    with _stoppable():
        rows = run_plan(read, data, folder, progress.PlanWatcher(), jobs)
    if read.choose:
        rows = [_print_choice(plan.stem, rows)]
    else:
        _print_errors(plan.stem, rows, all_baselines(data, config.data))
    lines = [replace(line_of(row), cells={"method": row.case.name}) for row in rows]
    for intervals in interval_tables(plan.stem, data, lines, METHOD[:1]):
        progress.print_study(intervals)
    print(f"{time.perf_counter() - begun:.0f} s; runs in {folder}")


ERRORS = ("masked_rmse", "masked_mae", "rmse")


def _print_errors(name: str, rows: Sequence[Row], baselines: Mapping[str, Scores]) -> None:
    """The test errors of every line, below those of the baselines."""
    table = Table(
        Column("method", overflow="fold"),
        "masked RMSE",
        "masked MAE",
        "RMSE",
        "bytes",
        "masked RMSE of each seed",
        title=f"{name}: test errors, {_of_seeds(len(rows[0].runs))}; bytes until the best round",
    )
    for baseline, scores in baselines.items():
        figures = [progress.number(getattr(scores.overall, figure)) for figure in ERRORS]
        table.add_row(baseline, *figures, "-", progress.number(scores.overall.masked_rmse))
    for row in rows:
        figures = [progress.number(row.median(figure)) for figure in ERRORS]
        moved = progress.size(int(statistics.median(b.per_node for b in row.training_bytes)))
        each = ", ".join(progress.number(errors.masked_rmse) for errors in row.errors)
        table.add_row(row.case.name, *figures, moved, each)
    progress.out().print(table)


def _print_choice(name: str, rows: Sequence[Row]) -> Row:
    """The validation errors of every candidate, and the test errors of the one that they choose."""
    from cnfgnn.studies.plan import chosen

    best = chosen(rows)
    errors = ("masked RMSE", "masked MAE", "RMSE")
    title = f"{name}: validation errors, {_of_seeds(len(best.runs))}"
    candidate = Column("candidate", overflow="fold")  # names of a grid differ at their ends
    table = Table(candidate, *errors, "bytes", *(f"test {error}" for error in errors), title=title)
    for row in rows:
        figures = [progress.number(row.median(figure, validation=True)) for figure in ERRORS]
        tests = [progress.number(row.median(figure)) if row is best else "" for figure in ERRORS]
        moved = progress.size(int(statistics.median(b.per_node for b in row.training_bytes)))
        table.add_row(row.case.name, *figures, moved, *tests)
    progress.out().print(table)
    print(f"chosen by validation: {best.case.name}")
    return best


def reproduce(
    table: Annotated[str, typer.Argument(help=TABLES)],
    data: Annotated[
        Path | None, typer.Argument(help="A file or folder of readings; without it, the synthetic city.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train very little, to see whether everything works.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds; without it, those of the plan.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Only these methods of the plan, separated by commas, or sizes: gru-local 63k."),
    ] = None,
    blurs: Annotated[
        str | None,
        typer.Option(help="For privacy: other blurs, separated by commas, in the unit of the readings."),
    ] = None,
    like: Annotated[str | None, typer.Option(help=LIKE_HELP)] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Set one setting of all runs; can be repeated.")
    ] = None,
    jobs: JobsOption = 1,
    done: Annotated[bool, typer.Option("--done", help="Only show the finished runs.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for runs, tables, figures and the page.")] = None,
) -> None:
    """Reproduce a table of the paper with its figures and a page, next to the published numbers.

    The plan is experiments/TABLE.toml. Finished runs are kept: after Ctrl-C or a crash, the same command
    continues where it stopped.
    """
    from cnfgnn.studies.reproduce import Request
    from cnfgnn.studies.reproduce import reproduce as run_study

    wanted = dict(toml.parse_change(text) for text in changes or [])
    request = Request(
        data, out, quick, seeds, like, wanted, jobs, not done, _listed(methods), _blurs(_listed(blurs))
    )
    with _stoppable():
        outcome, folder = run_study(table, request, progress.PlanWatcher())
    for made in outcome.tables:
        progress.print_study(made)
        for note in made.notes:
            print(note)
        print()
    print(f"written to {folder}: {table}.md, {table}.json, {table}.html and more")


def _listed(text: str | None) -> list[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _blurs(listed: list[str]) -> list[float]:
    try:
        return [float(blur) for blur in listed]
    except ValueError:
        raise ConfigError("--blurs", f"needs numbers, such as 0,2.5,10, not {','.join(listed)}") from None


def _of_seeds(count: int) -> str:
    return "one seed" if count == 1 else f"median of {count} seeds"


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into one sentence and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        print("\nstopped; finished work is kept, and the same command continues", file=sys.stderr)
        raise typer.Exit(130) from None
