"""The public Python API: it trains, resumes, evaluates and forecasts, and exports every type it uses."""

from __future__ import annotations

import ast
import inspect
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Literal, get_origin

import pytest

import cnfgnn
import cnfgnn.api
from cnfgnn import errors
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import ConfigError, DataError
from cnfgnn.runs.training_loop import Progress, Round, evaluate
from tests.conftest import small


@pytest.fixture(scope="module")
def result() -> cnfgnn.Result:
    city = cnfgnn.city(sensors=3, days=2)
    small = {"model__hidden": 4, "model__embedding": 4, "model__gn_widths": [8, 4], "training__rounds": 2}
    return cnfgnn.fit(city, "cnfgnn", **small)


def test_the_result_tells_errors_of_both_kinds_and_bytes(result: cnfgnn.Result) -> None:
    summary = result.summary()
    assert summary["method"] == "at-fedavg"
    assert set(summary["test"]) == {"overall", "step 3", "step 6", "step 12", "intervals"}
    assert math.isfinite(summary["test"]["overall"]["masked_mae"])
    assert summary["bytes"]["per_node"] > summary["bytes"]["per_site"] > 0


def test_the_experiment_stands_at_its_best_round(result: cnfgnn.Result) -> None:
    assert evaluate(result.experiment, "validation").overall == result.progress.best.validation


@pytest.mark.slow
def test_a_run_on_disk_is_taken_up_by_name(tmp_path: Path) -> None:
    city = cnfgnn.city(sensors=3, days=1)
    small = {"model__hidden": 4, "training__rounds": 2, "city__sensors": 3, "city__days": 1}
    result = cnfgnn.fit(city, "gru-fedavg", out=tmp_path / "run", **small)
    assert cnfgnn.evaluate(tmp_path / "run").overall == result.test.overall
    assert cnfgnn.evaluate(tmp_path / "run", split="train").overall != result.test.overall
    assert cnfgnn.forecast(tmp_path / "run").shape == (12, 3)
    assert cnfgnn.forecast(tmp_path / "run", cnfgnn.city(sensors=5, days=1)).shape == (12, 5)
    cnfgnn.fit(city, "gru-fedavg", out=tmp_path / "other", model__hidden=4, training__rounds=1)
    with pytest.raises(DataError, match="trained on readings in memory"):
        cnfgnn.evaluate(tmp_path / "other")  # it was trained on data that its settings do not name
    assert cnfgnn.resume(tmp_path / "run").progress.history == result.progress.history


@pytest.mark.slow
def test_a_city_of_the_default_size_is_not_taken_for_another_one(tmp_path: Path) -> None:
    settings = {"model__hidden": 4, "training__rounds": 1, "city__sensors": 3, "city__days": 1}
    cnfgnn.fit(cnfgnn.city(sensors=3, days=1, seed=7), "gru-fedavg", out=tmp_path / "run", **settings)
    with pytest.raises(DataError, match="trained on readings in memory"):
        cnfgnn.evaluate(tmp_path / "run")


def test_settings_are_changed_by_name_and_unknown_ones_refused() -> None:
    with pytest.raises(ConfigError, match="rounds"):
        cnfgnn.fit(cnfgnn.city(sensors=2, days=1), training__epochs=3)


class Listener:
    """A watcher that records what it is told and can interrupt the training."""

    def __init__(self, stopped_at: int | None = None) -> None:
        self.told: list[object] = []
        self.ticks, self.stopped_at = 0, stopped_at

    def begin(self, experiment: Experiment, progress: Progress) -> None:
        self.per_round = experiment.strategy.minibatches
        self.told.append(("begin", len(progress.history)))

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks == self.stopped_at:
            raise KeyboardInterrupt

    def round_done(self, done: Round, best: Round, seconds: float) -> None:
        assert seconds > 0
        self.told.append(("round", done.r_g, best.r_g, self.ticks))

    def end(self) -> None:
        self.told.append("end")


