"""`training.wire`: numbers in two bytes each or, all but weights, in one, wherever nodes are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.messages.ledger import Item
from cnfgnn.algorithm.messages.quantize import dequantised
from cnfgnn.algorithm.messages.verbs import VERBS
from cnfgnn.data.dataset import Dataset
from cnfgnn.runs.evaluate import evaluate_run
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import Unwatched, train_run
from tests.conftest import server, small

STATES = {"levels", "inform", "encode", "backward", "embed", "step"}
WEIGHTS = {"weights", "load"}
DOUBLE = 8  # bytes: nodes compute in float64
METHODS = ["at-fedavg", "sl-fedavg", "cnfgnn-plus"]


def moved(experiment: Experiment) -> dict[Item, int]:
    """Per node, in a round and its judging."""
    server(experiment).round(1)
    server(experiment).score("validation")
    return {item: amount.per_node for item, amount in experiment.ledger.items.items()}


@pytest.mark.parametrize("method", METHODS)
def test_in_two_bytes_everything_takes_two(method: str, data: Dataset) -> None:
    full, narrow = (
        moved(simulate(data, small(method, **{"training.wire": wire}))) for wire in ("full", "bf16")
    )
    assert full.keys() == narrow.keys()
    for item, amount in full.items():
        assert narrow[item] * (DOUBLE // 2 if item.verb in STATES | WEIGHTS else 1) == amount, item


@pytest.mark.parametrize("method", METHODS)
def test_in_one_byte_states_and_gradients_take_one_and_each_message_a_scale(
    method: str, data: Dataset
) -> None:
    full, narrow = (
        moved(simulate(data, small(method, **{"training.wire": wire}))) for wire in ("full", "int8")
    )
    for item, amount in full.items():
        if item.verb in STATES:
            scales = narrow[item] - amount // DOUBLE
            assert scales > 0, item
            assert scales % (4 * 6) == 0, item  # four bytes for each of six nodes
        else:
            assert narrow[item] * (DOUBLE // 2 if item.verb in WEIGHTS else 1) == amount, item


def test_steps_of_a_scale_come_back_within_half_a_step_and_what_is_nothing_stays_nothing() -> None:
    h_c = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    h_c[1] *= 1e-30
    h_c[2] = 0
    sent = VERBS["encode"].quantised({"h_c": h_c, "other": h_c}, "int8")
    assert sent["h_c"].dtype == torch.int8
    assert sent["h_c.scale"].shape == (3, 4)
    assert sent["other"] is h_c
    back = dequantised(sent)
    assert back.keys() == {"h_c", "other"}
    for row, true in zip(back["h_c"].double(), h_c, strict=True):
        assert (row - true).abs().max() <= true.abs().max() / 127 * 0.5001
    assert not back["h_c"][2].any()
    assert sent["h_c"].abs().max() == 127


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whatever_is_sent_in_one_byte_is_wrong_by_half_a_step_at_most(dtype: torch.dtype) -> None:
    h_c = torch.randn(4, 300, 8, generator=torch.Generator().manual_seed(3)).to(dtype)
    back = dequantised(VERBS["encode"].quantised({"h_c": h_c}, "int8"))["h_c"]
    step = h_c.float().abs().amax(dim=1, keepdim=True) / 127
    assert ((back - h_c.float()).abs() <= 0.5001 * step).all()


def test_no_windows_at_all_take_no_bytes_but_the_scales() -> None:
    sent = VERBS["encode"].quantised({"h_c": torch.zeros(3, 0, 8)}, "int8")
    assert sent["h_c"].shape == (3, 0, 8)
    assert dequantised(sent)["h_c"].shape == (3, 0, 8)


@pytest.mark.parametrize("wire", ["bf16", "int8"])
@pytest.mark.parametrize("method", ["sl", "gru-local", "cnfgnn-plus"])
def test_a_run_is_judged_with_the_weights_it_ended_with(
    method: str, wire: str, data: Dataset, tmp_path: Path
) -> None:
    run = Run.create(tmp_path / "run", small(method, **{"training.wire": wire}), data)
    train_run(run, data, Unwatched())
    assert vars(evaluate_run(run, data).overall) == run.test()["overall"]


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_the_server_knows_the_weights_that_arrived_not_those_it_sent(wire: str, data: Dataset) -> None:
    experiment = simulate(data, small("sl-fedavg", **{"training.wire": wire}))
    strategy = server(experiment)
    strategy.round(1)
    strategy.nodes.flush()
    assert strategy.theta_bar is not None
    for name, w in experiment.owners[0][1].nodes.theta.items():
        assert torch.equal(w.float(), strategy.theta_bar[name].float()), name


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["bf16", "int8"])
@pytest.mark.parametrize(("method", "allowed"), [("at-fedavg", 0.01), ("sl", 0.001), ("cnfgnn-plus", 0.02)])
def test_narrow_numbers_give_nearly_the_same_result_however_nodes_are_grouped(
    method: str, allowed: float, wire: str, data: Dataset
) -> None:
    """`allowed` is a share of each sensor's sums at each step: twice what is found, or a little less."""
    scores = {}
    # Without linear forecasters, which stay at their nodes: rounding may decide which penalty one chooses.
    network_alone = {"model.linear": False} if method == "cnfgnn-plus" else {}
    for wire_, groups in (("full", None), (wire, None), (wire, [[0, 1], [2, 3, 4], [5]])):
        experiment = simulate(data, small(method, **{"training.wire": wire_}, **network_alone), groups=groups)
        for r_g in (1, 2):
            server(experiment).round(r_g)
        scores[wire_, groups is None] = server(experiment).score("test").told
    torch.testing.assert_close(scores[wire, True], scores[wire, False], rtol=1e-3, atol=1e-2)
    assert not torch.equal(scores[wire, True], scores["full", True])
    torch.testing.assert_close(scores[wire, True], scores["full", True], rtol=allowed, atol=0.5)
