"""Nodes that are divided between processes give the result of one process, for every method.

Here the processes are objects in one process, and only the sockets between them are missing: a message is
packed and unpacked as between real ones. tests/runs/test_torchrun.py has real ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from cnfgnn.algorithm import working_memory
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.config.settings import Config
from cnfgnn.errors import ConfigError, DataError, NodeError
from cnfgnn.runs.evaluate import evaluate_run
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, begin_from, train_run
from cnfgnn.runs.training_loop import Progress, train
from cnfgnn.transports.divided import divide
from cnfgnn.transports.processes import OtherProcess, Processes
from tests.conftest import FEDERATED, network, server, small
from tests.runs.processes_in_one import Together, passed_on

DATA = network(n=7, seconds=3600)


def brief(method: str, **changes: Any) -> Config:
    return small(method, **{"training.client_rounds": 1, "training.server_rounds": 1, **changes})


def trained(config: Config, processes: Processes | None) -> tuple[Experiment, Progress]:
    experiment = simulate(DATA, config, processes=processes)
    return experiment, train(experiment)


def assert_same(config: Config, count: int) -> None:
    one, alone = trained(config, None)
    other, divided = trained(config, Together(count, DATA))
    for expected, actual in zip(alone.history, divided.history, strict=True):
        assert actual.loss == pytest.approx(expected.loss, rel=1e-9)
        assert actual.training_bytes == expected.training_bytes
    theta = zip(
        server(one).everyone.weights().items(), server(other).everyone.weights().values(), strict=True
    )
    for (name, expected), actual in theta:
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9, msg=name)


QUICK = "at-fedavg"
EVERY = [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in FEDERATED if name != QUICK)]


@pytest.mark.parametrize("method", EVERY)
def test_every_method_gives_the_result_of_one_process(method: str) -> None:
    assert_same(brief(method), 3)


@pytest.mark.slow
def test_members_and_personal_layers_are_divided_with_their_nodes() -> None:
    assert_same(brief("cnfgnn-plus", **{"model.members": 2, "model.personal_layers": True}), 3)


def test_nodes_that_do_not_train_are_divided_too() -> None:
    assert_same(brief("gru-fedavg", **{"training.seen": 0.6}), 2)


@pytest.mark.slow
def test_a_process_may_have_no_node_of_a_group_or_none_at_all() -> None:
    for seen in (0.3, 0.5):  # two of seven sensors train, or three
        assert_same(brief("at-fedavg", **{"training.seen": seen}), 3)


def test_weights_are_averaged_where_not_all_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_memory, "LEAST", 1)
    tight = brief("gru-fedavg", **{"compute.memory": 1e-4})
    experiment = simulate(DATA, tight, processes=Together(2, DATA))
    assert all(len(owner.nodes.groups) > 1 for _, owner in experiment.owners)
    assert_same(tight, 2)


def saved_states(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    run = Run.open(folder)
    tag = run.progress.best.tag
    return {who: run.store(who).read(tag) for who in ("server", "site-0", "owner-0")}


@pytest.mark.parametrize("method", [pytest.param("cnfgnn-plus", marks=pytest.mark.slow), "gru-local"])
def test_the_run_folder_is_that_of_one_process(method: str, tmp_path: Path) -> None:
    for name, processes in (("one", None), ("several", Together(3, DATA))):
        run = Run.create(tmp_path / name, brief(method), DATA)
        train_run(run, DATA, Unwatched(), processes)
    one, several = saved_states(tmp_path / "one"), saved_states(tmp_path / "several")
    for who, state in one.items():
        assert list(several[who]) == list(state)
        for name, expected in state.items():
            message = f"{who} {name}"
            torch.testing.assert_close(
                several[who][name], expected, rtol=1e-9, atol=1e-9, equal_nan=True, msg=message
            )
    scores = [evaluate_run(Run.open(tmp_path / name), DATA) for name in ("one", "several")]
    assert scores[1].overall.rmse == pytest.approx(scores[0].overall.rmse, rel=1e-9)
    tests = [Run.open(tmp_path / name).test()["intervals"]["80"]["overall"] for name in ("one", "several")]
    assert tests[1] == pytest.approx(tests[0], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["at-fedavg", "cnfgnn-plus", "gru-local"])
def test_any_number_of_processes_resumes_a_run_and_goes_on_from_it(method: str, tmp_path: Path) -> None:
    config = brief(method, **{"training.rounds": 3})
    whole = train_run(Run.create(tmp_path / "whole", config, DATA), DATA, Unwatched())

    class Stopping(Unwatched):
        def round_done(self, *_: object) -> None:
            raise KeyboardInterrupt

    run = Run.create(tmp_path / "run", config, DATA)
    for processes in (Together(3, DATA), Together(2, DATA)):
        with pytest.raises(KeyboardInterrupt):
            train_run(run, DATA, Stopping(), processes)
        run = Run.open(tmp_path / "run")
    result = train_run(run, DATA, Unwatched())
    assert result.test.overall.rmse == pytest.approx(whole.test.overall.rmse, rel=1e-9)

    began = []
    for name, several in (("alone", None), ("divided", Together(2, DATA))):
        next_run = begin_from(Run.open(tmp_path / "whole"), DATA, tmp_path / name)
        began.append(train_run(next_run, DATA, Unwatched(), several))
    assert began[1].test.overall.rmse == pytest.approx(began[0].test.overall.rmse, rel=1e-9)


def test_what_cannot_be_divided_is_refused() -> None:
    for method, changes in (("gru-central", {}), ("gru-fmtl", {"training.fmtl_norm": "plain"})):
        with pytest.raises(ConfigError, match="process"):
            simulate(DATA, brief(method, **changes), processes=Together(2, DATA))
    with pytest.raises(ConfigError, match="4 processes need at least 8 sensors, and there are 7"):
        simulate(DATA, brief("at-fedavg"), processes=Together(4, DATA))
    with pytest.raises(ConfigError, match=r"compute\.device"):
        simulate(DATA, brief("at-fedavg", **{"compute.device": "cuda:1"}), processes=Together(2, DATA))


def test_every_process_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with_gpu = Processes(1, 3, torch.device("cuda", 1), None)
    without = Processes(2, 3, torch.device("cpu"), None)
    for name in ("auto", "cuda", "cpu"):
        with_gpu.check_device(name)
    without.check_device("cpu")
    for name in ("auto", "cuda"):
        with pytest.raises(ConfigError, match=r"more processes than GPUs \(2\)"):
            without.check_device(name)


def test_a_failure_in_another_process_names_it() -> None:
    together = Together(2, DATA)
    experiment = simulate(DATA, brief("at-fedavg"), processes=together)
    del together.followers[0].parts[0].owner.nodes.settings
    with pytest.raises(OtherProcess, match="process 1: site 'process-1' failed at") as failure:
        server(experiment).round(1)
    assert failure.value.exit_code == NodeError.exit_code


def test_every_process_checks_that_it_has_read_the_same_data(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", brief("at-fedavg"), DATA)
    other = network(n=7, seed=1, seconds=3600)
    with pytest.raises(OtherProcess, match=r"process 1: .* are not those that process 0 has read") as problem:
        train_run(run, DATA, Unwatched(), Together(2, other))
    assert problem.value.exit_code == DataError.exit_code


def test_a_small_group_stays_in_the_first_process() -> None:
    assert [part.tolist() for part in divide(torch.arange(7), 3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [part.tolist() for part in divide(torch.arange(3), 2)] == [[0, 1, 2], []]


def test_messages_arrive_as_they_were_sent() -> None:
    sent = {
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 3),
        "half": torch.arange(4).bfloat16(),
        "yes": torch.tensor([True, False]),
        "turned": torch.arange(6.0).view(2, 3).T,
        "array": np.arange(3.0)[::-1],
        "words": ("a", None, 1),
    }
    came = cast(dict[str, Any], passed_on(sent))
    for name, value in sent.items():
        if isinstance(value, torch.Tensor):
            assert came[name].dtype == value.dtype
            assert torch.equal(came[name], value)
    assert came["array"].tolist() == [2.0, 1.0, 0.0]
    assert came["words"] == sent["words"]
