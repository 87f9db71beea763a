"""A hostile server, and a hostile site through an honest server, try everything that the engine answers.

What the engine answers is read off its running processes. Each of it is sent in every form; then no handler
may have run that is not on the list, no file of the attacked site may be known, changed or gone, and all
processes must go on. Without the guards and the wall the same attempts get the files.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types

from cnfgnn.federation.engine.carry.jobs import client_config
from cnfgnn.federation.engine.guard import handshake
from cnfgnn.federation.engine.guard.allowed import (
    FROM_ITSELF,
    FROM_SERVER,
    FROM_SITE,
    SERVER,
    SERVER_JOB,
    SITE,
    SITE_JOB,
    Door,
)
from cnfgnn.federation.engine.guard.site_commands import COMMANDS
from cnfgnn.federation.kits.engine_files import ENGINE_FOLDER, OPERATOR
from cnfgnn.federation.kits.refusals import MOST_REFUSALS, read_refusals
from tests.commands import said
from tests.federation.engine.test_site_commands import packed
from tests.federation.hostile.parties import Parties, Process, parties
from tests.federation.issued_certificates import issue
from tests.federation.running_federation import ENGINE_WARNINGS
from tests.federation.test_unauthorised_requests import listening
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, *ENGINE_WARNINGS]

INVENTORY = Path(__file__).with_name("engine_inventory.json")
KINDS = {"server": SERVER, "server.job": SERVER_JOB, "north": SITE, "north.job": SITE_JOB}
ATTACKS = [  # who attacks whom
    ("server", "north"),
    ("server.job", "north"),
    ("server.job", "north.job"),
    ("server", "north.job"),
    ("south", "north"),
    ("south.job", "north.job"),
    ("south.job", "north"),
    ("south", "server"),
    ("south.job", "server.job"),
    ("south.job", "server"),
    ("south", "server.job"),
]
ANSWERED_WITHIN = 10.0  # seconds
OPERATORS_SESSION = "_admin_2c5ea4c0-4067-41e9-8bad-9b1deb4d3b7d"
CAT = "cat ../local/site.toml startup/client.key"  # seen from the engine's folder
GARBAGE: list[Any] = [None, b"\xff\x00garbage", [1, {"x": None}], "text"]
Attack = tuple[dict[str, Any], tuple[Any, ...], float]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    with parties(tmp_path_factory.mktemp("hostile")) as running:
        yield running


def test_what_was_refused_is_told_once(federation: Parties) -> None:
    headers = {"cn__channel": "admin", "cn__topic": "admin", "cn__destination": "north"}
    shell = ("command", "sys.shell", {}, "true")
    federation["server"].send(*[(headers, shell, ANSWERED_WITHIN)] * 20)
    recorded = [(entry["who"], entry["what"]) for entry in refused_by(federation, "north")]
    assert len(recorded) == len(set(recorded)) <= MOST_REFUSALS
    assert ("server", "the command sys.shell: no task needs it") in recorded
    log = (federation.kits["north"] / ENGINE_FOLDER / "log.txt").read_text()
    assert log.count("refused server: the command sys.shell: no task needs it") == 1
    shown = said("federation", "status", federation.kits["north"])
    assert shown.count("server: the command sys.shell: no task needs it") == 1


@pytest.mark.parametrize("name", KINDS)
def test_everything_that_the_engine_answers_has_been_decided_about(federation: Parties, name: str) -> None:
    """A new version of the engine may answer more. Decide about each new name: list it in `allowed.py` or
    `site_commands.py` with a reason, or see that the tests below refuse it; then add it to the inventory."""
    assert federation[name].ask("inventory") == json.loads(INVENTORY.read_text())[name]


@pytest.mark.parametrize(("attacker", "victim"), ATTACKS)
def test_nothing_is_answered_that_is_not_on_the_list(federation: Parties, attacker: str, victim: str) -> None:
    target, inventory = federation[victim], federation[victim].ask("inventory")
    attacks = list(every_attempt(target.name, inventory, federation))
    before = len(target.ask("handled"))
    replies = deliver(federation[attacker], target, attacks)
    handled = target.ask("handled")[before:]
    between_sites = attacker.startswith("south") and victim.startswith("north")
    doors = (FROM_SERVER if attacker.startswith("server") else FROM_SITE).get(KINDS[victim], ())
    doors += FROM_ITSELF.get(KINDS[victim], ())  # a server may claim to pass it on
    assert not unlisted(handled, () if between_sites else doors)
    assert not federation.canaries.stolen(replies)
    federation.canaries.check_untouched()
    federation.check_all_go_on()
    for name in federation.kits:
        parties_refused = [entry["who"] for entry in refused_by(federation, name)]
        assert all(parties_refused.count(who) <= MOST_REFUSALS for who in parties_refused)


def refused_by(federation: Parties, name: str) -> list[dict[str, Any]]:
    kit = federation.kits[name]
    return read_refusals(kit if name == "server" else kit / ENGINE_FOLDER)


def every_attempt(target: str, inventory: dict[str, list[str]], federation: Parties) -> Iterator[Attack]:
    """Each request that the engine answers there, and a made-up one, in every form."""
    forged = [
        "server",
        federation["server.job"].name,
        target,
        "north",
        federation["north.job"].name,
        "nobody",
    ]
    for channel, topic in [*concrete(inventory), ("made", "up")]:
        headers = {"cn__channel": channel, "cn__topic": topic, "cn__destination": target}
        for content in contents(channel, topic):
            yield headers, content, ANSWERED_WITHIN if content[0] != "raw" else 0.0
            for origin in forged:
                yield headers | {"cn__origin": origin}, content, 0.0
            bulk = ("bulk", target, channel, topic, content)
            yield headers | {"cn__channel": "cellnet.channel", "cn__topic": "bulk"}, bulk, 0.0
            yield streamed(headers), content, 0.0
        for garbage in GARBAGE:
            yield headers, ("raw", garbage), 0.0
        yield headers | {"cn__secure": True}, ("raw", b"secret"), 0.0
        yield headers | {"cn__origin": ["a", "list"]}, ("raw", b""), 0.0
        yield headers | {"cn__destination": f"{target}.child"}, ("raw", b""), 0.0


def concrete(inventory: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    behind = {
        "admin": ["admin", *inventory["site commands"]],
        "aux_communication": inventory["aux"],
        "client_command": inventory["job commands"],
        "server_command": inventory["job commands"],
        "server_parent_listener": ["get_clients", "update_run_status", "heartbeat"],
        "hci_channel": ["command", *inventory["operator's commands"]],
    }
    for key in sorted({*inventory["requests"], *inventory["streams"]}):
        channel, _, topic = key.partition(":")
        # Confirmations and goodbyes are part of every conversation; pieces and bulks are sent as such.
        if channel in ("sm__STREAM", "return_only") or topic in ("bulk", "bye"):
            continue
        yield from [(channel, one) for one in behind[channel]] if topic == "*" else [(channel, topic)]


def contents(channel: str, topic: str) -> Iterator[tuple[Any, ...]]:
    """What such requests carry when the engine sends them, with what an attacker would put there."""
    if channel != "admin":
        yield ("shareable", {"job_id": "states", "command": topic})
        return
    yield ("command", topic, {"job_id": "../states"}, CAT)
    yield ("command", topic, {"job_id": "../../elsewhere", "job_meta": {"job_id": "../states"}}, b"")
    yield ("command", "sys.shell", {}, CAT)  # whatever the header says


def streamed(headers: dict[str, Any]) -> dict[str, Any]:
    """The headers of a message in pieces, of which this is the first and last."""
    return {
        "cn__channel": "sm__STREAM",
        "cn__topic": "sm__DATA",
        "cn__destination": headers["cn__destination"],
        "sm__ch": headers["cn__channel"],
        "sm__tp": headers["cn__topic"],
        "sm__id": uuid.uuid4().int >> 80,
        "sm__dt": 2,
        "sm__sz": 0,
        "sm__sq": 0,
        "sm__os": 0,
        "sm__ri": str(uuid.uuid4()),
    }


def deliver(attacker: Process, victim: Process, attacks: list[Attack]) -> list[tuple[str, Any]]:
    """Send everything; return the replies once the attacked process has nothing left to do."""
    replies = attacker.send(*attacks)
    quiet = {"frames": -1}

    def settled() -> bool:
        frames, handled = victim.ask("frames"), len(victim.ask("handled"))
        unchanged, quiet["frames"] = quiet["frames"] == handled, handled
        return bool(frames and unchanged)

    wait_for(settled, "the attacked process has seen everything")
    return replies


def unlisted(handled: Iterable[tuple[str, str, bool]], doors: tuple[Door, ...]) -> set[str]:
    """What attacks have had done that is on no list."""
    listed = {f"{door.channel}:{door.topic}" for door in doors if not door.streamed}
    streamed = {f"{door.channel}:{door.topic}" for door in doors if door.streamed}
    listed |= {"sm__STREAM:sm__DATA"} if streamed else set()
    needed = {"aux": {door.topic for door in (*FROM_SERVER[SITE_JOB], *FROM_SITE[SERVER_JOB])}}
    needed["command"] = set(COMMANDS)
    found = set()
    for kind, what, by_attack in handled:
        if kind in needed:
            found |= {what} - needed[kind]
        elif by_attack:
            found |= {what} - (streamed if kind == "stream" else listed)
    return found


@pytest.mark.parametrize("attacker", ["server", "server.job"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_no_folder_and_brings_no_code(
    federation: Parties, attacker: str, command: str
) -> None:
    """Of the commands that remain, what becomes a path, a program or a right."""
    workspace, task = federation.kits["north"] / ENGINE_FOLDER, str(uuid.uuid4())
    base = {
        "job_id": task,
        "job_meta": {"job_id": task, "submitter_role": "project_admin"},
        "app_name": "app",
    }
    wrong: list[dict[str, Any]] = [
        {"job_id": "states"},
        {"job_id": "../states"},
        {"job_id": ["states"]},
        {"job_id": None},
        {"job_meta": {"job_id": "rejoin/../../x"}},
        {"job_meta": {"job_id": str(uuid.uuid4())}},
        {"job_meta": "states"},
        {"_userRole": "super"},
        {"_submitterRole": "super"},
        {"job_meta": {"job_id": task, "submitter_role": "super"}},
    ]
    headers = {"cn__channel": "admin", "cn__topic": "admin", "cn__destination": "north"}
    ran = len(federation["north"].ask("handled"))
    replies = federation[attacker].send(
        *[(headers, ("command", command, base | one, packed({})), ANSWERED_WITHIN) for one in wrong]
    )
    assert ["refused" in str(content) for _, content in replies] == [True] * len(wrong)
    assert not [what for kind, what, _ in federation["north"].ask("handled")[ran:] if kind == "command"]
    assert not (workspace / task).exists()
    federation.canaries.check_untouched()


@pytest.mark.parametrize(
    "file",
    ["custom/sitecustomize.py", "config/log_config.json", "../../states/a.safetensors", "config/../x", "x/"],
)
def test_a_task_consists_of_known_files_only(federation: Parties, file: str) -> None:
    task = str(uuid.uuid4())
    headers = {"cn__channel": "admin", "cn__topic": "admin", "cn__destination": "north"}
    meta = {"job_id": task, "job_meta": {"job_id": task}, "app_name": "app"}
    content = ("command", "train.deploy", meta, packed({file: "import os"}))
    [(_, reply)] = federation["server"].send((headers, content, ANSWERED_WITHIN))
    assert "refused" in reply
    config = json.dumps(client_config("tests.federation.echo_job.EchoExecutor", {}))
    content = ("command", "train.deploy", meta, packed({"config/config_fed_client.json": config}))
    [(_, reply)] = federation["server"].send((headers, content, ANSWERED_WITHIN))
    assert "unsigned job rejected" in reply
    assert not (federation.kits["north"] / ENGINE_FOLDER / task).exists()


@pytest.mark.parametrize(
    ("attacker", "victim", "topic"),
    [
        ("server.job", "north.job", "__end_run__"),
        ("south.job", "server.job", "__job_heartbeat__"),
        ("south.job", "server.job", "__sync_runner__"),
    ],
)
def test_a_request_that_is_echoed_names_no_file(
    federation: Parties, attacker: str, victim: str, topic: str
) -> None:
    """The engine sends cookies back, and of a certain object the file that it names instead of the name."""
    target = federation[victim].name
    headers = {"cn__channel": "aux_communication", "cn__topic": topic, "cn__destination": target}
    replies = [
        federation[attacker].ask("ask streamed", headers, content, ANSWERED_WITHIN)
        for path in federation.canaries.files
        for content in [("shareable with cookies", {"x": object_that_names(path)})]
    ]
    assert not federation.canaries.stolen(replies)
    federation.canaries.check_untouched()


def object_that_names(path: Path) -> dict[str, Any]:
    """What the engine decodes to its object for the content of a file."""
    content = {"datum_id": str(uuid.uuid4()), "datum_type": None, "dot": 0, "value": str(path)}
    return {"__fobs_type__": "nvflare.fuel.utils.fobs.datum.Datum", "__fobs_data__": {"data": content}}


@pytest.mark.parametrize("kind", ["numpy.ndarray", "argparse.Namespace", "nvflare.apis.dxo.DXO"])
def test_a_message_with_objects_that_no_task_needs_is_not_decoded(federation: Parties, kind: str) -> None:
    """Decoding is the engine's first step, before it asks who sent a message."""
    heartbeat = {"cn__channel": "task", "cn__topic": "heart_beat", "cn__destination": "server"}
    part = {"__fobs_type__": kind, "__fobs_data__": {"data": {"x": 1}}}
    before = len(federation["server"].ask("handled"))
    federation["south"].send((heartbeat, ("shareable", {"x": part}), 2.0))
    assert not [one for one in federation["server"].ask("handled")[before:] if one[2]]
    federation.check_all_go_on()


