"""A sensor that is new to the project joins a live federation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import rows_of
from cnfgnn.data.windows import Windows
from cnfgnn.errors import ConfigError
from cnfgnn.federation.newcomers import GrowingGraph, NewSensor
from cnfgnn.federation.site.readings import columns_of
from cnfgnn.federation.site.settings import read_site, settings_file
from cnfgnn.federation.site.store import with_new_sensors
from cnfgnn.runs.evaluate import restore_best
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import with_rows_ahead
from cnfgnn.runs.train import Unwatched, train_run
from tests.conftest import HISTORY, HORIZON, network, server, small
from tests.federation.in_memory_federation import SITES, must_finish
from tests.federation.live_federation import ABSENT, LiveFederation, qualities
from tests.federation.test_live import different
from tests.privacy.test_by_construction import arrays_of, holds
from tests.waiting import wait_for

KNOWN, ROWS = 120, 190
FULL = {"full"}
NEW = "s6"
TABLE = "\n[new_sensors.s6]\nfrom = {{ s5 = {weight}, s0 = 0.4 }}\nto = {{ s4 = 0.5 }}\n"
WITH_NEW = {**SITES, "west": [*SITES["west"], 6]}


def settings(method: str = "cnfgnn-plus") -> Config:
    return small(method, **{"training.rounds": 1})


# ---- the parts -------------------------------------------------------------------------------------------


def test_a_new_sensor_gets_its_edges_and_the_others_keep_theirs() -> None:
    data = network(6)
    growing = GrowingGraph(data.readings.ids, data.readings.positions, data.graph, "distance", 200.0)
    growing.add(NewSensor.of(NEW, {"from": {"s1": 100, "s2": 0}, "to": {"s3": 200}}))
    growing.add(NewSensor.of("s7", {"from": {NEW: 400}}))
    assert growing.ids[6:] == [NEW, "s7"]
    assert weights_of(growing.graph.subgraph(range(6))) == weights_of(data.graph)
    added = {edge: w for edge, w in weights_of(growing.graph).items() if max(edge) > 5}
    expected = {(1, 6): 0.25, (2, 6): 0, (6, 3): 1, (6, 7): 4}
    assert added == pytest.approx({e: np.exp(-w) for e, w in expected.items()} | {(6, 6): 1, (7, 7): 1})


def test_positions_connect_a_new_sensor_as_nearest_neighbours_are_connected() -> None:
    data = network(30)
    positions = data.readings.positions
    assert positions is not None
    known, everyone = Graph.nearest(positions[:29]), Graph.nearest(positions)
    growing = GrowingGraph([f"s{k}" for k in range(29)], positions[:29], known, None, 1.0)
    latitude, longitude = positions[29].tolist()
    growing.add(NewSensor.of("s29", {"latitude": latitude, "longitude": longitude}))
    found, expected = weights_of(growing.graph), weights_of(everyone)
    assert weights_of(growing.graph.subgraph(range(29))) == weights_of(known)
    assert {e for e in found if 29 in e} == {e for e in expected if 29 in e}
    near = [edge for edge in found if 29 in edge]
    width = [np.log(found[e]) / np.log(expected[e]) for e in near if e != (29, 29)]
    assert np.ptp(width) < 1e-9  # the kernel has the width of the run's graph


def weights_of(graph: Graph) -> dict[tuple[int, int], float]:
    ends = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    return dict(zip(ends, graph.weights.tolist(), strict=True))


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("[new_sensors.x]\nlatitude = 91\nlongitude = 0", "new_sensors.x.latitude"),
        ("[new_sensors.x]\nlatitude = 9", "new_sensors.x.longitude"),
        (f"[new_sensors.x]\nlatitude = {10**400}\nlongitude = 0", "new_sensors.x.latitude"),
        ("[new_sensors.x]\nfrom = { s1 = -1 }", "new_sensors.x.s1"),
        ("[new_sensors.x]\nplace = 3", "new_sensors.x.place"),
        ("new_sensors = 3", "new_sensors"),
    ],
)
def test_a_table_of_a_new_sensor_that_cannot_be_meant_is_refused(
    tmp_path: Path, table: str, key: str
) -> None:
    file = settings_file(tmp_path)
    file.parent.mkdir()
    file.write_text(f'name = "west"\nsensors = ["s3"]\n{table}\n')
    with pytest.raises(ConfigError) as refused:
        read_site(tmp_path)
    assert refused.value.key == f"{file}: {key}"


def test_saved_states_have_rows_for_new_sensors() -> None:
    state = {
        "theta.w": torch.ones(1, 3),
        "trust": torch.full((2,), 0.5),
        "usual_weeks": torch.ones(2, 7, 4),
        "linear_own": torch.ones(2, 4, 5),
        "adam.steps": torch.ones(2),
    }
    found = with_new_sensors(state, 1)
    assert set(found) == set(state) - {"adam.steps"}
    assert found["theta.w"].shape == (1, 3)
    assert found["trust"].tolist() == [0.5, 0.5, 1.0]
    assert bool(found["usual_weeks"][2].isnan().all())
    assert bool(found["linear_own"][2].isnan().all())


# ---- a federation ----------------------------------------------------------------------------------------


@pytest.fixture
def everything() -> Dataset:
    """Seven sensors; the last one is new, and has the edges of TABLE."""
    data = network(7, ROWS, dropout=0)
    known = data.graph.subgraph(range(6))
    edges = (np.array([5, 0, 6, 6]), np.array([6, 6, 4, 6]), np.array([0.7, 0.4, 0.5, 1.0]))
    return replace(data, graph=known.extended(7, *edges))


def live_sites(folder: Path, everything: Dataset, config: Config, **more: Any) -> LiveFederation:
    sites = LiveFederation(folder, everything.select(everything.readings.ids[:6]), KNOWN, **more)
    must_finish(sites.train(config))
    return sites


@pytest.fixture
def sites(tmp_path: Path, everything: Dataset) -> Iterator[LiveFederation]:
    found = live_sites(tmp_path, everything, settings())
    with found.live():
        yield found


def add_sensor(sites: LiveFederation, everything: Dataset, weight: float = 0.7) -> None:
    """West's owner adds the sensor to the file of readings, and a table to the settings. The server learns of
    it after the service has begun with it: so the next row is the first one that anything is computed from.
    """
    before = sites.readings("west")
    column = pd.DataFrame({NEW: everything.readings.values[: len(before), 6]}, before.index)
    sites.write("west", pd.concat([before, column], axis=1))
    sites.unreachable = {"west"}
    file = settings_file(sites.kits["west"])
    file.write_text(file.read_text() + TABLE.format(weight=weight))

    def served() -> bool:
        with suppress(OSError, KeyError, TypeError):
            return NEW in sites.client("west").get("/forecasts").json["sensors"]
        return False

    wait_for(served, "the service to begin with the new sensor")
    sites.data, sites.sites, sites.unreachable = everything, WITH_NEW, set()


def wait_until_known(sites: LiveFederation) -> None:
    """Until the server counts on the new sensor, and the site's service serves it."""

    def known() -> bool:
        predictor, told = sites.nodes["west"].predictor, sites.live_status
        told_of = told["new_sensors"] == {"west": [NEW]} and told["sites"]["west"]["quality"] not in ABSENT
        return predictor is not None and NEW in predictor.ready.ids and NEW in predictor.ids and told_of

    wait_for(known, "the new sensor to be known")
    for name in sites.sites:
        sites.wait_until_joined(name)


