"""Nodes learn in groups and windows pass the Graph Network in parts: less memory, the same result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute import working_memory
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.compute.working_memory import NodeMemory, network_windows
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.messages.cost import GIB
from cnfgnn.config.settings import ModelConfig
from cnfgnn.models.gru import NodeModel
from cnfgnn.testing import assert_same, one_epoch, trained
from tests.algorithm.test_partition import together
from tests.conftest import FEDERATED, transport

QUICK = ("at-fedavg", "cnfgnn-plus", "gru-fmtl")
CPU = torch.device("cpu")


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes learn together, one after the other; three windows pass the Graph Network together."""

    def groups(memory: NodeMemory, nodes: int) -> list[slice]:
        return [slice(start, min(start + 2, nodes)) for start in range(0, nodes, 2)]

    monkeypatch.setattr(NodeMemory, "groups", groups)
    monkeypatch.setattr(
        NodeMemory, "within", lambda _, nodes, windows: (slice(i, i + 1) for i in range(nodes))
    )
    monkeypatch.setattr("cnfgnn.algorithm.compute.learner.network_windows", lambda *_: 3)


def methods() -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FEDERATED]


@pytest.mark.parametrize("method", methods())
def test_groups_of_nodes_and_parts_of_minibatches_give_the_same_result(
    method: str, request: pytest.FixtureRequest
) -> None:
    expected = together(method)
    request.getfixturevalue("little")
    assert_same(expected, trained(one_epoch(method), None))


@pytest.mark.parametrize("method", ["at", pytest.param("sl-fedavg", marks=pytest.mark.slow)])
def test_weights_that_are_held_elsewhere_are_brought_back(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = together(method)
    monkeypatch.setattr(NodeMemory, "home", lambda *_: torch.device("cpu", 0))  # not equal to "cpu"
    monkeypatch.setattr(NodeMemory, "groups", lambda _, nodes: [slice(0, 4), slice(4, nodes)])
    apart = trained(one_epoch(method), None)
    assert clients(apart).home != CPU
    assert_same(expected, apart)


@pytest.mark.slow
def test_averages_are_taken_as_groups_finish_and_counted_as_if_all_had_sent_theirs(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(one_epoch("at-fedavg"), None)
    request.getfixturevalue("little")

    def never(_: Clients) -> None:
        raise AssertionError("the weights of all nodes were held at once")

    with monkeypatch.context() as patched:
        patched.setattr(Clients, "weights", never)
        apart = trained(one_epoch("at-fedavg"), None)
    assert clients(apart).theta["output.bias"].shape[0] == 1
    assert clients(apart).adam is None
    assert apart.ledger.total("training") == whole.ledger.total("training")


def clients(experiment: Experiment) -> Clients:
    return transport(experiment).groups[0][1].nodes


# ---- how much at a time -----------------------------------------------------------------------------------


def test_the_number_of_nodes_and_windows_follows_from_the_memory() -> None:
    model, parameters = NodeModel(), 64_000
    memory = NodeMemory(model, parameters, 12, 12, Compute(CPU, gib=8.0))
    nodes = GIB // (5 * 4 * parameters)  # half of a quarter of 8 GiB, for five copies of float32 weights
    assert [group.stop - group.start for group in memory.groups(2 * nodes + 1)] == [nodes, nodes, 1]
    assert len(NodeMemory(model, parameters, 12, 12, Compute(CPU, gib=80.0)).groups(2 * nodes + 1)) == 1
    assert network_windows(ModelConfig(), 100_000, 700_000, Compute(CPU, gib=0.5)) == 1
    assert network_windows(ModelConfig(), 207, 1722, Compute(CPU, gib=8.0)) > 48


def test_a_tiny_memory_is_not_taken_at_its_word() -> None:
    """Torch alone takes more than that: learning node by node would save nothing."""
    assert working_memory.limit(Compute(CPU, gib=1e-6)) == working_memory.LEAST
    assert working_memory.limit(Compute(CPU, gib=8.0)) == 8 * GIB


@pytest.mark.slow
def test_the_peak_of_a_round_respects_the_memory_that_it_was_given() -> None:
    """A thousand nodes with weights, gradients and optimisers take 1.2 GiB if they learn together."""
    little, plenty = peak("at-fedavg", 1000, 0.25), peak("at-fedavg", 1000, 64.0)
    assert little < 2 * 0.25 * GIB
    assert plenty > 1.5 * little


def peak(method: str, nodes: int, gib: float) -> int:
    """Bytes of a round, in a process of its own."""
    command = [sys.executable, "-m", "tests.algorithm.peak_memory", method, str(nodes), str(gib)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root, timeout=600)
    return int(done.stdout)
