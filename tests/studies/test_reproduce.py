"""Every table of the paper comes out of one command, with numbers that are those of its runs."""

from __future__ import annotations

import csv
import json
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cnfgnn.algorithm.methods import LIKES
from cnfgnn.cli.studies import TABLES
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.source import open_data
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.runs.baselines import all_baselines
from cnfgnn.runs.folder import Run
from cnfgnn.studies.execute import finished_rows
from cnfgnn.studies.experiments import experiment_file
from cnfgnn.studies.lines import Study
from cnfgnn.studies.paper import forecasting, inductive
from cnfgnn.studies.plan import Plan
from cnfgnn.studies.published import INDUCTIVE_RMSE, TEST_RMSE
from cnfgnn.studies.reproduce import NAMES, WITH_TRAINING, Request, reproduce
from tests.commands import Unobserved
from tests.shared_folders import made_once

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "city.sensors": 6,
    "city.days": 2.0,
    "data.history": 4,
    "data.horizon": 4,
    "model.hidden": 4,
    "model.gn_widths": [8, 8],
    "training.rounds": 2,
    "training.client_batch": 128,
    "training.server_batch": 128,
    "training.client_rounds": 1,
}
SIMPLE = ["last value", "yesterday", "daily average", "ridge"]  # two days are too few for last week's
OBSERVER = Unobserved()


