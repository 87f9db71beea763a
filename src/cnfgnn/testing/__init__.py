"""What every method must pass, whoever wrote it: `cnfgnn.testing.check_method("my-method")`.

Each check trains on six nodes for a few seconds and raises AssertionError if something does not hold. They
need PyTorch's CPU only, and no test framework.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cnfgnn.algorithm.compute.learner import GraphLearner
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.methods import method_of
from cnfgnn.algorithm.server import Server
from cnfgnn.config.settings import Config
from cnfgnn.models.graphnet import Edges
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import train
from cnfgnn.testing.small_networks import network, small
from cnfgnn.testing.two_truths import Faults, TwoTruths, brief, differences, few_sensors, train_with_faults

Groups = Sequence[Sequence[int]]
APART: Groups = ([5, 0], [2], [1, 3, 4])  # of the six nodes


def check_method(name: str) -> None:
    """Run every check that applies to a method."""
    method = method_of(name)
    name = method.name
    with tempfile.TemporaryDirectory() as folder:
        check_resume(name, Path(folder) / "resume")
        check_future(name)
        if method.graph_network:
            check_windows(name)
            check_absent_nodes(name)
        if method.federated:
            check_partition(name)
            check_verbs(name)
            check_privacy(name, Path(folder) / "copies")


def one_epoch(method: str, **changes: Any) -> Config:
    """Two rounds with one epoch of each side."""
    return small(method, **{"training.client_rounds": 1, "training.server_rounds": 1, **changes})


def trained(config: Config, groups: Groups | None = None) -> Experiment:
    """A training on the six nodes; nearly a week, so that something is usual."""
    experiment = simulate(network(seconds=3600), config, groups)
    train(experiment)
    return experiment


def check_partition(method: str) -> None:
    """However nodes are put into groups, weights, errors and the paper's bytes are the same."""
    together, apart = (trained(one_epoch(method), groups) for groups in (None, APART))
    try:
        assert_same(together, apart)
        assert_same_bytes(together, apart)
    except AssertionError as error:
        differs = "the result or the bytes depend on how nodes are grouped into sites"
        raise AssertionError(f"{differs}: does a node see others of its group? {error}") from error


