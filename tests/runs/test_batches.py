"""A minibatch that nobody chose fits the data; one that somebody chose is as large as it says, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cnfgnn.algorithm.methods import preset
from cnfgnn.config.settings import Config
from cnfgnn.config.toml import dump
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.windows import SPLITS, Windows
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.federation.task import settings_of
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import train
from cnfgnn.studies.execute import run_plan
from cnfgnn.studies.plan import Plan
from tests.commands import Unobserved, said
from tests.conftest import network, server, small
from tests.transports.remote.test_transport import GROUPS, Wires, federated

SMALL = [
    "--method=cnfgnn",
    "--set=training.rounds=1",
    "--set=model.hidden=3",
    "--set=model.embedding=2",
    "--device=cpu",
]


@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("at-fedavg", "training.client_batch"),
        ("at-fedavg", "training.server_batch"),
        ("sl", "training.server_batch"),
        ("gru-fedavg", "training.client_batch"),
        ("gru-central", "training.client_batch"),
    ],
)
def test_a_minibatch_larger_than_the_data_is_refused_with_the_largest_that_can_be(
    method: str, key: str
) -> None:
    data = network(dropout=0.0)
    assert simulate(data, small(method, **{key: 98})).windows.count("train") == 98
    with pytest.raises(ConfigError) as told:
        simulate(data, small(method, **{key: 99}))
    assert str(told.value) == f"{key}: minibatches of 99 need more than the 98 training windows: at most 98"
    assert told.value.exit_code == 2


def test_a_minibatch_that_a_method_does_not_draw_may_have_any_size() -> None:
    data = network(dropout=0.0)
    for method, unused in (("sl", "training.client_batch"), ("gru-fedavg", "training.server_batch")):
        assert simulate(data, small(method, **{unused: 99})).windows.count("train") == 98


@pytest.mark.parametrize("method", ["at-fedavg", "sl", "gru-central"])
def test_a_default_minibatch_learns_as_the_largest_that_fits_would(method: str) -> None:
    data, large = network(dropout=0.0), {"training.client_batch": 500, "training.server_batch": 500}
    default = simulate(data, small(method, **large).with_given(()))
    chosen = simulate(
        data, small(method, **dict.fromkeys(large, 98))
    )  # the largest that is not refused: all windows at once
    drawn = {"training.client_batch"} if method != "sl" else set()
    drawn |= {"training.server_batch"} if method != "gru-central" else set()
    for key in drawn:
        assert default.config.setting(key) == 98
    one, two = (train(experiment, rounds=1).history[0] for experiment in (default, chosen))
    assert one.loss == two.loss


def folder_of(data: Dataset, folder: Path) -> Path:
    folder.mkdir()
    write_folder(data, folder)
    return folder


def shortened(rows: int, sensors: int) -> Dataset:
    return _cut(network(n=sensors, rows=max(rows, 150), dropout=0.0), rows)


def _cut(data: Dataset, rows: int) -> Dataset:
    r = data.readings
    cut = replace(r, times=r.times[:rows], values=r.values[:rows], missing=r.missing[:rows])
    return replace(data, readings=cut)


@pytest.mark.parametrize(
    ("rows", "sensors", "batches"),
    [(26, 5, (1, 1)), (30, 1, (5, 5)), (100, 1, (54, 48)), (100, 5, (54, 48)), (300, 1, (128, 48))],
)
def test_few_rows_train_from_the_command_line_and_the_run_keeps_the_size_it_used(
    rows: int, sensors: int, batches: tuple[int, int], tmp_path: Path
) -> None:
    folder = folder_of(shortened(rows, sensors), tmp_path / "data")
    said("train", folder, "--out", tmp_path / "run", *SMALL)
    run = Run.open(tmp_path / "run")
    assert run.finished
    assert (run.config.training.client_batch, run.config.training.server_batch) == batches
    start = run.events()[0]
    assert start["config"]["training"]["client_batch"] == batches[0]
    said("forecast", tmp_path / "run", "--out", tmp_path / "ahead.csv")
    said("evaluate", tmp_path / "run")


@pytest.mark.parametrize(("rows", "kind"), [(23, "training"), (24, "validation"), (25, "test")])
def test_too_few_rows_are_refused_with_how_many_it_takes(rows: int, kind: str, tmp_path: Path) -> None:
    folder = folder_of(shortened(rows, 2), tmp_path / "data")
    told = said("train", folder, "--out", tmp_path / "run", *SMALL, fails=True)
    assert f"{rows} rows leave no {kind} windows of 12 + 12 steps: at least 26 rows are needed" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rows", [*range(26, 80), 5_000])
def test_every_split_has_a_window_and_rounding_decides_where_it_can(rows: int) -> None:
    windows = Windows.of(rows)
    counts = [windows.count(split) for split in SPLITS]
    total = rows - 23
    assert min(counts) >= 1
    assert sum(counts) == total
    rounded = [round(0.7 * total), total - round(0.7 * total) - round(0.2 * total), round(0.2 * total)]
    if min(rounded) >= 1:
        assert counts == rounded


def test_a_share_of_nothing_stays_without_windows_and_is_named() -> None:
    assert Windows.of(100, shares=(0.8, 0.0, 0.2)).count("validation") == 0
    config = small("at-fedavg", **{"data.shares": [0.8, 0.0, 0.2]})
    with pytest.raises(DataError, match=r"no validation windows .* each of the three data.shares above 0"):
        simulate(network(), config)


def test_what_is_given_on_the_command_line_or_changed_in_a_file_is_refused(tmp_path: Path) -> None:
    folder = folder_of(shortened(100, 2), tmp_path / "data")
    refused = "training.client_batch: minibatches of 128 need more than the 54 training windows"
    given = ["--set=training.client_batch=128", *SMALL]
    assert refused in said("train", folder, "--out", tmp_path / "run", *given, fails=True)
    file = tmp_path / "mine.toml"
    file.write_text("[training]\nclient_batch = 99\n")
    told = said("train", folder, "--out", tmp_path / "run", "--config", file, *SMALL, fails=True)
    assert "minibatches of 99 need more" in told
    file.write_text(said("settings", "--method=cnfgnn"))  # every setting, as it is by default
    said("train", folder, "--out", tmp_path / "run", "--config", file, *SMALL)
    assert Run.open(tmp_path / "run").config.training.client_batch == 54


def test_published_sizes_adapt_too(tmp_path: Path) -> None:
    config = preset("gru-fedavg", like="metr-la").with_changes({"model.hidden": 3, "compute.device": "cpu"})
    assert config.training.client_batch == 256
    assert simulate(network(dropout=0.0), config).config.training.client_batch == 89


def test_a_plan_takes_up_runs_whose_minibatches_were_cut(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'methods = ["gru-fedavg"]\nseeds = [1]\n[model]\nhidden = 3\n[training]\nrounds = 1\n'
        '[compute]\ndevice = "cpu"\n'
    )
    data = network(dropout=0.0)
    first = run_plan(Plan.read(file), data, tmp_path / "runs", Unobserved())[0].runs[0]
    assert first.config.training.client_batch == 89
    again = run_plan(Plan.read(file), data, tmp_path / "runs", Unobserved())[0].runs[0]
    assert again.manifest == first.manifest


def test_what_was_chosen_is_known_through_changes_and_is_no_setting() -> None:
    config = preset("sl").with_changes({"training.server_batch": 128})
    assert config.given == {"training.server_batch"}
    assert config == preset("sl")  # the same settings
    assert replace(config, seed=3).given == config.given
    assert "given" not in dump(config)
    assert "given" not in config.as_dict()
    with pytest.raises(ConfigError, match="there is no setting 'given'"):
        Config().with_changes({"given": []})


def test_cut_minibatches_hold_every_window_once() -> None:
    experiment = simulate(network(dropout=0.0), small("at-fedavg").with_given(()))
    batches = experiment.owners[0][1].nodes.client_batches
    drawn = torch.cat([batches[draw] for draw in batches.epoch(1, 0)])
    assert np.array_equal(np.sort(drawn.numpy()), np.arange(experiment.windows.count("train")))


def test_the_server_of_a_federation_cuts_defaults_by_the_windows_that_sites_report() -> None:
    data, large = network(), {"training.client_batch": 500, "training.server_batch": 500}
    config = small("at-fedavg", **large)
    sent = Config().with_changes(settings_of(config)).with_given(sorted(config.given))  # as a task carries it
    with pytest.raises(ConfigError, match="minibatches of 500 need more than the 98 training windows"):
        federated(wires := Wires(data, sent), wires.transport())
    wires = Wires(data, sent.with_given(()))
    one, two = federated(wires, wires.transport()), simulate(data, config.with_given(()), groups=GROUPS)
    assert one.config.training.client_batch == one.config.training.server_batch == 98
    for experiment in (one, two):
        server(experiment).round(1)
    torch.testing.assert_close(
        server(one).score("test").told, server(two).score("test").told, rtol=0, atol=1e-9
    )
