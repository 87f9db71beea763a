"""Results of runs as lines of tables: means over seeds; masked and unmasked errors in separate tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cnfgnn.algorithm.methods import Like, method_of
from cnfgnn.config.settings import DataConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.windows import reported_steps
from cnfgnn.forecasters.intervals import REPORTED
from cnfgnn.runs.baselines import all_baselines
from cnfgnn.runs.events import plain
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import scores_as_dict
from cnfgnn.studies.plan import Row, ended_early, network_of
from cnfgnn.studies.published import NETWORKS
from cnfgnn.studies.tables import Column, Mean, Table

NAMES: Mapping[Like, str] = {"metr-la": "METR-LA", "pems-bay": "PEMS-BAY"}
METHOD = (Column("method", "method"), Column("size", "size"))


@dataclass(frozen=True)
class Line:
    """One line of a table: what it is, and its test errors, one entry per seed."""

    cells: Mapping[str, Any]
    tests: Sequence[Mapping[str, Any]]  # as in a run's last event: overall, per_step, seen, unseen
    runs: Sequence[Run] = ()

    def mean(self, figure: str, of: str = "overall") -> Mean | None:
        values = [test[of][figure] for test in self.tests if test.get(of)]
        return Mean.of(values) if values and None not in values else None

    def ahead(self, figure: str, step: int) -> Mean | None:
        values = [test["per_step"][step - 1][figure] for test in self.tests]
        return None if None in values else Mean.of(values)

    def interval(self, figure: str, level: int) -> Mean | None:
        """A figure of the intervals of a level: coverage, width or score; None if a seed has none."""
        found = [(test.get("intervals") or {}).get(str(level)) for test in self.tests]
        values = [one["overall"][figure] for one in found if one]
        return Mean.of(values) if values and len(values) == len(found) and None not in values else None

    def by_seed(self, figure: str) -> dict[int, float]:
        """The overall error of each seed; seeds for which it is unknown are left out."""
        tests = zip(self.runs, self.tests, strict=True)
        found = {run.config.seed: test["overall"][figure] for run, test in tests}
        return {seed: value for seed, value in found.items() if value is not None}

    def with_cells(self, **cells: Any) -> dict[str, Any]:
        """A row of a table."""
        return {**self.cells, **cells}


@dataclass(frozen=True, eq=False)
class Study:
    """The results of a plan on some data, and the baselines to compare them with."""

    name: str
    data: Dataset
    like: Like
    rows: Sequence[Row]
    baselines: Sequence[Line]

    @property
    def network(self) -> Like | None:
        """The network of the paper that the data are from, at least in part."""
        return network_of(self.data)

    @cached_property
    def lines(self) -> list[Line]:
        return [line_of(row) for row in self.rows]

    def published(self) -> str:
        """The heading of published figures, which are of the whole network; empty if there are none."""
        return f"published, all {NETWORKS[self.network].nodes} sensors" if self.network else ""

    def notes(self) -> tuple[str, ...]:
        """The notes below each of its tables."""
        nodes, rows = len(self.data.readings.ids), len(self.data.readings.times)
        notes = [f"Data: {self.data.name}, {nodes} sensors, {self.data.graph.edges} edges, {rows:,} rows."]
        if self.network is not None:
            whole = NETWORKS[self.network]
            span = whole.train + whole.validation + whole.test + 23
            if (nodes, rows) != (whole.nodes, span):
                notes.append(
                    f"A part of {NAMES[self.network]}: the published figures are of all {whole.nodes} sensors"
                    f" and {span:,} rows, so compare the order of the methods, not the numbers."
                )
            if self.like != self.network:
                notes.append(f"Trained with the settings that were published for {NAMES[self.like]}.")
        precisions = sorted({run.config.compute.precision for row in self.rows for run in row.runs})
        seeds = sorted({run.config.seed for row in self.rows for run in row.runs})
        if seeds:
            notes.append(
                f"Computed in {', '.join(precisions)}; {_counted('seed', seeds)} (mean ± standard deviation"
                " where a line has several)."
            )
        short = [row.case.name for row in self.rows if any(ended_early(run, row.case) for run in row.runs)]
        if short:
            notes.append(f"Trained for fewer rounds than the plan has now: {', '.join(short)}.")
        return tuple(notes)


def with_settings(line: Line, *keys: str) -> Line:
    """The line with these settings as cells, even those that equal the preset's."""
    config = line.runs[0].config
    settings = {key: config.setting(key) for key in keys}
    return Line({**line.cells, **settings}, line.tests, line.runs)


