"""A recording holds what crossed, no more and no less, in memory and as a file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.messages.calls import Call, Payload
from cnfgnn.algorithm.messages.verbs import Prepare
from cnfgnn.algorithm.messages.window_plan import plan_of, starts_of
from cnfgnn.attack.observe import observe
from cnfgnn.attack.recording import Recorder, Recording, SetUp
from cnfgnn.attack.replica import Received
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.windows import Split
from cnfgnn.errors import RunError
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import simulate
from cnfgnn.transports.in_process import InProcess
from tests.attack.small_runs import FAMILIES
from tests.conftest import server, small


def tensors(thing: object) -> dict[str, Tensor]:
    """Every tensor in a recording, by where it is."""
    if isinstance(thing, Tensor):
        return {"": thing}
    if isinstance(thing, dict):
        inside = thing.items()
    elif isinstance(thing, list | tuple) and not hasattr(thing, "_fields"):
        inside = ((str(k), part) for k, part in enumerate(thing))
    elif hasattr(thing, "__dataclass_fields__"):
        inside = vars(thing).items()
    else:
        return {}
    return {f"{name}.{below}": x for name, part in inside for below, x in tensors(part).items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_holds_all_of_it(
    family: str, attacked_runs: dict[str, Path], attacked_city: Dataset, tmp_path: Path
) -> None:
    run = Run.open(attacked_runs[family])
    recording = replace(observe(run, attacked_city, windows=15).recording, public=None)
    recording.save(tmp_path / "recording.safetensors")
    loaded = Recording.load(tmp_path / "recording.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["recording.safetensors"]
    before, after = tensors(recording), tensors(loaded)
    assert len(before) > 30
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(tensor, after[name], rtol=0, atol=0, equal_nan=True)
    assert loaded.set_up.settings == recording.set_up.settings
    assert loaded.set_up.scaler == recording.set_up.scaler
    assert [b.draw for b in loaded.minibatches] == [b.draw for b in recording.minibatches]


def test_the_server_can_repeat_what_it_received(
    attacked_runs: dict[str, Path], attacked_city: Dataset
) -> None:
    """With the recorded weights and the true readings, which it does not have, the states are the same."""
    run = Run.open(attacked_runs["at-fedavg"])
    recording = observe(run, attacked_city, windows=15, training=False).recording
    received = Received.of(recording, "test", torch.arange(4), torch.device("cpu"))
    inputs = received.starts[:, None] + torch.arange(12)
    readings = torch.from_numpy(attacked_city.readings.values.T.copy()).double()[:, inputs]
    batch = received.replica.batch(received.starts, received.replica.scaled(readings))
    h_c = received.replica.encode(received.theta, batch)
    known = ~readings.isnan().any(dim=-1)
    assert known.sum() > 30
    torch.testing.assert_close(h_c[known], received.h_c[known], rtol=1e-4, atol=1e-5)


def set_up_again(experiment: Experiment) -> None:
    """What the server tells and asks before the first round, for a recorder that came later."""
    everyone = server(experiment).everyone
    told = Prepare(
        experiment.owners[0][1].nodes.settings,
        experiment.scaler.mean,
        experiment.scaler.std,
        plan_of(experiment.windows),
    )
    everyone._tell(told, starts_of(experiment.windows))
    everyone.census(experiment.windows, experiment.config.data.missing)


def test_a_training_is_recorded_and_of_minibatches_the_newest_round(data: Dataset) -> None:
    config = small("cnfgnn-plus", **{"training.rounds": 1})
    experiment = simulate(data, config)
    strategy = server(experiment)
    recorder = Recorder(strategy.everyone.transport, {"train": slice(0, 10), "validation": slice(0, 5)})
    strategy.everyone.transport = strategy.nodes.transport = recorder
    set_up_again(experiment)
    strategy.round(1)
    strategy.round(2)
    strategy.score("validation")
    recording = recorder.recording()
    assert recording.set_up.settings == experiment.owners[0][1].nodes.settings
    assert recording.states["validation"].h_c.shape == (6, 5, config.model.sent_width)
    assert {batch.draw.r_g for batch in recording.minibatches} == {2}  # of the newest round alone
    assert sorted(int(p) for batch in recording.minibatches for p in batch.places) == list(range(10))
    steps = [(batch.interval, batch.steps) for batch in recording.minibatches]
    assert steps[:3] == [(0, 0), (0, 1), (1, 0)]  # weights are averaged after two minibatches
    assert recording.intervals[0].steps == 2
    assert all(len(w) == 6 for w in recording.intervals[0].after.values())


def test_it_does_not_depend_on_how_nodes_are_spread_over_sites(data: Dataset) -> None:
    recordings = []
    for groups in ([[0, 1, 2, 3, 4, 5]], [[4, 1], [0, 2, 3, 5]]):
        experiment = simulate(data, small("at-fedavg"), groups=groups)
        strategy = server(experiment)
        told = SetUp(experiment.owners[0][1].nodes.settings, experiment.scaler, experiment.windows)
        recorder = Recorder(strategy.everyone.transport, {"train": slice(5, 25)}, told)
        strategy.everyone.transport = strategy.nodes.transport = recorder
        strategy.round(1)
        recordings.append(tensors(recorder.recording()))
    one, two = recordings
    assert one.keys() == two.keys()
    assert any(name.startswith("minibatches.") for name in one)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=1e-9, atol=1e-12)


def test_nodes_that_do_not_answer_are_left_out(data: Dataset) -> None:
    experiment = simulate(data, small("at-fedavg"), groups=[[0, 1, 2], [3, 4, 5]])
    strategy = server(experiment)
    inner = strategy.everyone.transport
    recorder = Recorder(inner, {"test": slice(0, 4)})
    strategy.everyone.transport = strategy.nodes.transport = recorder
    strategy.everyone.load({name: w[:1] for name, w in strategy.everyone.weights().items()})
    inner.away.add("site-1")  # type: ignore[attr-defined]
    strategy.everyone.encode(split="test")
    with pytest.raises(RunError, match="nothing was recorded: the nodes were not prepared"):
        recorder.recording()
    h_c = recorder.states["test"].h_c
    assert not h_c[:3].isnan().any()
    assert h_c[3:].isnan().all()


@pytest.mark.slow
def test_a_site_that_rejoins_is_noted_with_the_others(data: Dataset) -> None:
    """The server waits for it, has it catch up and asks it again; to the recording that is one exchange."""
    undisturbed, disturbed = (_round_of_split_learning(data, away) for away in ((), (4, 5, 9, 12)))
    assert disturbed.set_up.settings == undisturbed.set_up.settings
    steps = [(batch.draw, batch.interval, batch.steps) for batch in undisturbed.minibatches]
    assert len({interval for _, interval, _ in steps}) > 1
    assert [(batch.draw, batch.interval, batch.steps) for batch in disturbed.minibatches] == steps
    assert [part.steps for part in disturbed.intervals] == [part.steps for part in undisturbed.intervals]
    for name, tensor in tensors(undisturbed).items():
        assert tensors(disturbed)[name].shape == tensor.shape, name
        if name.split(".")[0] in ("minibatches", "intervals", "states", "has"):
            assert torch.equal(tensors(disturbed)[name].isnan(), tensor.isnan()), name


def _round_of_split_learning(data: Dataset, away: tuple[int, ...]) -> Recording:
    """A round in which a site does not answer the exchanges with these numbers, and is waited for."""
    config = small("cnfgnn-plus", **{"training.rounds": 1})
    experiment = simulate(data, config, groups=[[0, 1, 2], [3, 4, 5]])
    strategy, numbers = server(experiment), itertools.count()
    inner = strategy.everyone.transport
    assert isinstance(inner, InProcess)

    class Waiting(InProcess):
        def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
            self.away = {"site-1"} if next(numbers) in away else set()
            return super().exchange(calls, rows)

        def wait(self, answered: Tensor) -> bool:
            return len(answered) < 6

    kept: dict[Split, slice] = {"train": slice(0, 40), "validation": slice(None)}
    recorder = Recorder(Waiting(inner.groups), kept)
    strategy.everyone.transport = strategy.nodes.transport = recorder
    set_up_again(experiment)
    strategy.everyone.load({name: w[:1] for name, w in strategy.everyone.weights().items()})
    strategy.round(1)
    strategy.score("validation")
    return recorder.recording()


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no such recording"):
        Recording.load(tmp_path / "none")
    (tmp_path / "damaged").write_bytes(b"no safetensors")
    with pytest.raises(RunError, match="is damaged, or no recording of a server"):
        Recording.load(tmp_path / "damaged")
