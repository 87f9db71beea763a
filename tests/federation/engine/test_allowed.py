"""Which messages of other parties the engine's processes take: the decision by itself, without processes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnfgnn.federation.engine.guard.allowed import (
    FROM_ITSELF,
    FROM_SERVER,
    FROM_SITE,
    LARGEST_STREAM,
    SERVER,
    SERVER_JOB,
    SITE,
    SITE_JOB,
    Door,
    printable,
    refusal,
)
from cnfgnn.federation.engine.guard.connection_monitor import ConnectionMonitor
from cnfgnn.federation.engine.guard.message_guard import MessageGuard
from cnfgnn.federation.kits.engine_files import (
    CONNECTION_MONITOR,
    MESSAGE_GUARD,
    OPERATOR,
    SERVER_COMPONENTS,
    SITE_COMPONENTS,
)

JOB = "0f8fad5b-d9cb-469f-a165-70867728950e"
HOST = "fed.example.org"  # the name in the server's certificate
NAMES = {SERVER: "server", SERVER_JOB: f"server.{JOB}", SITE: "north", SITE_JOB: f"north.{JOB}"}


WHOLE = {"sm__sz": 100, "sm__dt": 2, "sm__sq": 0}  # a message in one piece


def message(door: Door, origin: str, destination: str) -> dict[str, Any]:
    addresses = {"cn__origin": origin, "cn__destination": destination, "cn__msg_type": "req"}
    if not door.streamed:
        return {**addresses, "cn__channel": door.channel, "cn__topic": door.topic}
    pieces = {"cn__channel": "sm__STREAM", "cn__topic": "sm__DATA"}
    return {**addresses, **pieces, "sm__ch": door.channel, "sm__tp": door.topic, **WHOLE}


LISTED = [
    (sender, receiver, door)
    for sender, doors in ((SERVER, FROM_SERVER), (SITE, FROM_SITE))
    for receiver, some in doors.items()
    for door in some
]


@pytest.mark.parametrize(("sender", "receiver", "door"), LISTED)
def test_listed_requests_pass_from_their_party_alone(sender: str, receiver: str, door: Door) -> None:
    origin = NAMES[SERVER_JOB if sender == SERVER else SITE_JOB]
    own, here = HOST if sender == SERVER else "north", NAMES[receiver]
    sent = message(door, origin, here)
    assert refusal(here, HOST, own, sent) == ""
    assert refusal(here, HOST, "south", sent)  # whatever origin it claims
    assert refusal(here, HOST, "", sent)
    assert refusal(here, HOST, "server", sent)  # a name, but not the one in the server's certificate
    assert refusal(here, HOST, OPERATOR, sent)
    assert refusal(here, HOST, own, sent | {"cn__origin": "south"})
    assert refusal(here, HOST, own, sent | {"cn__destination": f"{here}.child"})
    assert refusal(here, HOST, own, sent | {"cn__secure": True})
    for changed in ("cn__channel", "cn__topic"):
        assert refusal(here, HOST, own, sent | {changed: "another"})
    assert door.reason


@pytest.mark.parametrize("here", [NAMES[SERVER], NAMES[SERVER_JOB]])
def test_a_site_returns_only_what_it_was_asked_itself(here: str) -> None:
    """The engine asks all sites under one number; a returned request says by itself to whom it was sent."""
    certificate = "south" if here == SERVER else HOST  # its parent passes it on
    returned = {"cn__origin": "south", "cn__destination": here, "cn__msg_type": "return"}
    for asked in ("south", f"south.{JOB}"):
        original = {"cn__original_headers": {"cn__destination": asked}}
        assert refusal(here, HOST, certificate, returned | original) == ""
    for forged in ({"cn__destination": "north"}, {"cn__destination": ["south"]}, {}, None, "south"):
        assert refusal(here, HOST, certificate, returned | {"cn__original_headers": forged})
    assert refusal(here, HOST, certificate, returned)


def test_a_server_returns_what_it_could_not_pass_on() -> None:
    returned = {"cn__origin": "server", "cn__destination": NAMES[SITE_JOB], "cn__msg_type": "return"}
    for asked in (NAMES[SERVER_JOB], NAMES[SITE]):
        original = {"cn__original_headers": {"cn__destination": asked}}
        assert refusal(NAMES[SITE_JOB], HOST, HOST, returned | original) == ""


def test_a_server_passes_on_what_its_jobs_ask_of_sites_and_sites_of_its_jobs() -> None:
    asked = message(FROM_SERVER[SITE_JOB][0], NAMES[SERVER_JOB], NAMES[SITE_JOB])
    assert refusal("server", HOST, HOST, asked) == ""
    streamed = message(FROM_SITE[SERVER_JOB][0], NAMES[SITE_JOB], NAMES[SERVER_JOB])
    assert refusal("server", HOST, "north", streamed) == ""
    assert refusal(NAMES[SERVER_JOB], HOST, HOST, streamed) == ""  # at the job, from its own parent
    unlisted = streamed | {"sm__ch": "server_command", "sm__tp": "abort"}
    assert refusal("server", HOST, "north", unlisted)
    assert refusal(NAMES[SERVER_JOB], HOST, HOST, unlisted)  # there, too


def test_a_sites_parent_passes_on_to_its_job_what_the_server_may_ask() -> None:
    asked = message(FROM_SERVER[SITE_JOB][0], NAMES[SERVER_JOB], NAMES[SITE_JOB])
    assert refusal("north", HOST, HOST, asked) == ""
    assert refusal(NAMES[SITE_JOB], HOST, "north", asked) == ""
    assert refusal(NAMES[SITE_JOB], HOST, "north", asked | {"cn__topic": "abort"})


def test_a_sites_own_processes_talk_to_each_other() -> None:
    abort = {"cn__channel": "client_command", "cn__topic": "abort", "cn__msg_type": "req"}
    own = abort | {"cn__origin": "north", "cn__destination": NAMES[SITE_JOB]}
    assert refusal(NAMES[SITE_JOB], HOST, "north", own) == ""
    assert refusal(NAMES[SITE_JOB], HOST, HOST, own)  # the server in the name of the site's parent
    assert refusal("north", HOST, "north", own | {"cn__destination": "south"})


def test_the_status_of_a_job_may_come_by_way_of_the_server() -> None:
    [door] = FROM_ITSELF[SITE]
    status = message(door, NAMES[SITE_JOB], "north")
    assert refusal("server", HOST, "north", status) == ""
    assert refusal("north", HOST, HOST, status) == ""
    assert refusal("server", HOST, "south", status)
    assert refusal("north", HOST, HOST, status | {"cn__topic": "sys.shell"})


@pytest.mark.parametrize("kind", ["req", "reply", "return"])
@given(
    channel=st.text(), topic=st.text(), origin=st.text(min_size=1), target=st.sampled_from(["south", "west"])
)
def test_nothing_gets_from_one_site_to_another(
    kind: str, channel: str, topic: str, origin: str, target: str
) -> None:
    sent = {"cn__msg_type": kind, "cn__channel": channel, "cn__topic": topic, "cn__origin": origin}
    for destination in (target, f"{target}.{JOB}"):
        assert refusal("server", HOST, "north", sent | {"cn__destination": destination})
        assert refusal(target, HOST, "north", sent | {"cn__destination": destination})


@given(headers=st.dictionaries(st.sampled_from(["cn__origin", "cn__destination"]), st.none() | st.integers()))
def test_damaged_headers_are_refused(headers: dict[str, Any]) -> None:
    sent = message(FROM_SERVER[SITE][0], "server", "north") | headers
    assert bool(refusal("north", HOST, HOST, sent)) == bool(headers)


def test_bulk_messages_and_large_streams_are_refused() -> None:
    bulk = Door("cellnet.channel", "bulk", "")
    for sender, certificate in (("server", HOST), ("north", "north")):
        assert refusal("north", HOST, certificate, message(bulk, sender, NAMES[SITE_JOB]))
    streamed = message(FROM_SITE[SERVER_JOB][0], NAMES[SITE_JOB], NAMES[SERVER_JOB])
    for size, refused in ((LARGEST_STREAM, False), (LARGEST_STREAM + 1, True), (-1, True), ("9", True)):
        assert bool(refusal("server", HOST, "north", streamed | {"sm__sz": size})) == refused
    for piece in ({"sm__dt": 1}, {"sm__sq": 1}, {"sm__sq": False}, {"sm__sq": None}, {"sm__dt": 6}):
        assert refusal("server", HOST, "north", streamed | piece)
    given_up = {"sm__dt": 6, "sm__em": "too late"}
    assert not refusal("server", HOST, "north", streamed | given_up)


def test_replies_in_pieces_answer_streamed_requests_only() -> None:
    reply = message(FROM_SITE[SERVER_JOB][0], NAMES[SERVER_JOB], NAMES[SITE_JOB])
    reply |= {"sm__ch": "return_only", "sm__tp": "aux_communication:__sync_runner__"}
    assert refusal(NAMES[SITE_JOB], HOST, HOST, reply) == ""
    assert refusal(NAMES[SITE_JOB], HOST, HOST, reply | {"sm__tp": "aux_communication:made_up"})
    assert refusal("north", HOST, HOST, reply | {"cn__destination": "north"})


@pytest.mark.parametrize("job", ["states", "..", "x" * 36, JOB.upper(), f"{JOB}x", f"{JOB}.{JOB}"])
def test_a_job_is_named_by_a_uuid(job: str) -> None:
    door = FROM_SERVER[SITE_JOB][0]
    assert refusal("north", HOST, HOST, message(door, NAMES[SERVER_JOB], f"north.{job}"))


def test_the_operator_reaches_the_server_and_nobody_else() -> None:
    command = message(Door("hci_channel", "command", "", streamed=True), f"_admin_{JOB}", "server")
    assert refusal("server", HOST, OPERATOR, command) == ""
    assert refusal("server", HOST, "north", command)
    for destination in ("north", NAMES[SITE_JOB], NAMES[SERVER_JOB]):
        assert refusal("server", HOST, OPERATOR, command | {"cn__destination": destination})
    assert refusal("north", HOST, OPERATOR, command | {"cn__destination": "north"})
    assert refusal("server", HOST, OPERATOR, command | {"cn__origin": "server"})


def test_components_that_every_kit_loads_install_the_guards(installed: list[str]) -> None:
    """So that kits of earlier versions are guarded, too."""
    MessageGuard()
    ConnectionMonitor()
    assert installed == ["message_checks", "site_reports", "message_checks", "site_commands"]
    assert {MESSAGE_GUARD, CONNECTION_MONITOR} <= {*SERVER_COMPONENTS, *SITE_COMPONENTS}


def test_a_text_from_outside_stays_on_its_line_of_a_log() -> None:
    assert printable("a\nrefused nobody") == r"'a\nrefused nobody'"
    assert len(printable("x" * 1000)) == 80
