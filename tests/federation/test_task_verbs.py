"""What a task may ask for: what its kind needs, and nothing else, whatever the server says that it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.algorithm.messages import verbs
from cnfgnn.algorithm.messages.verb import Ask
from cnfgnn.algorithm.methods import METHODS
from cnfgnn.federation.permission_rules import TASKS
from cnfgnn.federation.site.task_verbs import ASKS, VERBS, verbs_allowed
from cnfgnn.federation.site_task import SiteTask
from cnfgnn.federation.task import Task
from tests.conftest import FEDERATED, network, small
from tests.federation.permitted_federation import PermittedFederation

TRAINS = {"update", "step", "backward", "save", "weights", "inherit", "pull", "levels", "inform"}
METHODS_TO_TRY = [
    pytest.param(name, marks=[] if name == "at-fedavg" else [pytest.mark.slow]) for name in FEDERATED
]


def test_the_verbs_are_those_of_the_algorithm() -> None:
    assert set(verbs.VERBS) == VERBS
    assert {name for name, verb in verbs.VERBS.items() if issubclass(verb, Ask)} == set(ASKS)


@pytest.mark.parametrize("do", ["evaluate", "forecast", "live"])
@pytest.mark.parametrize("method", ["", *METHODS])
def test_only_trainings_may_train(do: str, method: str) -> None:
    assert not verbs_allowed(do, method) & TRAINS
    assert verbs_allowed(do) == verbs_allowed(do, method)


def test_a_task_of_an_unknown_kind_may_ask_for_nothing() -> None:
    assert verbs_allowed("export") == frozenset()
    assert [do for do in TASKS if "turn" in verbs_allowed(do)] == ["live"]
    assert all(verbs_allowed(do) for do in TASKS)


def test_weights_are_asked_for_only_where_they_are_averaged_or_compared() -> None:
    asked = {name for name in FEDERATED if "weights" in verbs_allowed("train", name)}
    assert asked == {name for name in FEDERATED if METHODS[name].sharing != "keep"}
    assert verbs_allowed("train", "cnfgnn") == verbs_allowed("train", "at-fedavg")
    assert verbs_allowed("retrain", "sl") == verbs_allowed("train", "sl")
    assert verbs_allowed("train", "who-knows") == VERBS - {"turn", "forecast"}


@pytest.mark.parametrize("method", METHODS_TO_TRY)
def test_every_task_of_a_method_may_ask_for_what_it_needs(method: str, tmp_path: Path) -> None:
    sites = PermittedFederation(tmp_path, network(rows=120), {"south": [0, 1], "west": [2, 3, 4, 5]})
    config = small(method, **{"training.rounds": 1})
    ended = [sites.train(config), sites.resume(), sites.evaluate(), sites.forecast(intervals=[80])]
    later = Task("train", "two", earlier="one", settings={"training.rounds": 1}, wait=20.0)
    ended.append(sites.run_task(later))
    sites.close()
    assert [(status["state"], status["problem"]) for status in ended] == [("finished", "")] * 5


def test_a_training_that_is_called_an_evaluation_is_refused(tmp_path: Path) -> None:
    sites = PermittedFederation(tmp_path, network(rows=120), {"all": [0, 1, 2, 3, 4, 5]})
    sites.said = SiteTask("task", "evaluate", "one")
    refused: list[str] = []

    def give_up() -> bool:
        told = (sites.status.get("sites") or {}).get("all", {}).get("problem", "")
        refused.append(told)
        return bool(told)

    sites.stop = give_up
    status = sites.train(small("at-fedavg", **{"training.rounds": 1}))
    sites.close()
    assert status["state"] == "stopped"
    assert refused[-1] == "this task is not one that may ask for 'update'"
    counted = sites.accounts["all"].used(sites.now)
    assert counted.rounds == 0
