"""What commands show: a progress bar on a terminal, plain lines elsewhere, and tables of results."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cnfgnn.algorithm.methods import method_of, preset
from cnfgnn.cli.time_left import OtherPrograms, Pace
from cnfgnn.config.settings import Config

if TYPE_CHECKING:
    from cnfgnn.algorithm.experiment import Experiment
    from cnfgnn.runs.folder import Run
    from cnfgnn.runs.training_loop import Progress as TrainingProgress
    from cnfgnn.runs.training_loop import Round
    from cnfgnn.studies.tables import Table as StudyTable

LONG_S = 120.0  # for a longer training, suggest quicker ones
COMPETING = 0.5  # processors that other programs use, from which on the estimate says so
HEARTBEAT_S = 30.0  # seconds between lines during a long round, where there is no bar


def out() -> Console:
    """The console for results: as wide as the terminal, or 120 columns in a file or pipe."""
    return Console() if sys.stdout.isatty() else Console(width=120)


def watcher() -> BarWatcher | LineWatcher:
    """A progress bar on a terminal, lines elsewhere."""
    return BarWatcher() if sys.stderr.isatty() else LineWatcher()


class BarWatcher:
    """A bar over the minibatches of all rounds, with the rate, the best round so far and the time left."""

    def begin(self, experiment: Experiment, progress: TrainingProgress) -> None:
        self.kind = experiment.config.data.metric
        self.rounds, self.per_round = experiment.config.training.rounds, experiment.strategy.minibatches
        self.bar = Progress(
            TextColumn("round {task.fields[r_g]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[best]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
        )
        done = len(progress.history)
        self.task = self.bar.add_task(
            "",
            total=self.rounds * self.per_round,
            completed=done * self.per_round,
            r_g=f"{done + 1}/{self.rounds}",
            rate="",
            best="",
            left="",
        )
        self.outlook = Outlook(experiment.config, progress, experiment.strategy.phases)
        self.bar.start()
        if experiment.memory_plan.state_format != "full":
            self.bar.print(str(experiment.memory_plan))

    def tick(self) -> None:
        self.outlook.pace.tick()
        speed = self.bar.tasks[0].speed
        rate = f"{speed:.1f} minibatches/s" if speed else ""
        self.bar.update(self.task, advance=1, rate=rate, left=self.outlook.left())
        self._announce()

    def round_done(self, done: Round, best: Round, seconds: float) -> None:
        self.outlook.round_done(done, seconds)
        self._announce()
        rmse = getattr(best.validation, self.kind)
        self.bar.update(
            self.task,
            completed=done.r_g * self.per_round,
            left=self.outlook.left(early=True),
            r_g=f"{min(done.r_g + 1, self.rounds)}/{self.rounds}",
            best=f"best RMSE {rmse:.3f} (round {best.r_g})",
        )

    def _announce(self) -> None:
        if (line := self.outlook.announcement()) is not None:
            self.bar.print(line)

    def end(self) -> None:
        self.bar.stop()


class LineWatcher:
    """One line per round, and one every half minute during a long round."""

    def begin(self, experiment: Experiment, progress: TrainingProgress) -> None:
        self.kind = experiment.config.data.metric
        self.rounds, self.per_round = experiment.config.training.rounds, experiment.strategy.minibatches
        self.done, self.ticks, self.printed_at = len(progress.history), 0, time.monotonic()
        self.outlook = Outlook(experiment.config, progress, experiment.strategy.phases)
        if experiment.memory_plan.state_format != "full":
            self._print(str(experiment.memory_plan))
        if self.done:
            self._print(f"resuming after round {self.done}")

    def tick(self) -> None:
        self.ticks += 1
        self.outlook.pace.tick()
        self._announce()
        if time.monotonic() - self.printed_at > HEARTBEAT_S:
            left = self.outlook.left()
            now = f"round {self.done + 1}/{self.rounds}: minibatch {self.ticks} of {self.per_round}"
            self._print(f"{now}, {left}" if left else now)

    def round_done(self, done: Round, best: Round, seconds: float) -> None:
        self.done, self.ticks = done.r_g, 0
        self.outlook.round_done(done, seconds)
        self._announce()
        rmse, least = getattr(done.validation, self.kind), getattr(best.validation, self.kind)
        kind = "RMSE" if self.kind == "rmse" else "masked RMSE"
        left = self.outlook.left(early=True)
        # The loss chooses the best round, and a round with a lower RMSE may have a higher loss.
        now = f"round {done.r_g}/{self.rounds}: validation {kind} {rmse:.3f}, loss {done.loss:.3f}"
        chosen = f"best by its loss: round {best.r_g} ({kind} {least:.3f})"
        self._print(f"{now}; {chosen}, {seconds:.1f} s" + (f", {left}" if left else ""))

    def end(self) -> None:
        pass

    def _announce(self) -> None:
        if (line := self.outlook.announcement()) is not None:
            self._print(line)

    def _print(self, line: str) -> None:
        self.printed_at = time.monotonic()
        print(line, file=sys.stderr, flush=True)


class Outlook:
    """How long training will take, in words: one line as soon as there is an estimate, then the time left."""

    def __init__(
        self,
        config: Config,
        progress: TrainingProgress,
        phases: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
        others: OtherPrograms | None = None,
    ) -> None:
        self.config, self.done = config, (done := len(progress.history))
        self.others = others or OtherPrograms()
        self.pace = Pace(config.training.rounds, done, phases, clock)
        self.announced = False
        self.best = progress.best.r_g if progress.history else 0  # the round that patience counts from

    def round_done(self, done: Round, seconds: float) -> None:
        """Take in the end of a round."""
        self.pace.round_done(seconds)
        if done.best:
            self.best = done.r_g

    def announcement(self) -> str | None:
        """The estimate, once: how long training takes, what ends it earlier, and what would be quicker."""
        each, left = self.pace.a_round(), self.pace.left()
        if self.announced or each is None or left is None:
            return None
        self.announced = True
        training, rounds = self.config.training, self.pace.rounds - self.pace.done
        if rounds == 0:  # the last round ended before there was an estimate
            return None
        if rounds == 1:
            return f"about {duration(self.pace.once + each)} for 1 round"
        line = f"about {duration(each)} a round, roughly {duration(left)} for {rounds} rounds"
        if (others := self.others.processors()) >= COMPETING:
            line += f" while other programs use {others:.1f} of {os.cpu_count()} processors"
        if training.patience < training.rounds:
            line += f", or until {training.patience} rounds in a row bring no improvement"
        is_new = self.done == 0  # a resumed run keeps its settings, so there is nothing to suggest
        ways = quicker(self.config) if left > LONG_S and is_new else []
        return f"{line}; quicker: {', or '.join(ways)}" if ways else line

    def left(self, early: bool = False) -> str:
        """The time left at most; with `early`, also the time if no later round has a lower loss.

        Empty while there is no estimate, and at the end.
        """
        if (seconds := self.pace.left()) is None or self.pace.done >= self.pace.rounds:
            return ""
        text, training = f"at most {duration(seconds)} left", self.config.training
        last = self.best + training.patience if early else training.rounds
        if last < training.rounds and (seconds := self.pace.left(last)) is not None:
            text += f" ({duration(seconds)} without improvement)"
        return text


def quicker(config: Config) -> list[str]:
    """Options that make training faster than with these settings."""
    rounds, beyond = config.training.rounds, preset("cnfgnn-plus")
    ways = []
    if rounds > 1:
        ways.append(f"fewer rounds, as in --set training.rounds={max(1, rounds // 5)}")
    method = method_of(config.method)
    if method.graph_network and method.in_paper and rounds > beyond.training.rounds:
        ways.append(f"--method {beyond.method}, {beyond.training.rounds} rounds of a smaller model")
    return ways


class PlanWatcher:
    """The progress of several runs.

    A terminal shows one bar for all of them; elsewhere there is a line whenever a run ends, and one every
    half minute in between.
    """

    def __init__(self) -> None:
        self.bar: Progress | None = None
        self.at_work: dict[str, tuple[float, str]] = {}  # run -> the share that is done, and a few words
        self.printed_at = time.monotonic()

    def plan(self, runs: int, done: int) -> None:
        self.runs, self.ended = runs, done
        if sys.stderr.isatty() and done < runs:
            columns = (
                TextColumn("{task.fields[ended]}/{task.total} runs"),
                BarColumn(),
                TimeRemainingColumn(),
                TextColumn("at most"),
                TextColumn("{task.fields[now]}"),
            )
            self.bar = Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task("", total=runs, completed=done, ended=done, now="")
            self.bar.start()
        if done:
            self._print(f"{done} of {runs} runs are already finished")

    def watcher(self, run: Run) -> RunOfPlan:
        return RunOfPlan(self, run.folder.name)

    def process(self, run: Run) -> None:
        done, rounds = len(run.progress.history), run.config.training.rounds
        self.show(run.folder.name, done / rounds, f"round {min(done + 1, rounds)}/{rounds}")

    def show(self, name: str, share: float, now: str) -> None:
        """Show how far a run has come."""
        self.at_work[name] = (share, f"{name}: {now}")
        words = "; ".join(text for _, text in self.at_work.values())
        if self.bar is not None:
            done = self.ended + sum(share for share, _ in self.at_work.values())
            self.bar.update(self.task, completed=done, now=words)
        elif time.monotonic() - self.printed_at > HEARTBEAT_S:
            self._print(f"{self.ended} of {self.runs} runs finished; {words}")

    def attack(self, run: Run, name: str) -> None:
        self._print(f"{run.folder.name}: attack {name}")

    def done(self, run: Run, problem: str | None) -> None:
        self.ended += 1
        self.at_work.pop(run.folder.name, None)
        if self.bar is not None:
            self.bar.update(self.task, completed=self.ended, ended=self.ended, now="")
        if problem is not None:
            self._print(f"[{self.ended}/{self.runs}] {run.folder.name}: {problem}")
        elif run.progress.history:
            best, rounds = run.progress.best, len(run.progress.history)
            self._print(f"[{self.ended}/{self.runs}] {run.folder.name}: best round {best.r_g} of {rounds}")

    def end(self) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _print(self, line: str) -> None:
        self.printed_at = time.monotonic()
        if self.bar is not None:
            self.bar.print(line)
        else:
            print(line, file=sys.stderr, flush=True)


class RunOfPlan:
    """Passes the progress of one run on to the display of its plan."""

    def __init__(self, plan: PlanWatcher, name: str) -> None:
        self.plan, self.name = plan, name

    def begin(self, experiment: Experiment, progress: TrainingProgress) -> None:
        self.rounds, self.per_round = experiment.config.training.rounds, experiment.strategy.minibatches
        self.done, self.ticks = len(progress.history), 0
        if experiment.memory_plan.state_format != "full":
            self.plan._print(f"{self.name}: {experiment.memory_plan}")
        self._show()

    def tick(self) -> None:
        self.ticks += 1
        self._show()

    def round_done(self, done: Round, best: Round, seconds: float) -> None:
        self.done, self.ticks = done.r_g, 0
        self._show()

    def end(self) -> None: ...

    def _show(self) -> None:
        share = (self.done + min(self.ticks / self.per_round, 1.0)) / self.rounds
        self.plan.show(self.name, min(share, 1.0), f"round {min(self.done + 1, self.rounds)}/{self.rounds}")


def print_study(made: StudyTable) -> None:
    """Print a study's table without cutting any cell: the columns that fit a terminal; elsewhere, all."""
    console, measure = out(), Console(width=10_000).measure
    widths = [measure(study_table(made, count)).maximum for count in range(len(made.columns) + 1)]
    if not console.is_terminal:
        console = Console(width=max(console.width, widths[-1]))
    count = max(k for k, width in enumerate(widths) if k <= 2 or width <= console.width)
    console.print(study_table(made, count))
    if count < len(made.columns):
        print(f"{len(made.columns) - count} more columns are in {made.name}.csv")


