"""The command that shows what a curious server can compute of the readings."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cnfgnn.cli import progress
from cnfgnn.cli.settings import SplitOption, check_split
from cnfgnn.cli.train import JsonOption, RunArgument
from cnfgnn.errors import ConfigError

if TYPE_CHECKING:
    from cnfgnn.attack.execute import Watch
    from cnfgnn.attack.judging import AttackReport, Closeness

ATTACKS_HELP = (
    "Which attacks, separated by commas: levels (inversion of levels alone), series (inversion of the whole"
    " series), gradients (also with gradients and each node's weights) and smoother (against blur). Without"
    " it, all that suit the run."
)


def attack(
    run: RunArgument,
    data: Annotated[
        Path | None,
        typer.Argument(help="The true readings, if they are not where they were when the run was trained."),
    ] = None,
    split: SplitOption = "test",
    attacks: Annotated[str | None, typer.Option(help=ATTACKS_HELP)] = None,
    sensors: Annotated[int, typer.Option(min=0, help="How many sensors to attack; 0 for all.")] = 0,
    windows: Annotated[
        int,
        typer.Option(min=0, help="How many windows to attack; 0 for all, and of training for 2,016."),
    ] = 0,
    colluding: Annotated[
        str | None,
        typer.Option(help="The sensor that helps the server; without it, the one with the most readings."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the network that smooths.")] = 0,
    device: Annotated[str, typer.Option(help="Device to compute on: auto, cpu, cuda, cuda:1 ...")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show how near a curious server can come to the readings, from what it receives anyway.

    RUN is a run of the simulator, or a run folder of a federation's server that kept a recording
    (`cnfgnn federation evaluate --record`). The attacks see only what crosses between the nodes and the
    server. Their estimates are then compared with the true readings, beside guesses of the mean.
    """
    from cnfgnn.attack.execute import attack_run
    from cnfgnn.data.source import open_data
    from cnfgnn.runs.evaluate import open_run_data
    from cnfgnn.runs.events import plain
    from cnfgnn.runs.folder import Run

    known_split = check_split(split)
    opened = Run.open(run)
    if data is None and opened.data.federation is not None:
        raise ConfigError("DATA", "it is missing: the readings of a federation are with their owners")
    readings = open_run_data(opened) if data is None else open_data(opened.config, data)
    if opened.data.federation is None:
        opened.check_same_sensors(readings)
    chosen = None if attacks is None else [name.strip() for name in attacks.split(",")]
    with _watched() as watch:
        report = attack_run(
            opened, readings, known_split, chosen, sensors, windows, colluding, seed, device, watch=watch
        )
    if as_json:
        print(json.dumps(plain(report.as_dict()), allow_nan=False))
        return
    _print_report(report)


def _print_report(report: AttackReport) -> None:
    count = len(report.sensors)
    blur = f"blur {report.blur:g}" if report.blur else "no blur"
    title = f"{report.method}, {blur}: estimates of the readings of {count} sensors, {report.split} split"
    table = Table("", "RMSE", "MAE", "within 1", "within 3", "newest RMSE", "MAE", "within 1", "within 3")
    table.title = title
    for line in report.lines:
        label = line.label if line.split == report.split else f"{line.label} ({line.split} split)"
        table.add_row(label, *_cells(line.all), *_cells(line.newest))
    progress.out().print(table)
    if report.colluding is not None:
        print(f"colluding sensor: {report.colluding}; it is not among those that are attacked")


def _cells(closeness: Closeness) -> list[str]:
    shares = [f"{share:.0%}" for share in (closeness.within_1, closeness.within_3)]
    return [progress.number(closeness.rmse), progress.number(closeness.mae), *shares]


@contextmanager
def _watched() -> Iterator[Watch]:
    """A bar for each attack on a terminal; elsewhere a line when one begins, and every half minute."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks = {}

        def watch(attack: str, share: float) -> None:
            if attack not in tasks:
                tasks[attack] = bar.add_task(attack, total=1.0)
            bar.update(tasks[attack], completed=share)

        yield watch


class _Lines:
    """Prints what is being done."""

    def __init__(self) -> None:
        self.attack, self.printed_at = "", 0.0

    def __call__(self, attack: str, share: float) -> None:
        now = time.monotonic()
        if attack != self.attack:
            print(attack, file=sys.stderr, flush=True)
        elif now - self.printed_at > progress.HEARTBEAT_S:
            print(f"{attack}: {share:.0%}", file=sys.stderr, flush=True)
        else:
            return
        self.attack, self.printed_at = attack, now
