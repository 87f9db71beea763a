"""Two sets of true readings that have one blurred copy: the server of a federation cannot tell them apart."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

from cnfgnn.attack.recording import RECORDING_FILE
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.errors import ConfigError
from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.engine_files import ENGINE_FOLDER
from cnfgnn.federation.operator.tasks import TaskError
from cnfgnn.federation.site.nodes import NOT_READ_YET
from cnfgnn.federation.site.owner import EVALUATIONS, FORECASTS
from cnfgnn.federation.site.settings import PRIVATE
from cnfgnn.federation.site.supervisor import FAILED, STARTING
from cnfgnn.federation.task import RUNS, Task
from cnfgnn.testing.two_truths import another_truth
from cnfgnn.transports.remote.codec import Answer, encode_answers
from tests.federation import fault_injection, wall_log
from tests.federation.message_log import MESSAGES, digest
from tests.federation.reference_training import config
from tests.federation.running_federation import (
    ENGINE_WARNINGS,
    RunningFederation,
    city_on_disk,
    running_federation,
)

pytestmark = ENGINE_WARNINGS

SITES = {"south": [0, 1], "west": [2, 3, 4]}
SIGMA = 5.0
BACKWARD = fault_injection.PHASES[3]
# What a site answers when it was restarted, whatever its readings are: how often depends on the moment.
RESTARTED = (
    "it does not know this request: it was restarted",
    "it has not been prepared",
    "it is still working on an earlier request",
)
NOT_READY = (NOT_READ_YET, STARTING, FAILED)
# The same in answer to a request: a site that was restarted may be asked before it has read its files.
STILL_READING = digest(encode_answers([Answer("join", str(ConfigError("readings", NOT_READ_YET)))]))


@dataclass
class Seen:
    """What the server has after a training and what followed.

    messages  every answer that arrived, as a set: how often a site was asked again depends on the moment
    crossed   every answer that a site gave to its engine, as a set, also those that came too late
    in_order  of tasks that nothing disturbed, the answers of each site in their order
    files     the files of the run folder
    results   what the tasks reported to the operator
    of_owner  files of the sites, which the server does not have: they show that the truths matter
    """

    messages: set[str] = field(default_factory=set)
    crossed: set[str] = field(default_factory=set)
    in_order: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, object] = field(default_factory=dict)
    results: dict[str, object] = field(default_factory=dict)
    of_owner: dict[str, bytes] = field(default_factory=dict)


def differences(one: Seen, other: Seen) -> list[str]:
    """Where two servers saw something different: empty if they cannot tell the truths apart."""
    found = [f"message {line}" for line in sorted(one.messages ^ other.messages)]
    found += [f"crossed {line}" for line in sorted(one.crossed ^ other.crossed)]
    for part in ("in_order", "files", "results"):
        first, second = getattr(one, part), getattr(other, part)
        names = sorted(first.keys() | second.keys())
        found += [f"{part}: {name}" for name in names if first.get(name) != second.get(name)]
    return found


# ---- what the server has --------------------------------------------------------------------------------


def messages(server: Path) -> Iterator[dict[str, Any]]:
    """The answers that arrived, without those that only say that a site is not ready at the moment."""
    for line in (server / MESSAGES).read_text().splitlines():
        message = json.loads(line)
        if is_of_the_moment(message):
            continue
        if message["asked"] in ("run", "wait"):  # the answer comes to whichever was asked last
            message["asked"] = "run"
        yield message


def is_of_the_moment(message: Mapping[str, Any]) -> bool:
    """Whether an answer only says that a site is not ready at the moment."""
    fields = message["fields"]
    if message["answer"] in ("working", "noted"):
        assert not fields
        return True
    lost = message["answer"] == "lost" and fields["reason"] in RESTARTED
    not_ready = message["answer"] == "hello" and fields.get("problem") in NOT_READY
    return lost or not_ready or message["payload"] == STILL_READING


def run_files(folder: Path) -> dict[str, object]:
    """The files of a run folder as they are, except for:

    lock           not there: it holds the number of a process
    manifest.json  without the random id of the run, the length of events.jsonl (it depends on how many digits
                   a duration has), and the bytes of the ledger that rejoining sites took
    events.jsonl   without times and durations
    tensorboard/   the values of every curve, without times: files are named by process and time
    """
    files: dict[str, object] = {}
    curves = set()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if name == "manifest.json":
            files[name] = _without_random_id(json.loads(path.read_text()))
        elif name == "events.jsonl":
            files[name] = [_without_times(json.loads(line)) for line in path.read_text().splitlines()]
        elif name.startswith("tensorboard/"):
            curves |= _curves(path)
        elif name != "lock":
            files[name] = path.read_bytes()
    return {**files, "tensorboard": curves}


def _without_random_id(manifest: dict[str, Any]) -> dict[str, Any]:
    del manifest["data"]["id"], manifest["events"]
    progress = manifest["progress"]
    progress["ledger"] = [row for row in progress["ledger"] if row[0] != "recovery"]
    return manifest


def _without_times(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("time", "seconds")}


def _curves(path: Path) -> set[tuple[str, int, bytes]]:
    values = set()
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            values.add((value.tag, event.step, make_ndarray(value.tensor).tobytes()))
    return values


def seen_by(sites: RunningFederation, results: Mapping[str, object]) -> Seen:
    seen = Seen(results=dict(results), files=run_files(sites.server / RUNS / "one"))
    for message in messages(sites.server):
        line = json.dumps(message, sort_keys=True)
        seen.messages.add(line)
        if message["do"] != "train" and message["answer"] == "done":
            seen.in_order.setdefault(f"{message['do']} {message['site']}", []).append(line)
    for name in SITES:
        kit = sites.kits[name]
        of_site = [line for line in wall_log.crossed(kit) if not is_of_the_moment(line)]
        seen.crossed |= {json.dumps({**line, "site": name}, sort_keys=True) for line in of_site}
        seen.of_owner[f"forecast {name}"] = (kit / FORECASTS / "latest.csv").read_bytes()
        for errors in (kit / EVALUATIONS).glob("*-test.json"):
            seen.of_owner[f"errors {name}"] = json.dumps(json.loads(errors.read_text())["sums"]).encode()
    return seen


# ---- the same federation, twice -------------------------------------------------------------------------


def train_with_faults(sites: RunningFederation) -> Mapping[str, Any]:
    """A site's process is killed in the first round, and the server in the second; training is resumed.

    Both are killed while a site is blocked in a certain minibatch. All sites are required, so that training
    waits for the site.
    """
    c = config(2, "cnfgnn-private", **{"training.server_batch": 96, "training.average_every": 2})
    south, west = sites.kits["south"], sites.kits["west"]
    fault_injection.inject(south, BACKWARD, "block", number=1, in_round=1)
    fault_injection.inject(west, BACKWARD, "block", number=2, in_round=2)
    sites.begin_training(c)
    sites.until((south / fault_injection.BLOCKED).exists, "south is blocked in the first round")
    sites.kill_job("south")
    sites.until((west / fault_injection.BLOCKED).exists, "south has rejoined; the second round reaches west")
    sites.kill("server")
    with pytest.raises(TaskError, match="--resume one"):
        sites.end()
    assert len(sites.run().progress.history) == 1
    processes.up(sites.server)
    sites.begin(Task("train", "one", resume=True))
    return sites.end()


def carried_out(sites: RunningFederation, task: Task) -> Mapping[str, Any]:
    sites.begin(task)
    return sites.end()


def use(sites: RunningFederation, data: Dataset) -> None:
    """Give the sites these readings and clear what an earlier training left."""
    for name, rows in SITES.items():
        own = data.select([data.readings.ids[row] for row in rows])
        write_folder(own, sites.folder / "example" / "data" / name)
        for left in (fault_injection.BLOCKED, FORECASTS, EVALUATIONS):
            path = sites.kits[name] / left
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.rmtree(sites.server / RUNS, ignore_errors=True)
    forget_messages(sites)


def forget_messages(sites: RunningFederation) -> None:
    (sites.server / MESSAGES).unlink(missing_ok=True)
    for name in SITES:
        (sites.kits[name] / ENGINE_FOLDER / wall_log.FILE).unlink(missing_ok=True)


def tell_errors(sites: RunningFederation, name: str, tells: bool) -> None:
    settings = sites.kits[name] / "local" / "site.toml"
    lines = [line for line in settings.read_text().splitlines() if not line.startswith("tell_errors")]
    settings.write_text("\n".join([*lines, f"tell_errors = {str(tells).lower()}", ""]))


def everything(sites: RunningFederation, data: Dataset) -> tuple[Seen, Seen]:
    """What the server sees of a training, which ends with an evaluation, and a forecast; and of a recorded
    evaluation in which one owner tells its true errors."""
    use(sites, data)
    results: dict[str, object] = {"train": train_with_faults(sites)}
    results["forecast"] = carried_out(sites, Task("forecast", "one"))
    seen = seen_by(sites, results)
    forget_messages(sites)
    tell_errors(sites, "south", True)
    told = seen_by(sites, {"evaluate": carried_out(sites, Task("evaluate", "one", record=True))})
    tell_errors(sites, "south", False)
    return seen, told


@pytest.mark.chaos
def test_a_server_cannot_tell_two_truths_with_the_same_copy_apart(tmp_path: Path) -> None:
    """With mutual TLS between real processes, `cnfgnn-private` is trained with a killed site and a killed
    server, resumed, used for a forecast and evaluated. Then the sites get other readings, of which the same
    are missing; their copies are final, so that these are the same. All of it is repeated. Compared are:

    - every answer of every site to every request, byte for byte, and in order where nothing was killed;
      only clocks, durations and which of several retries was answered may differ
    - everything that the sites' own processes gave to their engines
    - every file in the run folder (see `run_files`): checkpoints and a recording byte for byte
    - what every task reports to the operator

    Logs of the engine are not compared: they are full of times and random names.

    The test of the test: where one owner tells its true errors in the evaluation, the comparison finds them,
    and nothing else.
    """
    one = city_on_disk(tmp_path / "city", sensors=5, days=2)
    other = another_truth(one, "noisy", seed=3)
    noting = {"logged": True, "planted": wall_log.PROGRAM}
    with running_federation(tmp_path, one, SITES, 2, faults=True, blur=SIGMA, **noting) as sites:
        seen, told = everything(sites, one)
        keys = {name: copies(sites, name) for name in SITES}
        same, also_told = everything(sites, other)
        assert {name: copies(sites, name) for name in SITES} == keys
    assert differences(seen, same) == []
    verbs = {verb for line in seen.messages for verb in json.loads(line)["fields"].get("verbs", ())}
    assert verbs >= {"census", "prepare", "load", "encode", "backward", "step", "weights", "save", "restore"}
    assert verbs >= {"embed", "score", "forecast"}
    assert any(name.startswith("checkpoints/server/") for name in seen.files)
    assert seen.files["tensorboard"]
    assert RECORDING_FILE in told.files
    assert {f"{what} {name}" for what in ("forecast", "errors") for name in SITES} == told.of_owner.keys()
    for name, content in told.of_owner.items():
        assert content != also_told.of_owner[name], f"{name} does not depend on the truth"
    assert any(line.startswith("crossed ") for line in differences(told, also_told))
    assert_only_told_errors_differ(differences(told, also_told))


def copies(sites: RunningFederation, name: str) -> dict[str, bytes]:
    """The key and the copies of a site."""
    folder = sites.folder / "example" / "data" / name / PRIVATE
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_only_told_errors_differ(found: list[str]) -> None:
    assert "results: evaluate" in found
    assert "in_order: evaluate south" in found
    for line in found:
        if line.startswith(("message ", "crossed ")):
            message = json.loads(line.partition(" ")[2])
            assert message["site"] == "south"
            assert "score" in message["fields"]["verbs"]  # true errors are told in the answer to this
        else:
            assert line in ("results: evaluate", "in_order: evaluate south")