def test_nobody_is_talked_into_a_connection(federation: Parties) -> None:
    """A message may offer an address to connect to; whoever did would leave the server's connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(2.0)
        offer = {"cn__conn_url": f"tcp://127.0.0.1:{listening.getsockname()[1]}", "cn__from": "elsewhere"}
        channel = {"cn__channel": "cnfgnn", "cn__topic": "request"}
        target = federation["north.job"].name
        attack = (channel | offer | {"cn__destination": target}, ("raw", b"who"), ANSWERED_WITHIN)
        [(code, _)] = federation["server.job"].send(attack)
        assert code == "ok"
        with pytest.raises(TimeoutError):
            listening.accept()


@pytest.mark.parametrize(
    ("whose", "named", "victim"),
    [
        ("south", "south", "north"),  # a direct connection to another site
        ("south", "north.job", "north"),
        ("south", "server", "north"),
        ("south", "north", "server"),
        ("south", OPERATORS_SESSION, "server"),  # as the operator
        ("super", OPERATORS_SESSION, "server"),
    ],
)
def test_connections_in_another_name_are_closed(
    federation: Parties, tmp_path: Path, whose: str, named: str, victim: str
) -> None:
    startup = federation.kits["south"] / "startup"
    files = startup / "client.crt", startup / "client.key"
    if whose == "super":
        files = issue(federation.kits["server"].parent / "authority", tmp_path, OPERATOR, "super")
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.check_hostname = False
    context.load_cert_chain(*files)
    hello = {HandshakeKeys.ENDPOINT_NAME: named, HandshakeKeys.TIMESTAMP: time.time()}
    peers = federation[victim].ask("peers")
    for port in set(listening(federation.kits[victim])):
        with (
            socket.create_connection(("127.0.0.1", port), 10.0) as plain,
            context.wrap_socket(plain) as secure,
        ):
            secure.sendall(handshake.encode_frame(Types.HELLO, hello))
            while secure.recv(4096):  # the engine names itself, and then it closes
                pass
    who = OPERATOR if whose == "super" else whose
    assert who in {entry["who"] for entry in refused_by(federation, victim)}
    assert federation[victim].ask("peers") == peers


def test_a_heartbeat_is_the_senders_own(federation: Parties) -> None:
    heartbeat = {"cn__channel": "task", "cn__topic": "heart_beat", "cn__destination": "server"}
    send = federation["south"].send
    [(honest, _)] = send((heartbeat, ("in the name of", "south"), ANSWERED_WITHIN))
    [(forged, _)] = send((heartbeat, ("in the name of", "north"), ANSWERED_WITHIN))
    assert (honest, forged) == ("ok", "authentication_error")


def test_a_site_cannot_end_a_task_for_the_others(federation: Parties) -> None:
    """By a report that its part failed, by an error that ends the server's process, or as another site."""
    south, job, task = federation["south"], federation["south.job"], federation.echo.id
    reports = [{"job_id": task, "code": code, "reason": "made up"} for code in (101, 102, 103, 104, "9", 9)]
    to_server = {"cn__channel": "task", "cn__destination": "server"}
    failed = [(to_server | {"cn__topic": "report_job_failure"}, ("raw", one), 0.0) for one in reports]
    south.send(*failed)
    error = {"cn__channel": "sm__STREAM", "cn__topic": "sm__ERROR", "sm__et": "BlobSizeError", "sm__id": 7}
    job.send((error | {"cn__destination": federation["server.job"].name, "sm__em": "x"}, ("raw", None), 0.0))
    quit_as = {"cn__topic": "quit", "client_name": "north"}
    [(code, _)] = south.send((to_server | quit_as, ("shareable", {}), ANSWERED_WITHIN))
    assert code == "authentication_error"
    federation.check_all_go_on()