def study_table(made: StudyTable, columns: int, most: int = 40) -> Table:
    """The first columns of a table and at most so many rows; the files hold the whole table."""
    table = Table(title=made.title, box=SIMPLE_HEAD, padding=(0, 1))
    for column in made.columns[:columns]:
        table.add_column(column.label, no_wrap=True)
    for row in made.cells()[:most]:
        table.add_row(*row[:columns])
    if len(made.rows) > most:
        table.add_row(f"... {len(made.rows) - most} more")
    return table


def ahead_name(minutes: float) -> str:
    """How far ahead a step is, in hours or minutes."""
    return f"{minutes / 60:g} h ahead" if minutes > 60 and minutes % 60 == 0 else f"{minutes:g} min ahead"


def errors_table(scores: Mapping[str, Any], title: str, step_minutes: float) -> Table:
    """Errors overall and at a quarter, half and the end of the horizon (often 15, 30, 60 minutes ahead)."""
    from cnfgnn.data.windows import reported_steps

    steps = scores["per_step"]
    rows = {"overall": scores["overall"]}
    for step in reported_steps(len(steps)):
        rows[ahead_name(step * step_minutes)] = steps[step - 1]
    for kind in ("seen", "unseen"):
        if scores.get(kind):
            rows[f"{kind} sensors"] = scores[kind]
    return rows_table("", rows, title)


