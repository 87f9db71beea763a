"""The data to measure with: readings from a file, the synthetic city, or a random network of any shape."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import NoReturn

import numpy as np

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.folder import load
from cnfgnn.data.graph import Graph
from cnfgnn.data.readings import Readings
from cnfgnn.data.synthetic.city import city
from cnfgnn.errors import ConfigError

LENGTH = 24  # steps of a window: 12 of history, 12 ahead


class OneSentence(argparse.ArgumentParser):
    """Report wrong arguments in one sentence, without printing the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", nargs="?", help="a file or folder of readings (default: the synthetic city)")
    parser.add_argument("--sensors", type=int, default=207, help="of the city")
    parser.add_argument("--days", type=float, default=7, help="of the city")
    parser.add_argument(
        "--shape", type=int, nargs=3, metavar=("SENSORS", "STEPS", "EDGES"), help="a random network instead"
    )
    parser.add_argument("--windows", type=int, help="use only the first windows of all three splits together")


def chosen(options: argparse.Namespace) -> Dataset:
    """The data set that the arguments name."""
    if options.shape is not None and options.data is not None:
        raise ConfigError("--shape", "makes readings of its own: give a file or a shape, not both")
    if options.shape is not None:
        data = random_network(*options.shape)
    else:
        data = load(options.data) if options.data else city(options.sensors, options.days)
    return data if options.windows is None else cut(data, options.windows)


def cut(data: Dataset, windows: int) -> Dataset:
    """Keep only the first steps, as many as so many windows need."""
    readings, steps = data.readings, windows + LENGTH - 1
    there = len(readings.times) - LENGTH + 1
    if not 1 <= windows <= there:
        raise ConfigError("--windows", f"{data.name} has {there}, from which 1 or more can be kept")
    first = replace(
        readings,
        times=readings.times[:steps],
        values=readings.values[:steps],
        missing=readings.missing[:steps],
    )
    return replace(data, readings=first)


def random_network(sensors: int, steps: int, edges: int, seed: int = 0) -> Dataset:
    """Random walks on a random directed graph; only its shape is that of a real network.

    It takes a second; the city, which simulates traffic, takes minutes at this size.
    """
    if sensors < 1 or steps < LENGTH or not 0 <= edges <= sensors**2:
        raise ConfigError(
            "--shape", f"1 sensor, {LENGTH} steps and at most sensors^2 edges: not {sensors} {steps} {edges}"
        )
    rng = np.random.default_rng(seed)
    walk = rng.standard_normal((steps, sensors), dtype=np.float32).cumsum(axis=0)
    values = 60 + 10 * walk / np.float32(steps**0.5)
    times = np.datetime64("2024-01-01T00:00:00") + 300 * np.arange(steps).astype("timedelta64[s]")
    ids = tuple(f"s{i}" for i in range(sensors))
    missing = np.zeros(values.shape, dtype=np.bool_)
    readings = Readings(times, ids, values, missing, source="random network")
    pairs = np.zeros(0, dtype=np.int64)
    if edges > sensors**2 // 2:  # nearly all pairs are edges: choose among all of them
        pairs = rng.permutation(sensors**2)[:edges]
    while len(pairs) < edges:
        pairs = np.unique(np.concatenate([pairs, rng.integers(0, sensors**2, edges)]))
        pairs = rng.permutation(pairs)[:edges]
    graph = Graph(sensors, pairs // sensors, pairs % sensors, rng.uniform(0.1, 1.0, edges))
    return Dataset(f"random {sensors} x {steps}", readings, graph)
