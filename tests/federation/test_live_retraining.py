"""A live federation that is trained beside its live task: judged at the sites, switched at all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cnfgnn.data.windows import Windows
from cnfgnn.errors import RunError
from cnfgnn.federation.kept_states import KeptStates
from cnfgnn.federation.server.live.models import FederatedModels
from cnfgnn.federation.server.retrain import plan_judged
from cnfgnn.federation.server.status import TRAINING, read_status
from cnfgnn.federation.server.task import serve
from cnfgnn.federation.site.live.nodes import SWITCHES
from cnfgnn.federation.site.nodes import SiteNodes
from cnfgnn.federation.site.old_states import remove_old_states
from cnfgnn.federation.site.owner import EVALUATIONS
from cnfgnn.federation.site.status import MODEL
from cnfgnn.federation.site.store import STATES
from cnfgnn.federation.spans import Span
from cnfgnn.federation.task import RUNS, Task
from cnfgnn.live.options import LIVE
from cnfgnn.runs.folder import Run
from cnfgnn.transports.remote.endpoint import Endpoint
from cnfgnn.transports.remote.messages import Unreachable
from tests.conftest import network, small
from tests.federation.in_memory_federation import must_finish, wait_until_read
from tests.federation.live_federation import ABSENT, LiveFederation
from tests.waiting import wait_for

KNOWN, ROWS, SENT = 120, 190, 20
HOLD_OUT = 30 * 300 / 86_400  # days: 30 steps
FULL = {"full"}


class Beside:
    """A second job at the same sites, as the engine starts one: its own processes, the same kits."""

    def __init__(self, sites: LiveFederation) -> None:
        self.sites, self.ends = sites, {}
        for name in sites.sites:
            nodes = SiteNodes(sites.kits[name], live=True)
            self.ends[name] = Endpoint(nodes.join, nodes.describe)
        wait_until_read(self.ends)

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        if site in self.sites.unreachable:
            raise Unreachable("comm_error")
        return self.ends[site].answer(request)


def retrained(
    sites: LiveFederation, name: str, hold_out: float = HOLD_OUT, wait: float = 20.0
) -> dict[str, str]:
    task = Task("retrain", name, earlier="one", line="one", hold_out=hold_out, wait=wait)
    serve(sites.server, task, Beside(sites), lambda: False)
    status = must_finish(read_status(sites.server, TRAINING) or {})
    result: dict[str, str] = status["result"]
    return result


@pytest.mark.slow
def test_a_better_model_goes_live_at_all_sites_and_can_be_rolled_back(tmp_path: Path) -> None:
    data = network(rows=ROWS, dropout=0)
    sites = LiveFederation(tmp_path, data, KNOWN, blur=5.0)
    must_finish(sites.train(small("at-fedavg", **{"training.rounds": 1})))
    models = FederatedModels(sites.server, "one")
    everywhere = dict.fromkeys(sites.sites, FULL)
    with sites.live():
        for _ in range(SENT):
            assert sites.next_forecasts() == everywhere
        assert retrained(sites, models.new_name(), 30.0)["outcome"] == "too few readings"
        name = models.new_name()
        result = retrained(sites, name)
        assert result["outcome"] == "better", result["text"]
        assert sites.live_status["model"] in ("one", name)

        wait_until_live(sites, name)
        assert sites.next_forecasts() == everywhere
        [training] = [one for one in models.read().trainings if one.outcome == "better"]
        assert training.new_error is not None
        assert training.old_error is not None
        assert training.new_error < training.old_error

        models.rollback("rollback")
        wait_until_live(sites, "one")
        assert sites.next_forecasts() == everywhere
    assert [(s.before, s.after) for s in models.read().switches] == [("one", name), (name, "one")]
    for kit in (sites.kits[site] for site in sites.sites):
        events = [json.loads(line) for line in (kit / LIVE / SWITCHES).read_text().splitlines()]
        assert [event["to"].rpartition("-")[0] for event in events] == [name[:40], "one"]
    states = {path.name for path in (sites.kits["west"] / STATES).iterdir()}
    kept = models.kept_states()
    assert kept is not None
    [first] = kept.kept
    [other] = states - {first}
    assert other.startswith(name[:40])
    assert list((sites.kits["west"] / EVALUATIONS).glob(f"{other}*"))
    assert remove_old_states(sites.kits["west"], kept) == [other]  # it was rolled back
    assert {path.name for path in (sites.kits["west"] / STATES).iterdir()} == {first}
    assert not list((sites.kits["west"] / EVALUATIONS).glob(f"{other}*"))
    run = Run.open(sites.server / RUNS / name)
    assert run.data.rows == KNOWN + SENT  # what the services received was learned from, too
    assert run.origin is not None


@pytest.mark.slow
def test_a_site_that_is_away_for_a_whole_retraining_gets_the_model_when_it_is_back(tmp_path: Path) -> None:
    sites = LiveFederation(tmp_path, network(rows=ROWS, dropout=0), KNOWN, blur=5.0)
    must_finish(sites.train(small("at-fedavg", **{"training.rounds": 1})))
    models = FederatedModels(sites.server, "one")
    with sites.live():
        for _ in range(SENT):
            assert sites.next_forecasts() == dict.fromkeys(sites.sites, FULL)
        sites.unreachable = {"west"}
        assert sites.next_forecasts("north", "south") == dict.fromkeys(("north", "south"), FULL)
        name = models.new_name()
        result = retrained(sites, name, wait=1.0)
        assert result["outcome"] == "better", result["text"]
        wait_for(lambda: sites.live_status.get("model") == name, "the model is live without west")
        assert sites.live_status["sites"]["west"]["quality"] in ABSENT
        assert sites.next_forecasts("north", "south") == dict.fromkeys(("north", "south"), FULL)
        sites.unreachable = set()
        wait_until_live(sites, name)
        assert sites.next_forecasts() == dict.fromkeys(sites.sites, FULL)


def test_a_site_removes_states_of_discarded_models_only(tmp_path: Path) -> None:
    days = [f"2024013{day}T040012" for day in range(4)]
    trained = [f"one-trained-{day}-{'0' * 12}" for day in days]
    others = ["one-0123456789ab", "one-trained-by-hand-0123456789ab", f"two-trained-{days[0]}-{'0' * 12}"]
    others += [f"{trained[0]}-trained-{days[0]}-{'0' * 12}"]
    for run in (*trained, *others):
        (tmp_path / STATES / run / "owner").mkdir(parents=True)
        (tmp_path / LIVE / "new-sensors" / run).mkdir(parents=True)
    (tmp_path / LIVE / MODEL).write_text(json.dumps({"run": trained[2]}))  # not told of the switch yet
    kept = KeptStates.told({"models": "one", "kept": ["one-0123456789ab", trained[1]]})
    assert kept is not None
    assert remove_old_states(tmp_path, kept) == [trained[0], trained[3]]
    for folder in (tmp_path / STATES, tmp_path / LIVE / "new-sensors"):
        assert {path.name for path in folder.iterdir()} == {trained[1], trained[2], *others}
    assert not list(tmp_path.glob(".gone-*"))


@pytest.mark.parametrize(
    "told", [None, {}, {"models": "one", "kept": []}, {"models": "../x", "kept": ["a"]}, {"models": "one"}]
)
def test_a_server_that_does_not_say_what_it_keeps_removes_nothing(told: object) -> None:
    assert KeptStates.told(told) is None


def wait_until_live(sites: LiveFederation, model: str) -> None:
    def is_live() -> bool:
        predictors = [sites.nodes[name].predictor for name in sites.sites]
        here = all(
            predictor is not None and predictor.ready.run.startswith(model[:40]) for predictor in predictors
        )
        return here and sites.live_status.get("model") == model

    wait_for(is_live, f"{model} to be live")
    for name in sites.sites:
        sites.wait_until_joined(name)


def test_windows_that_the_live_model_has_learned_from_do_not_count(tmp_path: Path) -> None:
    data = network(rows=ROWS, dropout=0)
    sites = LiveFederation(tmp_path, data, KNOWN)
    must_finish(sites.train(small("gru-fedavg", **{"training.rounds": 1})))
    old = Run.open(sites.server / RUNS / "one")
    first = int(data.readings.times[0].astype("datetime64[s]").astype(int))
    d = old.config.data
    windows = Windows.of(KNOWN, d.history, d.horizon, d.shares)
    for earlier in (0, 10):  # the readings of today may begin before those of the training
        span = Span(first - 300 * earlier, first + 300 * (KNOWN - 1), 300, False)
        plan = plan_judged(old, span, HOLD_OUT)
        assert plan.judged[0] >= windows.starts["test"][0] + d.horizon - 1 + earlier


def test_the_record_of_models_survives_one_that_cannot_be_used(tmp_path: Path) -> None:
    models = FederatedModels(tmp_path, "one")
    assert models.live() == "one"
    models.switch("gone", "RMSE 1 instead of 2")
    assert models.live() == "gone"
    with pytest.raises(RunError):  # neither has a folder, and one has nothing before it
        models.usable(lambda name: Run.open(models.folder(name)))
    assert models.live() == "one"
