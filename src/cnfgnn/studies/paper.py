"""The paper's tables and figures from finished runs, beside the published figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cnfgnn.algorithm.messages.cost import GIB
from cnfgnn.algorithm.methods import method_of
from cnfgnn.data.dataset import Dataset
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import seen_sensors
from cnfgnn.studies import figures
from cnfgnn.studies.lines import METHOD, Line, Study, interval_tables, masked_table, with_settings
from cnfgnn.studies.published import COSTS, FRACTIONS, INDUCTIVE_RMSE, TEST_RMSE
from cnfgnn.studies.tables import Column, Mean, Table

FEWEST_SEEN = 2  # sensors that must train: with one, a Graph Network has nothing to learn


@dataclass(frozen=True)
class Outcome:
    """The tables of a study, and functions that draw its figures."""

    tables: Sequence[Table]
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)


RESULT = (
    Column("rmse", "RMSE"),
    Column("mae", "MAE"),
    Column("rounds", "best round / rounds"),
    Column("minutes", "minutes per run", 1),
)


def forecasting(study: Study) -> Outcome:
    """All methods: test RMSE as in the paper, and masked errors in a table of their own."""
    published = TEST_RMSE[study.network] if study.network else {}
    rows = [
        _result(line, published=published.get((line.cells["method"], line.cells.get("size") or "63k")))
        for line in (*study.baselines, *study.lines)
    ]
    columns = [*METHOD, RESULT[0], *_published(study), *RESULT[1:]]
    unmasked = Table(
        "forecasting", f"Test errors on {study.data.name}, unmasked", columns, rows, study.notes()
    )
    return Outcome([unmasked, _masked(study, METHOD, study.lines), *_intervals(study, METHOD)])


def strategies(study: Study) -> Outcome:
    """Training strategies for the same model: errors, bytes until the best round, validation by round."""
    published = TEST_RMSE[study.network] if study.network else {}
    costs = {c.method: c.gib for c in COSTS if c.data == study.network and c.parameters != 727_000}
    rows = []
    for line in (*study.baselines, *study.lines):
        method = line.cells["method"]
        rows.append(
            _result(
                line,
                published=published.get((method, "63k")),
                gib=_gib(line),
                published_gib=costs.get(method),
            )
        )
    columns = [METHOD[0], RESULT[0], *_published(study), Column("gib", "GiB until the best round")]
    if study.network:
        columns.append(Column("published_gib", f"GiB {study.published()}"))
    title = f"Training strategies on {study.data.name}, unmasked"
    table = Table("strategies", title, [*columns, *RESULT[1:]], rows, study.notes())
    kind = _kind_of_errors(study)
    curves = {line.cells["method"]: [_curve(run, kind) for run in line.runs] for line in study.lines}
    drawn = partial(figures.validation_curves, curves, f"Validation on {study.data.name}, {kind}")
    points = _points(study.lines, lambda line: str(line.cells["method"]), lambda line: "strategies")
    cost = partial(figures.error_against_bytes, points, f"Error against bytes on {study.data.name}")
    shown = {"curves": drawn}
    if points:  # there are none if no federated method was run
        shown["bytes"] = cost
    return Outcome([table, _masked(study, METHOD[:1], study.lines), *_intervals(study, METHOD[:1])], shown)


def rounds(study: Study) -> Outcome:
    """Different numbers of epochs per global round: R_c of the nodes, R_s of the Graph Network."""
    what = (
        Column("method", "method"),
        Column("training.client_rounds", "R_c"),
        Column("training.server_rounds", "R_s"),
    )
    lines = [with_settings(line, "training.client_rounds", "training.server_rounds") for line in study.lines]
    rows = [_result(line, gib=_gib(line)) for line in (*study.baselines, *lines)]
    columns = [*what, RESULT[0], Column("gib", "GiB until the best round"), *RESULT[1:]]
    title = f"Rounds of nodes and Graph Network on {study.data.name}, unmasked"
    table = Table("rounds", title, columns, rows, study.notes())
    points = _points(
        lines,
        lambda line: f"{line.cells['training.client_rounds']}, {line.cells['training.server_rounds']}",
        lambda line: f"R_s = {line.cells['training.server_rounds']}",
    )
    drawn = partial(figures.error_against_bytes, points, f"R_c, R_s on {study.data.name}")
    return Outcome([table, _masked(study, what, lines)], {"bytes": drawn})


def inductive(study: Study) -> Outcome:
    """Training on a share of the sensors, testing on all; baselines are of all sensors."""
    what = (Column("method", "method"), Column("training.seen", "share seen", 0, True))
    lines = [with_settings(line, "training.seen") for line in study.lines]
    rows = []
    for line in (*study.baselines, *lines):
        method, share = line.cells["method"], line.cells.get("training.seen")
        published = INDUCTIVE_RMSE[study.network].get(method) if study.network else None
        rows.append(
            _result(
                line,
                seen=line.mean("rmse", "seen"),
                unseen=line.mean("rmse", "unseen"),
                published=published[FRACTIONS.index(share)] if published and share in FRACTIONS else None,
            )
        )
    columns = [*what, RESULT[0], *_published(study), Column("seen", "RMSE seen")]
    columns += [Column("unseen", "RMSE unseen"), *RESULT[1:]]
    title = f"Inductive learning on {study.data.name}, unmasked"
    table = Table("inductive", title, columns, rows, (*study.notes(), *_left_out(study.data)))
    points: dict[str, list[figures.Inductive]] = {}
    for line in lines:
        values = [line.mean("rmse", of) for of in ("overall", "seen", "unseen")]
        means = [None if value is None else value.mean for value in values]
        points.setdefault(line.cells["method"], []).append(
            figures.Inductive(line.cells["training.seen"], means[0] or float("nan"), means[1], means[2])
        )
    drawn = partial(figures.inductive, points, f"Inductive learning on {study.data.name}")
    return Outcome([table, _masked(study, what, lines)], {"inductive": drawn})


def enough_seen(data: Dataset, share: float) -> bool:
    """Whether enough sensors train at this share to learn from neighbours."""
    seen = seen_sensors(data, share)
    return seen is None or int(seen.sum()) >= FEWEST_SEEN


def _left_out(data: Dataset) -> list[str]:
    few = [f"{share:.0%}" for share in FRACTIONS if not enough_seen(data, share)]
    if not few:
        return []
    return [f"Left out because fewer than {FEWEST_SEEN} sensors would train: {', '.join(few)}."]


def deviations(study: Study) -> Outcome:
    """Each deviation from the paper alone, compared with the method as shipped."""
    what = (Column("method", "method"), Column("label", "changed"))
    base = {line.cells["method"]: line for line in study.lines if not line.cells["label"]}
    tables = []
    for kind, rmse, mae in (("unmasked", "rmse", "mae"), ("masked", "masked_rmse", "masked_mae")):
        rows = []
        for line in study.baselines:
            errors = {rmse: line.mean(rmse), mae: line.mean(mae)}
            rows.append(line.with_cells(**errors))
        for line in study.lines:
            shipped, label = base.get(line.cells["method"]), line.cells["label"]
            changed = change(line, shipped, rmse) if shipped and label else None
            errors = {rmse: line.mean(rmse), mae: line.mean(mae)}
            rows.append(line.with_cells(**errors, change=changed, label=label or "as shipped"))
        columns = [*what, Column(rmse, "RMSE"), Column("change", "change of RMSE", 1, True)]
        columns += [Column(mae, "MAE"), *RESULT[2:]]
        title = f"Deviations on {study.data.name}, {kind}"
        name = "deviations" if kind == "unmasked" else "deviations-masked"
        notes = (
            "Changes compare runs of the same seed.",
            "With masked missing readings, a sensor is evaluated only on windows in which it measured"
            " anything: errors of such a line, of both kinds, cover fewer windows.",
        )
        tables.append(Table(name, title, columns, rows, (*study.notes(), *notes)))
    return Outcome(tables)


def histograms(data: Dataset, limit: int) -> Outcome:
    """The distribution of readings at each sensor."""
    readings = data.readings
    rows = []
    for k, sensor in enumerate(readings.ids):
        values = readings.values[~readings.missing[:, k], k]
        if len(values):
            low, half, high = (float(q) for q in np.quantile(values, (0.05, 0.5, 0.95)))
            spread = {"mean": float(values.mean()), "std": float(values.std())}
            rows.append(
                {"sensor": sensor, "count": len(values), **spread, "low": low, "half": half, "high": high}
            )
    columns = [Column("sensor", "sensor"), Column("count", "readings"), Column("mean", "mean", 2)]
    columns += [Column("std", "standard deviation", 2), Column("low", "5 %", 2), Column("half", "median", 2)]
    table = Table(
        "histograms", f"Readings by sensor, {data.name}", [*columns, Column("high", "95 %", 2)], rows
    )
    return Outcome(
        [table], {"histograms": partial(figures.histograms, data, f"Readings, {data.name}", limit)}
    )


def subgraphs(data: Dataset, shares: Sequence[float]) -> Outcome:
    """The sensors and edges that inductive training sees."""
    graph, rows = data.graph, []
    for share in shares:
        seen = seen_sensors(data, share)
        rows_seen = np.ones(graph.nodes, dtype=bool) if seen is None else seen.numpy()
        inside = rows_seen[graph.senders] & rows_seen[graph.receivers] & (graph.senders != graph.receivers)
        rows.append({"share": share, "sensors": int(rows_seen.sum()), "edges": int(inside.sum())})
    columns = [
        Column("share", "share", 0, True),
        Column("sensors", "sensors seen"),
        Column("edges", "edges seen"),
    ]
    between = int((graph.senders != graph.receivers).sum())
    note = f"The network has {graph.nodes} sensors and {between} edges between them."
    table = Table("subgraphs", f"Visible subgraphs of {data.name}", columns, rows, (note,))
    drawn = partial(figures.subgraphs, data, shares, f"Visible subgraphs, {data.name}")
    return Outcome([table], {"subgraphs": drawn})


# ---------------------------------------------------------------------------------------------------------


def _result(line: Line, **more: Any) -> dict[str, Any]:
    return line.with_cells(rmse=line.mean("rmse"), mae=line.mean("mae"), **more)


def change(line: Line, shipped: Line, figure: str) -> Mean | None:
    """The relative change of an error from the method as shipped, over the same seeds."""
    ours, theirs = line.by_seed(figure), shipped.by_seed(figure)
    # Undefined for an error of 0.
    changes = [ours[seed] / theirs[seed] - 1 for seed in ours if theirs.get(seed)]
    return Mean.of(changes) if changes else None


def _published(study: Study) -> list[Column]:
    return [Column("published", f"RMSE {study.published()}")] if study.network else []


def _masked(study: Study, what: Sequence[Column], lines: Sequence[Line]) -> Table:
    """Masked errors of these lines, below those of the baselines."""
    title = f"Test errors on {study.data.name}, masked"
    return masked_table(f"{study.name}-masked", title, [*study.baselines, *lines], study.data, what)


def _intervals(study: Study, what: Sequence[Column]) -> list[Table]:
    return interval_tables(study.name, study.data, study.lines, what)


def _gib(line: Line) -> Mean | None:
    """Bytes until the best round, counted as in the paper; None for methods that pool readings."""
    if not line.runs or not method_of(line.cells["method"]).federated:
        return None
    return Mean.of([run.progress.best.training_bytes.per_node / GIB for run in line.runs])


def _kind_of_errors(study: Study) -> str:
    """The kind of errors by which rounds were compared."""
    kinds = {run.config.data.missing for row in study.rows for run in row.runs}
    return "masked" if kinds == {"masked"} else "unmasked"


def _curve(run: Run, kind: str) -> list[float]:
    """Validation RMSE by round, of the kind by which rounds were compared."""
    rounds = [done.validation for done in run.progress.history]
    return [errors.masked_rmse if kind == "masked" else errors.rmse for errors in rounds]


def _points(
    lines: Sequence[Line], label: Callable[[Line], str], group: Callable[[Line], str]
) -> list[figures.Point]:
    points = []
    for line in lines:
        rmse, moved = line.mean("rmse"), _gib(line)
        if rmse is not None and moved is not None:
            points.append(figures.Point(label(line), group(line), moved.mean * GIB, rmse.mean, rmse.spread))
    return points
