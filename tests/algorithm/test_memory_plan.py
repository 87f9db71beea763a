"""h_c and h_G are kept as precisely as memory allows; the run goes on the same way, and says which it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cnfgnn.algorithm import hidden_states
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.compute.memory_plan import MemoryPlan, SiteStates, plan_memory
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.messages.calls import Call, MemoryLimit, Payload
from cnfgnn.algorithm.messages.cost import GIB
from cnfgnn.algorithm.messages.settings import StateFormat
from cnfgnn.cli.progress import LineWatcher
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import ConfigError
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.train import train_run
from cnfgnn.runs.training_loop import train
from tests.conftest import server, small, transport

FLOAT32 = Compute(torch.device("cpu"), torch.float32)
H_C, H_G = 1000, 800  # elements
FULL, HALF, LEAST = (H_C + 2 * H_G) * 4, (H_C + 2 * H_G) * 2, H_G * 2  # bytes
HOWS: list[StateFormat] = ["full", "bf16", "recomputed"]


# ---- the choice -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("may_take", "how", "takes"),
    [
        (FULL, "full", FULL),
        (FULL - 1, "bf16", HALF),
        (HALF, "bf16", HALF),
        (HALF - 1, "recomputed", LEAST),
        (LEAST, "recomputed", LEAST),
    ],
)
def test_the_most_precise_way_that_fits_is_chosen(may_take: int, how: StateFormat, takes: int) -> None:
    assert plan_memory(FLOAT32, may_take / GIB, H_C, H_G) == MemoryPlan(how, takes, may_take)


def test_what_does_not_fit_at_all_is_said_with_the_numbers() -> None:
    with pytest.raises(ConfigError) as told:
        plan_memory(FLOAT32, 1.0, 10 * GIB, 3 * GIB // 4)
    assert str(told.value) == (
        "compute.memory: embeddings of all training windows take 1.5 GiB even in bf16, and 1 may be used:"
        " allow more, or train on fewer sensors or readings"
    )
    assert told.value.exit_code == 2
    with pytest.raises(ConfigError, match=r"compute\.memory"):
        plan_memory(FLOAT32, (LEAST - 1) / GIB, H_C, H_G)


def test_by_default_half_of_the_device_s_memory_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compute, "memory", lambda _: 2 * FULL)
    assert plan_memory(FLOAT32, 0, H_C, H_G) == MemoryPlan("full", FULL, FULL)
    monkeypatch.setattr(Compute, "memory", lambda _: 2 * FULL - 2)
    assert plan_memory(FLOAT32, 0, H_C, H_G).state_format == "bf16"


def test_fp64_takes_twice_as_much() -> None:
    float64 = Compute(torch.device("cpu"), torch.float64)
    assert plan_memory(float64, 2 * FULL / GIB, H_C, H_G).state_format == "full"
    assert plan_memory(float64, FULL / GIB, H_C, H_G).state_format == "bf16"


def test_the_choice_is_one_that_every_site_can_hold() -> None:
    def site(limit: int, part: int = 2) -> SiteStates:
        return SiteStates(MemoryLimit(f"site-{limit}", limit), H_C // part, H_G // part)

    def chosen(*sites: SiteStates, memory: int = FULL) -> MemoryPlan:
        return plan_memory(FLOAT32, memory / GIB, H_C, H_G, sites)

    assert chosen(site(0), site(FULL // 2)) == MemoryPlan("full", FULL, FULL)
    small = FULL // 2 - 1
    assert chosen(site(FULL), site(small)) == MemoryPlan("bf16", HALF // 2, small, f"site-{small}")
    tiny = HALF // 2 - 1
    assert chosen(site(tiny), site(small)) == MemoryPlan("recomputed", LEAST // 2, tiny, f"site-{tiny}")
    assert chosen(site(FULL), memory=HALF) == MemoryPlan("bf16", HALF, HALF)
    with pytest.raises(ConfigError, match=r"memory of site site-7.*even in bf16"):
        chosen(site(FULL), site(7))
    assert f"memory of site site-{tiny}" in str(chosen(site(tiny)))


# ---- the run ----------------------------------------------------------------------------------------------


def kept(data: Dataset, how: StateFormat, method: str = "at-fedavg", **changes: Any) -> Config:
    """A configuration whose memory leaves just that choice."""
    config = small(method, **changes)
    if how == "full":
        return config
    wide = simulate(data, config)
    elements = data.graph.nodes * wide.windows.count("train")
    h_c, h_G = elements * config.model.hidden, elements * config.model.embedding
    fits = 2 * (h_c + 2 * h_G if how == "bf16" else h_G)
    return config.with_changes({"compute.memory": fits / GIB})


def final(experiment: Experiment) -> torch.Tensor:
    """All weights in a row."""
    strategy = server(experiment)
    assert strategy.gn is not None
    weights = [*strategy.gn.gn.parameters(), *(w for _, w in sorted(strategy.nodes.weights().items()))]
    return torch.cat([w.detach().flatten() for w in weights])


@pytest.mark.parametrize("how", HOWS)
def test_a_small_memory_forces_each_choice(how: StateFormat, data: Dataset) -> None:
    experiment = simulate(data, kept(data, how))
    assert experiment.memory_plan.state_format == how
    train(experiment)
    clients = transport(experiment).groups[0][1].nodes
    server(experiment).nodes.flush()
    assert clients.h_G is not None
    assert clients.h_G.dtype == (torch.float64 if how == "full" else torch.bfloat16)
    assert clients.h_G.shape == (6, experiment.windows.count("train"), 4)


@pytest.mark.parametrize("method", ["at-fedavg", "at"])
@pytest.mark.parametrize("how", ["bf16", "recomputed"])
def test_results_stay_near_those_of_full_precision(how: StateFormat, method: str, data: Dataset) -> None:
    finals, losses = [], []
    for each in ("full", how):
        experiment = simulate(data, kept(data, each, method))  # type: ignore[arg-type]
        losses.append(train(experiment).best.loss)
        finals.append(final(experiment))
    assert losses[1] == pytest.approx(losses[0], rel=3e-3)
    assert not torch.equal(*finals)
    torch.testing.assert_close(finals[1], finals[0], rtol=0.02, atol=2e-2)
    assert (finals[1] - finals[0]).abs().mean() < 1e-3


@pytest.mark.parametrize(("precision", "near"), [("fp32", 1e-6), ("fp64", 1e-14)])
def test_encoding_again_changes_nothing_but_the_rounding_of_h_G(
    precision: str, near: float, data: Dataset
) -> None:
    """In the first round h_G is zero while nodes learn: what is rounded comes only after the last step."""
    finals = []
    for how in ("full", "recomputed"):
        experiment = simulate(data, kept(data, how, **{"compute.precision": precision}))  # type: ignore[arg-type]
        experiment.strategy.round(1)
        finals.append(final(experiment))
    torch.testing.assert_close(finals[1], finals[0], rtol=0, atol=near)


@pytest.mark.slow
def test_h_c_comes_with_the_gradients_of_the_minibatch_before_and_no_bit_changes(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [[0, 4], [1, 2, 3], [5]]
    rounds = []
    for together in (True, False):
        if not together:  # as many exchanges as there are questions
            monkeypatch.setattr(hidden_states, "AT_ONCE", 0)
            plain = hidden_states.Stored.backward
            monkeypatch.setattr(hidden_states.Recomputed, "backward", plain)
        experiment = simulate(data, kept(data, "recomputed", "at-fedavg"), groups)
        exchanges = counted_exchanges(experiment, monkeypatch)
        for r_g in (1, 2):
            server(experiment).round(r_g)
        server(experiment).nodes.flush()
        count = len(exchanges)
        rounds.append((final(experiment), experiment.ledger.items, count))
    (one, sent, few), (two, same_sent, many) = rounds
    assert torch.equal(one, two)
    assert sent == same_sent
    minibatches, pieces = server(experiment).phases[1], len(server(experiment).batches)
    assert many - few == 2 * (minibatches - 1 + pieces - 2)


def counted_exchanges(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Call]]:
    """The calls of each exchange from now on."""
    wire, seen = transport(experiment), list[Sequence[Call]]()
    exchange = wire.exchange

    def counting(calls: Sequence[Call], rows: torch.Tensor) -> Payload:
        seen.append(calls)
        return exchange(calls, rows)

    monkeypatch.setattr(wire, "exchange", counting)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    how: StateFormat, data: Dataset, tmp_path: Path
) -> None:
    config = kept(data, how, **{"training.rounds": 3, "compute.precision": "fp32"})

    def start(folder: str) -> Experiment:
        return simulate(data, config, store=lambda name: FolderStore(tmp_path / folder / name))

    whole = start("whole")
    straight = train(whole)
    stopped = train(start("parts"), rounds=1)
    second = start("parts")
    resumed = train(second, stopped)
    assert resumed.history == straight.history
    assert torch.equal(final(second), final(whole))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["bf16", "recomputed"])
def test_however_nodes_are_grouped_the_result_is_the_same(how: StateFormat, data: Dataset) -> None:
    finals = []
    for groups in (None, [[0, 4], [1, 2, 3], [5]]):
        experiment = simulate(data, kept(data, how), groups)
        assert experiment.memory_plan.state_format == how
        train(experiment)
        finals.append(final(experiment))
    torch.testing.assert_close(finals[1], finals[0], rtol=0, atol=1e-4)  # a last bit may turn in bf16


def test_the_ledger_counts_what_is_really_sent(data: Dataset) -> None:
    sent: dict[StateFormat, dict[str, int]] = {}
    for how in HOWS:
        experiment = simulate(data, kept(data, how))
        experiment.strategy.round(1)
        server(experiment).nodes.flush()
        items = experiment.ledger.items.items()
        sent[how] = {f"{i.verb} {i.direction}": b.per_node for i, b in items if i.purpose == "training"}
    windows, n = experiment.windows.count("train"), 6
    h_c, h_G, epochs = n * windows * 5, n * windows * 4, 2
    assert [sent[how]["encode up"] for how in HOWS] == [8 * h_c, 2 * h_c, 8 * h_c * (epochs + 1)]
    assert [sent[how]["embed down"] for how in HOWS] == [8 * h_G, 2 * h_G, 2 * h_G]
    assert [sent[how]["backward up"] for how in HOWS] == [8 * h_G * epochs] * 3


@pytest.mark.parametrize("method", ["sl", "gru-fedavg", "gru-gn-central"])
def test_methods_that_keep_nothing_need_no_memory_for_it(method: str, data: Dataset) -> None:
    experiment = simulate(data, small(method, **{"compute.memory": 1e-9}))
    assert experiment.memory_plan == MemoryPlan()


def test_a_run_says_how_it_keeps_them(
    data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for how in HOWS:
        run = Run.create(tmp_path / how, kept(data, how, **{"training.rounds": 1}), data)
        plan = train_run(run, data, LineWatcher()).experiment.memory_plan
        assert run.events()[0]["memory"] == plan.as_json()
        told = capsys.readouterr().err
        assert (str(plan) in told) == (how != "full")
    assert "not kept: nodes encode again for each minibatch" in told


def test_a_plan_comes_back_from_a_run_folder() -> None:
    plan = MemoryPlan("bf16", 12, 34, "north")
    assert plan.as_json() == {"how": "bf16", "takes": 12, "may_take": 34, "site": "north"}
    assert MemoryPlan.from_json(plan.as_json()) == plan
