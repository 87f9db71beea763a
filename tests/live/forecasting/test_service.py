"""Readings that are late, repeated, wrong or missing: forecasts are made, and say how good they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.errors import RunError, StorageError
from cnfgnn.live.forecasting.forecasts import QUALITIES, Forecast, quality_of
from cnfgnn.live.forecasting.predictor import KEPT_ROWS, Floats, RunPredictor
from cnfgnn.live.forecasting.schedule import Schedule
from cnfgnn.live.forecasting.service import LiveService
from cnfgnn.live.forecasting.tracking import open_tracking
from cnfgnn.live.intake.clock import Clock, FeedClock, SystemClock, Zone
from cnfgnn.live.intake.recent import Arrived, RecentReadings, Verdict
from cnfgnn.live.intake.store import ReadingStore
from cnfgnn.runs.forecast import forecast_run
from cnfgnn.transports.remote.limits import MOST_CLOCK_DIFFERENCE
from tests.conftest import HISTORY
from tests.live.small_service import KNOWN, SENSORS, SmallRun, readings_like
from tests.waiting import WITHIN

T = TypeVar("T")
STEP, DEADLINE = 300, 60.0
GAP, FULL = 4, 4  # s4 has a gap before the first row that is sent: it and another one are not full


async def come_true(condition: Callable[[], T | None], what: str) -> T:
    """Wait until something is true, beside a running service, and return it."""
    end = time.monotonic() + WITHIN
    while not (found := condition()):
        assert time.monotonic() < end, f"waited in vain: {what}"
        await asyncio.sleep(0.01)
    return found


class SetClock:
    """A clock that a test sets."""

    speed = 1000.0  # waits are short, whatever the clock says

    def __init__(self, moment: float) -> None:
        self.moment = moment

    def now(self) -> float:
        return self.moment

    def heard(self, seconds: int) -> None: ...

    def told(self, seconds: int) -> None: ...

    def latest(self, step: int) -> float:
        return self.moment + step / 2

    def furthest(self, step: int) -> float:
        return self.moment + step


class Bench:
    """A service on the first rows of the network, whose clock and readings a test controls."""

    def __init__(self, small: SmallRun, state: Path) -> None:
        self.small = small
        known = small.until(KNOWN)
        self.recent = RecentReadings(known.readings, KEPT_ROWS, zeros_missing=False)
        self.clock = SetClock(self.recent.newest + DEADLINE)
        self.service = LiveService(
            RunPredictor(small.run, known),
            self.recent,
            ReadingStore(state),
            self.clock,
            Zone(utc=False),
            Schedule(STEP, DEADLINE, HISTORY),
            state / "latest.csv",
        )
        self.made: list[Forecast] = []
        self.service.listeners.append(self.made.append)

    def cells(self, row: int, leave_out: tuple[int, ...] = ()) -> list[Arrived]:
        """The readings of a row; where the network has a gap, a number."""
        values = np.nan_to_num(self.small.data.readings.values[row], nan=50.0)
        time = self.time(row)
        return [Arrived(f"s{k}", time, float(v)) for k, v in enumerate(values) if k not in leave_out]

    def time(self, row: int) -> int:
        return self.recent_first + STEP * row

    @property
    def recent_first(self) -> int:
        return int(self.small.data.readings.times[0].astype("datetime64[s]").astype(np.int64))

    async def forecast_of(self, row: int) -> Forecast:
        def found() -> Forecast | None:
            return next((made for made in self.made if made.step == self.time(row)), None)

        return await come_true(found, f"a forecast of row {row}")


@pytest.fixture
def bench(small_run: SmallRun, tmp_path: Path) -> Bench:
    return Bench(small_run, tmp_path)


def beside_the_service(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test of a bench while its service runs."""

    @wraps(test)
    def run(bench: Bench, **others: object) -> None:
        async def main() -> None:
            serving = asyncio.create_task(bench.service.run())
            try:
                await bench.forecast_of(KNOWN - 1)
                await test(bench, **others)
            finally:
                bench.service.stopping.set()
                await serving

        asyncio.run(main())

    return run


