"""The cost of training: bytes by the paper's formulas and by our ledger, and operations of a node."""

from __future__ import annotations

import statistics
from typing import Any

from cnfgnn.algorithm.messages.cost import GIB, Size, operations, training_bytes
from cnfgnn.algorithm.methods import method_of, preset
from cnfgnn.models.gru import NodeModel
from cnfgnn.runs.folder import Run
from cnfgnn.studies.lines import METHOD, NAMES, Line, Study
from cnfgnn.studies.paper import Outcome
from cnfgnn.studies.published import AT_METR_LA_AS_LISTED, COSTS, GFLOPS_ON_DEVICE, NETWORKS
from cnfgnn.studies.tables import Column, Mean, Table


def cost(study: Study | None) -> Outcome:
    """The published totals recomputed, operations and, with runs, our own bytes until the best round."""
    tables = [recomputed(), operations_of_a_node()]
    return Outcome(tables if study is None else [*tables, counted(study)])


def recomputed() -> Table:
    """The published totals, recomputed from the paper's formulas and sizes."""
    rows: list[dict[str, Any]] = []
    for cost in (*COSTS, AT_METR_LA_AS_LISTED):
        network = NETWORKS[cost.data]
        size = Size(network.nodes, network.edges, cost.parameters, network.train * 64)
        gib = training_bytes(cost.method, size, cost.rounds, cost.server_rounds) / GIB
        rows.append(
            {
                "data": NAMES[cost.data],
                "method": cost.method,
                "parameters": cost.parameters,
                "rounds": cost.rounds,
                "server_rounds": cost.server_rounds,
                "gib": gib,
                "published": cost.gib if cost in COSTS else None,
            }
        )
    columns = [Column("data", "data"), Column("method", "method"), Column("parameters", "parameters")]
    columns += [Column("rounds", "best round"), Column("server_rounds", "R_s")]
    columns += [Column("gib", "GiB by formula"), Column("published", "GiB published")]
    notes = (
        "The paper rounds the sizes of node models to 63,000, 64,000 and 727,000 parameters.",
        "The published total of `at` on METR-LA corresponds to R_s = 20, although the paper lists"
        " R_s = 1, as in the last line.",
    )
    return Table("cost-published", "Published bytes of training, recomputed", columns, rows, notes)


def operations_of_a_node() -> Table:
    """Multiply-adds of one window: on one node, and summed over METR-LA as the paper does."""
    nodes, rows = NETWORKS["metr-la"].nodes, []
    for (method, size), published in GFLOPS_ON_DEVICE.items():
        model = preset(method, size).model
        count = operations(NodeModel(model.hidden, model.layers, model.embedding))
        each = {"method": method, "size": size, "node": count / 1e6}
        rows.append({**each, "summed": nodes * count / 1e9, "published": published})
    columns = [*METHOD, Column("node", "million multiply-adds per window, one node")]
    columns += [Column("summed", f"billion over {nodes} nodes"), Column("published", "published")]
    note = (
        "The paper calls the sum over METR-LA's 207 nodes 'GFLOPS on device'. One node performs a 207th of"
        " it, and a multiply-add is two operations."
    )
    return Table("cost-operations", "Operations to forecast one window", columns, rows, (note,))


def counted(study: Study) -> Table:
    """The bytes of our own runs, by formula and by the ledger."""
    published = {
        (c.method, "727k" if c.parameters == 727_000 else "63k"): c.gib
        for c in COSTS
        if c.data == study.network
    }
    rows = []
    for line in (*study.baselines, *study.lines):
        key = line.cells["method"], line.cells.get("size") or "63k"
        cells: dict[str, Any] = {"rmse": line.mean("rmse"), "published": published.get(key)}
        if line.runs:
            moved = [run.progress.best.training_bytes for run in line.runs]
            cells["best"] = Mean.of([run.progress.best.r_g for run in line.runs])
            cells["per_node"] = Mean.of([b.per_node / GIB for b in moved])
            cells["per_site"] = Mean.of([b.per_site / GIB for b in moved])
        if _has_formula(line):
            cells["formula"] = Mean.of([_by_formula(run, study) / GIB for run in line.runs])
            cells["same"] = _same(line, study)
        rows.append(line.with_cells(**cells))
    columns = [*METHOD, Column("rmse", "RMSE, unmasked"), Column("best", "best round", 1)]
    columns += [Column("formula", "GiB by formula"), Column("per_node", "GiB counted per node")]
    columns += [Column("same", "equal to the byte"), Column("per_site", "GiB counted per site")]
    if study.network:
        columns.append(Column("published", f"GiB {study.published()}"))
    notes = (
        "Per node: a tensor shared by all nodes counts once for each node, as in the paper. Per site: it"
        " counts once for each site, as on the wire; here, one site holds all nodes.",
        "The formula of FMTL assumes peers that send their weights along every edge; our implementation has a"
        " server that sends each node one anchor.",
    )
    title = f"Bytes of training until the best round, {study.data.name}"
    return Table("cost", title, columns, rows, (*study.notes(), *notes))


def _by_formula(run: Run, study: Study) -> int:
    """The paper's formula with the true number of parameters."""
    graph = study.data.graph
    with run.reading_events():
        start = run.events()[0]
        parameters, windows = int(start["parameters"]["node"]), int(start["windows"]["train"])
    edges = int((graph.senders != graph.receivers).sum())
    size = Size(graph.nodes, edges, parameters, windows * run.config.model.hidden)
    return training_bytes(run.config.method, size, run.progress.best.r_g, run.config.training.server_rounds)


def _has_formula(line: Line) -> bool:
    """Whether the paper has a formula for the method."""
    return bool(line.runs) and method_of(line.runs[0].config.method).in_paper


def _same(line: Line, study: Study) -> str | None:
    if not _has_formula(line) or line.cells["method"] == "gru-fmtl":
        return None
    off = [run.progress.best.training_bytes.per_node - _by_formula(run, study) for run in line.runs]
    return "yes" if not any(off) else f"no, off by {statistics.fmean(off):+,.0f}"
