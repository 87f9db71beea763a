"""The simulator's transport hands each group its own rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.dispatch import run
from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.nodes import Nodes
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.store import MemoryStore
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.series import Series
from cnfgnn.errors import NodeError
from cnfgnn.transports.in_process import InProcess

CPU = Compute(torch.device("cpu"), torch.float64)


def group(data: Dataset, rows: list[int], name: str) -> tuple[torch.Tensor, Owner]:
    series = Series.of(data.readings, np.array(rows))
    return torch.tensor(rows), Owner(Clients(series, CPU, MemoryStore(), name), series, MemoryStore())


def test_answers_come_back_in_node_order(data: Dataset) -> None:
    transport = InProcess([group(data, [4, 0], "a"), group(data, [2, 5, 1, 3], "b")])
    nodes = Nodes(transport)
    theta = {"w": torch.arange(6.0, dtype=torch.float64)[:, None]}
    nodes.load(theta)
    assert torch.equal(nodes.weights()["w"], theta["w"])
    assert transport.groups[0][1].nodes.theta["w"].flatten().tolist() == [4.0, 0.0]


def test_some_rows_can_be_addressed_alone(data: Dataset) -> None:
    transport = InProcess([group(data, [0, 1, 2], "a"), group(data, [3, 4, 5], "b")])
    nodes = Nodes(transport)
    nodes.load({"w": torch.zeros(1, 1).double()})
    some = nodes.among(torch.tensor([3, 4, 5]))
    some.load({"w": torch.tensor([[3.0], [4.0], [5.0]]).double()})
    assert some.weights()["w"].flatten().tolist() == [3.0, 4.0, 5.0]
    assert nodes.weights()["w"].flatten().tolist() == [0.0, 0.0, 0.0, 3.0, 4.0, 5.0]


def test_half_a_group_cannot_be_addressed(data: Dataset) -> None:
    nodes = Nodes(InProcess([group(data, [0, 1, 2], "a"), group(data, [3, 4, 5], "b")]))
    nodes.load({"w": torch.zeros(1, 1).double()})
    with pytest.raises(NodeError, match="'a' failed at 'weights'"):
        nodes.among(torch.tensor([0, 3, 4, 5])).weights()


def test_groups_must_hold_every_row_once(data: Dataset) -> None:
    with pytest.raises(NodeError, match="exactly once"):
        InProcess([group(data, [0, 1], "a"), group(data, [1, 2], "b")])


def test_tells_wait_for_the_next_ask(data: Dataset) -> None:
    transport = InProcess([group(data, [0, 1, 2, 3, 4, 5], "a")])
    nodes = Nodes(transport)
    nodes.load({"w": torch.ones(1, 1).double()})
    assert transport.groups[0][1].nodes.theta == {}
    nodes.flush()
    assert transport.groups[0][1].nodes.theta["w"].item() == 1


def test_what_is_no_verb_cannot_be_called(data: Dataset) -> None:
    _, clients = group(data, [0], "a")
    for name in ("series", "__init__", "forecaster", "batch", "theta", "store"):
        with pytest.raises(NodeError, match="no such verb"):
            run(clients, [Call(name)])


def test_a_failing_verb_names_site_and_verb(data: Dataset) -> None:
    _, clients = group(data, [0], "harbour")
    with pytest.raises(NodeError, match="'harbour' failed at 'update'"):
        run(clients, [Call("update", {"r_g": 1})])