@beside_the_service
async def test_the_forecast_is_made_when_the_last_reading_is_there(bench: Bench) -> None:
    bench.clock.moment = bench.time(KNOWN) + 1
    await bench.service.take(bench.cells(KNOWN, leave_out=(3,)), "test")
    await asyncio.sleep(0.2)
    assert [made.step for made in bench.made] == [bench.time(KNOWN - 1)]
    await bench.service.take([Arrived("s3", bench.time(KNOWN), 50.0)], "test")
    made = await bench.forecast_of(KNOWN)
    assert made.counts()["full"] == FULL


@beside_the_service
async def test_at_the_deadline_the_forecast_is_made_with_who_is_there(bench: Bench) -> None:
    bench.clock.moment = bench.time(KNOWN) + 1
    await bench.service.take(bench.cells(KNOWN, leave_out=(3,)), "test")
    bench.clock.moment = bench.time(KNOWN) + DEADLINE
    made = await bench.forecast_of(KNOWN)
    quality = [QUALITIES[made.quality[k]] for k in range(SENSORS)]
    graph = bench.service.predictor.graph
    edges = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    neighbours = {r for s, r in edges if s in (3, GAP)} - {3, GAP}
    assert neighbours
    for k, found in enumerate(quality):
        others = "neighbours missing" if k in neighbours else "full"
        assert found == ("own readings missing" if k in (3, GAP) else others)
    values = bench.small.data.readings.values.copy()
    values[KNOWN] = np.nan_to_num(values[KNOWN], nan=50.0)
    values[KNOWN, 3] = np.nan
    data = replace(bench.small.data, readings=readings_like(bench.small.data, values))
    expected = forecast_run(bench.small.run, replace(bench.small, data=data).until(KNOWN + 1))
    np.testing.assert_allclose(made.values, expected.to_numpy().T, atol=1e-5)


@beside_the_service
async def test_a_sensor_that_has_been_silent_for_a_history_is_not_waited_for(bench: Bench) -> None:
    for row in range(KNOWN, KNOWN + HISTORY + 1):
        bench.clock.moment = bench.time(row) + DEADLINE
        await bench.service.take(bench.cells(row, leave_out=(3,)), "test")
        await bench.forecast_of(row)
    bench.clock.moment = bench.time(KNOWN + HISTORY + 1) + 1  # well before the deadline
    await bench.service.take(bench.cells(KNOWN + HISTORY + 1, leave_out=(3,)), "test")
    made = await bench.forecast_of(KNOWN + HISTORY + 1)
    assert made.counts()["fallback"] == 1
    profile = bench.service.predictor.weekly_profiles
    assert profile is not None
    assert np.isfinite(made.values[3]).all()  # what the sensor usually reads, or its last reading


@beside_the_service
async def test_when_nobody_sends_anything_forecasts_go_on_and_say_so(bench: Bench) -> None:
    bench.clock.moment = bench.time(KNOWN + 20) + DEADLINE
    made = await bench.forecast_of(KNOWN + 20)
    assert made.counts()["fallback"] == SENSORS
    assert made.newest_reading == bench.time(KNOWN - 1)
    assert bench.service.metrics.skipped._value.get() == 20
    await bench.service.take(bench.cells(KNOWN + 20), "test")  # late, and used from the next one on
    bench.clock.moment = bench.time(KNOWN + 21) + DEADLINE
    made = await bench.forecast_of(KNOWN + 21)
    assert made.counts()["own readings missing"] == SENSORS