def test_a_site_that_finishes_no_message_does_not_keep_the_others_waiting(federation: Parties) -> None:
    """A message in pieces occupies a thread of its receiver for minutes, until its last piece is there."""
    headers = {"cn__channel": "aux_communication", "cn__topic": "__job_heartbeat__"}
    headers["cn__destination"] = federation["server.job"].name
    unfinished = {"sm__dt": 1, "sm__sz": 1000}
    federation["south.job"].send(*[(streamed(headers) | unfinished, ("raw", b"x"), 0.0) for _ in range(200)])
    code, _ = federation["north.job"].ask("ask streamed", headers, ("shareable", {}), ANSWERED_WITHIN)
    assert code == "ok"


def test_without_the_guards_and_the_wall_files_are_read_and_deleted(tmp_path: Path) -> None:
    """The test of these tests: the server, and a site through the honest server, get what they ask for."""
    with parties(tmp_path, guarded=False, walled=False) as open_doors:
        headers = {"cn__channel": "admin", "cn__topic": "admin", "cn__destination": "north"}
        outside = next(path for path in open_doors.canaries.files if path.name == "readings.csv")
        files = [outside, "../local/site.toml", "startup/client.key"]
        shell = [("command", "sys.shell", {}, f"cat {file}") for file in files]
        for attacker in ("server", "south"):
            replies = open_doors[attacker].send(*[(headers, one, ANSWERED_WITHIN) for one in shell])
            assert open_doors.canaries.stolen(replies) == {"readings.csv", "site.toml", "client.key"}
        ran = [what for kind, what, _ in open_doors["north"].ask("handled") if kind == "command"]
        assert ran.count("sys.shell") == 6
        echoed = {"cn__channel": "aux_communication", "cn__topic": "__end_run__"}
        echoed["cn__destination"] = open_doors["north.job"].name
        cookies = ("shareable with cookies", {"x": object_that_names(outside)})
        reply = open_doors["server.job"].ask("ask streamed", echoed, cookies, ANSWERED_WITHIN)
        assert open_doors.canaries.stolen([reply]) == {"readings.csv"}
        delete = ("command", "train.delete_run", {"job_id": "transfer"}, "")
        open_doors["south"].send((headers, delete, ANSWERED_WITHIN))
        assert not (open_doors.kits["north"] / ENGINE_FOLDER / "transfer").exists()