@pytest.mark.slow
def test_a_new_sensor_is_forecast_as_an_evaluation_on_unseen_sensors_would(
    sites: LiveFederation, everything: Dataset, tmp_path: Path
) -> None:
    assert set(map(frozenset, sites.next_forecasts().values())) == {frozenset(FULL)}
    add_sensor(sites, everything)
    wait_until_known(sites)
    row = sites.row
    made = sites.forecasts(sites.send())
    assert {name: qualities(forecast) for name, forecast in made.items()} == dict.fromkeys(WITH_NEW, FULL)
    assert NEW in made["west"]["sensors"]
    wait_for(lambda: sites.live_status["new_sensors"] == {"west": [NEW]}, "the server's status")
    everything.readings.values[KNOWN, 6] = np.nan  # it was sent before the sensor was known
    everything.readings.missing[KNOWN, 6] = True
    expected = inductive(tmp_path / "run", everything, row + 1)
    for forecast in made.values():
        for sensor, told in forecast["sensors"].items():
            np.testing.assert_allclose(told["values"], expected[sensor], atol=2e-3)


@pytest.mark.slow
def test_a_sensor_without_readings_begins_with_a_fallback_and_only_its_copy_is_known_to_the_nodes(
    tmp_path: Path, everything: Dataset
) -> None:
    sites = live_sites(tmp_path, everything, settings("cnfgnn-private"), blur=5.0)
    with sites.live():
        file = settings_file(sites.kits["west"])
        file.write_text(file.read_text() + TABLE.format(weight=0.7))
        sites.data, sites.sites = everything, WITH_NEW
        wait_until_known(sites)
        predictor = sites.nodes["west"].predictor
        assert predictor is not None
        found: list[str] = []

        while len(found) < predictor.history + predictor.horizon:
            made = sites.forecasts(sites.send())
            found.append(made["west"]["sensors"].pop(NEW)["quality"])
            assert {name: qualities(told) for name, told in made.items()} == dict.fromkeys(SITES, FULL)
        assert found == [*["fallback"] * (len(found) - 1), "full"]
        owner, service = sites.ends["west"].owner, sites.nodes["west"].service
        assert owner is not None
        assert service is not None
        assert service.process is not None
        recent = service.process.service.recent
        truth = recent.until(recent.newest).values
        reached = arrays_of(owner.nodes)
        assert not any(holds(reached, secret) for secret in (truth, truth[-predictor.history :, -1]))
        copy = predictor.blurring.copy_of(recent.until(recent.newest))  # type: ignore[union-attr]
        copies = columns_of(copy, [NEW]).values
        assert not np.isclose(copies, truth[:, -1:], atol=1e-3).any()

        sites.restart("west")  # what was computed for the sensor is kept, and it joins again
        wait_until_known(sites)
        made = sites.forecasts(sites.send())
        assert {name: qualities(told) for name, told in made.items()} == dict.fromkeys(SITES, FULL)

        file.write_text(file.read_text() + "[new_sensors.s7]\nfrom = { s99 = 1 }\n")
        warning = "site west: the new sensor 's7' has an edge with 's99', which is unknown"
        wait_for(lambda: warning in sites.status["warnings"], "a warning")