def test_a_watcher_is_told_the_same_with_a_folder_and_without(data: Dataset, tmp_path: Path) -> None:
    on_disk, in_memory = Listener(), Listener()
    config = small("at-fedavg")
    result = cnfgnn.fit(data, config, out=tmp_path / "run", watcher=on_disk)
    assert cnfgnn.fit(data, config, watcher=in_memory).test.overall == result.test.overall
    rounds = [
        ("round", r, r if done.best else 1, r * on_disk.per_round)
        for r, done in enumerate(result.progress.history, start=1)
    ]
    assert on_disk.told == in_memory.told == [("begin", 0), *rounds, "end"]
    again = Listener()
    cnfgnn.resume(tmp_path / "run", data, watcher=again)
    assert again.told == [("begin", 2), "end"]


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_watcher_is_told_of_the_end_of_a_training_that_is_stopped(
    on_disk: bool, data: Dataset, tmp_path: Path
) -> None:
    listener = Listener(stopped_at=2)
    with pytest.raises(KeyboardInterrupt):
        cnfgnn.fit(data, small("gru-fedavg"), out=tmp_path / "run" if on_disk else None, watcher=listener)
    assert listener.told == [("begin", 0), "end"]


def test_everything_promised_is_there() -> None:
    assert set(cnfgnn.__all__) == {*cnfgnn.api.__all__, "__version__"}
    assert dir(cnfgnn) == sorted(cnfgnn.__all__)
    for name in cnfgnn.__all__:
        assert getattr(cnfgnn, name) is not None


# Opaque to users: their members are internals of the algorithm and of run folders.
CLOSED = {"Experiment", "Run"}


def signatures(name: str) -> Iterator[tuple[str, ModuleType]]:
    """The annotations, as written, of a public function or of the fields and methods of a public class."""
    thing = inspect.unwrap(getattr(cnfgnn, name))
    module = inspect.getmodule(thing)
    if module is None or not module.__name__.startswith("cnfgnn"):
        return
    things = [thing]
    if inspect.isclass(thing):
        members = [] if name in CLOSED else [(k, v) for k, v in vars(thing).items() if not k.startswith("_")]
        things += [getattr(v, "fget", None) or getattr(v, "__func__", v) for _, v in members]
    for each in things:
        for field, annotation in getattr(each, "__annotations__", {}).items():
            if not (name in CLOSED or field.startswith("_")):
                yield annotation, module


def named(annotation: str, module: ModuleType) -> set[str]:
    """The names in an annotation that belong to the package: its classes and its aliases of literals."""
    found = set()
    for node in ast.walk(ast.parse(annotation)):
        if isinstance(node, ast.Name) and (thing := vars(module).get(node.id)) is not None:
            is_class = inspect.isclass(thing) and thing.__module__.startswith("cnfgnn")
            found |= {thing.__name__} if is_class else set()
            found |= {node.id} if get_origin(thing) is Literal else set()
    return found


def test_every_type_in_a_public_signature_can_be_imported_from_the_package() -> None:
    needed: dict[str, str] = {}
    for name in cnfgnn.__all__:
        for annotation, module in signatures(name):
            needed |= dict.fromkeys(named(annotation, module), name)
    assert {"Watcher", "Scores", "Progress", "Dataset", "TrainingConfig", "Split"} <= set(needed)
    missing = {thing: user for thing, user in needed.items() if thing not in cnfgnn.__all__}
    assert not missing


def test_every_error_that_is_documented_can_be_caught_by_its_name() -> None:
    for error in vars(errors).values():
        if inspect.isclass(error) and issubclass(error, cnfgnn.CnfgnnError):
            assert getattr(cnfgnn, error.__name__) is error


def test_modules_are_found_without_loading_the_api() -> None:
    """The command line imports modules of the package, and its help must not wait for PyTorch."""
    program = (
        "import sys, cnfgnn; from cnfgnn import cli, errors; assert not hasattr(cnfgnn, '_nothing');"
        " assert 'torch' not in sys.modules; from cnfgnn import *; assert fit is cnfgnn.fit"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert not hasattr(cnfgnn, "nothing")