def bytes_per_node(run: Run, moved: int) -> float:
    """The bytes of one node that trains, of those that a run moved at all of them."""
    return moved / max(1, int(len(run.data.sensors) * run.config.training.seen))


def median(line: Line, figure: str) -> float | None:
    """The median of an error over seeds; None if a seed has none."""
    values = [test["overall"][figure] for test in line.tests]
    return None if None in values else statistics.median(values)


def line_of(row: Row) -> Line:
    cells = {
        "method": row.case.method,
        "size": row.case.size if len(method_of(row.case.method).sizes) > 1 else None,
        "label": row.case.label,
        "group": row.case.group,
        "rounds": ", ".join(f"{run.progress.best.r_g}/{len(run.progress.history)}" for run in row.runs),
        "minutes": Mean.of([_minutes(run) for run in row.runs]),
        **row.case.varied,
    }
    return Line(cells, row.tests, row.runs)


def _counted(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _minutes(run: Run) -> float:
    return sum(float(event.get("seconds", 0)) for event in run.events() if event["event"] == "round") / 60


def baselines(data: Dataset, config: DataConfig) -> list[Line]:
    """A line for each baseline that suits the data."""
    found = all_baselines(data, config)
    ids = data.readings.ids
    return [Line({"method": name}, [plain(scores_as_dict(scores, ids))]) for name, scores in found.items()]


def masked_table(
    name: str, title: str, lines: Sequence[Line], data: Dataset, what: Sequence[Column]
) -> Table:
    """Masked errors: overall and at a quarter, half and all of the horizon."""
    horizon = len(lines[0].tests[0]["per_step"])
    minutes = data.readings.step_seconds / 60
    steps = reported_steps(horizon)
    columns = [*what, *_errors("all", "")]
    for step in steps:
        columns += _errors(f"{step * minutes:g} min", f"{step}.")
    rows = []
    for line in lines:
        row: dict[str, Any] = {figure: line.mean(figure) for figure in MASKED}
        for step in steps:
            row |= {f"{step}.{figure}": line.ahead(figure, step) for figure in MASKED}
        rows.append(line.with_cells(**row))
    note = (
        "Masked: missing readings (NaN or 0) are left out, so do not compare these errors with unmasked ones."
        " Means over seeds; the CSV file also has their spread."
    )
    return Table(name, title, columns, rows, (note,))


def interval_tables(name: str, data: Dataset, lines: Sequence[Line], what: Sequence[Column]) -> list[Table]:
    """A table that says how good the intervals are, beside the RMSE over the same readings; none if no line
    has intervals."""
    columns = [*what, Column("masked_rmse", "masked RMSE")]
    for level in REPORTED:
        columns += [
            Column(f"{level}.coverage", f"{level} %: coverage", 1, True),
            Column(f"{level}.width", f"{level} %: mean width"),
            Column(f"{level}.score", f"{level} %: interval score"),
        ]
    rows = []
    for line in lines:
        row: dict[str, Any] = {"masked_rmse": line.mean("masked_rmse")}
        for level in REPORTED:
            row |= {f"{level}.{figure}": line.interval(figure, level) for figure in INTERVAL_FIGURES}
        rows.append(line.with_cells(**row))
    known = [row for row in rows if all(row[f"{level}.coverage"] is not None for level in REPORTED)]
    note = "Coverage should equal the level. The lower the interval score, the better."
    title = f"Intervals on {data.name}, over observed readings"
    return [Table(f"{name}-intervals", title, columns, known, (note,))] if known else []


INTERVAL_FIGURES = ("coverage", "width", "score")
MASKED = {"masked_mae": "MAE", "masked_rmse": "RMSE", "masked_mape": "MAPE"}


def _errors(when: str, prefix: str) -> list[Column]:
    return [
        Column(f"{prefix}{figure}", f"{label} {when}", 1 if label == "MAPE" else 3, label == "MAPE", False)
        for figure, label in MASKED.items()
    ]