@pytest.mark.slow
def test_the_server_sees_the_same_of_a_new_sensor_whatever_its_readings_are_if_its_copies_are_the_same(
    tmp_path: Path, everything: Dataset
) -> None:
    """Also in the steps in which something is computed for it: outliers among its true readings do not count
    for the owner, and the copy has none."""
    sites = live_sites(tmp_path, everything, settings("cnfgnn-private"), blur=5.0)
    file = settings_file(sites.kits["west"])
    file.write_text(file.read_text() + TABLE.format(weight=0.7))
    sites.data, sites.sites = everything, WITH_NEW
    sites.copy_everything()
    values = everything.readings.values[::-1].copy()
    values[KNOWN + 1 : KNOWN + 3, 6] = 1e9
    other = replace(everything, readings=replace(everything.readings, values=values))
    said, made = [], []
    for truth in (everything, other):
        sites.begin_again(truth, KNOWN)
        with sites.live():
            wait_until_known(sites)
            for _ in range(2 * (HISTORY + HORIZON) + 3):
                forecasts = sites.forecasts(sites.send())
            said.append(sites.said)
            made.append(forecasts["west"]["sensors"][NEW])
    for name in WITH_NEW:
        assert different(said[0][name], said[1][name]) == {}
    assert made[0]["values"] != made[1]["values"]
    assert made[0]["quality"] == made[1]["quality"] == "full"


def inductive(folder: Path, everything: Dataset, rows: int) -> Mapping[str, np.ndarray]:
    """The simulator's forecasts after so many rows, by a run that was trained without the last sensor."""
    known = everything.select(everything.readings.ids[:6])
    known = replace(known, readings=rows_of(known.readings, slice(0, KNOWN)))
    run = Run.create(folder, settings(), known)
    train_run(run, known, Unwatched())
    run = Run.open(folder)
    d = run.config.data
    newest = with_rows_ahead(rows_of(everything.readings, slice(0, rows)), d.horizon)
    ahead = Windows.next(rows, d.history, d.horizon)
    experiment = restore_best(run, replace(everything, readings=newest), ahead)
    server(experiment).forecast()
    [(_, owner)] = experiment.owners
    assert owner.forecasts is not None
    return dict(zip(everything.readings.ids, owner.forecasts.double().numpy(), strict=True))