@beside_the_service
async def test_readings_in_any_order_give_the_same_forecast(bench: Bench) -> None:
    bench.clock.moment = bench.time(KNOWN + 2) + 1
    cells = [cell for row in range(KNOWN, KNOWN + 3) for cell in bench.cells(row)]
    order = np.random.default_rng(1).permutation(len(cells) - 1).tolist()
    for k in [*order, len(cells) - 1]:  # the newest step is complete when everything is there
        receipt = await bench.service.take([cells[k], cells[k]], "test")
        assert receipt.stored >= 1
    made = await bench.forecast_of(KNOWN + 2)
    values = bench.small.data.readings.values.copy()
    values[KNOWN:] = np.nan_to_num(values[KNOWN:], nan=50.0)
    data = replace(bench.small.data, readings=readings_like(bench.small.data, values))
    expected = forecast_run(bench.small.run, replace(bench.small, data=data).until(KNOWN + 3))
    np.testing.assert_allclose(made.values, expected.to_numpy().T, atol=1e-5)


@beside_the_service
async def test_late_and_corrected_readings_count_from_the_next_forecast_on(bench: Bench) -> None:
    late, corrected = bench.time(KNOWN - 1), bench.time(KNOWN - 2)
    known = bench.recent.until(bench.recent.newest).values
    before = known[-2, 1]
    bench.recent._values[-1, 0] = np.nan
    receipt = await bench.service.take(
        [
            Arrived("s0", late, 61.0),
            Arrived("s1", corrected, float(before) + 1),
            Arrived("s2", late, None),
        ],
        "test",
    )
    assert receipt.counts == {Verdict.LATE: 1, Verdict.CORRECTED: 1, Verdict.NOT_A_NUMBER: 1}
    known = bench.recent.until(bench.recent.newest).values
    assert (known[-1, 0], known[-2, 1]) == (61.0, before + 1)


@beside_the_service
async def test_late_readings_of_the_newest_step_make_its_forecast_again_but_not_at_once(bench: Bench) -> None:
    bench.clock.moment = bench.time(KNOWN) + DEADLINE
    await bench.service.take(bench.cells(KNOWN, leave_out=(3, 4)), "test")
    first = await bench.forecast_of(KNOWN)
    assert first.counts()["full"] < FULL
    await bench.service.take([Arrived("s3", bench.time(KNOWN), 50.0)], "test")
    await bench.service.take([Arrived("s4", bench.time(KNOWN), 50.0)], "test")
    assert bench.service._again_at() == bench.time(KNOWN) + 2 * DEADLINE
    assert bench.service.latest is first
    bench.clock.moment = bench.time(KNOWN) + 2 * DEADLINE
    await come_true(lambda: bench.service.latest is not first, "another forecast")
    assert bench.service.latest is bench.made[-1]
    assert (bench.made[-1].step, bench.made[-1].counts()["full"]) == (bench.time(KNOWN), FULL)
    assert bench.service._again_at() is None
    await bench.service.take([Arrived("s3", bench.time(KNOWN - 1), 50.0)], "test")  # of an earlier step
    assert bench.service._again_at() is None
    bench.service.predictor.repeats = False  # as at a site
    await bench.service.take([Arrived("s3", bench.time(KNOWN), 51.0)], "test")
    assert bench.service._again_at() is None


def test_after_a_gap_a_forecast_is_not_full_before_half_of_its_history_is_there() -> None:
    values = np.full((2016, 2), 50.0, dtype=np.float32)
    values[-1728:-1] = np.nan  # six days
    times = np.datetime64("2024-01-01T00:00:00") + np.arange(len(values)) * np.timedelta64(STEP, "s")
    graph = Graph(2, np.array([0]), np.array([1]), np.array([1.0]))
    for known, expected in ((1, "own readings missing"), (5, "own readings missing"), (6, "full")):
        values[-known:] = 50.0
        readings = Readings(times, ("a", "b"), values, np.isnan(values), source="test")
        assert [QUALITIES[k] for k in quality_of(readings, graph, 12)] == [expected] * 2


