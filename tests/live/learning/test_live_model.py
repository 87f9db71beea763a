"""A service that keeps learning: models that replace each other, and the process that trains them."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.windows import Windows
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.live.intake.at_hand import at_hand
from cnfgnn.live.learning import live_model
from cnfgnn.live.learning.live_model import Learning, period_of
from cnfgnn.live.learning.models import KEPT, Models
from cnfgnn.live.learning.retrain import error_on, plan_windows, retrain
from cnfgnn.live.options import FEED, LiveSettings
from cnfgnn.runs.folder import Run
from cnfgnn.runs.forecast import forecast_run
from tests.commands import said
from tests.live.small_service import KNOWN, LiveCommand, SmallRun, check_forecast, make_small_run, serving
from tests.live.web.test_service_pages import next_event
from tests.waiting import wait_for

HELD = 0.1  # days that are held out: 29 steps
SETTINGS = LiveSettings(hold_out=HELD)
PATIENCE = 240.0  # seconds: the machine may have much to do
PATIENT = ("--clock", "feed", "--deadline", "250")


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """A run whose file has grown since it was trained."""
    made = make_small_run(tmp_path_factory.mktemp("grown"), "mlp-fedavg")
    write_folder(made.until(170), made.folder)
    return made


def retrained(small: SmallRun, state: Path, settings: LiveSettings = SETTINGS) -> tuple[Models, Any]:
    models = Models(small.run.folder, state)
    return models, retrain(small.run, models, settings)


# ---- the record of models ------------------------------------------------------------------------------


def test_models_go_live_one_after_the_other_and_back(tmp_path: Path) -> None:
    models = Models(tmp_path / "mine", tmp_path / "state")
    assert models.read().live == "mine"
    for name in ("a", "b"):
        models.switch(name, f"{name} is better")
    again = Models(tmp_path / "mine", tmp_path / "state")  # another process
    assert again.read().line == ("mine", "a", "b")
    assert again.rollback("b is odd").live == "a"
    assert again.rollback("a too").live == "mine"
    with pytest.raises(RunError, match="no model was live before mine: nothing to go back to"):
        again.rollback("once more")
    log = [json.loads(line) for line in (tmp_path / "state" / "switches.jsonl").read_text().splitlines()]
    assert [(e["from"], e["to"], e["why"]) for e in log] == [
        ("mine", "a", "a is better"),
        ("a", "b", "b is better"),
        ("b", "a", "b is odd"),
        ("a", "mine", "a too"),
    ]


def test_the_last_models_are_kept_and_the_first(tmp_path: Path) -> None:
    models = Models(tmp_path / "mine", tmp_path / "state")
    for number in range(8):
        models.folder(f"m{number}").mkdir(parents=True)
        models.switch(f"m{number}", "better")
        models.remove_others()
    assert models.read().line == ("mine", "m4", "m5", "m6", "m7")
    assert len(models.read().line) == KEPT
    assert sorted(folder.name for folder in (tmp_path / "state" / "models").iterdir()) == [
        "m4",
        "m5",
        "m6",
        "m7",
    ]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1, "line": [], "switches": []}'])
def test_a_damaged_record_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "models.json").write_text(content)
    with pytest.raises(RunError, match=r"models\.json: is damaged"):
        Models(tmp_path / "mine", tmp_path).read()


def test_periods_pass_with_the_readings_and_across_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_model, "FOLLOWED_EVERY", 0.0)
    trained: list[float] = []

    class Until:
        """A clock that shows these moments one after another, and then ends the service."""

        speed = 1.0

        def __init__(self, *moments: float) -> None:
            self.moments = list(moments)

        def now(self) -> float:
            if not self.moments:
                raise asyncio.CancelledError
            self.moment = self.moments.pop(0)
            return self.moment

    def run(*moments: float) -> None:
        service = Learning.__new__(Learning)
        models = Models(tmp_path / "mine", tmp_path / "state")
        models.live()

        async def train() -> None:
            trained.append(clock.moment)

        clock = Until(*moments)
        vars(service).update(
            models=models,
            settings=LiveSettings(retrain=3600),
            service=SimpleNamespace(clock=clock),
            _train=train,
        )
        with suppress(asyncio.CancelledError):
            asyncio.run(service._retrain())

    run(10_000, 13_599)
    assert not trained
    run(13_600)  # the first period has begun before the restart
    run(13_700, 17_199, 21_000)
    assert trained == [13_600, 21_000]
    run(5_000, 8_600)  # the recording has begun again
    assert trained == [13_600, 21_000, 8_600]


def test_periods() -> None:
    assert [period_of(text) for text in ("daily", "6h", "90m", "2d", "1.5h")] == [
        86_400,
        21_600,
        5_400,
        172_800,
        5_400,
    ]
    for text in ("sometimes", "0h", "-1d", "6", "1000d"):
        with pytest.raises(ConfigError, match=r"--retrain: .* is not a period"):
            period_of(text)


# ---- judging ---------------------------------------------------------------------------------------------


def test_both_models_are_judged_on_readings_that_neither_learned_from(own_run: SmallRun) -> None:
    plan = plan_windows(own_run.run, own_run.until(170).readings, HELD)
    d = own_run.run.config.data
    assert int(plan.judged[-1]) + d.history + d.horizon == 170
    assert len(plan.judged) == 29 - d.horizon + 1
    for rows, shares in ((KNOWN, d.shares), (170, plan.shares)):  # the live model, and the new one
        windows = Windows.of(rows, d.history, d.horizon, shares)
        last_row_of_learning = int(windows.starts["validation"][-1]) + windows.length - 1
        assert last_row_of_learning < int(plan.judged[0]) + d.history
    assert plan.shares[0] / plan.shares[1] == pytest.approx(d.shares[0] / d.shares[1])


def test_what_the_live_model_has_learned_from_is_not_judged_by(own_run: SmallRun) -> None:
    d = own_run.run.config.data
    own = Windows.of(KNOWN, d.history, d.horizon, d.shares)
    plan = plan_windows(own_run.run, own_run.until(KNOWN).readings, 0.17)  # more than its test split
    assert int(plan.judged[0]) == int(own.starts["test"][0]) + d.horizon - 1


def test_the_error_is_that_of_the_forecasts(own_run: SmallRun) -> None:
    data = own_run.until(170)
    starts = np.array([140, 150], dtype=np.int64)
    d, errors = own_run.run.config.data, []
    for start in starts:
        forecast = forecast_run(own_run.run, own_run.until(start + d.history)).to_numpy()
        target = data.readings.values[start + d.history : start + d.history + d.horizon]
        errors.append((forecast - target)[~np.isnan(forecast - target)])
    expected = float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))
    assert error_on(own_run.run, data, starts) == pytest.approx(expected, rel=1e-6)


def test_a_better_model_goes_live(own_run: SmallRun, tmp_path: Path) -> None:
    models, training = retrained(own_run, tmp_path / "state")
    assert training.outcome == "better", training.text
    assert training.new_error < training.old_error
    record = models.read()
    assert record.line == (own_run.run.folder.name, training.model)
    assert record.trainings == (training,)
    new = Run.open(models.folder(training.model))
    assert new.origin is not None
    assert new.origin.run == str(own_run.run.folder)


def test_a_worse_model_does_not(own_run: SmallRun, tmp_path: Path) -> None:
    """What came in since the last training is noise, but for the days by which both are judged."""
    data = own_run.until(170)
    values = data.readings.values.copy()
    rng = np.random.default_rng(0)
    values[95:138] = rng.uniform(0, 100, values[95:138].shape)
    noisy = replace(data, readings=replace(data.readings, values=values, missing=np.isnan(values)))
    (tmp_path / "noisy").mkdir()
    write_folder(noisy, tmp_path / "noisy")
    models, training = retrained(own_run, tmp_path / "state", replace(SETTINGS, data=tmp_path / "noisy"))
    assert training.outcome == "not better", training.text
    assert models.read().live == own_run.run.folder.name
    assert list((tmp_path / "state" / "models").iterdir()) == []


def test_without_new_readings_nothing_is_trained(small_run: SmallRun, tmp_path: Path) -> None:
    models, training = retrained(small_run, tmp_path / "state", LiveSettings(hold_out=0.3))
    assert training.outcome == "too few readings"
    assert not (tmp_path / "state" / "models").exists()
    assert models.read().live == small_run.run.folder.name


def test_it_trains_on_what_the_service_has_stored(small_run: SmallRun, tmp_path: Path) -> None:
    settings = LiveSettings(data=small_run.folder, state=tmp_path / "state", clock=FEED, deadline=250)
    with serving(small_run.run, settings) as (_, client):
        for row in range(KNOWN, KNOWN + 4):
            client.post(small_run.row(row))
        client.post({"sensor": "s1", "time": small_run.row(KNOWN - 1)["time"], "value": 12.5})
        found = at_hand(small_run.run, LiveSettings(data=small_run.folder), tmp_path / "state", True).data
    expected = small_run.until(KNOWN + 4).readings.values.copy()
    expected[KNOWN - 1, 1] = 12.5
    np.testing.assert_array_equal(found.readings.values, expected)
    assert found.readings.positions is not None


# ---- the service -----------------------------------------------------------------------------------------


def ranges_of(run: Run, data: Dataset, found: dict[str, Any]) -> None:
    """The ranges are those that the command would write: those of the new model, not of the one before. They
    differ by what the last forecast before the switch, which the new model did not make, would have moved."""
    table = forecast_run(run, data, [80])
    for sensor, told in found["sensors"].items():
        low = np.array(told["intervals"]["80"]["low"], dtype=float)
        np.testing.assert_allclose(low, table[f"{sensor} low 80"].to_numpy(), rtol=3e-3, atol=1e-3)


@pytest.mark.slow
def test_the_service_follows_the_record_without_a_missed_step(own_run: SmallRun, tmp_path: Path) -> None:
    state = tmp_path / "state"
    settings = LiveSettings(data=own_run.folder, state=state, clock=FEED, deadline=250)
    with serving(own_run.run, settings) as (_, client):
        told = client.get("/model").json
        assert (told["run"], told["switches"], told["rollbackTo"]) == (own_run.run.folder.name, [], None)
        client.post(own_run.full_row(170))
        client.forecast_after(own_run.row(170)["time"])
        before = client.get("/watch").json["alarms"]
        stream = http.client.HTTPConnection(client.host, timeout=240)
        stream.request("GET", "/events", headers=client.headers)
        events = stream.getresponse()
        models, training = retrained(own_run, state, replace(SETTINGS, data=own_run.folder))
        assert training.outcome == "better", training.text
        wait_for(lambda: client.get("/model").json["run"] == training.model, "the new model")
        [switch] = client.get("/model").json["switches"]
        assert (switch["from"], switch["to"]) == (own_run.run.folder.name, training.model)
        assert "RMSE" in switch["why"]
        assert next_event(events, "switch") == switch
        client.post(own_run.full_row(171))
        found = client.forecast_after(own_run.row(171)["time"])
        data = at_hand(own_run.run, replace(SETTINGS, data=own_run.folder), state, True).data
        check_forecast(found, Run.open(models.folder(training.model)), data)
        ranges_of(Run.open(models.folder(training.model)), data, found)
        assert client.get("/watch").json["alarms"] == before
        assert b"cnfgnn_live_skipped_steps_total 0.0" in client.get("/metrics").body
        assert "is live instead of" in said("live", "rollback", own_run.run.folder, "--state", state)
        wait_for(lambda: client.get("/model").json["run"] == own_run.run.folder.name, "the rollback")
        assert next_event(events, "switch") == client.get("/model").json["switches"][-1]
        stream.close()
        assert b"cnfgnn_live_model_switches_total 2.0" in client.get("/metrics").body
        client.post(own_run.full_row(172))
        found = client.forecast_after(own_run.row(172)["time"])
        data = at_hand(own_run.run, replace(SETTINGS, data=own_run.folder), state, True).data
        check_forecast(found, own_run.run, data)
    assert "nothing to go back to" in said(
        "live", "rollback", own_run.run.folder, "--state", state, fails=True
    )


def test_a_model_that_cannot_be_loaded_is_left_out(own_run: SmallRun, tmp_path: Path) -> None:
    models = Models(own_run.run.folder, tmp_path / "state")
    models.switch("gone", "better")  # its folder is not there
    settings = LiveSettings(data=own_run.folder, state=tmp_path / "state", clock=FEED, deadline=250)
    with serving(own_run.run, settings) as (_, client):
        told = client.get("/model").json
        assert told["run"] == own_run.run.folder.name
        assert "gone cannot be loaded" in told["switches"][-1]["why"]
        models.switch("lost", "better")
        wait_for(lambda: len(client.get("/model").json["switches"]) == 4, "the way back")
        assert client.get("/model").json["run"] == models.read().live == own_run.run.folder.name
        assert client.get("/health").json["status"] != "degraded"


# ---- the trainer as a process ----------------------------------------------------------------------------


def children_of(process: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if parent == process:
            found.append(int(folder.name))
    return found


def trainer_of(service: LiveCommand) -> int:
    [trainer] = wait_for(lambda: children_of(service.process.pid), "a trainer")
    return int(trainer)


def is_gone(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.fixture
def learning() -> Iterator[list[LiveCommand]]:
    """The services that a test has started; they end with it."""
    services: list[LiveCommand] = []
    yield services
    for service in services:
        service.end(signal.SIGKILL)


def started(small: SmallRun, state: Path, services: list[LiveCommand], period: str) -> LiveCommand:
    options = ("--retrain", period, "--hold-out", HELD, "--retrain-nice", 1)
    services.append(
        LiveCommand(small.run.folder, "--data", small.folder, "--state", state, *PATIENT, *options)
    )
    return services[-1]


@pytest.mark.slow
def test_a_trainer_that_is_killed_disturbs_nobody_and_the_next_one_goes_live(
    own_run: SmallRun, tmp_path: Path, learning: list[LiveCommand]
) -> None:
    state = tmp_path / "state"
    service = started(own_run, state, learning, "2s")
    trainer = trainer_of(service)
    wait_for(lambda: priority(trainer) == min(priority(service.process.pid) + 1, 19), "its low priority")
    os.kill(trainer, signal.SIGKILL)
    service.client.post(own_run.full_row(170))
    service.client.forecast_after(own_run.row(170)["time"])
    assert service.client.get("/health").status == 200
    failed = b'cnfgnn_live_failures_total{part="learning"} 1.0'
    wait_for(lambda: failed in service.client.get("/metrics").body, "the failure to be counted")

    def went_live() -> str:
        told = service.client.get("/model").json
        return told["run"] if told["run"] != own_run.run.folder.name else ""

    wait_for(went_live, "a new model", PATIENCE)
    service.end(signal.SIGKILL)  # at any moment: what is live stays live
    again = started(own_run, state, learning, "1h")
    told = again.client.get("/model").json
    assert told["run"] == Models(own_run.run.folder, state).read().live != own_run.run.folder.name
    assert told["switches"][0]["from"] == own_run.run.folder.name
    again.end()


def priority(process: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, process)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.chaos)])
def test_the_trainer_ends_with_the_service(
    own_run: SmallRun, tmp_path: Path, learning: list[LiveCommand], number: int
) -> None:
    service = started(own_run, tmp_path / "state", learning, "1s")
    [trainer, *_] = wait_for(
        lambda: [child for child in children_of(service.process.pid) if is_training(child)],
        "a trainer at work",
        PATIENCE,
    )
    code, errors = service.end(number)
    wait_for(lambda: is_gone(trainer), "the end of the trainer")
    if number == signal.SIGINT:
        assert code == 130, errors
    assert Models(own_run.run.folder, tmp_path / "state").read().line


def is_training(trainer: int) -> bool:
    """Whether it holds the lock of retrainings: it has long asked to be ended with its parent."""
    with suppress(OSError):  # it may end at any moment
        return any("retrain.lock" in os.readlink(file) for file in Path(f"/proc/{trainer}/fd").iterdir())
    return False