def intervals_table(scores: Mapping[str, Any], step_minutes: float) -> Table | None:
    """How good the intervals are, overall and at the same steps ahead as errors; None if there are none."""
    from cnfgnn.data.windows import reported_steps

    levels = scores.get("intervals")
    if not levels:
        return None
    horizon = len(next(iter(levels.values()))["per_step"])
    rows: dict[str, dict[str, Any]] = {
        "overall": {level: found["overall"] for level, found in levels.items()}
    }
    for step in reported_steps(horizon):
        at_step = {level: found["per_step"][step - 1] for level, found in levels.items()}
        rows[ahead_name(step * step_minutes)] = at_step
    return interval_rows("", rows, "intervals, over observed readings")


def interval_rows(first: str, rows: Mapping[str, Mapping[str, Any]], title: str | None = None) -> Table:
    """A table with one row for each name, and three columns for each level."""
    levels = list(next(iter(rows.values())))
    heads = [f"{level} %: {what}" for level in levels for what in ("coverage", "width", "score")]
    table = Table(first, *heads, title=title)
    for name, found in rows.items():
        cells = [interval_cells(found[level]) for level in levels]
        table.add_row(name, *(cell for group in cells for cell in group))
    return table


def interval_cells(errors: Mapping[str, float | None]) -> list[str]:
    """Coverage, mean width and interval score; "-" where there is none."""
    coverage = errors["coverage"]
    shown = "-" if coverage is None or math.isnan(coverage) else f"{coverage:.1%}"
    return [shown, number(errors["width"]), number(errors["score"])]


def rows_table(first: str, rows: Mapping[str, Any], title: str | None = None) -> Table:
    """A table with one row of errors for each name."""
    table = Table(first, "RMSE", "MAE", "masked RMSE", "masked MAE", "masked MAPE", title=title)
    for name, errors in rows.items():
        table.add_row(name, *error_cells(errors))
    return table


def error_cells(errors: Mapping[str, float | None]) -> list[str]:
    """The cells of one row of errors; "-" where there is none."""
    figures = [number(errors[name]) for name in ("rmse", "mae", "masked_rmse", "masked_mae")]
    mape = errors["masked_mape"]
    return [*figures, "-" if mape is None or math.isnan(mape) else f"{mape:.1%}"]


def number(value: float | None) -> str:
    """A number with three decimals; "-" if there is none."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3e}"


def size(count: int) -> str:
    """A number of bytes with its unit."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.2f} {unit}"
    return f"{count} B"


def duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours, whichever reads best."""
    minutes = seconds / 60
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes:.0f} min"
    return f"{seconds / 3600:.1f} h"