@pytest.mark.parametrize(("ahead", "verdict"), [(20, Verdict.NEW), (30, Verdict.NEW), (31, Verdict.FUTURE)])
def test_a_reading_may_be_half_a_step_ahead(small_run: SmallRun, ahead: int, verdict: Verdict) -> None:
    hourly = np.datetime64("2024-01-01T00:00:00") + np.arange(KNOWN) * np.timedelta64(3600, "s")
    recent = RecentReadings(replace(small_run.until(KNOWN).readings, times=hourly), 20, zeros_missing=False)
    clock = SetClock(recent.newest + 15 * 60)
    assert recent.judge(Arrived("s0", clock.now() + ahead * 60, 50.0), clock)[0] is verdict


@beside_the_service
async def test_a_forecast_that_has_become_too_old_says_so(bench: Bench, tmp_path: Path) -> None:
    service = bench.service
    assert not service.is_stale
    latest = tmp_path / "latest.csv"
    await come_true(latest.exists, "latest.csv")
    assert ",no\n" in latest.read_text()
    serving = service.schedule
    service.schedule = replace(serving, deadline=1e9)  # as if the next forecast never came
    bench.clock.moment = bench.time(KNOWN) + 3 * DEADLINE
    await come_true(lambda: ",yes\n" in latest.read_text(), "latest.csv to say so")
    assert service.is_stale
    assert ",no\n" not in latest.read_text()
    assert service.latest is not None
    assert b'"stale": true' in service.latest.json(bench.clock.now())
    service.schedule = serving


@pytest.mark.parametrize(("days", "full"), [(1, FULL), (30, 0)])  # 30 days ahead, all other readings are lost
@beside_the_service
async def test_forecasts_begin_again_after_the_clock_was_ahead(
    bench: Bench, days: int, full: int, caplog: pytest.LogCaptureFixture
) -> None:
    service, ahead = bench.service, bench.time(KNOWN) + days * 86_400
    known = bench.recent.until(bench.recent.newest)
    service.tracking = open_tracking(service.predictor, lambda: None, known, service.store)
    bench.clock.moment = ahead
    await service.take([Arrived("s0", ahead, 50.0)], "test")
    await come_true(lambda: bench.made[-1].step == ahead, "a forecast of the future")
    assert not service.is_stale
    bench.clock.moment = bench.time(KNOWN) + 1
    assert service.is_stale
    assert b'"stale": true' in bench.made[-1].json(bench.clock.now())
    assert b",yes\n" in bench.made[-1].csv(bench.clock.now())
    await come_true(lambda: bench.recent.newest < ahead, "the end of the future")
    await service.take(bench.cells(KNOWN), "test")
    made = await bench.forecast_of(KNOWN)
    assert made.counts()["full"] == full
    assert made is service.latest
    assert not service.is_stale
    assert caplog.text.count("forecasts begin again") == 1
    assert service.tracking.watch.row == bench.time(KNOWN) // STEP, "alarms stand still"
    assert service.report is not None
    assert not service.report.alarms, "sensors were silent in the future alone"


@beside_the_service
async def test_in_the_hour_that_clocks_repeat_forecasts_and_the_watch_go_on(bench: Bench) -> None:
    """With local times its rows take the places of those of the hour before."""
    service, begun = bench.service, KNOWN + 3
    known = bench.recent.until(bench.recent.newest)
    service.tracking = open_tracking(service.predictor, lambda: None, known, service.store)
    set_back = [*range(KNOWN, begun + 12), *range(begun, begun + 13)]
    for value, row in enumerate(set_back):
        bench.clock.moment = bench.time(row) - 100
        await come_true(lambda: bench.recent.newest < bench.clock.moment, "the clock is seen")
        bench.made.clear()
        await service.take([replace(one, value=float(value)) for one in bench.cells(row)], "test")
        await bench.forecast_of(row)
        assert bench.recent.until(bench.time(row)).values[-1].tolist() == [value] * SENSORS
    assert service.tracking.watch.row == bench.time(begun + 12) // STEP
    assert service.tracking.watch.report(str).overall.count > 0, "it has not begun again"


