"""What a site answers to the engine's commands: no answer ends or stops a task for the others."""

from __future__ import annotations

from typing import Any

import pytest
from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.utils.job_utils import build_client_hierarchy
from nvflare.private.admin_defs import Message, error_reply, ok_reply
from nvflare.private.fed.server.admin import check_client_replies
from nvflare.private.fed.server.message_send import ClientReply

from cnfgnn.federation.engine.guard.site_reports import _in_own_name, usable

START, CHECK, DEPLOY = "train.start_job", "scheduler.check_resource", "train.deploy"


def resources(enough: Any, token: Any) -> Message:
    body = Shareable()
    body.set_header("_is_resource_enough", enough)
    body.set_header("_resource_reserve_token", token)
    return Message("reply", body)


def with_attributes(**attributes: Any) -> Message:
    """As decoded from what a hostile site sends."""
    answer = Message("reply", "OK")
    vars(answer).update(attributes)
    return answer


def test_a_site_that_cannot_begin_does_not_end_the_task() -> None:
    failed = Message("reply", "NVFLARE_ERROR: made up")
    request = Message(START, {})
    with pytest.raises(RuntimeError, match="made up"):  # the engine's own decision
        check_client_replies([ClientReply("t", "south", request, failed)], ["south"], "start")
    answers = [ClientReply("t", "south", request, usable(START, failed))]
    assert check_client_replies(answers, ["south"], "start") == []
    assert usable(START, error_reply("refused")) is None
    begun = usable(START, Message("reply", "Start the client app..."))
    assert begun is not None
    assert begun.body == "Start the client app..."


@pytest.mark.parametrize(
    "answer", [None, "OK", {}, Shareable(), with_attributes(headers=None), with_attributes(headers=[])]
)
@pytest.mark.parametrize("asked", [START, CHECK, DEPLOY])
def test_what_is_no_answer_counts_as_none(asked: str, answer: object) -> None:
    assert usable(asked, answer) is None


def test_an_answer_says_whether_a_site_takes_part() -> None:
    for enough, token in ((True, "a-token"), (False, "")):
        answer = usable(CHECK, resources(enough, token))
        assert answer is not None
        assert answer.body.get_header("_is_resource_enough") is enough
    for body in ("OK", None, Shareable(), Shareable({"__headers__": []})):
        assert usable(CHECK, Message("reply", body)) is None
    assert usable(CHECK, resources("yes", "a-token")) is None
    assert usable(CHECK, resources(True, ["a", "list"])) is None


def test_refusals_and_other_answers_are_kept_without_what_a_sender_adds() -> None:
    for asked in (CHECK, DEPLOY):
        refused = usable(asked, error_reply("no such job"))
        assert refused is not None
        assert (refused.get_header("_rtnCode"), refused.body) == ("_error", "no such job")
    deployed = usable(DEPLOY, with_attributes(get_header=None, set_header=7, **vars(ok_reply(body="done"))))
    assert deployed is not None
    assert deployed.get_header("_rtnCode") == "_ok"
    assert vars(deployed).keys() == {"id", "topic", "body", "headers"}


@pytest.mark.parametrize("claimed", ["north", "nobody.south", "", 7, None])
def test_a_site_does_not_choose_its_place_among_the_others(claimed: object) -> None:
    """The engine ends every task in which two sites stand in the same place, or one below nobody."""
    peer, login = FLContext(), Shareable({"site_config": {"made": "up"}})
    peer.put("__identity_name__", "south", private=False, sticky=False)
    peer.put("__fqsn__", claimed, private=False, sticky=False)
    peer.put("__is_leaf__", False, private=False, sticky=False)
    login.set_peer_context(peer)
    request = CellMessage({}, login)
    request.set_prop("cn__common_name", "south")
    received = _in_own_name(lambda server, message: message)(None, request)
    told = received.payload.get_peer_context()
    assert (told.get_prop("__fqsn__"), told.get_prop("__is_leaf__")) == ("south", True)
    assert "site_config" not in received.payload
    sites = [Client("north", "a"), Client("south", "b")]
    sites[1].set_fqsn(told.get_prop("__fqsn__"))
    assert sorted(build_client_hierarchy(sites).roots) == ["north", "south"]
