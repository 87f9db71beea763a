"""Both ends of the federated transport joined by hand: faults on demand, no network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.experiment import Experiment, federate
from cnfgnn.algorithm.messages.calls import Call, Payload
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.store import MemoryStore, SiteMemoryStore, Store
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.series import Series
from cnfgnn.data.windows import Windows
from cnfgnn.errors import NodeError
from cnfgnn.runs.simulation import simulate, truth_and_copy
from cnfgnn.transports.remote.endpoint import Endpoint, Terms
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.messages import Unreachable, legible, pack, unpack
from cnfgnn.transports.remote.transport import RemoteTransport, Site, Stopped
from tests.conftest import FEDERATED, network, server, small

GROUPS = ([0], [1, 2], [3, 4, 5])


class Wires:
    """Sites in this process, each with its store; `cut` names those that cannot be reached."""

    def __init__(self, data: Dataset, config: Config, groups: Sequence[Sequence[int]] = GROUPS) -> None:
        self.data, self.config, self.groups = data, config, groups
        self.truth, self.copy = truth_and_copy(data.readings, config)
        self.stores: list[Store] = [MemoryStore() for _ in groups]
        self.owner_stores: list[Store] = [SiteMemoryStore() for _ in groups]
        self.ends = [self.fresh(k) for k in range(len(groups))]
        self.cut: set[str] = set()
        self.bend: dict[str, Callable[[bytes], bytes]] = {}  # what becomes of a site's answers
        self.asked = 0

    def fresh(self, k: int) -> Endpoint:
        def join(terms: Terms) -> Owner:
            truth, copy = (Series.of(r, np.array(self.groups[k])) for r in (self.truth, self.copy))
            nodes = Clients(copy, Compute.of(self.config.compute), self.stores[k], f"site-{k}")
            return Owner(nodes, truth, self.owner_stores[k], tells=True)

        return Endpoint(join, lambda: {"name": f"site-{k}"})

    def owner(self, k: int) -> Owner:
        """The owner of a site that has joined."""
        owner = self.ends[k].owner
        assert owner is not None
        return owner

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        self.asked += 1
        if site in self.cut:
            raise Unreachable("cut")
        answer = self.ends[int(site.removeprefix("site-"))].answer(request)
        return self.bend.get(site, lambda same: same)(answer)

    def transport(self, min_sites: int = 1) -> RemoteTransport:
        rows = [torch.tensor(group) for group in self.groups]
        sites = [
            Site(f"site-{k}", rows[k], Link(f"site-{k}", self, "session"), Sizes(len(rows[k])))
            for k in range(len(rows))
        ]
        precision = self.config.compute.precision
        return RemoteTransport(
            sites, Terms(0, 300, len(self.data.readings.times), precision, "run"), min_sites
        )


def federated(wires: Wires, transport: RemoteTransport) -> Experiment:
    d = wires.config.data
    windows = Windows.of(len(wires.data.readings.times), d.history, d.horizon, d.shares)
    experiment = federate(
        transport, wires.data.graph, windows, wires.config, None, "federation", MemoryStore()
    )
    transport.setting_up = False
    return experiment


@pytest.mark.parametrize("method", FEDERATED)
def test_every_federated_method_gives_what_the_simulator_gives(method: str) -> None:
    data = network(seconds=3600)  # long enough that something is usual
    wires = Wires(data, small(method))
    one, two = federated(wires, wires.transport()), simulate(data, small(method), groups=GROUPS)
    for experiment in (one, two):
        for r_g in (1, 2):
            server(experiment).round(r_g)
            server(experiment).score("validation")
            server(experiment).save(f"round-{r_g}", ())
    torch.testing.assert_close(server(one).score("test"), server(two).score("test"), rtol=0, atol=1e-9)
    assert one.ledger.items == two.ledger.items
    for k, (_, owner) in enumerate(two.owners):  # weights, and all else that nodes and owners keep
        for store, same in ((wires.stores[k], owner.nodes.store), (wires.owner_stores[k], owner.store)):
            kept, expected = store.read("round-2"), same.read("round-2")
            assert kept.keys() == expected.keys()
            for name, tensor in expected.items():
                torch.testing.assert_close(kept[name], tensor, rtol=0, atol=1e-12, equal_nan=True)


def test_what_does_not_fit_into_one_note_travels_in_pieces(data: Dataset) -> None:
    wires = Wires(data, small("at-fedavg"))
    transport = wires.transport()
    for site in transport.parties:
        site.link.piece = 700
    experiment, same = federated(wires, transport), simulate(data, small("at-fedavg"), groups=GROUPS)
    for one in (experiment, same):
        server(one).round(1)
    torch.testing.assert_close(server(experiment).score("test"), server(same).score("test"), rtol=0, atol=0)
    assert wires.asked > 200


def test_a_site_that_cannot_be_reached_is_left_out_and_taken_in_again(data: Dataset) -> None:
    wires = Wires(data, small("at-fedavg"))
    transport = wires.transport()
    strategy = server(federated(wires, transport))
    wires.cut = {"site-1"}
    strategy.round(1)
    assert strategy.nodes.up.tolist() == [True, False, False, True, True, True]
    site = transport.parties[1]
    assert "cannot be reached" in site.problem
    wires.cut = set()
    _until(lambda: site.reachable)
    strategy.round(2)
    assert strategy.nodes.up.all()


def test_a_site_that_returns_between_the_lesson_and_the_question_waits_for_the_next_lesson(
    data: Dataset,
) -> None:
    wires = Wires(data, small("at-fedavg"))
    transport = wires.transport()
    strategy = server(federated(wires, transport))
    site, exchange = transport.parties[1], transport.exchange
    transport._closed.set()  # nobody but this test finds out who is back
    wires.cut = {"site-1"}
    strategy.round(1)
    wires.cut = set()

    def back_a_moment_later(calls: Sequence[Call], rows: torch.Tensor) -> Payload:
        payload = exchange(calls, rows)
        site.reachable = True
        return payload

    transport.exchange = back_a_moment_later  # type: ignore[method-assign]
    assert strategy.nodes.weights() != {}
    assert strategy.nodes.up.tolist() == [True, False, False, True, True, True]
    theta = strategy.nodes.weights()
    assert strategy.nodes.up.all()
    for name, w in (strategy.theta_bar or {}).items():
        assert torch.equal(theta[name], w.expand_as(theta[name]))


@pytest.mark.slow
def test_a_site_that_began_anew_is_told_its_part_and_nothing_is_lost(data: Dataset) -> None:
    wires = Wires(data, small("at"))
    experiment, same = federated(wires, wires.transport()), simulate(data, small("at"), groups=GROUPS)
    for one in (experiment, same):
        server(one).round(1)
        server(one).score("validation")
        server(one).save("round-1", ())
    wires.ends[2] = wires.fresh(2)
    server(experiment).nodes.weights()  # it is found out
    assert server(experiment).nodes.up.tolist() == [True, True, True, False, False, False]
    for one in (experiment, same):
        server(one).round(2)
    torch.testing.assert_close(
        server(experiment).score("test"), server(same).score("test"), rtol=0, atol=1e-9
    )


def _nan(clients: Clients) -> None:
    clients.weights = lambda: {k: w * torch.nan for k, w in Clients.weights(clients).items()}  # type: ignore[method-assign]


def _large(clients: Clients) -> None:
    clients.weights = lambda: {k: w * 1e4 for k, w in Clients.weights(clients).items()}  # type: ignore[method-assign]


def _wrong(clients: Clients) -> None:
    clients.weights = lambda: {k: w[..., :1] for k, w in Clients.weights(clients).items()}  # type: ignore[method-assign]


def _failing(clients: Clients) -> None:
    def weights() -> dict[str, torch.Tensor]:
        raise RuntimeError("out of memory\nand a page more")

    clients.weights = weights  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("fault", "said"),
    [(_nan, "finite"), (_large, "times as large"), (_wrong, "shape"), (_failing, "out of memory")],
)
def test_what_nobody_can_use_is_refused_by_name_and_left_out_of_the_average(
    fault: Callable[[Clients], None], said: str, data: Dataset
) -> None:
    wires = Wires(data, small("gru-fedavg"))
    transport = wires.transport()
    strategy = server(federated(wires, transport))
    strategy.round(1)
    strategy.score("validation")
    fault(wires.owner(1).nodes)
    strategy.round(2)
    site = transport.parties[1]
    assert strategy.nodes.up.tolist() == [True, False, False, True, True, True]
    assert site.refused == 1
    assert "site-1" in site.problem
    assert said in site.problem
    assert "weights" in site.problem
    assert strategy.theta_bar is not None
    assert all(torch.isfinite(w).all() for w in strategy.theta_bar.values())


@pytest.mark.slow
def test_below_the_least_number_of_sites_it_waits_and_goes_on_when_they_return(data: Dataset) -> None:
    wires = Wires(data, small("at-fedavg"))
    transport = wires.transport(min_sites=3)
    experiment, same = federated(wires, transport), simulate(data, small("at-fedavg"), groups=GROUPS)
    for one in (experiment, same):
        server(one).round(1)
        server(one).score("validation")
        server(one).save("round-1", ())
    wires.cut = {"site-0", "site-2"}
    worker = threading.Thread(target=server(experiment).round, args=(2,))
    worker.start()
    _until(lambda: transport.waiting)
    wires.cut = set()
    worker.join(60)
    server(same).round(2)
    torch.testing.assert_close(
        server(experiment).score("test"), server(same).score("test"), rtol=0, atol=1e-9
    )


def test_who_waits_can_be_stopped(data: Dataset) -> None:
    wires = Wires(data, small("gru-fedavg"))
    transport = wires.transport(min_sites=3)
    strategy = server(federated(wires, transport))
    wires.cut = {"site-0"}
    transport.stopped = lambda: transport.waiting
    with pytest.raises(Stopped):
        strategy.round(1)


def test_a_stop_does_not_wait_for_a_site_at_work(data: Dataset) -> None:
    wires = Wires(data, small("gru-fedavg"))
    transport = wires.transport()
    strategy = server(federated(wires, transport))
    for site in transport.parties:
        site.link.stopped = lambda: transport.stopped()
    wires.bend["site-1"] = lambda answer: pack("working")
    transport.stopped = lambda: wires.asked > 20
    with pytest.raises(Stopped):
        strategy.round(1)


def test_a_problem_at_set_up_ends_it_with_the_site_and_the_reason(data: Dataset) -> None:
    wires = Wires(data, small("gru-fedavg"))
    transport, whole = wires.transport(), Series.of(data.readings, np.array([1, 2]))
    short = Series(whole.values[:, :20], whole.missing[:, :20], whole.time_of_day[:20])
    compute = Compute.of(wires.config.compute)
    nodes = Clients(short, compute, MemoryStore(), "site-1")
    wires.ends[1].join = lambda terms: Owner(nodes, short, MemoryStore())
    with pytest.raises(NodeError, match="'site-1' failed at 'census'"):
        federated(wires, transport)


@pytest.mark.slow
def test_hidden_states_are_kept_so_that_the_smallest_site_can_hold_them(data: Dataset) -> None:
    wires = Wires(data, small("at-fedavg"))
    transport = wires.transport()
    whole = federated(wires, transport)
    windows = whole.windows.count("train")
    assert whole.memory_plan.state_format == "full"
    takes = 2 * windows * (5 + 2 * 4) * 8  # two sensors, h_c of 5 numbers and h_G of 4, in eight bytes
    for limit, how in ((takes, "full"), (takes - 1, "bf16"), (takes // 4 - 1, "recomputed")):
        transport.parties[1].memory_limit = limit
        experiment = federated(wires, transport)
        assert experiment.memory_plan.state_format == how
        assert experiment.memory_plan.site == ("" if how == "full" else "site-1")
        server(experiment).round(1)
        assert server(experiment).nodes.up.all()


def test_a_site_that_cannot_hold_what_was_agreed_on_refuses_by_itself(data: Dataset) -> None:
    """It may have been away when the choice was made."""
    wires = Wires(data, small("at-fedavg"))
    transport = wires.transport()
    strategy = server(federated(wires, transport))
    clients = wires.owner(1).nodes
    clients.memory_limit = 100
    strategy.round(1)
    strategy.nodes.flush()
    assert strategy.nodes.up.tolist() == [True, False, False, True, True, True]
    assert "this site's memory is" in transport.parties[1].problem
    assert clients.h_G is None
    assert clients._h_c is None


def test_a_site_that_says_what_cannot_be_is_not_let_in_later(data: Dataset) -> None:
    wires = Wires(data, small("at-fedavg"))
    transport = wires.transport()
    strategy = server(federated(wires, transport))
    site = transport.parties[1]
    site.objection = lambda said: f"{said['name']} names other sensors"
    _until(lambda: not site.reachable)
    strategy.round(1)
    assert strategy.nodes.up.tolist() == [True, False, False, True, True, True]
    assert site.problem == "site-1 names other sensors"


def test_a_request_that_comes_late_is_not_carried_out_again(data: Dataset) -> None:
    wires = Wires(data, small("gru-fedavg"))
    transport = wires.transport()
    federated(wires, transport)
    end, about = wires.ends[0], transport.terms._asdict()
    note = unpack(end.answer(pack("run", session="session", number=1, size=0, start=0, piece=9, **about)))
    assert (note.kind, note.fields["reason"]) == ("lost", "an old request arrived late")


@pytest.mark.parametrize("text", ["[/b]", "\x1b[2J", "a\nb", "x" * 900])
def test_what_a_site_writes_is_one_legible_line(text: str) -> None:
    shown = legible(text)
    assert shown.isprintable()
    assert len(shown) <= 300


def _until(true: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(4800):  # four minutes: the machine may have much to do
        if true():
            return
        waited.wait(0.05)
    raise AssertionError("it never came about")


def test_an_owner_that_fails_goes_unnoticed(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(data, small("mlp-fedavg"))
    transport = wires.transport()
    strategy = server(federated(wires, transport))

    def failing(*batch: Any) -> None:
        raise ValueError("a reading of 371.25")

    monkeypatch.setattr(wires.owner(1), "evaluate", failing)
    strategy.round(1)
    strategy.score("validation")
    strategy.save("round-1", ())
    assert strategy.nodes.up.all()
    assert [site.problem for site in transport.parties] == ["", "", ""]