@beside_the_service
async def test_if_the_model_fails_there_is_a_fallback_and_the_service_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("the model is broken")

    with monkeypatch.context() as patched:
        patched.setattr(bench.service.predictor, "forecast", broken)
        bench.clock.moment = bench.time(KNOWN) + 1
        await bench.service.take(bench.cells(KNOWN), "test")
        made = await bench.forecast_of(KNOWN)
    assert made.counts()["fallback"] == SENSORS
    assert np.isfinite(made.values).all()
    assert bench.service.problems["model"] == "RuntimeError: the model is broken"
    bench.clock.moment = bench.time(KNOWN + 1) + 1
    await bench.service.take(bench.cells(KNOWN + 1), "test")
    made = await bench.forecast_of(KNOWN + 1)
    assert made.counts()["full"] == FULL
    assert "model" not in bench.service.problems


@pytest.mark.parametrize(
    ("fault", "mend", "says"),
    [
        ("PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1000000", "full"),
        ("PRAGMA query_only = 1", "PRAGMA query_only = 0", "readonly"),  # as on a disk that has become so
    ],
)
@beside_the_service
async def test_readings_that_cannot_be_written_are_not_taken_and_forecasts_go_on(
    bench: Bench, fault: str, mend: str, says: str
) -> None:
    database = bench.service.store._database
    bench.clock.moment = bench.time(KNOWN) + 1
    database.execute(fault)
    many = [*bench.cells(KNOWN), *(Arrived("s0", bench.time(KNOWN - k), k / 7) for k in range(1, 900))]
    with pytest.raises(StorageError, match=rf"live\.sqlite: cannot be written .*{says}"):
        await bench.service.take(many, "test")
    assert not bench.recent.present(bench.time(KNOWN)).any()
    assert "live.sqlite: cannot be written" in bench.service.problems["disk"]
    bench.clock.moment = bench.time(KNOWN) + DEADLINE
    made = await bench.forecast_of(KNOWN)
    assert made.counts()["fallback"] == 1  # s4, in its gap
    database.execute(mend)
    bench.clock.moment = bench.time(KNOWN + 1) + 1
    await bench.service.take(bench.cells(KNOWN + 1), "test")
    await bench.forecast_of(KNOWN + 1)
    assert "disk" not in bench.service.problems


@beside_the_service
async def test_a_database_that_is_damaged_under_the_service_is_named_and_forecasts_go_on(
    bench: Bench,
) -> None:
    store = bench.service.store
    many = [Arrived("s0", bench.time(KNOWN - 1 - k), k / 7) for k in range(900)]
    await bench.service.take(many, "test")
    damage(store)
    bench.clock.moment = bench.time(KNOWN) + 1
    with pytest.raises(RunError, match=r"live\.sqlite: is damaged"):
        await bench.service.take([*bench.cells(KNOWN), replace(many[800], value=1.0)], "test")
    assert "move it away" in bench.service.problems["disk"]
    bench.clock.moment = bench.time(KNOWN) + DEADLINE
    await bench.forecast_of(KNOWN)


def damage(store: ReadingStore) -> None:
    """Overwrite all of a database but its first page, and let the service forget what it has read of it."""
    store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = store.path.stat().st_size
    with store.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"x" * (size - 4096))
    store._database.execute("PRAGMA shrink_memory")


@beside_the_service
async def test_the_model_is_asked_before_anything_that_may_fail(bench: Bench) -> None:
    """A site's predictor tells the server that a step is due; that must not depend on profiles."""
    predictor, asked = bench.service.predictor, []

    class WithoutProfiles(RunPredictor):
        weekly_profiles = np.zeros((1, 2))  # of another shape than a profile has

        def __init__(self) -> None:
            self.__dict__.update(vars(predictor))

        def forecast(self, readings: Readings) -> Floats:
            asked.append(readings.times[-1])
            return super().forecast(readings)

    bench.service.predictor = WithoutProfiles()
    bench.clock.moment = bench.time(KNOWN) + 1
    await bench.service.take(bench.cells(KNOWN), "test")
    await come_true(lambda: "forecast" in bench.service.problems, "the failure")
    assert [int(time.astype("datetime64[s]").astype(int)) for time in asked] == [bench.time(KNOWN)]


