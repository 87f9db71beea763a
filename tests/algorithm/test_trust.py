"""How far an owner trusts the network, and how training adapts to the number of windows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cnfgnn.algorithm.experiment import fit_to_windows
from cnfgnn.algorithm.forecaster import DOUBT, _certainty, _SquaredErrors
from cnfgnn.algorithm.methods import method_of, preset
from cnfgnn.algorithm.owner import Owner
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.graph import Graph
from cnfgnn.errors import ConfigError
from cnfgnn.models.edges import Edges
from cnfgnn.models.graphnet import means
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import evaluate_best, train
from tests.conftest import server, small


def owner_after_a_round(data: Dataset, **changes: Any) -> Owner:
    experiment = simulate(data, small("cnfgnn-plus", **changes))
    server(experiment).round(1)
    server(experiment).score("validation")
    return experiment.owners[0][1]


def test_what_makes_validation_worse_is_not_taken(data: Dataset) -> None:
    owner = owner_after_a_round(data)
    experiment = simulate(data, small("cnfgnn-plus"))
    strategy, spoilt = server(experiment), experiment.owners[0][1]
    strategy.round(1)
    strategy.nodes.flush()
    spoilt.nodes.theta["output.bias"] += 50.0  # the network now adds nonsense
    strategy.score("validation")
    assert owner.trust is not None
    assert spoilt.trust is not None
    assert ((owner.trust >= 0) & (owner.trust <= 1)).all()
    assert spoilt.errors is not None
    assert owner.errors is not None
    evaluated = spoilt.errors[..., 2].sum(dim=1) > 0
    assert (spoilt.trust[evaluated] < 0.05).all()
    assert (spoilt.trust[~evaluated] == 1).all()
    assert spoilt.errors[..., 0].sum() < 1.5 * owner.errors[..., 0].sum()


@pytest.mark.parametrize(("loss", "error"), [("square", 3), ("absolute", 4)])
def test_the_share_has_the_lowest_error_of_the_kind_that_was_trained_on(
    data: Dataset, loss: str, error: int
) -> None:
    """Judged by squared errors, a network that was trained on absolute ones would be trusted too little."""
    experiment = simulate(data, small("cnfgnn-plus", **{"training.loss": loss}))
    strategy, owner = server(experiment), experiment.owners[0][1]
    strategy.round(1)
    strategy.score("validation")
    assert owner.trust is not None
    strategy.ready("validation")
    strategy.nodes.flush()
    forecaster, evaluated = owner.nodes.forecaster, (owner.nodes.theta, owner.data, owner.h_G)

    def errors(share: torch.Tensor) -> torch.Tensor:
        return forecaster.summed_errors(*evaluated, "validation", share)[..., error].sum(dim=1)

    weight = owner.data.batch("validation", slice(None)).weight
    assert weight is not None
    count = (weight.amax(dim=-1) > 0).sum(dim=1)
    chosen = errors((owner.trust / _certainty(count.double(), owner.data.length)).clamp(max=1))
    for share in torch.linspace(0, 1, 11, dtype=torch.float64):
        assert (chosen <= errors(share.expand(len(chosen))) * (1 + 1e-6) + 1e-9).all()
    assert (owner.trust < 1).any()


def test_few_validation_windows_are_trusted_less() -> None:
    """As if the network had been tried on more windows, which share no reading with the others, and had
    neither helped nor harmed on average."""
    certainty = _certainty(torch.tensor([0.0, 24.0, 72.0, 3432.0]), 24)
    assert certainty.tolist() == pytest.approx([0, 1 / 5, 3 / 7, 143 / 147])
    draws = torch.Generator().manual_seed(0)
    added, left_over = torch.randn(2, 1, 3, 4, generator=draws, dtype=torch.float64)
    left_over += 0.5 * added
    judge = _SquaredErrors(SimpleNamespace(inputs=added, nodes=1))  # type: ignore[arg-type]
    judge.add(left_over, added, torch.ones(()))
    share = judge.best_share(_certainty(torch.tensor([3.0]), 1))

    def errors(s: float) -> float:
        tried = (left_over - s * added).square().sum()
        return float(tried + s**2 * added.square().sum() * DOUBT / 3)

    assert 0.1 < share.item() < 0.4
    assert all(errors(share.item()) <= errors(s) for s in np.linspace(0, 1, 51))


def test_trust_is_that_of_the_best_round_after_training(data: Dataset) -> None:
    experiment = simulate(data, small("cnfgnn-plus", **{"training.rounds": 3}))
    seen: dict[int, torch.Tensor] = {}

    def keep(progress: Any) -> None:
        trust = experiment.owners[0][1].trust
        assert trust is not None
        seen[progress.history[-1].r_g] = trust.clone()

    progress = train(experiment, on_round=keep)
    evaluate_best(experiment, progress)
    assert torch.equal(experiment.owners[0][1].trust, seen[progress.best.r_g])  # type: ignore[arg-type]


def test_nodes_without_a_linear_part_trust_all(data: Dataset) -> None:
    assert owner_after_a_round(data, **{"model.linear": False}).trust is None


# ---- training length -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "rounds", "batch"), [(50_000, 12, 128), (24_000, 12, 128), (1_400, 24, 64), (300, 36, 16)]
)
def test_fewer_windows_get_more_rounds_and_smaller_minibatches(windows: int, rounds: int, batch: int) -> None:
    method = method_of("cnfgnn-plus")
    fitted = fit_to_windows(preset("cnfgnn-plus"), method, windows)
    assert (fitted.training.rounds, fitted.training.server_batch) == (rounds, batch)
    assert fitted.training.patience >= 10
    assert fit_to_windows(fitted, method, windows) == fitted  # resuming changes nothing


def test_what_the_user_set_stays() -> None:
    config = preset("cnfgnn-plus").with_changes({"training.rounds": 5, "training.server_batch": 100})
    fitted = fit_to_windows(config, method_of("cnfgnn-plus"), 300)
    assert (fitted.training.rounds, fitted.training.server_batch) == (5, 100)
    with pytest.raises(ConfigError, match="minibatches of 100 need more than the 90 training windows"):
        fit_to_windows(config, method_of("cnfgnn-plus"), 90)


def test_the_papers_methods_only_get_minibatches_that_fit() -> None:
    fitted = fit_to_windows(preset("at-fedavg"), method_of("at-fedavg"), 100)
    assert fitted.training.rounds == preset("at-fedavg").training.rounds
    assert (fitted.training.client_batch, fitted.training.server_batch) == (100, 48)


# ---- means of levels -------------------------------------------------------------------------------------


def test_means_are_over_present_neighbours_and_over_all() -> None:
    #  0 <- 1 (weight 1), 0 <- 2 (weight 3), a loop at 0, and 3 has no neighbours
    graph = Graph(4, np.array([0, 1, 2]), np.array([0, 0, 0]), np.array([9.0, 1.0, 3.0]))
    edges = Edges.of(graph, torch.device("cpu"), torch.float64)
    x = torch.tensor([10.0, 2.0, 4.0, 8.0], dtype=torch.float64)[:, None, None]
    near, everyone = means(x, edges).unbind(-1)
    assert near[:, 0].tolist() == pytest.approx([3.5, 6.0, 6.0, 6.0])
    assert everyone[:, 0].tolist() == pytest.approx([6.0] * 4)
    present = torch.tensor([True, True, False, True])[:, None]
    near, everyone = means(x, edges, present).unbind(-1)
    assert near[0, 0] == pytest.approx(2.0)
    assert everyone[3, 0] == pytest.approx(20 / 3)
