"""Readings of many kinds, drawn with the structure that such readings have.

Daily and weekly patterns, weather that moves over the stations, storms, spikes, counts, zeros, gaps, trends:
`KINDS` names them, and `Kind.write` writes one as a user's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator

MINUTE, HOUR, DAY = 60, 3600, 86_400
FIRST = np.datetime64("2023-01-02T00:00:00")  # a Monday
MANY = 1000  # sensors of the kind that has the most, unless --sensors says otherwise


@dataclass(frozen=True, eq=False)
class Kind:
    """Readings (T n) every `step` seconds, NaN where one is missing, and the sensors' places in km (n 2)."""

    step: int
    values: Floats
    places: Floats

    def write(self, folder: Path, digits: int = 7) -> None:
        """As a user's folder: a column for each sensor."""
        folder.mkdir(parents=True, exist_ok=True)
        ids = [f"s{i}" for i in range(self.values.shape[1])]
        times = FIRST + (self.step * np.arange(len(self.values))).astype("timedelta64[s]")
        with open(folder / "readings.csv", "w") as file:
            file.write(",".join(["time", *ids]) + "\n")
            for moment, row in zip(times, self.values, strict=True):
                cells = ("" if np.isnan(x) else f"{x:.{digits}g}" for x in row)
                file.write(f"{str(moment).replace('T', ' ')},{','.join(cells)}\n")
        with open(folder / "sensors.csv", "w") as file:
            file.write("id,latitude,longitude\n")
            for name, (east, north) in zip(ids, self.places, strict=True):
                file.write(f"{name},{48 + north / 111:.5f},{2 + east / 74:.5f}\n")


# ---- what readings are made of ----------------------------------------------------------------------------


def places(rng: Rng, sensors: int, km: float) -> Floats:
    return rng.uniform(0, km, (sensors, 2))


def noise(rng: Rng, steps: int, sensors: int, memory: float) -> Floats:
    """(T n): first-order autoregressive noise of variance 1 that fades with a time constant of `memory`
    steps; white if that is 0."""
    kept = np.exp(-1 / memory) if memory else 0.0
    shocks = rng.standard_normal((steps, sensors)) * np.sqrt(1 - kept**2)
    shocks[0] /= np.sqrt(1 - kept**2)
    for t in range(1, steps):
        shocks[t] += kept * shocks[t - 1]
    return shocks


def weather(rng: Rng, where: Floats, steps: int, memory: float, km: float, wind: float = 0.0) -> Floats:
    """(T n): a field of variance 1 over the places, correlated over `km` and `memory` steps, that moves
    eastward by `wind` km a step."""
    waves = 24
    direction = rng.standard_normal((waves, 2)) / km
    sine, cosine = noise(rng, steps, waves, memory), noise(rng, steps, waves, memory)
    moved = where[None, :, 0] - wind * np.arange(steps)[:, None]  # (T n)
    field = np.zeros((steps, len(where)))
    for k in range(waves):
        phase = direction[k, 0] * moved + direction[k, 1] * where[:, 1]
        field += sine[:, k : k + 1] * np.sin(phase) + cosine[:, k : k + 1] * np.cos(phase)
    return field / np.sqrt(waves)


def hour_of(steps: int, step: int) -> Floats:
    """(T 1): the hour of the day."""
    return (np.arange(steps) * step % DAY / HOUR)[:, None]


def weekday_of(steps: int, step: int) -> npt.NDArray[np.int64]:
    """(T,): the day of the week; Monday is 0."""
    return np.arange(steps) * step // DAY % 7


def peak(hour: Floats, at: float, hours: float) -> Floats:
    """A bump of height 1 at that time of every day."""
    away = (hour - at + 12) % 24 - 12
    bump: Floats = np.exp(-0.5 * (away / hours) ** 2)
    return bump