# ---- clocks and times -------------------------------------------------------------------------------------


def test_the_clock_of_a_recording_follows_it_and_waits_for_it() -> None:
    clock: Clock = FeedClock(1000, step=300, speed=1e9)
    assert 1000 < clock.now() < 1300  # it has passed, but not a whole step
    clock.heard(1300)
    assert 1300 < clock.now() < 1600
    clock.heard(900)
    assert clock.now() > 1300


def test_others_set_the_clock_of_a_recording_forward_a_few_steps_after_its_newest_reading() -> None:
    clock: Clock = FeedClock(1000, step=300, speed=1e-9)
    furthest = 1000 + FeedClock.LEAD * 300
    for later in (10**9, furthest + 1, furthest - 300, 10**9, furthest, furthest + 300):
        clock.told(later)
    assert clock.furthest(300) == furthest == int(clock.now())
    clock.heard(1300)
    assert clock.furthest(300) == furthest + 300
    assert int(clock.now()) == furthest


def test_nobody_sets_the_clock_of_the_machine() -> None:
    clock: Clock = SystemClock()
    clock.told(10**12)
    assert abs(clock.now() - time.time()) < 60
    assert abs(clock.furthest(600) - time.time() - 600 - MOST_CLOCK_DIFFERENCE) < 60


def test_times_are_converted_to_those_of_the_readings() -> None:
    from zoneinfo import ZoneInfo

    utc, paris = Zone(utc=True, zone=ZoneInfo("Europe/Paris")), Zone(utc=False, zone=ZoneInfo("Europe/Paris"))
    moment = utc.read("2024-07-01T10:00:00Z")
    assert utc.read("2024-07-01T12:00:00+02:00") == utc.read("2024-07-01T10:00:00") == moment
    assert utc.read("2024-07-01T09:55:00Z/2024-07-01T10:00:00Z") == moment
    assert utc.write(moment) == "2024-07-01T10:00:00Z"
    assert paris.write(paris.read("2024-07-01T10:00:00Z")) == "2024-07-01T12:00:00"
    assert paris.read("2024-07-01T12:00:00") == paris.read("2024-07-01T10:00:00Z")
    assert abs(SystemClock(ZoneInfo("Etc/GMT-3")).now() - SystemClock().now() - 3 * 3600) < 600


def test_old_rows_make_room_for_new_ones(small_run: SmallRun) -> None:
    recent = RecentReadings(small_run.until(KNOWN).readings, 20, zeros_missing=True)
    clock = SetClock(recent.newest + 40 * STEP)
    verdict, cell = recent.judge(Arrived("s0", recent.newest + 5 * STEP + 7, 0.0), clock)
    assert (verdict, cell is not None) == (Verdict.NEW, True)
    assert cell is not None
    recent.put(cell)
    held = recent.until(recent.newest)
    assert held.values.shape == (20, SENSORS)
    assert held.missing[-1].all()  # a zero means that there is no reading
    np.testing.assert_array_equal(held.values[:15], small_run.data.readings.values[KNOWN - 15 : KNOWN])
    recent.advance(recent.newest + 50 * STEP)
    assert np.isnan(recent.until(recent.newest).values).all()


@beside_the_service
async def test_whoever_listens_cannot_stop_the_service(bench: Bench) -> None:
    def broken(_: Forecast) -> None:
        raise ValueError("a listener is broken")

    bench.service.listeners.append(broken)
    for row in (KNOWN, KNOWN + 1):
        bench.clock.moment = bench.time(row) + 1
        await bench.service.take(bench.cells(row), "test")
        await bench.forecast_of(row)
    assert bench.service.problems["forecast"] == "ValueError: a listener is broken"
