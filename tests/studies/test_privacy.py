"""What privacy costs: every method at every blur, with errors over true readings, bytes and attackers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnfgnn.algorithm.methods import preset
from cnfgnn.attack.execute import Effort
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.source import open_data
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.runs.baselines import all_baselines
from cnfgnn.runs.evaluate import evaluate_run
from cnfgnn.runs.folder import Run
from cnfgnn.studies.attackers import attack_runs
from cnfgnn.studies.error_by_blur import BlurredError, Panel, error_by_blur
from cnfgnn.studies.execute import finished_rows
from cnfgnn.studies.experiments import experiment_file
from cnfgnn.studies.lines import Study, baselines
from cnfgnn.studies.plan import Plan
from cnfgnn.studies.privacy import copies_bytes, privacy, with_blurs
from cnfgnn.studies.reproduce import Request, reproduce
from tests.commands import Unobserved
from tests.shared_folders import made_once

SMALL: dict[str, Any] = {
    "city.sensors": 4,
    "city.days": 2.0,
    "model.hidden": 4,
    "model.gn_widths": [8, 8],
    "training.rounds": 1,
}
BLURS = [0.0, 3.0]
EFFORT = Effort(steps=200, iterations=15)
PLAN = with_blurs(Plan.read(experiment_file("privacy")), BLURS).with_changes(SMALL)
PRIVATE_AT_3 = "cnfgnn-private-blur-3.0"
METHODS = ["cnfgnn-private", "mlp-fedavg", "mlp-central", "cnfgnn-plus-central"]


@pytest.fixture(scope="module")
def city() -> Dataset:
    return open_data(PLAN.cases()[0].config)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study with two blurs and one seed, and attackers who do not search for long."""

    def fill(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cnfgnn.studies.reproduce.attack_runs", partial(attack_runs, effort=EFFORT))
            reproduce("privacy", Request(out=folder, seeds=1, changes=SMALL, blurs=BLURS), Unobserved())

    return made_once(tmp_path_factory, "privacy", fill)


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy of the study for a test that changes it."""
    return Path(shutil.copytree(made, tmp_path / "own"))


def study_in(folder: Path, city: Dataset) -> Study:
    plan = replace(PLAN, seeds=(1,))
    rows = finished_rows(plan, city, folder / "runs")
    return Study("privacy", city, "metr-la", rows, baselines(city, plan.cases(city)[0].config.data))


@pytest.fixture
def study(made: Path, city: Dataset) -> Study:
    return study_in(made, city)


def run_of(made: Path, name: str) -> Run:
    return Run.open(made / "runs" / f"{name}-seed1")


# ---- the plan -------------------------------------------------------------------------------------------


def test_the_plan_has_every_method_at_every_blur_and_says_so_itself() -> None:
    plan = Plan.read(experiment_file("privacy"))
    blurs = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0]
    assert with_blurs(plan, [0, 1, 2, 5, 10, 20, 0]) == plan
    at: dict[str, list[float]] = {}
    for case in plan.cases():
        at.setdefault(case.method, []).append(case.config.privacy.blur)
    assert at.pop("cnfgnn-plus") + at["cnfgnn-private"] == blurs
    assert at.pop("cnfgnn-private") == blurs[1:]
    assert at == dict.fromkeys(METHODS[1:], blurs)


@pytest.mark.parametrize("like", ["metr-la", "pems-bay"])
def test_the_model_trained_on_the_copies_is_that_of_the_method_it_is_compared_with(like: Any) -> None:
    plan = Plan.read(experiment_file("privacy")).like_published(like)
    case = next(case for case in plan.cases() if case.name == "cnfgnn-plus-central")
    differing = ["method", "model.sent", "training.average_every", "training.client_batch"]
    changes = {key: case.config.setting(key) for key in differing}
    assert case.config == preset("cnfgnn-plus", like=like).with_changes(changes)
    assert case.config.training.client_batch == case.config.training.server_batch


def test_one_blur_alone_leaves_out_the_methods_that_have_no_line_with_it() -> None:
    plan = Plan.read(experiment_file("privacy"))
    assert "cnfgnn-private" not in {case.method for case in with_blurs(plan, [0.0]).cases()}
    assert "cnfgnn-plus" not in {case.method for case in with_blurs(plan, [0.5]).cases()}


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("beyond", {"blurs": [1.0]}, "beyond has no blurs"),
        ("privacy", {"blurs": [-1.0]}, "privacy.blur"),
        ("privacy", {"blurs": [float("nan")]}, "privacy.blur"),
        ("privacy", {"blurs": [1.0], "methods": ["cnfgnn-plus"]}, "none of these methods"),
        ("privacy", {"changes": {"privacy.blur": 2.0}}, "privacy.toml sets this"),
        ("privacy", {"methods": ["at-fedavg"]}, "no method 'at-fedavg'.*cnfgnn-plus-central"),
        ("histograms", {"methods": ["at-fedavg"]}, "histograms trains no methods"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    name: str, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        reproduce(name, Request(out=tmp_path / "out", **options), Unobserved())
    assert not (tmp_path / "out").exists()


# ---- the table ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_are_those_of_the_runs(made: Path, city: Dataset) -> None:
    rows = json.loads((made / "privacy.json").read_text())["privacy"]["rows"]
    simple = list(all_baselines(city, PLAN.cases(city)[0].config.data))
    assert [row["method"] for row in rows[: len(simple)]] == simple
    rows = rows[len(simple) :]
    shown = [(row["method"], row["privacy.blur"]) for row in rows]
    plain = ("cnfgnn-plus", 0.0), ("cnfgnn-private", 3.0)
    assert shown == [*plain, *((method, blur) for method in METHODS[1:] for blur in BLURS)]
    for row in rows:
        at = "" if row["privacy.blur"] == 0 else "-blur-3.0"
        run = run_of(made, row["method"] + at)
        assert run.config.privacy.blur == row["privacy.blur"]
        test = run.test()["overall"]
        assert (row["rmse"]["mean"], row["median"]) == (test["rmse"], test["rmse"])
        assert row["masked_mae"]["mean"] == test["masked_mae"]
    plus, private = (run_of(made, name).test()["overall"]["rmse"] for name in ("cnfgnn-plus", PRIVATE_AT_3))
    assert rows[0]["change"] is None
    assert rows[1]["change"]["mean"] == pytest.approx(private / plus - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [PRIVATE_AT_3, "cnfgnn-plus-central-blur-3.0"])
def test_errors_are_over_true_readings(name: str, made: Path, city: Dataset) -> None:
    """The same weights on data that are not blurred: nearly the same errors, as the targets are the same.

    Neighbours' copies change the forecasts a little; blurred targets would add the square of the blur.
    """
    run = run_of(made, name)
    blurred = evaluate_run(run, city).overall
    assert blurred.rmse == pytest.approx(run.test()["overall"]["rmse"], rel=1e-5)
    method = run.config.method.replace("private", "plus")
    config = run.config.with_changes({"method": method, "privacy.blur": 0.0})
    plain = evaluate_run(Run(run.folder, config, run.manifest), city).overall
    assert abs(blurred.masked_rmse**2 - plain.masked_rmse**2) < 3.0**2 / 2


@pytest.mark.slow
def test_bytes_are_counted_or_those_of_the_copies(made: Path, city: Dataset) -> None:
    rows = json.loads((made / "privacy.json").read_text())["privacy"]["rows"]
    shown = {(row["method"], row["privacy.blur"]): row["bytes"] for row in rows}
    moved = run_of(made, PRIVATE_AT_3).progress.best.training_bytes.per_node
    assert shown["cnfgnn-private", 3.0]["mean"] == pytest.approx(moved / 4 / 1e6)
    run = run_of(made, "mlp-central")
    weights = run.events()[0]["parameters"]["node"]
    windows = run.events()[0]["windows"]
    rows_used = windows["train"] + windows["validation"] + 23
    observed = np.isfinite(city.readings.values[:rows_used]) & (city.readings.values[:rows_used] != 0)
    assert shown["mlp-central", 0.0]["mean"] == pytest.approx((2 * observed.sum() / 4 + 4 * weights) / 1e6)


@pytest.mark.slow
def test_missing_readings_are_not_sent(made: Path, city: Dataset) -> None:
    run = run_of(made, "mlp-central")
    values, missing = city.readings.values.copy(), city.readings.missing.copy()
    gone = ~missing[:50, 0]
    values[:50, 0], missing[:50, 0] = np.nan, True
    fewer = replace(city, readings=replace(city.readings, values=values, missing=missing))
    assert copies_bytes(run, city) - copies_bytes(run, fewer) == 2 * gone.sum() / 4


@pytest.mark.slow
def test_only_named_methods_are_trained_and_shown(tmp_path: Path, city: Dataset) -> None:
    request = Request(out=tmp_path, seeds=1, changes=SMALL, methods=["mlp-fedavg"], blurs=[3.0])
    outcome, _ = reproduce("privacy", request, Unobserved())
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["mlp-fedavg-blur-3.0-seed1"]
    simple = list(all_baselines(city, PLAN.cases(city)[0].config.data))
    assert [row["method"] for row in outcome.tables[0].rows] == [*simple, "mlp-fedavg"]
    assert (tmp_path / "privacy.svg").exists()


@pytest.mark.slow
def test_without_plotly_the_page_has_tables_and_figures_but_no_charts_of_runs(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plotly", "plotly.offline"):
        monkeypatch.setitem(sys.modules, name, None)
    request = Request(out=own, seeds=1, changes=SMALL, blurs=BLURS, start=False)
    reproduce("privacy", request, Unobserved())
    page = (own / "privacy.html").read_text()
    assert "<svg" in page
    assert "need plotly" in page


# ---- attackers ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_attackers_errors_fill_their_columns_and_a_panel(study: Study) -> None:
    attacked = privacy(study)  # when the runs were trained, they were attacked, too
    table = attacked.tables[0]
    columns = [column.key for column in table.columns if column.key in ("wire", "copy", "mean")]
    assert columns == ["wire", "copy", "mean"]
    learned = {(row["method"], row.get("privacy.blur")): row for row in table.rows}
    plain, private = learned["cnfgnn-plus", 0.0], learned["cnfgnn-private", 3.0]
    assert "copy" not in plain
    assert plain["wire"] < plain["mean"]
    assert private["wire"] < private["mean"]
    assert private["wire"] > 0.9 * private["copy"]
    assert learned["mlp-fedavg", 3.0].get("wire") is None
    _, panel = attacked.figures["privacy"]().axes
    drawn = {str(line.get_label()): line for line in panel.lines}
    curve = drawn["the same attacker, given the copies"]
    assert np.asarray(curve.get_ydata()) == pytest.approx([private["copy"]])
    assert "a guess: each sensor's mean" in drawn


@pytest.mark.slow
def test_a_run_is_attacked_once(own: Path, city: Dataset) -> None:
    study = study_in(own, city)

    def never(runs: Sequence[Run], data: Dataset) -> list[dict[str, float]]:
        raise AssertionError(f"{runs[0].folder} is attacked again")

    table = privacy(study, never).tables[0]
    assert any("wire" in row for row in table.rows)
    damaged = own / "runs" / f"{PRIVATE_AT_3}-seed1" / "attackers.json"
    damaged.write_text(
        damaged.read_text().replace('"round": 1', '"round": 0')
    )  # of a round that is no longer the best
    with pytest.raises(AssertionError, match="attacked again"):
        privacy(study, never)
    assert not any("copy" in row for row in privacy(study).tables[0].rows)
    damaged.write_text("{")
    with pytest.raises(RunError, match="remove it"):
        privacy(study, never)


@pytest.mark.chaos
def test_attacks_in_several_processes_find_the_same(study: Study) -> None:
    runs = [line.runs[0] for line in study.lines if line.cells["method"] in ("cnfgnn-plus", "cnfgnn-private")]
    known = [json.loads((run.folder / "attackers.json").read_text())["found"] for run in runs]
    for found, before in zip(attack_runs(runs, study.data, Unobserved(), 2, EFFORT), known, strict=True):
        assert found == pytest.approx(before, rel=1e-3)


# ---- the figure -----------------------------------------------------------------------------------------


def test_curves_bands_and_lines_are_where_the_errors_are() -> None:
    ours = [BlurredError(0.0, 10.0, 0.1), BlurredError(5.0, 10.2, 0.1), BlurredError(20.0, 10.4, 0.1)]
    theirs = [BlurredError(0.0, 10.1), BlurredError(20.0, 30.0)]
    panel = Panel("error", {"ours": ours, "theirs": theirs}, {"no graph": 10.3})
    (axes,) = error_by_blur([panel], "Title", "mph").axes
    drawn = {str(line.get_label()): line for line in axes.lines}
    assert list(np.asarray(drawn["ours"].get_xdata())) == [0.0, 5.0, 20.0]
    assert list(np.asarray(drawn["ours"].get_ydata())) == [10.0, 10.2, 10.4]
    assert set(np.asarray(drawn["no graph"].get_ydata())) == {10.3}
    assert list(axes.get_xticks()) == [0.0, 5.0, 20.0]
    low, high = axes.get_ylim()
    assert low < 9.9
    assert 10.5 < high < 13  # one curve that rises does not flatten the first
    assert any("30" in text.get_text() for text in axes.texts)


def test_who_takes_the_copy_for_the_reading_errs_by_the_blur() -> None:
    learned = [BlurredError(0.0, 0.1), BlurredError(4.0, 3.0)]
    panels = [Panel("error", {"ours": learned}), Panel("attackers", {"a": learned}, copy_itself=True)]
    figure = error_by_blur(panels, "Title", "mph")
    above, below = figure.axes
    diagonal = next(line for line in below.lines if "copy itself" in str(line.get_label()))
    assert np.asarray(diagonal.get_xdata()) == pytest.approx(np.asarray(diagonal.get_ydata()))
    assert above.lines[0].get_color() != below.lines[0].get_color()