def assert_same(one: Experiment, other: Experiment) -> None:
    """Two trainings have the same weights of nodes and server, and the same errors."""
    first, second = one.strategy, other.strategy
    assert isinstance(first, Server)
    assert isinstance(second, Server)
    theta = zip(first.everyone.weights().items(), second.everyone.weights().values(), strict=True)
    for (name, expected), actual in theta:
        assert actual.shape == expected.shape, name
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
    if first.gn is not None:
        assert second.gn is not None
        for expected, actual in zip(first.gn.gn.parameters(), second.gn.gn.parameters(), strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(second.score("test").told, first.score("test").told, rtol=1e-8, atol=1e-7)


def assert_same_bytes(one: Experiment, apart: Experiment) -> None:
    """The ledger counts the same bytes for each node, fewer where nodes share a site; evaluations apart."""
    whole, parts = one.ledger.total("training"), apart.ledger.total("training")
    assert whole.per_node == parts.per_node
    assert whole.per_site <= parts.per_site <= parts.per_node
    apart.strategy.score("validation")
    assert apart.ledger.total("training") == parts
    assert apart.ledger.total("evaluation").per_node > 0


def check_resume(method: str, folder: Path, **changes: Any) -> None:
    """A run that was interrupted and resumed equals an uninterrupted one in every bit of every checkpoint."""
    data, config = network(seconds=3600), small(method, **{"training.rounds": 4, **changes})

    def start(place: str) -> Experiment:
        return simulate(data, config, store=lambda name: FolderStore(folder / place / name))

    whole = start("whole")
    straight = train(whole)
    stopped = train(start("parts"), rounds=2)
    as_read = replace(stopped, ledger=json.loads(json.dumps(stopped.ledger)))  # as from a manifest
    second = start("parts")  # a new process would begin like this
    resumed = train(second, as_read)
    differs = (
        "a resumed run differs from an uninterrupted one: does the method draw numbers, or keep a state?"
    )
    assert resumed.history == straight.history, differs
    assert torch.equal(whole.strategy.score("test").told, second.strategy.score("test").told), differs
    states = sorted((folder / "whole").rglob("*.safetensors"))
    assert {path.parent.name for path in states} >= {"server"}
    for path in states:  # weights and optimisers of the server and, with federated methods, of every node
        other = folder / "parts" / path.relative_to(folder / "whole")
        assert other.read_bytes() == path.read_bytes(), f"{differs} {path.relative_to(folder)}"


def check_future(method: str) -> None:
    """Forecasts do not depend on readings that come after them."""
    data, config = network(seconds=3600), small(method, **{"training.rounds": 1})
    later = data.readings.values.copy()
    later[-config.data.horizon :] += 7
    forecasts = []
    for values in (data.readings.values, later):
        experiment = simulate(replace(data, readings=replace(data.readings, values=values)), config)
        train(experiment)
        experiment.strategy.ready("test")
        last = experiment.windows.count("test")
        found = [owner.forecasts_of("test", slice(last - 1, last)) for _, owner in experiment.owners]
        forecasts.append(torch.cat(found))
    assert torch.equal(*forecasts), "forecasts depend on readings that come after them: does decode read y?"


def check_windows(method: str) -> None:
    """The embedding of a window does not depend on the other windows of its minibatch."""
    gn, h_c = _untrained(method)
    graph = Edges.of(network().graph, h_c.device, h_c.dtype)
    alone, together = (gn.propagate(some, graph, None)[:, :1] for some in (h_c[:, :1], h_c))
    differs = "the embedding of a window depends on the other windows of its minibatch"
    assert torch.allclose(alone, together, rtol=1e-9, atol=1e-9), differs


def check_verbs(method: str) -> None:
    """The server asks for what a site of a federation answers."""
    from cnfgnn.federation.site.task_verbs import verbs_allowed

    asked = {item.verb for item in trained(one_epoch(method)).ledger.items}
    refused = ", ".join(sorted(asked - verbs_allowed("train", method)))
    assert not refused, f"a site would not answer, with this strategy and sharing: {refused}"


def _untrained(method: str) -> tuple[GraphLearner, Tensor]:
    """The Graph Network of a method, and hidden states (n b h) of six nodes."""
    gn = getattr(simulate(network(), one_epoch(method)).strategy, "gn", None)
    assert gn is not None
    shape = 6, 4, one_epoch(method).model.sent_width
    return gn, torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def check_absent_nodes(method: str) -> None:
    """Nodes that are not present leave no trace in the embeddings of the others, whatever their h_c says."""
    data, there = network(), torch.tensor([0, 1, 3, 5])
    gn, h_c = _untrained(method)
    present = torch.zeros(6, 4, dtype=torch.bool)
    present[there] = True
    expected_graph = data.graph.subgraph(there.numpy())
    graph, part = (Edges.of(g, h_c.device, h_c.dtype) for g in (data.graph, expected_graph))
    expected = gn.propagate(h_c[there], part, None)
    h_c[~present] = torch.nan
    found = gn.propagate(h_c, graph, present)[there]
    trace = "absent nodes leave a trace in the embeddings of others: does the Graph Network mask them?"
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9), trace


def check_privacy(method: str, folder: Path) -> None:
    """Whatever the true readings are, a server sees the same bits if their blurred copy is the same: through
    training, an absent site and a server that is killed and resumes."""
    truths = TwoTruths.of(folder, brief(method), few_sensors(), ("plain", "noisy"))
    faults = Faults(away={3: frozenset({"site-1"})}, killed=frozenset({6}))
    one, other = (train_with_faults(truths, data, ([0], [1, 2, 3]), faults) for data in truths)
    found = differences(one, other)
    assert not found, f"a server sees what the true readings are: {', '.join(found)}"
    assert len(one.messages) > 4
    assert all(one.of_owner[name] != other.of_owner[name] for name in one.of_owner)  # the truths were used
