"""The server of a federation keeps what it receives, and that is attacked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cnfgnn.attack.alignment import as_in_run
from cnfgnn.attack.execute import Attacker, Effort, attack_run, judge, true_readings
from cnfgnn.attack.judging import AttackReport
from cnfgnn.attack.observe import observe
from cnfgnn.attack.recording import RECORDING_FILE, Recording
from cnfgnn.attack.replica import public_facts
from cnfgnn.attack.smoothing import Colluder
from cnfgnn.cli.attack import attack
from cnfgnn.cli.federation_tasks import _print_recording
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.source import open_data
from cnfgnn.errors import ConfigError, DataError, RunError
from cnfgnn.federation.server.federated_run import check_recordable
from cnfgnn.federation.task import RUNS, Task, settings_of
from cnfgnn.runs.folder import Run
from tests.attack.small_runs import to_attack
from tests.federation.in_memory_federation import InMemoryFederation, given_of, must_finish

SITES = {"north": [2], "south": [3, 0], "west": [1]}  # not in the order of the readings
SIGMA = 5.0
SERIES = "whole series at once"


@pytest.fixture(scope="module")
def city() -> Dataset:
    return open_data(to_attack("at-fedavg", **{"city.days": 3}))


def federation(
    folder: Path, city: Dataset, method: str, blur: float, record: bool = False, **changes: Any
) -> InMemoryFederation:
    """Sites that have trained for a round. Each has its own blur, if any has one."""
    sites = InMemoryFederation(folder, city, SITES, blur=blur)
    if blur:
        sites.set("west", blur=blur + 2)
    sizes = {"model.hidden": 32, "model.sent": 24, "training.average_every": 3}
    config = to_attack(method, **(sizes if method == "cnfgnn-private" else {}), **changes)
    settings, given = settings_of(config), given_of(config)
    must_finish(
        sites.run_task(Task("train", "one", settings=settings, given=given, wait=20.0, record=record))
    )
    return sites


def recorded(sites: InMemoryFederation, split: str = "test") -> Run:
    """The run, whose server has recorded an evaluation."""
    status = must_finish(sites.run_task(Task("evaluate", "one", split=split, wait=20.0, record=True)))
    assert status["result"]["recording"] == RECORDING_FILE
    return Run.open(sites.server / RUNS / "one")


def attacked(run: Run, city: Dataset, *attacks: str, **more: Any) -> AttackReport:
    return attack_run(
        run, city, attacks=attacks, windows=60, effort=Effort(iterations=30), device="cpu", **more
    )


def copies(sites: InMemoryFederation) -> np.ndarray[Any, Any]:
    """(n T): the copies of all sites, in the order of the run's rows."""
    owners = [sites.ends[name].owner for name in SITES]
    return np.concatenate([owner.nodes.series.values for owner in owners if owner is not None])


@pytest.fixture(scope="module")
def unblurred(tmp_path_factory: pytest.TempPathFactory, city: Dataset) -> InMemoryFederation:
    return federation(tmp_path_factory.mktemp("unblurred"), city, "at-fedavg", 0.0)


def test_without_blur_a_recorded_evaluation_gives_the_readings_away(
    unblurred: InMemoryFederation, city: Dataset
) -> None:
    run = recorded(unblurred)
    path = run.folder / RECORDING_FILE
    assert path.stat().st_mode & 0o077 == 0
    report = attacked(run, city, "series", colluding="c0001")
    assert report.sensors == ["c0002", "c0003", "c0000"]
    assert report.blur == 0
    assert report.line("guess: each sensor's mean").all.rmse > 3
    assert report.line(SERIES).all.rmse < 0.02
    assert report.line(SERIES).newest.readings <= 3 * 60


@pytest.mark.slow
def test_with_a_blur_no_attack_is_better_than_the_same_on_the_copy(tmp_path: Path, city: Dataset) -> None:
    sites = federation(tmp_path, city, "cnfgnn-private", SIGMA)
    run = recorded(sites)
    observed = observe(run, as_in_run(run, city), windows=60)
    assert observed.copy is None  # it is with the owners
    assert public_facts(observed.recording).blur.tolist() == [SIGMA, SIGMA, SIGMA, SIGMA + 2]
    truth = true_readings(run, as_in_run(run, city))
    attacker = Attacker(
        observed.recording,
        torch.tensor([0, 1, 2]),
        Colluder(3, truth[3]),
        torch.device("cpu"),
        effort=Effort(steps=20, iterations=30),
    )
    copy = torch.from_numpy(copies(sites))
    lines = {line.label: line.all.rmse for line in judge(attacker, ["series", "smoother"], truth, copy)}
    assert 4 < lines["the copy itself"] < 6
    assert lines[SERIES] == pytest.approx(lines["the copy itself"], rel=0.03)
    kinds = ("smoother (colluding)", "smoother (known blur)")
    # On noise a smoother may be worse than the copy as it is, so the best use of the copy is what counts.
    best_of_copy = min(lines[name] for name in ("the copy itself", *(f"the copy, {kind}" for kind in kinds)))
    for kind in kinds:
        assert lines[f"series, {kind}"] > 0.97 * best_of_copy
    report = attacked(run, city, "series", colluding="c0001")
    assert report.blur == SIGMA + 2
    assert report.line(SERIES).all.rmse == pytest.approx(lines[SERIES])


