"""Beyond the paper: errors and bytes of cnfgnn-plus, its ideas one by one, and error by bytes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from cnfgnn.algorithm.methods import method_of
from cnfgnn.runs.folder import Run
from cnfgnn.studies import error_by_bytes
from cnfgnn.studies.lines import (
    Line,
    Study,
    bytes_per_node,
    interval_tables,
    masked_table,
    median,
    with_settings,
)
from cnfgnn.studies.paper import Outcome, change
from cnfgnn.studies.tables import Column, Mean, Table

BASE, OURS = "at-fedavg", "cnfgnn-plus"
MB = 1e6
SHIPPED = "as shipped"
OF_BYTES = (
    "MB are millions of bytes that one node sent and received in training until the best round;"
    f" percentages are relative to the median of {BASE} on the same data."
)
METHOD, LABEL = Column("method", "method"), Column("label", "changed")
RESULT = (
    Column("bytes", "MB per node until the best round", 1),
    Column("share", f"relative to {BASE}", 1, True),
    Column("rounds", "best round / rounds"),
    Column("minutes", "minutes per run", 1),
)


def beyond(study: Study) -> Outcome:
    """The methods, each idea off and alone, and fewer bytes; masked and unmasked runs in separate tables."""
    unmasked = [line for line in study.lines if not _masked(line)]
    methods = [line for line in unmasked if not line.cells["group"]]
    tables = [_results(study, methods)]
    ablated = [line for line in unmasked if line.cells["group"] in ("off", "alone")]
    if ablated:
        tables.append(_ablation(study, ablated, methods))
    narrow = [line for line in unmasked if line.cells["group"] == "bytes"]
    if narrow:
        tables.append(_bytes(study, narrow, methods))
    masked = [line for line in study.lines if _masked(line)]
    if masked:
        tables.append(_masked_results(study, masked))
        title = f"Masked errors on {study.data.name}, trained on the absolute error of observed readings"
        tables.append(masked_table("beyond-masked-steps", title, masked, study.data, [METHOD]))
    of_methods = [line for line in study.lines if not line.cells["group"]]
    what = [METHOD, Column("data.missing", "missing readings")]
    described = [with_settings(line, "data.missing") for line in of_methods]
    tables += interval_tables("beyond", study.data, described, what)
    curves = {}
    for line in (*methods, *narrow):
        if line.runs and method_of(line.cells["method"]).federated:
            curves[line.cells["label"] or line.cells["method"]] = [_curve(run) for run in line.runs]
    drawn = partial(error_by_bytes.error_by_bytes, curves, f"Validation error by bytes, {study.data.name}")
    return Outcome(tables, {"bytes": drawn} if curves else {})


def _results(study: Study, lines: Sequence[Line]) -> Table:
    """The methods and the baselines."""
    rows = [line.with_cells(median=median(line, "rmse"), mae=line.mean("mae")) for line in study.baselines]
    rows += [
        line.with_cells(
            median=median(line, "rmse"),
            rmse=line.mean("rmse"),
            mae=line.mean("mae"),
            validation=_validation(line),
            **_cost(line, lines),
        )
        for line in lines
    ]
    columns = [METHOD, Column("median", "RMSE, median"), Column("rmse", "RMSE"), Column("mae", "MAE")]
    columns += [Column("validation", "validation RMSE"), *RESULT]
    title = f"Beyond the paper on {study.data.name}, unmasked"
    return Table("beyond", title, columns, rows, (*study.notes(), OF_BYTES))


def _ablation(study: Study, lines: Sequence[Line], methods: Sequence[Line]) -> Table:
    """Each idea switched off, and each alone with all others switched off."""
    columns = [Column("group", "ideas"), LABEL, Column("rmse", "RMSE")]
    columns += [Column("change", "change of RMSE", 1, True), Column("mae", "MAE")]
    columns += [Column("validation", "validation RMSE"), *RESULT]
    notes = ("Changes compare runs of the same seed with the method as shipped.",)
    title = f"Each idea off and alone, {OURS} on {study.data.name}, unmasked"
    return Table("beyond-ablation", title, columns, _rows(lines, methods), (*study.notes(), *notes))


def _bytes(study: Study, lines: Sequence[Line], methods: Sequence[Line]) -> Table:
    """The same method with more or fewer bytes per round."""
    columns = [LABEL, Column("rmse", "RMSE"), Column("change", "change of RMSE", 1, True)]
    columns += [Column("validation", "validation RMSE"), *RESULT]
    title = f"More and fewer bytes, {OURS} on {study.data.name}, unmasked"
    return Table("beyond-bytes", title, columns, _rows(lines, methods), (*study.notes(), OF_BYTES))


def _masked_results(study: Study, lines: Sequence[Line]) -> Table:
    rows = [
        line.with_cells(
            median=median(line, "masked_mae"),
            mae=line.mean("masked_mae"),
            rmse=line.mean("masked_rmse"),
            **_cost(line, []),
        )
        for line in lines
    ]
    columns = [METHOD, Column("median", "MAE, median"), Column("mae", "MAE"), Column("rmse", "RMSE")]
    columns += [RESULT[0], *RESULT[2:]]
    notes = (
        "Trained on the absolute error of observed readings, and evaluated on the windows in which a sensor"
        " measured anything: do not compare these errors with the unmasked table.",
    )
    title = f"Beyond the paper on {study.data.name}, masked"
    return Table("beyond-masked", title, columns, rows, (*study.notes(), *notes))


# ---------------------------------------------------------------------------------------------------------


def _rows(lines: Sequence[Line], methods: Sequence[Line]) -> list[dict[str, Any]]:
    """The method as shipped, if it was run, and each line compared with it."""
    shipped = next((line for line in methods if line.cells["method"] == OURS), None)
    rows = [shipped.with_cells(label=SHIPPED, **_figures(shipped, methods))] if shipped else []
    for line in lines:
        changed = change(line, shipped, "rmse") if shipped else None
        rows.append(line.with_cells(change=changed, **_figures(line, methods)))
    return rows


def _figures(line: Line, methods: Sequence[Line]) -> dict[str, Any]:
    errors = {"rmse": line.mean("rmse"), "mae": line.mean("mae"), "validation": _validation(line)}
    return {**errors, **_cost(line, methods)}


def _cost(line: Line, lines: Sequence[Line]) -> dict[str, Any]:
    """Bytes of one node until the best round, and their ratio to the paper's method, by medians."""
    moved = [bytes_per_node(run, run.progress.best.training_bytes.per_node) for run in line.runs]
    if not moved or not method_of(line.cells["method"]).federated:
        return {}
    base = [run for other in lines if other.cells["method"] == BASE for run in other.runs]
    theirs = [bytes_per_node(run, run.progress.best.training_bytes.per_node) for run in base]
    share = statistics.median(moved) / statistics.median(theirs) if theirs else None
    return {"bytes": Mean.of([amount / MB for amount in moved]), "share": share}


def _curve(run: Run) -> error_by_bytes.Curve:
    """Bytes of one node so far and the validation error, round by round."""
    rounds = run.progress.history
    return [(bytes_per_node(run, done.training_bytes.per_node), done.validation.rmse) for done in rounds]


def _validation(line: Line) -> Mean:
    return Mean.of([run.progress.best.validation.rmse for run in line.runs])


def _masked(line: Line) -> bool:
    return bool(line.runs) and line.runs[0].config.data.missing == "masked"