def with_gaps(rng: Rng, values: Floats, share: float, longest: int) -> Floats:
    """The readings without about this share of them, in gaps of up to `longest` steps."""
    values = values.copy()
    steps, sensors = values.shape
    for sensor in range(sensors):
        while np.isnan(values[:, sensor]).mean() < share:
            length = max(1, int(longest ** rng.uniform(0, 1)))
            begin = rng.integers(0, steps)
            values[begin : begin + length, sensor] = np.nan
    return values


# ---- kinds ----------------------------------------------------------------------------------------------


def air(rng: Rng, sensors: int, days: int) -> Kind:
    """Fine dust, hourly: episodes over the region, two peaks a day, spikes of single hours, gaps of days."""
    steps, where = days * 24, places(rng, sensors, 40)
    hour = hour_of(steps, HOUR)
    region = weather(rng, where, steps, 36, 60)
    traffic = rng.uniform(0.1, 0.5, sensors) * (peak(hour, 8, 1.5) + 0.8 * peak(hour, 21, 2.5))
    season = 0.4 * np.cos(2 * np.pi * np.arange(steps) / (365 * 24))[:, None]
    level = 2.6 + 0.3 * rng.standard_normal(sensors)
    dust = np.exp(level + season + 0.6 * region + traffic + 0.3 * noise(rng, steps, sensors, 6))
    dust *= np.exp(0.12 * noise(rng, steps, sensors, 0))
    spike = rng.random((steps, sensors)) < 0.015
    dust = np.where(spike, dust * rng.uniform(2, 6, dust.shape), dust)
    return Kind(HOUR, with_gaps(rng, dust.round(1), 0.06, 72), where)


