"""What privacy costs: errors, bytes and what attackers learn, against the blur of the copies."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cnfgnn.algorithm.methods import method_of
from cnfgnn.config.presets import BLUR, PRIVATE
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.quality import mask_codes
from cnfgnn.data.windows import Windows
from cnfgnn.errors import RunError
from cnfgnn.files import write_whole
from cnfgnn.runs.folder import Run
from cnfgnn.studies.error_by_blur import BlurredError, Panel, error_by_blur
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
from cnfgnn.studies.plan import Plan
from cnfgnn.studies.tables import Column, Mean, Table

Attackers = Callable[[Sequence[Run], Dataset], Sequence[Mapping[str, float]]]
"""Attacks finished runs: for each, RMSE of the reconstructed readings for each key of `ATTACKED`."""

PLAIN, NO_GRAPH = "cnfgnn-plus", "mlp-fedavg"
MB = 1e6
BYTES_OF_A_READING, BYTES_OF_A_WEIGHT = 2, 4  # in copies that are sent to a server, and in its answer
WHAT = (Column("method", "method"), Column(BLUR, "blur", 1))
ATTACKED = (
    Column("wire", "attackers' RMSE: strongest, from what was sent", 2),
    Column("copy", "the same attacker, given the copies", 2),
    Column("mean", "a guess: each sensor's mean", 2),
)
ATTACKS_FILE = "attackers.json"  # in the folder of a run that was attacked
LEGEND = {
    PRIVATE: "cnfgnn-private (0: cnfgnn-plus)",
    NO_GRAPH: "mlp-fedavg, without a graph",
    "mlp-central": "mlp-central, on the copies",
    "cnfgnn-plus-central": "cnfgnn-plus-central, on the copies",
}
LEARNED = {"wire": "strongest attack on what was sent", "copy": "the same attacker, given the copies"}


def with_blurs(plan: Plan, blurs: Sequence[float]) -> Plan:
    """The plan with these blurs for every method; cnfgnn-private needs one, and without it is cnfgnn-plus."""
    wanted = list(dict.fromkeys(map(float, blurs)))
    grids = {
        f"grid.{BLUR}": wanted,
        f"only.{PLAIN}.grid.{BLUR}": [blur for blur in wanted if blur == 0],
        f"only.{PRIVATE}.grid.{BLUR}": [blur for blur in wanted if blur != 0],
    }
    return replace(plan, changes=plan.changes | grids)


def privacy(study: Study, attackers: Attackers | None = None) -> Outcome:
    """Every method at every blur, and how well attackers reconstruct the readings; without `attackers`, what
    earlier ones found."""
    curves = _curves(study)
    attacked = _attacked(curves.get(PRIVATE, []), study.data, attackers)
    rows = [line.with_cells(**_errors(line)) for line in study.baselines]
    for lines in curves.values():
        for line in lines:
            unblurred = next((other for other in lines if other.cells[BLUR] == 0), None)
            changed = change(line, unblurred, "rmse") if unblurred and line is not unblurred else None
            learned = attacked.get(line.cells[BLUR], {}) if lines is curves.get(PRIVATE) else {}
            cells = _errors(line) | {"change": changed, "bytes": _megabytes(line, study.data)}
            rows.append(line.with_cells(**cells, **learned))
    columns = [*WHAT, Column("median", "RMSE, median"), Column("rmse", "RMSE")]
    columns += [Column("change", "change of RMSE by the blur", 2, True), Column("masked_mae", "masked MAE")]
    columns.append(Column("bytes", "MB per node", 2))
    columns += [column for column in ATTACKED if any(column.key in row for row in rows)]
    columns += [Column("rounds", "best round / rounds"), Column("minutes", "minutes per run", 1)]
    title = f"Privacy on {study.data.name}: errors by blur, RMSE unmasked"
    table = Table("privacy", title, columns, rows, (*study.notes(), *_notes(attacked)))
    in_order = [*study.baselines, *(line for lines in curves.values() for line in lines)]
    masked_title = f"Test errors by blur on {study.data.name}, masked"
    masked = masked_table("privacy-masked", masked_title, in_order, study.data, WHAT)
    intervals = interval_tables("privacy", study.data, in_order, WHAT)
    return Outcome([table, masked, *intervals], {"privacy": partial(_drawn, study, curves, attacked)})


def copies_bytes(run: Run, data: Dataset) -> float:
    """Bytes of one node whose server trains on the copies: they are sent once, as far as training and
    validation reach, and the trained weights come back."""
    d = run.config.data
    windows = Windows.of(len(data.readings.times), d.history, d.horizon, d.shares, data.readings.source)
    last = int(np.concatenate([windows.starts["train"], windows.starts["validation"]]).max())
    sent = ~mask_codes(data.readings, d).missing[: last + windows.length]
    with run.reading_events():
        weights = int(run.events()[0]["parameters"]["node"])
    readings = int(sent.sum()) / len(data.readings.ids)
    return BYTES_OF_A_READING * readings + BYTES_OF_A_WEIGHT * weights


# ---- lines ----------------------------------------------------------------------------------------------


def _curves(study: Study) -> dict[str, list[Line]]:
    """The lines by method, each by increasing blur; cnfgnn-plus is cnfgnn-private without a blur."""
    curves: dict[str, list[Line]] = {}
    for line in study.lines:
        name = line.cells["method"]
        curves.setdefault(PRIVATE if name == PLAIN else name, []).append(with_settings(line, BLUR))
    return {name: sorted(lines, key=lambda line: line.cells[BLUR]) for name, lines in curves.items()}


def _errors(line: Line) -> dict[str, Any]:
    """Test errors over the true readings, as owners see them."""
    means = {figure: line.mean(figure) for figure in ("rmse", "masked_mae")}
    return {"median": median(line, "rmse"), **means}


def _megabytes(line: Line, data: Dataset) -> Mean:
    moved = []
    for run in line.runs:
        if method_of(run.config.method).federated:
            moved.append(bytes_per_node(run, run.progress.best.training_bytes.per_node) / MB)
        else:
            moved.append(copies_bytes(run, data) / MB)
    return Mean.of(moved)


def _attacked(
    lines: Sequence[Line], data: Dataset, attackers: Attackers | None
) -> dict[float, Mapping[str, float]]:
    """What attackers learn, by blur: they attack the first seed. What earlier attacks on the same round found
    is kept, because attacks take long."""
    runs = {line.cells[BLUR]: line.runs[0] for line in lines if line.runs}
    found = {blur: _found_before(run) for blur, run in runs.items()}
    missing = [blur for blur, known in found.items() if known is None]
    if attackers is not None and missing:
        for blur, errors in zip(missing, attackers([runs[blur] for blur in missing], data), strict=True):
            found[blur] = errors
            content = {"round": runs[blur].progress.best.r_g, "found": dict(errors)}
            write_whole(runs[blur].folder / ATTACKS_FILE, json.dumps(content, indent=1).encode())
    return {blur: errors for blur, errors in found.items() if errors}


def _found_before(run: Run) -> Mapping[str, float] | None:
    """What attackers found in the best round of a run; None if they have not attacked it."""
    path, best = run.folder / ATTACKS_FILE, run.progress.best.r_g
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = {str(key): float(error) for key, error in content["found"].items()}
        return found if content["round"] == best else None
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(path, "cannot be read: remove it, and the run is attacked again") from error


def _notes(attacked: Mapping[float, Mapping[str, float]]) -> list[str]:
    notes = [
        "Blurs are standard deviations in the readings' unit. Errors are those that owners see: of forecasts"
        " from true readings, over true readings. The best round was chosen by the copies. Changes compare"
        " runs of the same method and seed.",
        "MB are millions of bytes that one node sent and received in training until the best round. Where the"
        f" server trains on the copies (central), it is sent them once: {BYTES_OF_A_READING} bytes for each"
        f" observed reading of the training and validation splits, and {BYTES_OF_A_WEIGHT} bytes for each"
        " weight that it sends back.",
    ]
    if attacked:
        notes.append("Attackers' errors are of the first seed, over observed readings.")
    return notes


# ---- figure ---------------------------------------------------------------------------------------------


def _drawn(
    study: Study, curves: Mapping[str, Sequence[Line]], attacked: Mapping[float, Mapping[str, float]]
) -> Figure:
    errors = {}
    for name, lines in curves.items():
        found = [(line.cells[BLUR], line.mean("rmse")) for line in lines]
        moved = statistics.median(_megabytes(line, study.data).mean for line in lines)
        label = f"{LEGEND.get(name, name)}: {moved:.3g} MB"
        errors[label] = [BlurredError(blur, rmse.mean, rmse.spread) for blur, rmse in found if rmse]
    constant = {}
    no_graph = next((line for line in curves.get(NO_GRAPH, []) if line.cells[BLUR] == 0), None)
    if no_graph is not None and (rmse := no_graph.mean("rmse")) is not None:
        constant["mlp-fedavg without a blur"] = rmse.mean
    legend = "with the bytes that one node sends and receives in training:"
    panels = [Panel("test RMSE, unmasked", errors, constant, legend)]
    if attacked:
        panels.append(_attackers_panel(attacked))
    return error_by_blur(panels, f"Error by blur on {study.data.name}", _unit(study))


def _attackers_panel(attacked: Mapping[float, Mapping[str, float]]) -> Panel:
    learned = {
        label: [BlurredError(blur, found[key]) for blur, found in sorted(attacked.items()) if key in found]
        for key, label in LEARNED.items()
    }
    guesses = [found["mean"] for found in attacked.values() if "mean" in found]
    constant = {"a guess: each sensor's mean": statistics.fmean(guesses)} if guesses else {}
    drawn = {label: points for label, points in learned.items() if points}
    return Panel("attackers' RMSE", drawn, constant, copy_itself=True)


def _unit(study: Study) -> str:
    """Of the readings: files do not name it."""
    city = any(run.config.data.path == "city" for row in study.rows for run in row.runs)
    return "mph" if city or study.network else "the readings' unit"