def made(name: str, out: Path, **more: Any) -> dict[str, Any]:
    """The JSON that a command wrote."""
    reproduce(name, Request(out=out, changes=SMALL, **more), OBSERVER)
    content: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    return content


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tables on a tiny city, in one folder: they share their runs."""

    def fill(folder: Path) -> None:
        for name in NAMES:
            make(name, folder)

    return made_once(tmp_path_factory, "reproduced", fill)


def make(name: str, out: Path) -> None:
    changes = SMALL | ({"training.server_rounds": 1} if name == "inductive" else {})
    if name == "rounds":  # it varies them itself
        del changes["training.client_rounds"]
        changes |= {"training.rounds": 1, "training.client_batch": 256, "training.server_batch": 256}
        out = out / "rounds"  # other batches: other runs
    if name == "beyond":  # its method is not of the sizes that the others share
        changes |= {"training.rounds": 1}
        out = out / "beyond"
    # The whole table, with its attacks, is in test_privacy.py.
    only: dict[str, Any] = {"methods": ["mlp-fedavg"], "blurs": [3.0]} if name == "privacy" else {}
    seeds = 2 if name == "strategies" else 1
    reproduce(name, Request(out=out, changes=changes, seeds=seeds, **only), OBSERVER)


def test_the_command_line_names_every_table() -> None:
    assert set(re.findall(r"[a-z]+", TABLES)) - {"or"} == set(NAMES)


def place(name: str, everything: Path) -> Path:
    return everything / name if name in ("rounds", "beyond") else everything


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_written_in_every_form(name: str, everything: Path) -> None:
    everything = place(name, everything)
    tables = json.loads((everything / f"{name}.json").read_text())
    assert tables
    text = (everything / f"{name}.md").read_text()
    for key, table in tables.items():
        assert table["title"] in text
        with (everything / f"{key}.csv").open() as file:
            assert len(list(csv.reader(file))) == 1 + len(table["rows"])
    page = (everything / f"{name}.html").read_text()
    assert page.startswith("<!doctype html>")
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        ElementTree.parse(everything / picture)
        assert (everything / picture).with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in page
    assert not list(everything.glob("*.part*"))


@pytest.mark.parametrize("name", [name for name in WITH_TRAINING if name not in ("cost", "beyond")])
def test_floors_stand_in_every_table_and_masked_figures_in_a_table_of_their_own(
    name: str, everything: Path
) -> None:
    tables = json.loads((place(name, everything) / f"{name}.json").read_text())
    with_intervals = [f"{name}-intervals"] if name in ("forecasting", "strategies", "privacy") else []
    assert list(tables) == [name, f"{name}-masked", *with_intervals]
    config = Plan.read(experiment_file("forecasting")).with_changes(SMALL).cases()[0].config
    data = open_data(config)
    simple = all_baselines(data, config.data)
    assert {"last value", "yesterday", "daily average", "ridge"} <= simple.keys()
    for kind, figure in ((name, "rmse"), (f"{name}-masked", "masked_rmse")):
        rows = tables[kind]["rows"][: len(simple)]
        assert [row["method"] for row in rows] == list(simple)
        shown = [row[figure]["mean"] for row in rows]
        assert shown == pytest.approx([getattr(scores.overall, figure) for scores in simple.values()])


def test_numbers_are_those_of_the_runs_with_mean_and_spread_over_seeds(everything: Path) -> None:
    rows = json.loads((everything / "strategies.json").read_text())["strategies"]["rows"]
    row = next(row for row in rows if row["method"] == "sl")
    runs = [Run.open(everything / "runs" / f"sl-seed{seed}") for seed in (1, 2)]
    errors = [run.test()["overall"]["rmse"] for run in runs]
    assert row["rmse"]["mean"] == pytest.approx(statistics.fmean(errors))
    assert row["rmse"]["spread"] == pytest.approx(statistics.stdev(errors))
    assert row["rmse"]["seeds"] == 2
    moved = [run.progress.best.training_bytes.per_node / 2**30 for run in runs]
    assert row["gib"]["mean"] == pytest.approx(statistics.fmean(moved))
    assert row["rounds"] == ", ".join(f"{run.progress.best.r_g}/2" for run in runs)
    assert next(row for row in rows if row["method"] == "gru-gn-central")["gib"] is None


def test_tables_share_their_runs(everything: Path) -> None:
    runs = [folder.name for folder in (everything / "runs").iterdir()]
    assert "at-fedavg-seed1" in runs
    assert len([name for name in runs if name.startswith("at-fedavg-seed")]) == 2
    assert "gru-fmtl-fmtl_norm-plain-fmtl_lambda-0.01-seed1" in runs
    assert len(list((everything / "rounds" / "runs").iterdir())) == 9


def test_bytes_are_those_that_the_runs_counted(everything: Path) -> None:
    rows = json.loads((everything / "cost.json").read_text())["cost"]["rows"]
    shown = {row["method"]: row for row in rows if row["size"] in (None, "63k")}
    methods = ["at-fedavg", "at", "sl", "sl-fedavg", "gru-fmtl"]
    assert set(shown) == {*SIMPLE, *methods}
    for method in methods:
        row = shown[method]
        moved = Run.open(everything / "runs" / f"{method}-seed1").progress.best.training_bytes
        assert row["per_node"]["mean"] == pytest.approx(moved.per_node / 2**30)
        assert row["per_site"]["mean"] == pytest.approx(moved.per_site / 2**30)


def test_published_costs_need_no_training(tmp_path: Path) -> None:
    tables = made("cost", tmp_path, quick=True)
    assert list(tables) == ["cost-published", "cost-operations"]
    for row in tables["cost-published"]["rows"]:
        assert row["published"] is None or round(row["gib"], 3) == row["published"]
    assert [round(r["summed"], 3) for r in tables["cost-operations"]["rows"]] == [0.159, 1.821, 0.162]
    assert not (tmp_path / "runs").exists()


def test_a_deviation_is_held_against_its_own_seed(everything: Path) -> None:
    rows = json.loads((everything / "deviations.json").read_text())["deviations"]["rows"]
    ours = {(row["method"], row["label"]): row for row in rows}
    free = ours["at-fedavg", "no scheduled sampling"]
    runs = [Run.open(everything / "runs" / f"at-fedavg{kind}-seed1") for kind in ("", "-sampling-0.0")]
    shipped, changed = (run.test()["overall"]["rmse"] for run in runs)
    assert free["change"]["mean"] == pytest.approx(changed / shipped - 1)
    assert ours["at-fedavg", "as shipped"]["change"] is None


def test_beyond_holds_each_idea_off_and_alone_and_bytes_of_one_node(everything: Path) -> None:
    folder = place("beyond", everything)
    tables = json.loads((folder / "beyond.json").read_text())
    names = ["beyond", "beyond-ablation", "beyond-bytes", "beyond-masked", "beyond-masked-steps"]
    names.append("beyond-intervals")
    assert list(tables) == names
    ours = {row["method"]: row for row in tables["beyond"]["rows"]}
    assert list(ours) == [
        *SIMPLE,
        "at-fedavg",
        "cnfgnn-plus",
        "cnfgnn-plus-central",
        "mlp-fedavg",
        "mlp-central",
    ]
    moved = {
        name: Run.open(folder / "runs" / f"{name}-seed1").progress.best.training_bytes.per_node / 6
        for name in ("at-fedavg", "cnfgnn-plus")
    }
    assert ours["cnfgnn-plus"]["bytes"]["mean"] == pytest.approx(moved["cnfgnn-plus"] / 1e6)
    assert ours["cnfgnn-plus"]["share"] == pytest.approx(moved["cnfgnn-plus"] / moved["at-fedavg"])
    assert ours["mlp-central"]["bytes"] is None
    ablation = tables["beyond-ablation"]["rows"]
    assert [row["group"] for row in ablation] == [""] + ["off"] * 9 + ["alone"] * 7
    week = next(row for row in ablation if row["label"] == "without the weekly profile")
    runs = [Run.open(folder / "runs" / f"cnfgnn-plus{kind}-seed1") for kind in ("", "-profile-False")]
    shipped, without = (run.test()["overall"]["rmse"] for run in runs)
    assert week["change"]["mean"] == pytest.approx(without / shipped - 1)
    wires = {row["label"]: row["bytes"]["mean"] for row in tables["beyond-bytes"]["rows"]}
    assert wires["four bytes a number"] > wires["two bytes a number"] > wires["as shipped"]
    masked = tables["beyond-masked"]["rows"]
    assert [row["method"] for row in masked] == list(ours)[-4:]
    test = Run.open(folder / "runs" / "cnfgnn-plus-missing-masked-loss-absolute-seed1").test()
    assert masked[0]["median"] == pytest.approx(test["overall"]["masked_mae"])


def test_shares_of_a_single_sensor_are_left_out(everything: Path) -> None:
    rows = json.loads((everything / "inductive.json").read_text())["inductive"]["rows"]
    shares = [row["training.seen"] for row in rows if row["method"] == "at-fedavg"]
    assert shares == [0.5, 0.75, 0.9]  # 5 and 25 % of six sensors are less than two
    test = Run.open(everything / "runs" / "at-fedavg-seen-0.5-seed1").test()
    row = next(r for r in rows if r["method"] == "at-fedavg" and r["training.seen"] == 0.5)
    figures = [row[kind]["mean"] for kind in ("rmse", "seen", "unseen")]
    assert figures == pytest.approx([test[of]["rmse"] for of in ("overall", "seen", "unseen")])


@pytest.mark.parametrize("like", LIKES)
def test_published_figures_stand_beside_their_own_line_and_say_whose_they_are(
    like: Any, everything: Path
) -> None:
    config = Plan.read(experiment_file("forecasting")).with_changes(SMALL).cases()[0].config
    data = replace(open_data(config), name=f"{like}-6")
    for name, build in (("forecasting", forecasting), ("inductive", inductive)):
        plan = replace(Plan.read(experiment_file(name)), like="metr-la").with_changes(SMALL)
        if name == "inductive":
            plan = replace(plan, changes=plan.changes | {"grid.training.seen": [0.5, 0.9]})
            plan = plan.with_changes({"training.server_rounds": 1})
        table = build(Study(name, data, like, finished_rows(plan, data, everything / "runs"), [])).tables[0]
        heading = next(c.label for c in table.columns if c.key == "published")
        assert heading == f"RMSE published, all {325 if like == 'pems-bay' else 207} sensors"
        assert any("A part of" in note for note in table.notes)
        for row in table.rows:
            if name == "forecasting":
                assert row["published"] == TEST_RMSE[like][row["method"], row["size"] or "63k"]
            else:
                published = INDUCTIVE_RMSE[like].get(row["method"])  # nothing of what is ours
                column = {0.5: 2, 0.9: 4}[row["training.seen"]]
                assert row["published"] == (published[column] if published else None)


def test_nothing_is_published_for_other_data(everything: Path) -> None:
    tables = json.loads((everything / "forecasting.json").read_text())
    assert "published" not in tables["forecasting"]["columns"]
    assert not any("A part of" in note for note in tables["forecasting"]["notes"])


def test_a_table_that_does_not_exist_and_data_without_positions_are_refused(
    tmp_path: Path, data: Dataset
) -> None:
    with pytest.raises(ConfigError, match="forecasting"):
        reproduce("forecast", Request(out=tmp_path), OBSERVER)
    folder = tmp_path / "own"
    folder.mkdir()
    times = [f"2024-01-0{1 + k // 24} {k % 24:02d}:00" for k in range(96)]
    lines = ["time,a,b,c", *(f"{time},{k % 7},{k % 5},{k % 3}" for k, time in enumerate(times))]
    (folder / "readings.csv").write_text("\n".join(lines) + "\n")
    (folder / "edges.csv").write_text("from,to,weight\na,b,1\nb,c,1\n")
    with pytest.raises(DataError, match="positions"):
        reproduce("subgraphs", Request(data=folder, out=tmp_path / "out"), OBSERVER)
    assert not (tmp_path / "out").exists()
