"""Reproduce a table or figure, of the paper or our own: runs, tables, figures and a page in one folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cnfgnn.config.toml import read_changes
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import load
from cnfgnn.data.source import open_data
from cnfgnn.errors import ConfigError
from cnfgnn.files import make_folder, write_whole
from cnfgnn.report.page import Section, page
from cnfgnn.report.views import views
from cnfgnn.runs.events import plain
from cnfgnn.runs.folder import Run
from cnfgnn.studies.attackers import attack_runs
from cnfgnn.studies.beyond import beyond
from cnfgnn.studies.costs import cost
from cnfgnn.studies.execute import Observer, finished_rows, run_plan
from cnfgnn.studies.experiments import experiment_file
from cnfgnn.studies.figures import save, svg
from cnfgnn.studies.lines import Study, baselines
from cnfgnn.studies.paper import (
    Outcome,
    deviations,
    enough_seen,
    forecasting,
    histograms,
    inductive,
    rounds,
    strategies,
    subgraphs,
)
from cnfgnn.studies.plan import Plan, like_of
from cnfgnn.studies.privacy import privacy, with_blurs

WITH_TRAINING: Mapping[str, Callable[[Study], Outcome]] = {
    "forecasting": forecasting,
    "cost": cost,
    "inductive": inductive,
    "strategies": strategies,
    "rounds": rounds,
    "deviations": deviations,
    "beyond": beyond,
    "privacy": privacy,
}
WITHOUT_TRAINING = ("histograms", "subgraphs")
NAMES = (*WITH_TRAINING, *WITHOUT_TRAINING)
SHOWN_RUNS = 6  # runs on the page


@dataclass(frozen=True)
class Request:
    """The options of `cnfgnn reproduce`.

    start    whether to start runs that are missing; otherwise only finished runs are shown
    methods  those of the plan to train and to show; empty for all
    blurs    of the copies, for the table `privacy`; empty for those of the plan
    """

    data: Path | None = None
    out: Path | None = None
    quick: bool = False
    seeds: int | None = None
    like: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    jobs: int = 1
    start: bool = True
    methods: Sequence[str] = ()
    blurs: Sequence[float] = ()


def reproduce(name: str, request: Request, observer: Observer) -> tuple[Outcome, Path]:
    """Run what is missing, write every file, and return the outcome and its folder."""
    if name not in NAMES:
        raise ConfigError("TABLE", f"there is no table {name!r}", NAMES)
    if request.blurs and name != "privacy":
        raise ConfigError("--blurs", f"{name} has no blurs: only privacy has")
    if request.methods and name in WITHOUT_TRAINING:
        raise ConfigError("--methods", f"{name} trains no methods")
    source = experiment_file(name)
    if name in WITHOUT_TRAINING:
        outcome, data, runs = _from_data(name, source, request)
    else:
        outcome, data, runs = _from_runs(name, source, request, observer)
    folder = _folder(request, data)
    _write(name, outcome, folder, runs, data)
    return outcome, folder


def _from_data(name: str, source: Path, request: Request) -> tuple[Outcome, Dataset | None, list[Run]]:
    """Tables and figures that need no training."""
    plan = Plan(methods=(("at-fedavg", "63k"),), seeds=(1,), changes={}, source=source)
    data = _data(request, plan.with_changes(request.changes))
    settings = read_changes(source)
    if name == "histograms":
        return histograms(data, int(settings["sensors"])), data, []
    return subgraphs(data, [float(share) for share in settings["shares"]]), data, []


def _from_runs(
    name: str, source: Path, request: Request, observer: Observer
) -> tuple[Outcome, Dataset | None, list[Run]]:
    plan = _plan(source, request)
    if name == "cost" and request.quick:
        plan.cases()  # checks the settings, although nothing is trained
        return cost(None), None, []
    data = _data(request, plan)
    plan = _without_single_sensors(plan, data)
    folder = _folder(request, data)
    if request.start:
        rows = run_plan(plan, data, folder / "runs", observer, request.jobs)
    else:
        rows = finished_rows(plan, data, folder / "runs")
    compared = baselines(data, plan.cases(data)[0].config.data)
    study = Study(name, data, like_of(data, plan.like), rows, compared)
    # The method of the paper comes first.
    shown = sorted(rows, key=lambda row: row.case.method != "at-fedavg")
    made = WITH_TRAINING[name]
    if name == "privacy" and request.start:  # otherwise only what earlier attacks found is shown
        made = partial(privacy, attackers=partial(attack_runs, observer=observer, jobs=request.jobs))
    return made(study), data, [row.runs[0] for row in shown]


def _plan(source: Path, request: Request) -> Plan:
    plan = Plan.read(source)
    if request.quick:
        plan = plan.quick()
    if request.seeds is not None:
        plan = replace(plan, seeds=tuple(range(1, request.seeds + 1)))
    if request.like is not None:
        plan = plan.like_published(request.like)
    if request.methods:
        plan = plan.with_methods(request.methods)
    if request.blurs:
        plan = with_blurs(plan, request.blurs)
    if not plan.cases():
        raise ConfigError("--methods", "none of these methods has a line at these blurs")
    changes = dict(request.changes)
    if request.data is not None:
        changes["data.path"] = str(request.data.absolute())
    return plan.with_changes(changes)


def _data(request: Request, plan: Plan) -> Dataset:
    return load(request.data) if request.data is not None else open_data(plan.cases()[0].config)


def _folder(request: Request, data: Dataset | None) -> Path:
    stem = "paper" if data is None else data.name.replace(" ", "-")
    return request.out or Path("runs") / "reproduce" / (f"{stem}-quick" if request.quick else stem)


def _without_single_sensors(plan: Plan, data: Dataset) -> Plan:
    """Leave out shares of sensors that are too small to learn from neighbours."""
    shares = plan.changes.get("grid.training.seen")
    if shares is None:
        return plan
    enough = [share for share in shares if enough_seen(data, share)]
    if not enough:
        raise ConfigError("training.seen", f"{data.name} has too few sensors for inductive training")
    return replace(plan, changes=plan.changes | {"grid.training.seen": enough})


def _write(name: str, outcome: Outcome, folder: Path, runs: Sequence[Run], data: Dataset | None) -> None:
    make_folder(folder)
    for table in outcome.tables:
        write_whole(folder / f"{table.name}.csv", table.csv().encode())
    content = {table.name: table.plain() for table in outcome.tables}
    write_whole(folder / f"{name}.json", json.dumps(plain(content), indent=1, allow_nan=False).encode())
    drawn = {title: draw() for title, draw in outcome.figures.items()}
    stems = {title: name if title == name else f"{name}-{title}" for title in drawn}
    for title, figure in drawn.items():
        save(figure, folder / stems[title])
    pictures = [f"![{stem}]({stem}.svg)\n" for stem in stems.values()]
    text = "\n".join([*(table.markdown() for table in outcome.tables), *pictures])
    write_whole(folder / f"{name}.md", text.encode())
    sections = [Section(table.title, table.html()) for table in outcome.tables]
    if drawn:
        pictures = [f"<figure>{svg(figure)}</figure>" for figure in drawn.values()]
        sections.insert(1, Section("Figures", f'<div class="split even">{"".join(pictures)}</div>'))
    if find_spec("plotly") is None:  # a machine that only trains
        runs = []
        sections.append(Section("Runs", "<p>Their charts need plotly, which is not installed here.</p>"))
    if len(runs) > SHOWN_RUNS:
        text = f"{SHOWN_RUNS} of {len(runs)} runs, one seed each; use cnfgnn report to see the others."
        sections.append(Section("Runs", f"<p>{text}</p>"))
    where = "the paper" if data is None else data.name
    shown = views(runs[:SHOWN_RUNS], data) if runs and data is not None else []
    shown.sort(key=lambda view: view.predictions is None)  # the page opens with the first one
    write_whole(folder / f"{name}.html", page(f"{name}: {where}", shown, sections).encode())
