"""A synthetic city: sensors on freeways whose traffic follows Daganzo's cell transmission model.

Demand has daily and weekly rhythms, but its level differs from day to day and incidents are random. A
sensor's next hour is therefore easier to forecast from the readings of its downstream neighbours than from
its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, isfinite

import numpy as np
import numpy.typing as npt

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.inputs import Input, in_order
from cnfgnn.data.readings import Readings
from cnfgnn.data.synthetic.roads import BLOCK, EXIT_SHARE, City, lay_out
from cnfgnn.data.synthetic.traffic import CAPACITY, CELL_M, STEP_S, Floats, Ints, Traffic, mean_speed_mph
from cnfgnn.data.synthetic.weather import NARROWER, SLOWER, Rain
from cnfgnn.errors import ConfigError

WARM_UP_HOURS = 3
STRETCH_M = 36_000.0  # of road, about a block of sensors
BOTTLENECKS = 1.0  # per stretch
BOTTLENECK_CAPACITY = (0.80, 0.92)
PEAK_FLOW = 0.95  # of capacity
DAY_SPREAD = 0.12  # standard deviation of a day's demand in a block (logarithm)
SURGE_SPREAD, SURGE_HOURS = 0.10, 1.0  # the same for a ramp within a day, and how long a surge lasts
RAMP_QUEUE = 20  # with so many vehicles waiting at a ramp, no more drivers join
INCIDENTS = 8.0  # per stretch and day
INCIDENT_HOURS = (6, 20)
INCIDENT_MINUTES = (30, 90)
INCIDENT_CAPACITY = (0.2, 0.5)
SILENT_HOURS = 1.0  # mean length of a drop-out
SLOWEST_MPH = 1.0  # elsewhere, a reading of zero means "no reading"
FLOW_NOISE = 0.03  # of the flow: standard deviation of the measurement error


def city(
    sensors: int = 24,
    days: float = 14,
    *,
    seed: int = 0,
    step_minutes: int = 5,
    dropout: float = 0.01,
    noise: float = 1.0,
    start: str = "2024-01-01",
    inputs: bool = False,
) -> Dataset:
    """Simulate a city: the speeds that its sensors measure, in mph, and the graph of driving distances.

    `dropout` is the share of missing readings, half of them in gaps of about an hour; `noise` is the standard
    deviation of the measurement error in mph. With `inputs`, it rains at times, which slows the traffic down:
    the further inputs are the flow at each sensor, in vehicles per hour, and a forecast of rain in mm per
    hour. The same arguments always give the same city.
    """
    begin = _checked_start(sensors, days, seed, step_minutes, dropout, noise, start)
    rows = max(1, round(days * 24 * 60 / step_minutes))
    streams = np.random.SeedSequence(seed).spawn(7)
    layout, demand, incidents, errors, silences, weather, flow_errors = map(np.random.default_rng, streams)
    town = lay_out(sensors, layout)
    values, flows = np.empty((2, rows, sensors), dtype=np.float32)
    times = begin + np.arange(rows) * np.timedelta64(60 * step_minutes, "s")
    warm_up = np.timedelta64(WARM_UP_HOURS + step_minutes // 60 + 1, "h")
    rain = Rain(begin - warm_up, times[-1], weather) if inputs else None
    simulated = _simulated(town, begin, rows, step_minutes, demand, incidents, rain)
    for row, (speeds, flow) in enumerate(simulated):
        values[row] = np.maximum(speeds + noise * errors.standard_normal(sensors), SLOWEST_MPH)
        flows[row] = flow
    _drop_out(values, dropout, step_minutes, silences)
    digits = max(4, len(str(sensors - 1)))
    readings = Readings(
        times,
        tuple(f"c{i:0{digits}d}" for i in range(sensors)),
        values,
        np.isnan(values),
        town.positions(),
        "synthetic city",
    )
    if rain is not None:
        inputs_of_city = [_measured_flow(readings, flows, flow_errors), rain.forecast(begin)]
        readings = replace(readings, others=in_order(inputs_of_city))
    return Dataset(f"city-{sensors}", readings, town.graph())


def _measured_flow(speeds: Readings, flows: npt.NDArray[np.float32], rng: np.random.Generator) -> Input:
    """The flow as the same detectors measure it, which are silent at the same times."""
    measured = flows * (1 + FLOW_NOISE * rng.standard_normal(flows.shape))
    values = np.where(speeds.missing, np.nan, np.round(measured)).astype(np.float32)
    readings = replace(speeds, values=values, missing=np.isnan(values), source="synthetic city: flow")
    return Input("flow", False, readings)


def _checked_start(
    sensors: int, days: float, seed: int, step_minutes: int, dropout: float, noise: float, start: str
) -> np.datetime64:
    """Check all arguments; return the time of the first reading."""
    in_range = {
        "sensors": (sensors >= 1, f"must be at least 1, not {sensors}"),
        "days": (days > 0 and isfinite(days), f"must be more than 0, not {days}"),
        "seed": (seed >= 0, f"must be at least 0, not {seed}"),
        "step_minutes": (step_minutes >= 1, f"must be at least 1, not {step_minutes}"),
        "dropout": (0 <= dropout < 1, f"must be at least 0 and below 1, not {dropout}"),
        "noise": (noise >= 0 and isfinite(noise), f"must be at least 0, not {noise}"),
    }
    for key, (fine, problem) in in_range.items():
        if not fine:
            raise ConfigError(f"city.{key}", problem)
    try:
        begin = np.datetime64(start, "s")
        if np.isnat(begin):
            raise ValueError
    except ValueError:
        raise ConfigError("city.start", f"must be a date such as 2024-01-01, not {start!r}") from None
    return begin


def _simulated(
    town: City,
    begin: np.datetime64,
    rows: int,
    step_minutes: int,
    demand_rng: np.random.Generator,
    incident_rng: np.random.Generator,
    rain: Rain | None,
) -> Iterator[tuple[Floats, Floats]]:
    """Yield the mean speed (n,) at each sensor and the vehicles that pass it in an hour (n,), row by row,
    after some hours in which the roads fill."""
    minutes = gcd(step_minutes, 5)  # how often demand and incidents change
    warm_up = -(-WARM_UP_HOURS * 60 // step_minutes)
    clock = begin + np.arange(-warm_up * step_minutes, rows * step_minutes, minutes) * np.timedelta64(60, "s")
    demand = _demand(town, clock, minutes, demand_rng)
    capacity = _capacity(town, clock, incident_rng)
    heaviness = None if rain is None else iter(rain.heaviness(clock).tolist())
    traffic = Traffic(town.roads)
    for row in range(-warm_up, rows):
        outflow, vehicles = np.zeros((2, len(town.sensors)))
        for _ in range(step_minutes // minutes):
            passing = next(capacity)
            if heaviness is not None:
                heavy = next(heaviness)
                traffic.slow_down(SLOWER * heavy)
                passing = passing * (1 - NARROWER * heavy)
            arriving = np.where(traffic.waiting < RAMP_QUEUE, next(demand), 0.0)
            for _ in range(round(minutes * 60 / STEP_S)):
                vehicles += traffic.vehicles[town.sensors]
                traffic.step(arriving, passing)
                outflow += traffic.outflow[town.sensors]
        if row >= 0:
            speed = mean_speed_mph(outflow, vehicles, town.free_mph[town.sensors])
            yield speed, outflow * (60 / step_minutes)


def _hours_and_days(clock: npt.NDArray[np.datetime64]) -> tuple[Floats, Ints]:
    """Hour of the day, and days since a Monday (so that 5 and 6 modulo 7 are a weekend)."""
    day = clock.astype("datetime64[D]")
    hours = (clock - day).astype("timedelta64[s]").astype(np.float64) / 3600
    return hours, (day - np.datetime64("1970-01-05", "D")).astype(np.int64)


@dataclass(frozen=True)
class Rhythm:
    """The peak flows of a working day and their hours, per ramp: (ramps,) each."""

    morning: Floats
    evening: Floats
    morning_hour: Floats
    evening_hour: Floats

    def flow(self, hour: float, weekend: bool) -> Floats:
        """The flow at that hour, as a share of capacity."""
        day = float(1 / (1 + np.exp((6.0 - hour) / 0.5)) - 1 / (1 + np.exp((21.0 - hour) / 0.8)))
        if weekend:
            return 0.10 + 0.50 * day + 0.15 * _bump(hour, np.full_like(self.morning, 14.0), 2.5)
        level = 0.10 + 0.55 * day
        to_work = (self.morning - level) * _bump(hour, self.morning_hour, 1.0)
        back_home = (self.evening - level) * _bump(hour, self.evening_hour, 1.3)
        return level + to_work + back_home


def _bump(hour: float, centre: Floats, width: float) -> Floats:
    return np.exp(-np.square((hour - centre) / width) / 2)


def _blocks(town: City) -> Ints:
    """(c,) The stretch of road, of about BLOCK sensors, that each cell belongs to; demand is common to it."""
    sensors_before = np.searchsorted(town.sensors, np.arange(town.first[-1]))
    on_road = sensors_before - np.searchsorted(town.sensors, town.first[:-1])[town.road]
    return np.unique(np.stack([town.road, on_road // BLOCK]), axis=1, return_inverse=True)[1].ravel()


def _demand(
    town: City, clock: npt.NDArray[np.datetime64], minutes: int, rng: np.random.Generator
) -> Iterator[Floats]:
    """Yield the vehicles (c,) that arrive at each on-ramp in a step, for each time of the clock."""
    ramps = town.on_ramps
    block = _blocks(town)[ramps]
    blocks = int(block.max()) + 1
    inbound = (town.road[ramps] // 2 + town.road[ramps]) % 2 == 0
    strong, weak = rng.uniform(0.95, 1.1, blocks)[block], rng.uniform(0.75, 0.9, blocks)[block]
    rhythm = Rhythm(
        PEAK_FLOW * np.where(inbound, strong, weak),
        PEAK_FLOW * np.where(inbound, weak, strong),
        rng.uniform(7.0, 8.5, blocks)[block],
        rng.uniform(16.5, 18.0, blocks)[block],
    )
    level = CAPACITY * np.where(town.place[ramps] == 0, 1.0, EXIT_SHARE * rng.uniform(0.8, 1.2, len(ramps)))
    keep = np.exp(-minutes / (60 * SURGE_HOURS))
    surge = rng.standard_normal(len(ramps))
    arriving = np.zeros(town.first[-1])
    today = None
    for hour, day in zip(*_hours_and_days(clock), strict=True):
        if day != today:
            today, busy = day, DAY_SPREAD * rng.standard_normal(blocks)[block]
        surge = keep * surge + np.sqrt(1 - keep**2) * rng.standard_normal(len(ramps))
        arriving[ramps] = level * rhythm.flow(hour, day % 7 >= 5) * np.exp(busy + SURGE_SPREAD * surge)
        yield arriving


def _capacity(town: City, clock: npt.NDArray[np.datetime64], rng: np.random.Generator) -> Iterator[Floats]:
    """Yield the vehicles (c,) that a cell can pass on in a step; bottlenecks and incidents reduce them."""
    cells = int(town.first[-1])
    stretches = cells * CELL_M / STRETCH_M
    normal = np.full(cells, CAPACITY)
    narrow = rng.choice(cells, size=min(cells, max(1, round(BOTTLENECKS * stretches))), replace=False)
    normal[narrow] *= rng.uniform(*BOTTLENECK_CAPACITY, len(narrow))
    first_day = clock[0].astype("datetime64[D]")
    days = int((clock[-1] - first_day) // np.timedelta64(1, "D")) + 1
    count = rng.poisson(INCIDENTS * stretches * days)
    hours = 24 * rng.integers(days, size=count) + rng.uniform(*INCIDENT_HOURS, count)
    begin = first_day + (3600 * hours).astype("timedelta64[s]")
    end = begin + (60 * rng.uniform(*INCIDENT_MINUTES, count)).astype("timedelta64[s]")
    where, left = rng.integers(cells, size=count), rng.uniform(*INCIDENT_CAPACITY, count)
    for now in clock:
        active = (begin <= now) & (now < end)
        passing = normal.copy()
        np.minimum.at(passing, where[active], CAPACITY * left[active])
        yield passing


def _drop_out(
    values: npt.NDArray[np.float32], share: float, step_minutes: int, rng: np.random.Generator
) -> None:
    """Replace a share of the readings by NaN: half of them in gaps, the others one by one."""
    in_silence = share / 2
    alone = 1 - (1 - share) / (1 - in_silence)
    wake = min(1.0, step_minutes / (60 * SILENT_HOURS))
    fall_silent = wake * in_silence / (1 - in_silence)  # keeps the share of silent sensors constant
    sensors = values.shape[1]
    silent = np.less(rng.random(sensors), in_silence)
    for row in values:
        row[silent | (rng.random(sensors) < alone)] = np.nan
        silent = np.less(rng.random(sensors), np.where(silent, 1 - wake, fall_silent))
