"""A federated training that goes on from an earlier run: every party with what it has kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from cnfgnn.algorithm.node_state import THETA
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load
from cnfgnn.data.readings import rows_of
from cnfgnn.federation.server.federated_run import terms_of
from cnfgnn.federation.site.store import JoinRecord, OwnerStore, SiteStore
from cnfgnn.federation.task import RUNS, Task, settings_of
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, begin_from, train_run
from tests.conftest import network, small
from tests.federation.in_memory_federation import SITES, InMemoryFederation, given_of, must_finish

ROWS = 150  # of the first training
CONFIG = small("cnfgnn-private", **{"training.rounds": 1})


def read_from_disk(folder: Path) -> Dataset:
    """Readings as they come back from a file: they have a few decimals."""
    folder.mkdir()
    write_folder(network(rows=174), folder)
    return load(folder)


def before(data: Dataset) -> Dataset:
    return replace(data, readings=rows_of(data.readings, slice(0, ROWS)))


def with_newer_readings(sites: InMemoryFederation, data: Dataset) -> None:
    r = data.readings
    for name, group in SITES.items():
        old = sites.readings(name)
        index = pd.DatetimeIndex(r.times, name="time").tz_localize(old.index.tz)
        new = pd.DataFrame(r.values[:, list(group)], index=index, columns=[r.ids[row] for row in group])
        sites.write(name, pd.concat([old, new[len(old) :]]))


# averaged weights, and a model for each sensor
@pytest.mark.parametrize("method", [pytest.param("cnfgnn-plus", marks=pytest.mark.slow), "at"])
def test_it_is_the_training_of_the_simulator(tmp_path: Path, method: str) -> None:
    config = small(method, **{"training.rounds": 1, "training.wire": "full"})
    data = read_from_disk(tmp_path / "data")
    sites = InMemoryFederation(tmp_path / "federation", before(data))
    must_finish(sites.train(config))
    with_newer_readings(sites, data)
    must_finish(sites.run_task(Task("train", "two", earlier="one", wait=20.0)))
    run = Run.open(sites.server / RUNS / "two")
    assert run.origin is not None
    assert run.origin.run == str((sites.server / RUNS / "one").absolute())
    assert run.data.rows == len(data.readings.times)

    train_run(Run.create(tmp_path / "one", config, before(data)), before(data), Unwatched())
    train_run(begin_from(Run.open(tmp_path / "one"), data, tmp_path / "two"), data, Unwatched())
    simulated = Run.open(tmp_path / "two")
    tag = run.progress.best.tag
    expected, found = simulated.store("server").read(tag), run.store("server").read(tag)
    assert expected.keys() == found.keys()
    for name, w in expected.items():
        np.testing.assert_allclose(found[name].numpy(), w.numpy(), atol=1e-9, err_msg=name)
    of_nodes = simulated.store("site-0").read(tag)
    for name, rows in SITES.items():
        kept = SiteStore(sites.kits[name], terms_of(run).run).read(tag)
        for key, w in of_nodes.items():
            if key.startswith(THETA) and len(w) == len(data.readings.ids):
                np.testing.assert_allclose(kept[key].numpy(), w[list(rows)].numpy(), atol=1e-9, err_msg=key)


def test_sites_find_their_states_by_the_names_of_their_sensors(tmp_path: Path) -> None:
    earlier = SiteStore(tmp_path, "one-0123", ["a", "b", "c"])
    rows = torch.arange(6.0).view(3, 2)
    earlier.write("round-00001", {"theta.w": rows, "adam.mean.w": rows.clone()}, ())
    earlier.write_join_record(JoinRecord(9, "digest", ("a", "b", "c")))
    found = SiteStore(tmp_path, "two-4567", ["c", "new", "a"]).earlier("one-0123", "round-00001")
    assert found.keys() == {"theta.w"}  # optimisers start afresh
    np.testing.assert_array_equal(found["theta.w"].numpy(), [[4, 5], [np.nan, np.nan], [0, 1]])
    assert SiteStore(tmp_path, "two-4567", ["a"]).earlier("never-joined", "round-00001") == {}


def test_what_cannot_be_gone_on_from_is_one_sentence(tmp_path: Path) -> None:
    sites = InMemoryFederation(tmp_path / "federation", network(rows=ROWS))
    status = sites.run_task(Task("train", "two", earlier="none", wait=20.0))
    assert status["state"] == "failed"
    assert "none: is not a run" in status["problem"]
    status = sites.run_task(Task("train", "two", earlier="../../etc", wait=20.0))
    assert "--from: '../../etc' cannot be the name of a run" in status["problem"]


@pytest.mark.slow
def test_the_server_cannot_tell_what_the_true_readings_are(tmp_path: Path) -> None:
    """Both trainings again, with corrected readings: a corrected reading keeps its copy, so that the server
    has the same as before, to the last bit. What the owners have learned is not the same."""
    data = network(rows=174)
    sites = InMemoryFederation(tmp_path / "federation", data, blur=2.0)
    later = {name: sites.readings(name) for name in SITES}
    noise = np.random.default_rng(3)
    kept: dict[str, tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = {}
    for truth in ("first", "other"):
        for name, frame in later.items():
            corrected = frame if truth == "first" else frame + noise.normal(0, 1, frame.shape)
            sites.write(name, corrected)
        earlier, run = (f"{truth}-{part}" for part in ("one", "two"))
        tasks = [
            Task("train", earlier, settings=settings_of(CONFIG), given=given_of(CONFIG), wait=20.0),
            Task("train", run, earlier=earlier, wait=20.0),
        ]
        for task in tasks:
            must_finish(sites.run_task(task))
        opened = Run.open(sites.server / RUNS / run)
        owner = OwnerStore(sites.kits["west"], terms_of(opened).run)
        tag = opened.progress.best.tag
        kept[truth] = opened.store("server").read(tag), owner.read(tag)
    (one, of_owner), (other, of_other_owner) = kept.values()
    assert all(torch.equal(w, other[name]) for name, w in one.items())
    assert any(not torch.equal(w, of_other_owner[name]) for name, w in of_owner.items())
