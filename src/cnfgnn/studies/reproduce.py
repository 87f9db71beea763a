"""The paper's tables and figures by one command each: runs, tables, figures and a page in one folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cnfgnn.config.toml import read_changes
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.folder import load
from cnfgnn.data.source import open_data
from cnfgnn.errors import ConfigError
from cnfgnn.files import make_folder, write_whole
from cnfgnn.report.page import Section, page
from cnfgnn.report.views import views
from cnfgnn.runs.events import plain
from cnfgnn.runs.folder import Run
from cnfgnn.studies.beyond import beyond
from cnfgnn.studies.costs import cost
from cnfgnn.studies.execute import Observer, done, perform
from cnfgnn.studies.figures import save, svg
from cnfgnn.studies.lines import Study, floors
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

TRAINED: Mapping[str, Callable[[Study], Outcome]] = {
    "forecasting": forecasting,
    "cost": cost,
    "inductive": inductive,
    "strategies": strategies,
    "rounds": rounds,
    "deviations": deviations,
    "beyond": beyond,
}
DRAWN = ("histograms", "subgraphs")
NAMES = (*TRAINED, *DRAWN)
SHOWN_RUNS = 6  # on the page


@dataclass(frozen=True)
class Wish:
    """What a person asks for beside the name of the table."""

    data: Path | None = None
    out: Path | None = None
    quick: bool = False
    seeds: int | None = None
    like: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    jobs: int = 1
    start: bool = True  # runs that are not there yet; else only what is done is shown


def reproduce(name: str, wish: Wish, observer: Observer) -> tuple[Outcome, Path]:
    """Run what is not done yet, write every file, and return what came out and where it lies."""
    if name not in NAMES:
        raise ConfigError("TABLE", f"there is no table {name!r}", NAMES)
    source = _experiment(name)
    if name in DRAWN:
        outcome, data, runs = _drawn(name, source, wish)
    else:
        outcome, data, runs = _trained(name, source, wish, observer)
    folder = _folder(wish, data)
    _write(name, outcome, folder, runs, data)
    return outcome, folder


def _experiment(name: str) -> Path:
    """The file that says what is run: beside the package, or in the checkout it was installed from."""
    here = Path(__file__).parents[1]
    for folder in (here / "experiments", here.parents[1] / "experiments"):
        if (folder / f"{name}.toml").is_file():
            return folder / f"{name}.toml"
    raise ConfigError("TABLE", f"experiments/{name}.toml is not there: was it installed with the package?")


def _drawn(name: str, source: Path, wish: Wish) -> tuple[Outcome, Dataset | None, list[Run]]:
    """From the data alone."""
    plan = Plan(methods=(("at-fedavg", "63k"),), seeds=(1,), changes={}, source=source)
    data = _data(wish, plan.with_changes(wish.changes))
    settings = read_changes(source)
    if name == "histograms":
        return histograms(data, int(settings["sensors"])), data, []
    return subgraphs(data, [float(share) for share in settings["shares"]]), data, []


def _trained(
    name: str, source: Path, wish: Wish, observer: Observer
) -> tuple[Outcome, Dataset | None, list[Run]]:
    plan = _plan(source, wish)
    if name == "cost" and wish.quick:
        plan.cases()  # refuses settings that do not exist, although nothing is trained with them
        return cost(None), None, []
    data = _data(wish, plan)
    plan = _without_single_sensors(plan, data)
    folder = _folder(wish, data)
    if wish.start:
        rows = perform(plan, data, folder / "runs", observer, wish.jobs)
    else:
        rows = done(plan, data, folder / "runs")
    study = Study(name, data, like_of(data, plan.like), rows, floors(data, plan.cases(data)[0].config.data))
    first = sorted(rows, key=lambda row: row.case.method != "at-fedavg")  # what the paper is about
    return TRAINED[name](study), data, [row.runs[0] for row in first]


def _plan(source: Path, wish: Wish) -> Plan:
    plan = Plan.read(source)
    if wish.quick:
        plan = plan.quick()
    if wish.seeds is not None:
        plan = replace(plan, seeds=tuple(range(1, wish.seeds + 1)))
    if wish.like is not None:
        plan = plan.like_published(wish.like)
    changes = dict(wish.changes)
    if wish.data is not None:
        changes["data.path"] = str(wish.data.absolute())
    return plan.with_changes(changes)


def _data(wish: Wish, plan: Plan) -> Dataset:
    return load(wish.data) if wish.data is not None else open_data(plan.cases()[0].config)


def _folder(wish: Wish, data: Dataset | None) -> Path:
    stem = "paper" if data is None else data.name.replace(" ", "-")
    return wish.out or Path("runs") / "reproduce" / (f"{stem}-quick" if wish.quick else stem)


def _without_single_sensors(plan: Plan, data: Dataset) -> Plan:
    """Leave out shares of so few sensors that there is nothing to learn from a neighbour."""
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
    if len(runs) > SHOWN_RUNS:
        said = f"<p>{SHOWN_RUNS} of {len(runs)}, one seed each; cnfgnn report shows any others.</p>"
        sections.append(Section("Runs", said))
    where = "the paper" if data is None else data.name
    shown = views(runs[:SHOWN_RUNS], data) if runs and data is not None else []
    shown.sort(key=lambda view: view.look is None)  # the page begins with the first one
    write_whole(folder / f"{name}.html", page(f"{name}: {where}", shown, sections).encode())
