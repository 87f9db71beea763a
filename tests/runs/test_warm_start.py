"""A training that goes on from the weights of an earlier one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cnfgnn.algorithm.methods import METHODS, preset
from cnfgnn.algorithm.pooled import Pooled
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import rows_of
from cnfgnn.errors import ConfigError, DataError, RunError
from cnfgnn.models.plus import SENSOR_EMBEDDING
from cnfgnn.runs.evaluate import weights_of
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, begin_from, train_run
from cnfgnn.runs.training_loop import evaluate_best, train
from cnfgnn.runs.warm_start import Origin, Weights, go_on_from, settings_to_go_on
from tests.commands import said
from tests.conftest import network, small

ALL = network(6, 200)


def first(rows: int, data: Dataset = ALL) -> Dataset:
    return replace(data, readings=rows_of(data.readings, slice(0, rows)))


def of_sensors(data: Dataset, sensors: list[str]) -> Dataset:
    columns = np.array([data.readings.ids.index(sensor) for sensor in sensors])
    return Dataset(data.name, data.readings.select(sensors), data.graph.subgraph(columns))


def trained(place: Path, data: Dataset, config: Config) -> Run:
    train_run(Run.create(place, config, data), data, Unwatched())
    return Run.open(place)


def went_on(earlier: Run, data: Dataset, place: Path, **changes: Any) -> Run:
    train_run(begin_from(earlier, data, place, changes), data, Unwatched())
    return Run.open(place)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("earlier") / "run", first(150), small("cnfgnn-plus"))


# ---- weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_training_begins_with_the_weights_of_the_earlier_run(method: str, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", first(150), small(method, **{"training.wire": "full"}))
    weights = weights_of(run)
    experiment = simulate(ALL, run.config, kept_scaler=weights.scaler)
    go_on_from(experiment, weights, ALL.readings.ids)
    [(_, owner)] = experiment.owners
    strategy: Any = experiment.strategy
    if not isinstance(strategy, Pooled):
        strategy.nodes.flush()
    assert experiment.scaler == run.scaler
    for name, w in weights.theta.items():
        assert torch.equal(owner.nodes.theta[name], w.expand_as(owner.nodes.theta[name])), name
    if isinstance(strategy, Pooled):
        for name, w in strategy.theta.items():
            assert torch.equal(w, weights.theta[name])
    if strategy.gn is not None:
        now = strategy.gn.state()
        assert all(torch.equal(now[name], w) for name, w in weights.server.items() if name.startswith("gn."))
    if METHODS[method].strategy == "alternating" and strategy.gn is not None:
        assert owner.nodes.h_G is not None  # nodes that learned with embeddings go on with embeddings


def test_embeddings_of_new_sensors_begin_with_zero_and_those_that_are_gone_are_left_out(
    tmp_path: Path,
) -> None:
    run = trained(tmp_path / "run", first(150), small("mlp-central"))
    weights = replace(weights_of(run), sensors=["s0", "new to us", "s2", "s5", "s4", "s3"])
    experiment = simulate(ALL, run.config, kept_scaler=weights.scaler)
    go_on_from(experiment, weights, ALL.readings.ids)  # s1 is new; s3, s4 and s5 are in another order
    [(_, owner)] = experiment.owners
    now, before = owner.nodes.theta[SENSOR_EMBEDDING], weights.theta[SENSOR_EMBEDDING]
    assert before.any()
    assert not now[1].any()
    assert torch.equal(now[[0, 2, 3, 4, 5]], before[[0, 2, 5, 4, 3]])


def test_a_new_sensor_with_a_model_of_its_own_begins_as_the_seed_says(tmp_path: Path) -> None:
    known = of_sensors(first(150), ["s0", "s1", "s3"])
    run = trained(tmp_path / "run", known, small("gru-local"))
    weights = weights_of(run)
    fresh = simulate(ALL, run.config).owners[0][1].nodes.theta
    experiment = simulate(ALL, run.config, kept_scaler=weights.scaler)
    go_on_from(experiment, weights, ALL.readings.ids)
    own = experiment.owners[0][1].nodes.theta
    for name, w in weights.theta.items():
        assert torch.equal(own[name][3], w[2])
        assert torch.equal(own[name][2], fresh[name][0])


def test_weights_in_memory_are_those_of_the_run_folder(tmp_path: Path, earlier: Run) -> None:
    experiment = simulate(first(150), earlier.config)
    evaluate_best(experiment, train(experiment))
    here, there = Weights.of(experiment, first(150).readings.ids), weights_of(earlier)
    assert here.theta.keys() == there.theta.keys()
    assert all(torch.equal(here.theta[name], w) for name, w in there.theta.items())
    assert all(torch.equal(w, there.server[name]) for name, w in here.server.items())
    assert (tuple(here.sensors), here.scaler) == (tuple(there.sensors), there.scaler)


# ---- runs ---------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_newer_readings_and_other_sensors(earlier: Run, tmp_path: Path) -> None:
    data = of_sensors(ALL, ["s5", "s0", "s1", "s2", "s3"])
    run = went_on(earlier, data, tmp_path / "on")
    assert run.finished
    assert run.origin is not None
    assert (run.origin.run, run.origin.round) == (str(earlier.folder), earlier.progress.best.r_g)
    event = run.events()[0]["from"]
    assert (event["new_sensors"], event["sensors_gone"]) == ([], ["s4"])
    record = json.loads((run.folder / "record.json").read_text())
    assert record["from"] == f"round {run.origin.round} of {earlier.folder.name}"
    assert run.scaler == earlier.scaler


@pytest.mark.slow
def test_a_run_that_goes_on_is_better_than_one_of_as_few_rounds(tmp_path: Path) -> None:
    data = network(6, 400, dropout=0.0)
    config = small("at-fedavg", **{"training.rounds": 9, "training.sampling": 0.0})
    before = trained(tmp_path / "before", first(300, data), config)
    warm = went_on(before, data, tmp_path / "warm")
    cold = trained(tmp_path / "cold", data, config.with_changes({"training.rounds": 3}))
    assert warm.config.training.rounds == 3
    assert warm.test()["overall"]["masked_rmse"] < cold.test()["overall"]["masked_rmse"]


@pytest.mark.slow
def test_an_interrupted_run_resumes_bit_for_bit_even_without_the_earlier_one(
    earlier: Run, tmp_path: Path
) -> None:
    class Interrupted(Unwatched):
        def round_done(self, *_: object) -> None:
            raise KeyboardInterrupt

    changes = {"training.rounds": 2}
    whole = went_on(earlier, ALL, tmp_path / "whole", **changes)
    origin = trained(tmp_path / "origin", first(150), earlier.config.with_given(earlier.manifest.given))
    run = begin_from(origin, ALL, tmp_path / "parts", changes)
    with pytest.raises(KeyboardInterrupt):
        train_run(run, ALL, Interrupted())
    for file in sorted((tmp_path / "origin").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    train_run(Run.open(tmp_path / "parts"), ALL, Unwatched())
    tag = whole.progress.history[-1].tag
    for party in ("server", "site-0", "owner-0"):
        one, other = whole.store(party).read(tag), Run.open(tmp_path / "parts").store(party).read(tag)
        assert one.keys() == other.keys()
        for name, w in one.items():  # profiles of half a day are mostly unknown: NaN
            assert np.array_equal(w.numpy(), other[name].numpy(), equal_nan=w.is_floating_point()), name


# ---- settings -----------------------------------------------------------------------------------------


def test_settings_are_the_earlier_runs_and_a_third_of_the_rounds(tmp_path: Path) -> None:
    config = small("gru-fedavg", **{"training.rounds": 7, "training.client_lr": 5e-3})
    before = trained(tmp_path / "before", first(150), config)
    run = begin_from(before, ALL, tmp_path / "on", {"seed": 4})
    assert (run.config.training.rounds, run.config.training.client_lr, run.config.seed) == (3, 5e-3, 4)
    train_run(run, ALL, Unwatched())
    again = begin_from(Run.open(tmp_path / "on"), ALL, tmp_path / "again")
    assert again.config.training.rounds == 3  # not a third of a third
    assert again.origin is not None
    assert again.origin.cold_rounds == 7
    given = begin_from(before, ALL, tmp_path / "given", {"training.rounds": 5})
    assert given.config.training.rounds == 5


def test_rounds_and_minibatches_that_nobody_chose_adapt_to_the_readings() -> None:
    few = preset("cnfgnn-plus").with_changes({"training.rounds": 24, "training.server_batch": 16})
    config, cold_rounds = settings_to_go_on(few.with_given(()), (), None, 40_000, {})
    assert (config.training.rounds, cold_rounds, config.training.server_batch) == (4, 12, 128)
    origin = Origin("before", 1, 24)  # of a run that went on from another, with fewer readings
    config, cold_rounds = settings_to_go_on(config, ("training.rounds",), origin, 40_000, {})
    assert (config.training.rounds, cold_rounds) == (4, 12)
    config, cold_rounds = settings_to_go_on(few, sorted(few.given), None, 40_000, {})
    assert (config.training.rounds, cold_rounds, config.training.server_batch) == (8, 24, 16)


@pytest.mark.parametrize(
    ("key", "value"), [("model.hidden", 9), ("data.history", 3), ("method", "at-fedavg")]
)
def test_another_architecture_is_refused_in_one_sentence(
    earlier: Run, tmp_path: Path, key: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}: is {value}, but the run to go on from was trained with"):
        begin_from(earlier, ALL, tmp_path / "on", {key: value})
    assert not (tmp_path / "on").exists()


def test_readings_at_another_pace_and_runs_without_a_round_are_refused(earlier: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="readings come every 600 s"):
        begin_from(earlier, network(6, 150, seconds=600), tmp_path / "on")
    begun = Run.create(tmp_path / "begun", small("at-fedavg"), ALL)
    with pytest.raises(RunError, match="nothing to go on from"):
        begin_from(begun, ALL, tmp_path / "on")


# ---- the command --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_goes_on_from_a_run(tmp_path: Path) -> None:
    short = ("--set", "city.sensors=5", "--set", "city.days=2", "--set", "training.rounds=3")
    said("train", "--method", "cnfgnn-plus", *short, "--out", tmp_path / "a")
    out = said("train", "--from", tmp_path / "a", "--set", "city.days=3", "--out", tmp_path / "b")
    assert "best round 1 of 1" in out
    assert Run.open(tmp_path / "b").origin is not None
