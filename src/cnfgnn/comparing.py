"""Several methods on the same data, over several seeds: a plan of runs that may be broken off at any time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnfgnn.algorithm.ledger import Bytes
from cnfgnn.algorithm.methods import method_of, preset
from cnfgnn.config import Config
from cnfgnn.config_file import read_changes
from cnfgnn.data.source import open_data
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.evaluation import Errors
from cnfgnn.floors import last_value
from cnfgnn.running import Watcher, carry_on
from cnfgnn.runs import Run


@dataclass(frozen=True)
class Plan:
    """What a comparison file says: methods, seeds, and the settings of each method's runs.

    `methods` and `seeds` stand at the top; every other key is a setting for all methods, or, under
    [only.METHOD], for one of them.
    """

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    changes: dict[str, Any]
    source: Path

    @classmethod
    def read(cls, path: Path) -> Plan:
        changes = read_changes(path)
        methods, seeds = changes.pop("methods", None), changes.pop("seeds", [1])
        if not isinstance(methods, list) or not methods or not all(isinstance(m, str) for m in methods):
            raise ConfigError("methods", f"{path} needs a list of methods")
        if not isinstance(seeds, list) or not seeds or not all(type(s) is int for s in seeds):
            raise ConfigError("seeds", f"{path} needs a list of whole numbers")
        plan = cls(tuple(method_of(m).name for m in methods), tuple(seeds), changes, path)
        for key in changes:
            if key.startswith("only.") and method_of(key.split(".")[1]).name not in plan.methods:
                raise ConfigError(key, "the comparison has no such method", plan.methods)
        for method in plan.methods:
            plan.config(method, seeds[0])
        return plan

    def config(self, method: str, seed: int) -> Config:
        """The settings of one run."""
        changes = {key: value for key, value in self.changes.items() if not key.startswith("only.")}
        for key, value in self.changes.items():
            if key.startswith("only."):
                _, name, setting = key.split(".", 2)
                changes |= {setting: value} if method_of(name).name == method else {}
        return preset(method).with_changes(changes | {"seed": seed})


@dataclass(frozen=True)
class Row:
    """One line of the comparison: test errors and bytes until the best round, one entry a seed."""

    method: str
    errors: tuple[Errors, ...]
    training_bytes: tuple[Bytes, ...] = ()  # none for a floor

    def median(self, figure: str) -> float:
        return float(statistics.median(getattr(errors, figure) for errors in self.errors))

    @property
    def median_bytes(self) -> float | None:
        """As the paper counts them: a shared tensor once for each node."""
        return statistics.median(b.per_node for b in self.training_bytes) if self.training_bytes else None


def compare(plan: Plan, folder: Path, watcher: Callable[[str], Watcher]) -> list[Row]:
    """Run what is not done yet, and return a row for each method after the last-value forecast's."""
    config = plan.config(plan.methods[0], plan.seeds[0])
    data = open_data(config)
    rows = [Row("last value", (last_value(data, config.data).overall,))]
    for method in plan.methods:
        done = []
        for seed in plan.seeds:
            run = _run(folder / f"{method}-seed{seed}", plan.config(method, seed), plan.source)
            if not run.finished:
                carry_on(run, data, watcher(f"{method}, seed {seed}"))
            done.append(Run.open(run.folder))
        errors = tuple(Errors(**run.events()[-1]["overall"]) for run in done)
        rows.append(Row(method, errors, tuple(run.progress.best.training_bytes for run in done)))
    return rows


def _run(folder: Path, config: Config, source: Path) -> Run:
    """The run of that name, begun now if it is not there."""
    if not (folder / "manifest.json").exists():
        return Run.create(folder, config, open_data(config))
    run = Run.open(folder)
    if run.config != config:
        raise RunError(folder, f"was begun with other settings than {source} has now: move it away")
    return run
