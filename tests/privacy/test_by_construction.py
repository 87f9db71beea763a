"""Nodes have no reference to true readings or to their owner, by any way."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.owner import Owner
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import evaluate_best, train
from cnfgnn.testing.two_truths import TwoTruths, brief
from tests.conftest import FEDERATED
from tests.privacy.recorded_sites import RecordedSites, Sender
from tests.privacy.test_hostile_server import attack
from tests.privacy.two_truths import city

# Code and what is shared by all objects of a class: from there everything in the process can be reached.
NOT_FOLLOWED = (types.ModuleType, type, types.CodeType, types.FrameType, types.BuiltinFunctionType)


def referents(thing: Any) -> Iterable[Any]:
    """What an object refers to; of a function, what it encloses and its defaults, and not its module."""
    if isinstance(thing, types.FunctionType):
        return [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
    return gc.get_referents(thing)


def reachable(first: object) -> Iterator[Any]:
    """Every object that can be reached from this one, through attributes, containers and closures."""
    found, waiting = {id(first)}, [first]
    while waiting:
        thing = waiting.pop()
        yield thing
        for other in referents(thing):
            if id(other) not in found and not isinstance(other, NOT_FOLLOWED):
                found.add(id(other))
                waiting.append(other)


def as_array(thing: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(thing, torch.Tensor):
        return thing.detach().cpu().numpy() if thing.dtype != torch.bfloat16 else None
    return thing if isinstance(thing, np.ndarray) else None


def arrays_of(first: object) -> list[np.ndarray[Any, Any]]:
    arrays = (as_array(thing) for thing in reachable(first))
    return [array for array in arrays if array is not None and array.size > 1]


def secrets_of(owner: Owner) -> list[np.ndarray[Any, Any]]:
    """The arrays that must stay with the owner."""
    kept = [owner.truth.values, owner.data.inputs, owner.data.targets, owner.forecasts, owner.errors]
    kept += [owner.data.usual, owner.data.weekly_profiles, owner.trust]
    if owner.intervals is not None:
        kept += [
            owner.intervals.reach,
            owner.intervals.usual,
            owner.intervals.size.knots,
            owner.interval_sums,
        ]
    arrays = [as_array(one) for one in kept if one is not None]
    return [array for array in arrays if array is not None and array.size > 1]


def holds(arrays: Iterable[np.ndarray[Any, Any]], secret: np.ndarray[Any, Any]) -> bool:
    """Whether one of the arrays is this one, shares its memory, or has the same numbers."""
    return any(
        array is secret
        or np.shares_memory(array, secret)
        or (array.shape == secret.shape and np.array_equal(array, secret, equal_nan=True))
        for array in arrays
    )


def check(nodes: Clients, owner: Owner) -> None:
    secrets = [secret for secret in secrets_of(owner) if np.any(secret)]
    assert len(secrets) >= 3
    from_nodes = list(reachable(nodes))
    assert any(thing is nodes.series.values for thing in from_nodes)  # the walk does get to readings
    assert not any(thing is owner or isinstance(thing, Owner) for thing in from_nodes)
    arrays = arrays_of(nodes)
    assert len(arrays) > 5
    for secret in secrets:
        assert not holds(arrays, secret)
    from_owner = arrays_of(owner)
    for secret in secrets:
        assert holds(from_owner, secret)


@pytest.mark.parametrize("name", ["cnfgnn-private", "at-fedavg"])
def test_there_is_no_way_from_nodes_to_their_owner(name: str) -> None:
    assert name in FEDERATED
    experiment = simulate(city(), brief(name, **{"training.rounds": 1}), ([0], [1, 2, 3]))
    evaluate_best(experiment, train(experiment))
    for _, owner in experiment.owners:
        check(owner.nodes, owner)


def test_there_is_no_way_at_a_site_either(tmp_path: Path) -> None:
    truths = TwoTruths.of(tmp_path, brief("cnfgnn-private"), city(n=3, rows=50), ("plain", "shuffled"))
    site = RecordedSites(truths, truths.one, [[0, 1, 2]])
    attack(Sender(site.ends[0], site.terms), 2)
    owner = site.owners[0]
    assert owner is not None
    check(owner.nodes, owner)


def test_a_reference_in_a_closure_would_be_found() -> None:
    """A test of the test."""
    experiment = simulate(city(), brief("cnfgnn-private"))
    _, owner = experiment.owners[0]
    owner.nodes.tick = lambda: print(owner.truth)
    assert any(thing is owner for thing in reachable(owner.nodes))
    with pytest.raises(AssertionError):
        check(owner.nodes, owner)
