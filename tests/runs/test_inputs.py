"""Runs with other variables and covariates: they are used, saved, asked for again, and blurred or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import cnfgnn
from cnfgnn.algorithm.methods import METHODS
from cnfgnn.attack.observe import check_attackable
from cnfgnn.cli.main import app
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.inputs import Input
from cnfgnn.data.readings import Readings
from cnfgnn.errors import ConfigError, DataError, RunError
from cnfgnn.runs.evaluate import evaluate_run
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run, unknown_ahead
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, train_run
from cnfgnn.runs.training_loop import Progress, evaluate_best, train
from tests.conftest import network, small
from tests.privacy.two_truths import with_inputs

PLUS = ("cnfgnn-plus", "mlp-fedavg", "mlp-central")


@pytest.fixture(scope="module")
def data() -> Dataset:
    plain = network(n=4, rows=150, seconds=3600)
    return replace(plain, readings=with_inputs(plain.readings))


def without(data: Dataset, *names: str) -> Dataset:
    kept = tuple(one for one in data.readings.others if one.name not in names)
    return replace(data, readings=replace(data.readings, others=kept))


def trained(data: Dataset, folder: Path, method: str = "cnfgnn-plus", **changes: object) -> Run:
    run = Run.create(folder, small(method, **changes), data)
    train_run(run, data, Unwatched())
    return Run.open(folder)


# ---- what a forecast uses -------------------------------------------------------------------------------


def driven(rows: int = 300) -> Dataset:
    """Readings that jump by what a covariate said an hour before, and by what a variable does at the time."""
    rng, plain = np.random.default_rng(0), network(n=3, rows=rows, dropout=0.0, seconds=3600)
    readings = plain.readings
    ahead = rng.choice([0.0, 1.0], (rows, 1))
    lead = rng.normal(0, 1, (rows, 3))
    values = 20 * ahead + 5 * np.roll(lead, 1, axis=0) + rng.normal(0, 0.5, (rows, 3))

    def made(values: np.ndarray, ids: tuple[str, ...]) -> Readings:
        return Readings(readings.times, ids, values.astype(np.float32), np.isnan(values))

    others = (
        Input("lead", False, made(lead, readings.ids)),
        Input("switch", True, made(ahead, ("switch",)), for_all=True),
    )
    values32 = values.astype(np.float32)
    return replace(
        plain, readings=replace(readings, values=values32, missing=np.isnan(values32), others=others)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", PLUS)
def test_a_forecast_learns_from_the_past_of_a_variable_and_from_a_covariate_ahead(name: str) -> None:
    data = driven()
    config = small(name, **{"data.history": 3, "data.horizon": 1, "training.rounds": 15, "model.hidden": 16})
    config = config.with_changes({"training.client_lr": 0.03, "training.sampling": 0.0})

    def rmse(data: Dataset) -> float:
        experiment = simulate(data, config)
        return evaluate_best(experiment, train(experiment, Progress())).test.overall.masked_rmse

    neither = rmse(without(data, "lead", "switch"))
    assert neither > 9  # nothing else tells what comes next
    assert rmse(data) < 2.5


@pytest.mark.parametrize("method", [pytest.param(PLUS[0], marks=pytest.mark.slow), *PLUS[1:]])
def test_the_result_does_not_depend_on_groups_and_a_resumed_run_goes_on_bit_for_bit(
    data: Dataset, tmp_path: Path, method: str
) -> None:
    config = small(method)
    experiment = simulate(data, config)
    one = evaluate_best(experiment, train(experiment, Progress()))
    if METHODS[method].federated:
        experiment = simulate(data, config, [[2, 0], [1], [3]])
        other = evaluate_best(experiment, train(experiment, Progress()))
        torch.testing.assert_close(other.test.sums, one.test.sums, rtol=1e-9, atol=1e-9)
    run = trained(data, tmp_path / "whole", method)
    cut = Run.create(tmp_path / "cut", config, data)

    class Stops(Unwatched):
        def round_done(self, *args: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(cut, data, Stops())
    train_run(Run.open(cut.folder), data, Unwatched())
    assert Run.open(cut.folder).test()["overall"] == run.test()["overall"]


def test_some_of_the_nodes_have_the_same_inputs_as_among_all(data: Dataset) -> None:
    """Nodes are computed in groups where memory is short."""
    prepared = simulate(data, small("cnfgnn-plus")).owners[0][1].data
    whole = prepared.batch("train", slice(0, 5))
    part = prepared.of_nodes(slice(1, 3)).batch("train", slice(0, 5))
    assert whole.others is not None
    assert part.others is not None
    assert torch.equal(part.others, whole.others[1:3])
    assert part.linear_change is not None
    assert whole.linear_change is not None
    torch.testing.assert_close(part.linear_change, whole.linear_change[1:3])


@pytest.mark.slow
@pytest.mark.parametrize("method", PLUS)
def test_a_trained_run_is_evaluated_and_used_on_other_data_with_the_scales_it_was_trained_with(
    data: Dataset, tmp_path: Path, method: str
) -> None:
    run = trained(data, tmp_path / "run", method)
    assert evaluate_run(run, data).overall.masked_rmse == pytest.approx(run.test()["overall"]["masked_rmse"])
    recent = replace(data, readings=cut_before(data.readings, 120))
    np.testing.assert_allclose(forecast_run(run, recent), forecast_run(run, data), rtol=1e-6)
    with_bounds = forecast_run(run, data, [80])
    np.testing.assert_array_equal(with_bounds[list(data.readings.ids)], forecast_run(run, data))
    assert (with_bounds["s1 low 80"] < with_bounds["s1 high 80"]).all()
    new = data.select(["s1", "s3"])
    assert forecast_run(run, new).shape == (run.config.data.horizon, 2)
    assert np.isfinite(forecast_run(run, new).to_numpy()).all()


def cut_before(readings: Readings, row: int) -> Readings:
    """The readings and inputs from a row on; without the earlier ones their scales would be others."""

    def cut(readings: Readings) -> Readings:
        kept = slice(int(np.searchsorted(readings.times, since, side="right")) - 1, None)
        return replace(
            readings,
            times=readings.times[kept],
            values=readings.values[kept],
            missing=readings.missing[kept],
        )

    since = readings.times[row]
    return replace(cut(readings), others=tuple(replace(o, readings=cut(o.readings)) for o in readings.others))


def test_a_covariate_that_ends_is_used_with_its_last_value_and_that_is_said_once(
    data: Dataset, tmp_path: Path
) -> None:
    run = trained(data, tmp_path / "run", "mlp-fedavg")
    end = data.readings.times[-1]

    def ending(one: Input) -> Input:
        kept = one.readings.times <= end
        r = one.readings
        return replace(
            one, readings=replace(r, times=r.times[kept], values=r.values[kept], missing=r.missing[kept])
        )

    ends = replace(data, readings=replace(data.readings, others=tuple(map(ending, data.readings.others))))
    assert np.isfinite(forecast_run(run, ends).to_numpy()).all()
    assert not np.allclose(forecast_run(run, ends), forecast_run(run, data))  # rain ahead does matter
    [said] = [sentence for sentence in unknown_ahead(run, ends) if "rain" in sentence]
    until = str(end + 1800).replace("T", " ")
    assert said == f"covariate rain is not known from {until} on, so its last value is used"


def test_inputs_that_a_run_needs_are_asked_for_and_others_are_left_out(data: Dataset, tmp_path: Path) -> None:
    run = trained(without(data, "holiday"), tmp_path / "run")
    np.testing.assert_array_equal(forecast_run(run, data), forecast_run(run, without(data, "holiday")))
    with pytest.raises(DataError, match=r"has no variable 'flow', which .*run was trained with"):
        evaluate_run(run, without(data, "flow"))
    with pytest.raises(DataError, match="its readings or graph are not those"):
        run.check_same_data(data)
    with pytest.raises(
        RunError, match=r"was trained with further inputs \(variables: flow; covariates: rain"
    ):
        check_attackable(run)


def test_the_methods_of_the_paper_ignore_inputs(data: Dataset) -> None:
    plain, config = without(data, "flow", "holiday", "rain"), small("gru-fedavg", **{"privacy.blur": 1.0})
    sums = []
    for one in (plain, data):
        experiment = simulate(one, config)
        sums.append(evaluate_best(experiment, train(experiment, Progress())).test.sums)
    assert torch.equal(*sums)


# ---- privacy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (
            "",
            "the readings are blurred, and nothing is said about 'flow': set flow=5, if that is the noise",
        ),
        ("flow=3, rain=public", "nothing is said about 'holiday'"),
        (
            "flow=3, rain=1, holiday=public, wind=2",
            r"there is no variable or covariate 'wind' \(valid: flow, holiday",
        ),
        (
            "flow=some",
            ": flow: must be the noise in its own unit, such as 5, or \"public\", not 'some'",
        ),
        ("flow=0", "not 0.0"),
        ("flow", "'flow' is not like flow=200 or holiday=public"),
    ],
)
def test_an_input_that_nothing_is_said_about_is_refused_where_readings_are_blurred(
    data: Dataset, inputs: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=f"^privacy.inputs.*{says}"):
        simulate(data, small("cnfgnn-private", **{"privacy.inputs": inputs}))


def test_each_input_is_blurred_in_its_own_unit_and_public_ones_are_not(data: Dataset) -> None:
    config = small("cnfgnn-private", **{"privacy.inputs": "flow=70, rain=0.25, holiday=public"})
    ((_, owner),) = simulate(data, config).owners
    pairs = list(zip(owner.truth.others, owner.nodes.series.others, strict=True))
    noise = {true.name: np.nanstd(copy.values - true.values) for true, copy in pairs}
    assert noise["flow"] == pytest.approx(70, rel=0.1)
    assert noise["rain"] == pytest.approx(0.25, rel=0.2)
    assert noise["holiday"] == 0
    scales = [owner.data.others.scales, owner.nodes.data.others.scales]  # type: ignore[union-attr]
    assert np.array_equal(*scales)  # owners scale true values as their nodes scale the copy


def test_an_input_may_be_blurred_where_readings_are_not(data: Dataset) -> None:
    ((_, owner),) = simulate(data, small("cnfgnn-plus", **{"privacy.inputs": "flow=70"})).owners
    assert np.array_equal(owner.truth.values, owner.nodes.series.values, equal_nan=True)
    assert not np.array_equal(
        owner.truth.others[0].values, owner.nodes.series.others[0].values, equal_nan=True
    )


# ---- commands -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_commands_take_a_folder_with_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    assert (
        run(app, ["data", "synthesize", "city", "--sensors", "4", "--days", "1", "--inputs"]).exit_code == 0
    )
    described = run(app, ["data", "describe", "city", "--json"]).output
    assert '"variables": ["flow (4 of 4 sensors, 2024-01-01T00:00:00 to' in described
    assert '"covariates": ["rain (all sensors, 2024-01-01T00:00:00 to 2024-01-02T23:00:00)"]' in described
    quick = ["--set", "training.rounds=1", "--out"]
    made = run(app, ["train", "city", "--method", "cnfgnn-plus", *quick, "run"])
    assert made.exit_code == 0, made.output
    assert "variables: flow; covariates: rain" in made.output
    assert run(app, ["evaluate", "run"]).exit_code == 0
    forecast = run(app, ["forecast", "run"])
    assert forecast.exit_code == 0
    assert "note:" not in forecast.output
    rain = (tmp_path / "city" / "covariates" / "rain.csv").read_text().splitlines()
    (tmp_path / "city" / "covariates" / "rain.csv").write_text("\n".join(rain[:25]))
    said = run(app, ["forecast", "run"]).output
    assert "note: covariate rain is not known from 2024-01-02 00:00:00 on, so its last value is used" in said
    ignored = run(app, ["train", "city", "--method", "gru-fedavg", *quick, "gru"])
    assert (
        "gru-fedavg forecasts from the readings alone and ignores variables: flow; covariates: rain"
        in ignored.output
    )
    refused = run(app, ["train", "city", "--method", "cnfgnn-private", "--set", "privacy.blur=5"])
    assert "privacy.inputs: the readings are blurred, and nothing is said about 'flow'" in str(
        refused.exception
    )


def test_the_python_interface_takes_the_target_and_warns_of_covariates_that_end(
    data: Dataset, tmp_path: Path
) -> None:
    write_folder(data, tmp_path)
    loaded = cnfgnn.load(tmp_path, target="flow")
    assert {one.name for one in loaded.readings.others} == {"readings", "rain", "holiday"}
    config = small("mlp-fedavg", **{"training.rounds": 1})
    loaded = cnfgnn.load(tmp_path, inputs="flow,rain")
    cnfgnn.fit(loaded, config, out=tmp_path / "run")
    with pytest.warns(UserWarning, match="covariate rain is not known from"):
        cnfgnn.forecast(tmp_path / "run", loaded)