def test_absent_sites_are_not_attacked(unblurred: InMemoryFederation, city: Dataset) -> None:
    (unblurred.server / RUNS / "one" / RECORDING_FILE).unlink(missing_ok=True)
    unblurred.unreachable = {"south"}
    try:
        status = unblurred.run_task(Task("evaluate", "one", wait=1.0, record=True))
    finally:
        unblurred.unreachable = set()
    must_finish(status)
    run = Run.open(unblurred.server / RUNS / "one")
    states = Recording.load(run.folder / RECORDING_FILE).states["test"]
    assert states.h_c.isnan().all(dim=2).all(dim=1).tolist() == [False, True, True, False]
    assert attacked(run, city, "series", colluding="c0001").sensors == ["c0002"]


@pytest.mark.slow
def test_a_recorded_training_holds_its_gradients(tmp_path: Path, city: Dataset) -> None:
    """Of the last round: the first weights of all are drawn from the seed, and are not sent."""
    sites = federation(tmp_path, city, "cnfgnn-private", 0.0, record=True, **{"training.rounds": 2})
    run = Run.open(sites.server / RUNS / "one")
    recording = Recording.load(run.folder / RECORDING_FILE)
    windows = recording.set_up.windows.count("train")
    assert {batch.draw.r_g for batch in recording.minibatches} == {2}
    assert sorted(int(p) for b in recording.minibatches for p in b.places) == list(range(windows))
    assert recording.has["train"].shape == (4, windows)
    assert recording.states["test"].h_c.shape[:2] == (4, recording.set_up.windows.count("test"))
    assert all(len(w) == 4 for w in recording.intervals[0].after.values())


@pytest.mark.slow
def test_readings_to_judge_by_may_begin_elsewhere(unblurred: InMemoryFederation, city: Dataset) -> None:
    """Rows are found by their times: what lies outside of the run is left out."""
    run = recorded(unblurred)
    whole = attacked(run, city, "series", colluding="c0001")
    readings, step = city.readings, city.readings.step
    earlier = readings.times[0] - step * np.arange(50, 0, -1)
    longer = pd.DataFrame(
        np.concatenate([np.full((50, 4), 20.0), readings.values]),
        index=np.concatenate([earlier, readings.times]),
    )
    shifted = _with(city, longer)
    again = attacked(run, shifted, "series", colluding="c0001")
    assert again.line(SERIES) == whole.line(SERIES)
    with pytest.raises(DataError, match="from other times than those of"):
        attacked(run, _with(city, longer.iloc[:50]), "series")
    with pytest.raises(DataError, match="no readings of this sensor"):
        attacked(run, city.select(["c0000", "c0001", "c0002"]), "series")
    off = longer.set_index(longer.index + np.timedelta64(7, "s"))
    with pytest.raises(DataError, match="not on the steps of 300 s"):
        attacked(run, _with(city, off), "series")


def _with(city: Dataset, frame: pd.DataFrame) -> Dataset:
    values = frame.to_numpy().astype(np.float32)
    readings = replace(
        city.readings,
        times=frame.index.to_numpy().astype("datetime64[s]"),
        values=values,
        missing=np.isnan(values),
    )
    return replace(city, readings=readings)


def test_the_operator_is_told_what_a_recording_is(capsys: pytest.CaptureFixture[str]) -> None:
    _print_recording(Path("server"), "one", {})
    assert capsys.readouterr().err == ""
    _print_recording(Path("server"), "one", {"recording": RECORDING_FILE})
    said = capsys.readouterr().err
    assert said.startswith(
        "server/runs/one/recording.safetensors keeps the hidden states that the sites sent"
    )
    assert said.count("\n") == 1


def test_what_cannot_be_recorded_or_was_not_is_said_in_a_sentence(
    unblurred: InMemoryFederation, city: Dataset
) -> None:
    with pytest.raises(ConfigError, match="--record: gru-fedavg sends no hidden states"):
        check_recordable("gru-fedavg")
    run = Run.open(unblurred.server / RUNS / "one")
    (run.folder / RECORDING_FILE).unlink(missing_ok=True)
    with pytest.raises(RunError, match="kept no recording: cnfgnn federation evaluate KIT RUN --record"):
        attack_run(run, city)
    with pytest.raises(ConfigError, match="DATA: it is missing: the readings of a federation are with their"):
        attack(run.folder)
