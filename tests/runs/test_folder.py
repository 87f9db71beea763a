"""A run folder says what it is, refuses what it is not, and lets one process in at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.description import checksum
from cnfgnn.errors import CnfgnnError, DataError, RunError, StorageError
from cnfgnn.runs import record
from cnfgnn.runs.evaluate import evaluate_run
from cnfgnn.runs.events import plain
from cnfgnn.runs.folder import Run
from cnfgnn.runs.manifest import FORMAT
from cnfgnn.runs.train import Unwatched, train_run
from cnfgnn.version import __version__
from tests.conftest import HORIZON, network, small


@pytest.fixture
def run(data: Dataset, tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", small("gru-fedavg"), data)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, data = tmp_path_factory.mktemp("finished") / "run", network()
    train_run(Run.create(folder, small("at-fedavg"), data), data, Unwatched())
    return folder


def test_a_run_keeps_every_setting(run: Run) -> None:
    assert Run.open(run.folder).config == run.config


def test_a_run_never_overwrites_another(run: Run, data: Dataset) -> None:
    before = (run.folder / "manifest.json").read_bytes()
    with pytest.raises(RunError, match="never overwrites"):
        Run.create(run.folder, small("at"), data)
    assert (run.folder / "manifest.json").read_bytes() == before


def test_only_one_process_at_a_time(run: Run) -> None:
    with (
        run.locked(),
        pytest.raises(RunError, match=f"in use by process {os.getpid()}"),
        Run.open(run.folder).locked(),
    ):
        pass
    with run.locked():
        pass  # and again, once it is free


def test_a_run_that_another_process_has_finished_meanwhile_keeps_its_events(data: Dataset, run: Run) -> None:
    opened_before = Run.open(run.folder)
    train_run(run, data, Unwatched())
    events = run.events()
    result = train_run(opened_before, data, Unwatched())
    assert opened_before.finished
    assert len(result.progress.history) == run.config.training.rounds
    assert Run.open(run.folder).events() == events  # not trained again


def test_a_run_of_a_newer_version_is_named(run: Run) -> None:
    manifest = json.loads((run.folder / "manifest.json").read_text()) | {"format": FORMAT + 1}
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match="newer version"):
        Run.open(run.folder)


def test_a_run_of_an_earlier_version_is_not_only_called_damaged(run: Run) -> None:
    manifest = json.loads((run.folder / "manifest.json").read_text())
    del manifest["data"]["utc"]
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=r"is damaged, or of an earlier version: .* train it again"):
        Run.open(run.folder)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        Run.open(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"format": 1}', '{"format": "x"}', '{"format": 1, "data": 3}']
)
def test_a_damaged_manifest_is_named(run: Run, content: str) -> None:
    (run.folder / "manifest.json").write_text(content)
    with pytest.raises(RunError, match="run"):
        Run.open(run.folder)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["finished"], None),
        (["events"], "x"),
        (["scaler"], {"mean": "a"}),
        (["progress", "ledger"], [[1]]),
        (["data", "sensors"], 3),
        (["data", "step_seconds"], "x"),
        (["data", "utc"], 1),
        (["progress", "history"], []),
        (["progress", "history", 1, "best"], False),
        (["progress", "history", 0, "best"], "drop both"),
    ],
)
def test_an_entry_of_the_wrong_kind_is_found_when_the_run_is_opened(
    finished: Path, tmp_path: Path, path: list[Any], value: Any
) -> None:
    manifest = json.loads((finished / "manifest.json").read_text())
    spot = manifest
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    if value == "drop both":
        for done in manifest["progress"]["history"]:
            done["best"] = False
    (tmp_path / "config.toml").write_bytes((finished / "config.toml").read_bytes())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    if value is False:  # the round before is the best one then
        assert Run.open(tmp_path).progress.best.r_g == 1
        return
    with pytest.raises(RunError, match="damaged"):
        Run.open(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"garbage\n" * 500])
def test_lost_or_damaged_events_are_named_before_going_on(
    finished: Path, tmp_path: Path, content: bytes | None
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "events.jsonl").unlink()
    if content is not None:
        (folder / "events.jsonl").write_bytes(content)
    with pytest.raises(RunError, match=r"events\.jsonl"):
        train_run(Run.open(folder), network(), Unwatched())


def test_a_damaged_configuration_is_named(run: Run) -> None:
    (run.folder / "config.toml").write_text("training = 3")
    with pytest.raises(RunError, match="its settings cannot be used"):
        Run.open(run.folder)


def test_other_data_than_the_run_began_with_are_refused(run: Run) -> None:
    with pytest.raises(DataError, match="not those"):
        run.check_same_data(network(n=5))
    with pytest.raises(DataError, match="began with"):
        run.check_same_data(network(seed=9))
    same = network()
    with pytest.raises(DataError, match="times are in UTC"):
        run.check_same_data(replace(same, readings=replace(same.readings, utc=True)))


def test_a_damaged_checkpoint_is_named_and_stops_the_run(finished: Path) -> None:
    run = Run.open(finished)
    path = finished / "checkpoints" / "server" / f"{run.progress.best.tag}.safetensors"
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:-3])
        with pytest.raises(RunError, match="damaged"):
            evaluate_run(run, network())
        path.unlink()
        with pytest.raises(RunError, match="missing"):
            evaluate_run(run, network())
    finally:
        path.write_bytes(whole)


def test_a_run_without_a_finished_round_cannot_be_evaluated(run: Run, data: Dataset) -> None:
    with pytest.raises(RunError, match="no finished round"):
        evaluate_run(run, data)


def test_events_tell_the_whole_story(finished: Path) -> None:
    events = Run.open(finished).events()
    assert [e["event"] for e in events] == ["start", "round", "round", "test"]
    start, _, last, test = events
    assert start["config"]["method"] == "at-fedavg"
    assert start["windows"] == {"train": 98, "validation": 14, "test": 28}
    assert last["training_bytes"]["per_node"] > 0
    assert set(test["per_node"]) == {f"s{i}" for i in range(6)}
    assert len(test["per_step"]) == HORIZON
    assert {row[0] for row in test["ledger"]} == {"set-up", "training", "evaluation"}


def test_a_finished_run_leaves_a_record_for_tables(finished: Path) -> None:
    """It says what was measured, with which settings and on which data, and names no path of this machine."""
    run, text = Run.open(finished), (finished / "record.json").read_text()
    found = json.loads(text)
    assert found["errors"]["overall"] == run.test()["overall"]
    assert found["data"]["checksum"] == checksum(network().readings)
    assert (found["method"], found["preset"]) == (run.config.method, {"size": "63k", "like": ""})
    assert found["settings"]["training.rounds"] == run.config.training.rounds
    assert found["bytes"]["per_node"] == run.progress.best.training_bytes.per_node
    assert found["version"] == __version__
    assert "/" not in text.replace("+cpu", "")


def test_the_commit_is_that_of_the_code_with_a_mark_for_any_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of another package, or of a study; a repository that only holds an installed copy says nothing."""
    monkeypatch.delenv(record.COMMIT, raising=False)
    file = tmp_path / "src" / "cnfgnn" / "runs" / "record.py"
    other, study = tmp_path / "src" / "cnfgnn" / "models" / "encoder.py", tmp_path / "studies" / "new.py"
    for path in (file, other, study):
        path.parent.mkdir(parents=True)
    file.touch()
    other.touch()
    monkeypatch.setattr(record, "__file__", str(file))

    def git(*command: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        done = ["git", "-C", str(tmp_path), *who, *command]
        return subprocess.run(done, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "theirs")
    assert record.commit.__wrapped__() is None
    git("add", ".")
    git("commit", "-q", "-m", "ours")
    head = git("rev-parse", "--short=7", "HEAD")
    (tmp_path / "record.json").touch()
    assert record.commit.__wrapped__() == head
    study.touch()
    assert record.commit.__wrapped__() == f"{head}+"
    study.unlink()
    other.write_text("changed")
    assert record.commit.__wrapped__() == f"{head}+"


def test_tensorboard_has_the_curves(finished: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(finished / "tensorboard"))
    board.Reload()
    losses = [item.value for item in board.Scalars("validation/loss")]
    assert losses == pytest.approx([done.loss for done in Run.open(finished).progress.history], rel=1e-6)


def test_training_works_without_tensorboard(run: Run, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # importing it raises ImportError
    train_run(run, data, Unwatched())
    assert Run.open(run.folder).finished
    assert not (run.folder / "tensorboard").exists()


def test_a_folder_that_cannot_be_written_is_named(data: Dataset) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        Run.create(Path("/proc/cnfgnn-run"), small("at"), data)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.lists(st.integers(0, 5), max_size=4), value=ANYTHING)
def test_any_manifest_is_a_run_or_a_sentence(
    finished: Path, tmp_path: Path, path: list[int], value: Any
) -> None:
    manifest = json.loads((finished / "manifest.json").read_text())
    spot: Any = manifest
    for k in path[:-1]:
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        if not keys:
            break
        inner = spot[keys[k % len(keys)]]
        if not isinstance(inner, dict | list):
            break
        spot = inner
    keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
    if keys:
        spot[keys[(path or [0])[-1] % len(keys)]] = value
    folder = tmp_path / "fuzzed"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_bytes((finished / "config.toml").read_bytes())
    (folder / "manifest.json").write_text(json.dumps(manifest))
    try:
        opened = Run.open(folder)
    except CnfgnnError:
        return
    assert isinstance(opened.progress.history, list)


def test_nan_becomes_null_in_json() -> None:
    assert plain({"a": [float("nan"), 1.0], "b": (float("inf"),)}) == {"a": [None, 1.0], "b": [None]}
