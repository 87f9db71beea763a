"""The attacks on small runs: how near they come, and that they see nothing but the recording."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cnfgnn.attack.estimates import Estimate
from cnfgnn.attack.execute import ATTACKS, Attacker, Effort, attack_run, judge, true_readings
from cnfgnn.attack.from_levels import training_readings
from cnfgnn.attack.node_forecasts import NodeForecasts
from cnfgnn.attack.observe import observe
from cnfgnn.attack.recording import RECORDING_FILE, Recording
from cnfgnn.attack.replica import Replica
from cnfgnn.attack.smoothing import Colluder
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.privacy.copies import SimulatedCopies
from cnfgnn.runs.evaluate import restore_best
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, train_run
from tests.attack.small_runs import FAMILIES, to_attack
from tests.conftest import small

QUICK = Effort(steps=20, iterations=4)
CPU = torch.device("cpu")


def blinded(data: Dataset, but: int) -> Dataset:
    """The same data with NaN for every reading of all sensors but one."""
    values = np.full_like(data.readings.values, np.nan)
    values[:, but] = data.readings.values[:, but]
    return replace(data, readings=replace(data.readings, values=values))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_series_is_found_from_hidden_states_alone(
    family: str, attacked_runs: dict[str, Path], attacked_city: Dataset
) -> None:
    run = Run.open(attacked_runs[family])
    report = attack_run(run, attacked_city, attacks=["series"], windows=60)
    found, guessed = report.line("whole series at once"), report.line("guess: each sensor's mean")
    assert guessed.all.rmse > 3
    assert found.all.rmse < (0.01 if family == "at-fedavg" else 0.2)  # int8 leaves a little open
    assert found.all.within_1 > 0.99
    assert found.newest.rmse < 0.2
    assert found.newest.readings <= 60 * 3  # three sensors are attacked, the fourth colludes


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [name if name == "cnfgnn-plus" else pytest.param(name, marks=pytest.mark.chaos) for name in FAMILIES],
)
def test_attacks_do_not_depend_on_the_attacked_readings(
    family: str, attacked_runs: dict[str, Path], attacked_city: Dataset, tmp_path: Path
) -> None:
    run = Run.open(attacked_runs[family])
    observed = observe(run, attacked_city, windows=14)
    observed.recording.save(tmp_path / "recording.safetensors")
    possible = {attack for attack in ATTACKS if attack != "levels" or run.config.model.levels}

    def estimates(recording: Recording, data: Dataset) -> dict[str, Estimate]:
        colluder = Colluder(1, true_readings(run, data)[1])
        return Attacker(recording, torch.tensor([0, 2]), colluder, CPU, effort=QUICK).estimates(possible)

    before = estimates(observed.recording, attacked_city)
    loaded = replace(Recording.load(tmp_path / "recording.safetensors"), public=observed.recording.public)
    after = estimates(loaded, blinded(attacked_city, but=1))
    assert before.keys() == after.keys()
    assert possible <= before.keys()
    for name, estimate in before.items():
        assert not estimate.by_window().isnan().any(), name
        assert torch.equal(estimate.by_window(), after[name].by_window()), name


@pytest.mark.slow
def test_a_blur_leaves_the_attacker_no_more_than_the_copy(attacked_city: Dataset, tmp_path: Path) -> None:
    """The series that is found is the copy; smoothed, it is as near to the truth as the smoothed copy."""
    sigma = 5.0
    blurred = replace(attacked_city, readings=SimulatedCopies(1).blur(attacked_city.readings, sigma))
    run = Run.create(tmp_path / "run", to_attack("at-fedavg"), blurred)
    train_run(run, blurred, Unwatched())
    observed = observe(run, blurred, training=False)
    assert observed.recording.public is not None
    public = replace(observed.recording.public, blur=torch.full((4,), sigma))
    recording = replace(observed.recording, public=public)
    truth = true_readings(run, attacked_city)
    colluder = Colluder(3, truth[3])
    attacker = Attacker(
        recording, torch.tensor([0, 1, 2]), colluder, CPU, effort=Effort(steps=20, iterations=30)
    )
    lines = {line.label: line for line in judge(attacker, ["series", "smoother"], truth, observed.copy)}
    found, copy = lines["whole series at once"], lines["the copy itself"]
    assert 4.5 < copy.all.rmse < 5.5
    assert found.all.rmse == pytest.approx(copy.all.rmse, rel=0.01)
    for kind in ("smoother (colluding)", "smoother (known blur)"):
        smooth, of_copy = lines[f"series, {kind}"], lines[f"the copy, {kind}"]
        assert of_copy.all.rmse < 0.8 * copy.all.rmse
        assert smooth.all.rmse == pytest.approx(of_copy.all.rmse, rel=0.02)


@pytest.mark.slow
def test_gradients_and_weights_add_to_what_hidden_states_tell(attacked_city: Dataset, tmp_path: Path) -> None:
    """The same training windows from their hidden states alone, which begin with levels, and with everything.
    In joint split learning nodes change their weights between averagings, and linear forecasters are part of
    their losses: the server allows for both."""
    config = to_attack("cnfgnn-plus")
    run, effort = Run.create(tmp_path / "run", config, attacked_city), Effort(iterations=12)
    train_run(run, attacked_city, Unwatched())
    report = attack_run(run, attacked_city, attacks=["gradients"], sensors=2, windows=24, effort=effort)
    alone, joint = report.line("series of training minibatches"), report.line("with gradients and weights")
    assert alone.split == joint.split == "train"
    assert joint.all.rmse < 0.4 * alone.all.rmse  # half of that is found


@pytest.mark.slow
def test_gradients_of_few_of_the_training_windows_are_attacked_without_levels(
    attacked_city: Dataset, tmp_path: Path
) -> None:
    """Nothing is known of the other training windows: forecasters are fitted to those that are attacked."""
    run = Run.create(tmp_path / "run", to_attack("cnfgnn-plus", **{"model.levels": False}), attacked_city)
    train_run(run, attacked_city, Unwatched())
    report = attack_run(run, attacked_city, attacks=["gradients"], sensors=2, windows=24, effort=QUICK)
    guess = next(line for line in report.lines if line.attack == "guess" and line.split == "train")
    assert report.line("with gradients and weights").all.rmse < 0.5 * guess.all.rmse


def test_levels_alone_give_the_readings_away_even_if_nodes_keep_their_weights(
    attacked_city: Dataset, tmp_path: Path
) -> None:
    config = to_attack("sl", **{"model.levels": True, "training.wire": "int8"})
    run = Run.create(tmp_path / "run", config, attacked_city)
    train_run(run, attacked_city, Unwatched())
    report = attack_run(run, attacked_city, windows=60)
    assert {line.attack for line in report.lines} == {"guess", "levels"}  # nobody knows the weights
    assert report.line("guess: each sensor's mean").all.rmse > 3
    assert report.line("levels alone, no weights").newest.rmse < 0.5
    with pytest.raises(ConfigError, match="series needs weights that all nodes share"):
        attack_run(run, attacked_city, attacks=["series"], windows=60)


@pytest.mark.slow
def test_the_server_fits_the_linear_forecasters_that_nodes_keep(
    attacked_runs: dict[str, Path], attacked_city: Dataset
) -> None:
    """From the levels of the training windows: its forecasts are nearly those of the nodes."""
    run = Run.open(attacked_runs["cnfgnn-plus"])
    recording = observe(run, attacked_city, windows=10).recording
    rows = torch.arange(4)
    found = training_readings(recording, rows, CPU, 20)
    assert found is not None
    true = true_readings(run, attacked_city)
    nodes = restore_best(run, attacked_city).owners[0][1].nodes
    windows = torch.arange(200, 300)
    assert recording.means is not None
    h_G = recording.means[:, windows].float()  # the last numbers of an embedding
    batch = nodes.data.batch("train", windows, h_G)
    assert batch.linear_change is not None
    wanted, replica = batch.linear_change, Replica(recording, rows, CPU)
    # Levels tell nothing of the targets after the last training window, nor of validation windows, by which a
    # node chooses the form of its forecaster. With all readings the forecasts are the same.
    for readings, missed in ((found, 0.3), (true, 1e-4)):
        forecasts = NodeForecasts.fitted(replica, recording, readings)
        made = forecasts.added_to(replace(batch, linear_change=None), windows, h_G).linear_change
        assert made is not None
        assert forecasts.cross_fitted
        assert (made - wanted).square().mean() < missed * wanted.square().mean()


def test_guesses_are_those_of_somebody_who_knows_the_mean(
    attacked_runs: dict[str, Path], attacked_city: Dataset
) -> None:
    run = Run.open(attacked_runs["at-fedavg"])
    report = attack_run(
        run, attacked_city, attacks=["series"], windows=30, colluding="c0000", effort=Effort(iterations=1)
    )
    assert report.colluding == "c0000"
    assert report.sensors == ["c0001", "c0002", "c0003"]
    values = attacked_city.readings.values.astype(np.float64)[:, 1:]
    windows = observe(run, attacked_city, windows=30, training=False).recording.set_up.windows
    rows = windows.starts["test"][:30, None] + np.arange(12)
    inputs = np.unique(windows.starts["train"][:, None] + np.arange(12))
    for label, mean in (
        ("guess: each sensor's mean", np.nanmean(values[inputs], axis=0)),
        ("guess: the mean of all sensors", run.scaler.mean),
    ):
        error = (values - mean)[rows]
        line = report.line(label)
        assert line.all.rmse == pytest.approx(np.sqrt(np.nanmean(error**2)))
        assert line.all.mae == pytest.approx(np.nanmean(np.abs(error)))
        assert line.newest.mae == pytest.approx(np.nanmean(np.abs(error[:, -1])))
        assert line.all.within_3 == pytest.approx(np.mean(np.abs(error[~np.isnan(error)]) < 3))


@pytest.mark.slow
def test_a_recording_in_the_run_folder_is_used(
    attacked_runs: dict[str, Path], attacked_city: Dataset, tmp_path: Path
) -> None:
    config = to_attack("cnfgnn-plus", **{"training.rounds": 1})
    run = Run.create(tmp_path / "server", config, attacked_city)
    train_run(run, attacked_city, Unwatched())
    recording = observe(run, attacked_city, windows=25, training=False).recording
    replace(recording, public=None).save(run.folder / RECORDING_FILE)  # a server knows no mask
    report = attack_run(run, attacked_city, attacks=["series"], sensors=2)
    assert report.line("whole series at once").newest.readings <= 2 * 25
    assert report.line("whole series at once").all.rmse < 0.3
    carried_out: list[str] = []
    with pytest.raises(ConfigError, match="gradients needs a recording of a training"):
        attack_run(
            run,
            attacked_city,
            attacks=["series", "gradients"],
            watch=lambda attack, share: carried_out.append(attack),
        )
    assert set(carried_out) == {"recording"}  # it is refused before the attacks that are possible
    replace(recording, moments=recording.moments[:2]).save(run.folder / RECORDING_FILE)
    with pytest.raises(RunError, match="has 2 sensors, but the readings to judge by have 4"):
        attack_run(run, attacked_city)


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("gru-central", "pools all readings in one place, so that there is no server to attack"),
        ("gru-fedavg", "sends no hidden states"),
        ("sl", "every node keeps weights of its own"),
    ],
)
def test_a_method_without_anything_to_attack_is_refused(
    named: str, problem: str, data: Dataset, tmp_path: Path
) -> None:
    run = Run.create(tmp_path / "run", small(named), data)
    with pytest.raises(RunError, match=problem):
        attack_run(run, data)


def test_what_cannot_be_attacked_is_said_in_a_sentence(
    attacked_runs: dict[str, Path], attacked_city: Dataset, tmp_path: Path
) -> None:
    run = Run.open(attacked_runs["at-fedavg"])
    with pytest.raises(ConfigError, match=r"there is no sensor 'nobody'.*c0000, c0001, c0002, c0003"):
        attack_run(run, attacked_city, colluding="nobody")
    with pytest.raises(ConfigError, match=r"there is no attack 'magic'.*levels, series"):
        attack_run(run, attacked_city, attacks=["magic"])
    begun = Run.create(tmp_path / "begun", to_attack("at-fedavg"), attacked_city)
    with pytest.raises(RunError, match="has no finished round yet"):
        attack_run(begun, attacked_city)