def electricity(rng: Rng, sensors: int = 10, weeks: int = 20) -> Kind:
    """Load in MW, hourly: working days and weekends, holidays, weather."""
    steps, where = weeks * 168, places(rng, sensors, 300)
    hour, day = hour_of(steps, HOUR), np.arange(steps) // 24
    rest = (weekday_of(steps, HOUR) >= 5) | np.isin(day, rng.choice(weeks * 7, weeks // 3, replace=False))
    work = 0.7 * peak(hour, 9, 2.5) + 0.5 * peak(hour, 14, 3) + 0.6 * peak(hour, 19, 2)
    home = 0.35 * peak(hour, 12, 3) + 0.5 * peak(hour, 20, 2.5)
    industry = rng.uniform(0.5, 1.5, sensors)
    shape = np.where(rest[:, None], home, industry * work)
    cold = 0.25 * weather(rng, where, steps, 60, 400) + 0.2 * np.cos(np.arange(steps) / 24 / 58)[:, None]
    load = 1 + shape + cold + 0.03 * noise(rng, steps, sensors, 5) + 0.01 * noise(rng, steps, sensors, 0)
    return Kind(HOUR, 10 ** rng.uniform(2, 3, sensors) * load, where)


def solar(rng: Rng, sensors: int = 15, days: int = 30) -> Kind:
    """Power of plants in kW every 15 minutes: nothing at night, clouds that move over the plants."""
    steps, where = days * 96, places(rng, sensors, 60)
    hour = hour_of(steps, 15 * MINUTE)
    clear = np.clip(np.sin(np.pi * (hour - 6.5) / 11), 0, None) ** 1.2
    clouds = weather(rng, where, steps, 80, 25, wind=6) + weather(rng, where, steps, 100, 300)
    passed = 1 - 0.75 / (1 + np.exp(-2.5 * clouds))
    power = rng.uniform(50, 400, sensors) * clear * passed * (1 + 0.02 * noise(rng, steps, sensors, 0))
    return Kind(15 * MINUTE, np.clip(power, 0, None).round(2), where)


def wind(rng: Rng, sensors: int = 12, days: int = 90) -> Kind:
    """Wind speed in m/s, hourly: weather systems and gusts, hardly a daily pattern."""
    steps, where = days * 24, places(rng, sensors, 200)
    speed = 6 + 2.5 * weather(rng, where, steps, 30, 150, wind=25) + 0.8 * noise(rng, steps, sensors, 4)
    gusts = 0.7 * noise(rng, steps, sensors, 0)
    return Kind(HOUR, np.abs(rng.uniform(0.7, 1.4, sensors) * (speed + gusts)).round(1), where)


def river(rng: Rng, sensors: int = 10, years: int = 3) -> Kind:
    """Water levels in m, daily: snow melt, storms that run downstream and drain slowly, a falling trend."""
    steps = years * 365
    along = np.sort(rng.uniform(0, 200, sensors))
    where = np.stack([along, 20 * np.sin(along / 40)], axis=1)
    day = np.arange(steps)[:, None]
    rain = np.clip(weather(rng, where, steps, 2, 150) - 1.1, 0, None) * rng.exponential(1.5, (steps, 1))
    level = np.zeros((steps, sensors))
    for t in range(1, steps):
        upstream = np.concatenate([[0.0], level[t - 1, :-1]])
        level[t] = 0.72 * level[t - 1] + 0.2 * upstream + rain[t]
    melt = 0.8 * np.sin(2 * np.pi * (day - 80) / 365.25)
    height = rng.uniform(1, 4, sensors) + melt - 0.3 * day / 365 + level
    return Kind(DAY, (height + 0.03 * noise(rng, steps, sensors, 0)).round(3), where)


def bikes(rng: Rng, sensors: int = 40, weeks: int = 6) -> Kind:
    """Departures at bike stations in half an hour: counts, most of them small, fewer in the rain."""
    steps, where = weeks * 336, places(rng, sensors, 8)
    hour = hour_of(steps, 30 * MINUTE)
    rest = (weekday_of(steps, 30 * MINUTE) >= 5)[:, None]
    commuters, leisure = rng.uniform(0.1, 1, sensors), rng.uniform(0.1, 1, sensors)
    work = commuters * (peak(hour, 8.3, 0.8) + 0.9 * peak(hour, 17.8, 1.2))
    free = leisure * peak(hour, 15, 3.5)
    rain = 1 / (1 + np.exp(4 * (weather(rng, where, steps, 16, 50) - 0.8)))
    rate = 10 ** rng.uniform(-0.3, 1, sensors) * (0.03 + np.where(rest, 1.2 * free, work + 0.4 * free)) * rain
    return Kind(30 * MINUTE, rng.poisson(rate).astype(float), where)


def parking(rng: Rng, sensors: int = 12, weeks: int = 5) -> Kind:
    """Occupancy of car parks in per cent every half hour: between 0 and 100, full on many afternoons."""
    steps, where = weeks * 336, places(rng, sensors, 4)
    hour = hour_of(steps, 30 * MINUTE)
    shopping = (weekday_of(steps, 30 * MINUTE) == 5)[:, None]
    closed = (weekday_of(steps, 30 * MINUTE) == 6)[:, None]
    busy = rng.uniform(60, 110, sensors) * peak(hour, 13, rng.uniform(2, 4))
    busy = np.where(shopping, 1.2 * busy, np.where(closed, 0.25 * busy, busy))
    demand = 8 + busy + 10 * weather(rng, where, steps, 20, 3) + 3 * noise(rng, steps, sensors, 3)
    return Kind(30 * MINUTE, np.clip(demand, 0, 100).round(1), where)


def one_sensor(rng: Rng) -> Kind:
    """One sensor alone, 300 windows, every minute: the temperature of a room with a thermostat."""
    steps, room, heating, values = 323, 20.0, True, []
    for _ in range(steps):
        heating = room < 19.6 if not heating else room < 20.6
        room += (0.09 if heating else -0.05) + 0.02 * rng.standard_normal()
        values.append(room + 0.03 * rng.standard_normal())
    return Kind(MINUTE, np.array(values)[:, None].round(2), places(rng, 1, 1))


def traffic(rng: Rng, sensors: int, steps: int, step: int) -> Kind:
    """Speeds on a road: queues at rush hour that move upstream, free flow otherwise."""
    where = np.stack([np.sort(rng.uniform(0, sensors, sensors)), np.zeros(sensors)], axis=1)
    hour = hour_of(steps, step)
    work = (weekday_of(steps, step) < 5)[:, None]
    demand = np.where(work, peak(hour, 8, 1.2) + 1.1 * peak(hour, 17.5, 1.6), 0.5 * peak(hour, 15, 3))
    load = demand * rng.uniform(0.6, 1.3, sensors) + 0.25 * weather(rng, where, steps, HOUR / step, 3)
    queue = 1 / (1 + np.exp(-9 * (load - 0.8)))
    speed = rng.uniform(85, 120, sensors) * (1 - 0.7 * queue) + 3 * noise(rng, steps, sensors, 1)
    return Kind(step, np.clip(speed, 3, None).round(1), where)


def household(rng: Rng, sensors: int = 6, days: int = 3) -> Kind:
    """Power in W every minute: appliances that switch on and off, at times that nobody knows ahead."""
    steps = days * 1440
    hour = hour_of(steps, MINUTE)
    power = np.full((steps, sensors), 60.0)
    for sensor in range(sensors):
        for watts, minutes, often in ((120, 15, 40), (2000, 6, 8), (800, 45, 3), (200, 180, 3)):
            awake = (0.1 + peak(hour, 8, 2) + peak(hour, 19, 3))[:, 0]
            starts = rng.choice(steps, often * days, p=awake / awake.sum())
            for start in starts:
                power[start : start + 1 + int(rng.exponential(minutes)), sensor] += watts
    power *= 1 + 0.01 * noise(rng, steps, sensors, 0)
    return Kind(MINUTE, power.round(1), places(rng, sensors, 1))


def sales(rng: Rng, sensors: int = 20, days: int = 420) -> Kind:
    """Pieces sold in shops a day: counts with a weekly pattern, growth, and days that are closed (zeros)."""
    day = np.arange(days)
    week = np.array([0.8, 0.85, 0.9, 1.0, 1.3, 1.6, 0.4])[day % 7][:, None]
    growth = np.exp(rng.uniform(-0.3, 0.9, sensors) * day[:, None] / 365)
    rate = 10 ** rng.uniform(0.5, 2, sensors) * week * growth * np.exp(0.2 * noise(rng, days, sensors, 7))
    closed = rng.random((days, 1)) < 0.02
    return Kind(DAY, np.where(closed, 0.0, rng.poisson(rate)), places(rng, sensors, 500))


def prices(rng: Rng, sensors: int = 15, days: int = 60) -> Kind:
    """Random walks with a common part, hourly: nothing is better than the last value."""
    steps = days * 24
    walk = rng.standard_normal((steps, sensors)) + rng.standard_normal((steps, 1))
    return Kind(HOUR, (100 * np.exp(0.004 * walk.cumsum(axis=0))).round(3), places(rng, sensors, 10))


def white(rng: Rng, sensors: int = 10, days: int = 30) -> Kind:
    """White noise around a level, hourly: nothing is better than the mean."""
    return Kind(HOUR, 50 + 5 * rng.standard_normal((days * 24, sensors)), places(rng, sensors, 10))


def bursts(rng: Rng, sensors: int = 10, days: int = 12) -> Kind:
    """Bytes over network links in five minutes: heavy tails, a daily pattern, bursts that last a while."""
    steps = days * 288
    hour = hour_of(steps, 5 * MINUTE)
    calm = 1e6 * rng.uniform(1, 10, sensors) * (0.4 + peak(hour, 14, 4))
    burst = np.clip(noise(rng, steps, sensors, 8) - 1.6, 0, None) * rng.pareto(2.5, (steps, 1)) * 5
    values = calm * (np.exp(0.3 * noise(rng, steps, sensors, 3)) + burst)
    return Kind(5 * MINUTE, values.round(), places(rng, sensors, 10))


def tides(rng: Rng, sensors: int = 6, days: int = 60) -> Kind:
    """Water levels at a coast in m, hourly: two tides of 12.42 and 24.84 hours, and surges."""
    steps, where = days * 24, places(rng, sensors, 80)
    t = np.arange(steps)[:, None] - where[:, 0] / 30
    tide = 1.8 * np.cos(2 * np.pi * t / 12.42) + 0.5 * np.cos(2 * np.pi * t / 24.84 + 1)
    tide *= 1 + 0.3 * np.cos(2 * np.pi * t / (14.77 * 24))
    return Kind(HOUR, (tide + 0.25 * weather(rng, where, steps, 30, 200)).round(3), where)


def temperature(rng: Rng, sensors: int = 12, days: int = 45) -> Kind:
    """Temperatures in winter, hourly, most of them below zero: a daily pattern, weather, a rising trend."""
    steps, where = days * 24, places(rng, sensors, 150)
    hour = hour_of(steps, HOUR)
    sun = rng.uniform(2, 4, sensors) * np.cos(2 * np.pi * (hour - 15) / 24)
    sun *= 1 / (1 + np.exp(weather(rng, where, steps, 24, 200)))
    trend = -12 + 8 * np.linspace(0, 1, steps)[:, None]
    fronts = 3.5 * weather(rng, where, steps, 60, 250, wind=10)
    values = trend + sun + fronts + 2 * rng.standard_normal(sensors) + 0.4 * noise(rng, steps, sensors, 3)
    return Kind(HOUR, values.round(1), where)


def scaled(rng: Rng, factor: float, offset: float = 0.0) -> Kind:
    """Wind speeds in another unit."""
    kind = wind(rng, days=45)
    return replace(kind, values=offset + factor * kind.values)


def unequal(rng: Rng) -> Kind:
    """Electricity loads of a village, a town and so on, up to a thousand times as large."""
    kind = electricity(rng, weeks=8)
    return replace(kind, values=kind.values * np.logspace(0, 3, kind.values.shape[1]))


def constant(rng: Rng) -> Kind:
    """Temperatures, and four sensors that always say the same."""
    kind = temperature(rng)
    values = kind.values.copy()
    values[:, :4] = [-3.0, 0.0, 21.5, 1000.0]
    return replace(kind, values=values)


def late(rng: Rng) -> Kind:
    """Temperatures; one sensor is silent in training, one begins in the middle, one stops before the test."""
    kind = temperature(rng)
    values, steps = kind.values.copy(), len(kind.values)
    values[: int(0.82 * steps), 0] = np.nan
    values[: int(0.4 * steps), 1] = np.nan
    values[int(0.75 * steps) :, 2] = np.nan
    return replace(kind, values=values)


def gaps(rng: Rng) -> Kind:
    """Temperatures; 40 % of the readings are missing, in gaps of up to two days."""
    kind = temperature(rng)
    return replace(kind, values=with_gaps(rng, kind.values, 0.4, 48))


def shift(rng: Rng) -> Kind:
    """Electricity loads whose level changes between training and test, as after a new tariff."""
    kind = electricity(rng, weeks=10)
    values = kind.values.copy()
    values[int(0.83 * len(values)) :] *= 1.35
    return replace(kind, values=values)


KINDS: dict[str, Callable[[Rng], Kind]] = {
    "air, 2 months": lambda rng: air(rng, 20, 60),
    "air, a year": lambda rng: air(rng, 8, 365),
    "electricity": electricity,
    "solar": solar,
    "wind": wind,
    "river": river,
    "bikes": bikes,
    "parking": parking,
    "temperature": temperature,
    "household": household,
    "sales": sales,
    "prices": prices,
    "white noise": white,
    "bursts": bursts,
    "tides": tides,
    "one sensor": one_sensor,
    "50,000 windows": lambda rng: traffic(rng, 5, 50_023, 5 * MINUTE),
    "many sensors": lambda rng: traffic(rng, MANY, 323, 15 * MINUTE),
    "tiny numbers": lambda rng: scaled(rng, 1e-6),
    "huge numbers": lambda rng: scaled(rng, 1e9, 1e6),
    "unequal scales": unequal,
    "constant sensors": constant,
    "late sensors": late,
    "40 % gaps": gaps,
    "level shift": shift,
}
