"""Nobody gets in: not by a forged note, and what goes wrong with readings is not told to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message

from cnfgnn.federation import processes
from cnfgnn.federation.flare import jobs
from cnfgnn.federation.flare.cell import CHANNEL, guard_notes, serve_notes
from cnfgnn.federation.flare.executor import SiteNodes
from cnfgnn.federation.kits import make_kits
from cnfgnn.federation.project import read_project
from tests.federation.forging import HEARD, TRIED
from tests.federation.living import ENGINE_WARNINGS
from tests.federation.parties import ASKING, FORGING, awaited, federation, write_project
from tests.federation.test_processes import refused

pytestmark = ENGINE_WARNINGS


@pytest.mark.slow
def test_only_the_jobs_server_may_ask(tmp_path: Path) -> None:
    """South is a site like any other, and asks in its own name and in the server's."""
    with federation(tmp_path, "north", "south") as (_, made), jobs.connect(made["server"]) as session:
        stop = tmp_path / "stop"
        job = jobs.job_folder(tmp_path / "job", "forging", ASKING, {"stop": str(stop)}, FORGING, {})
        job_id = session.submit(job)
        tried = made["south"] / TRIED
        awaited(lambda: tried.exists() and len(tried.read_text().splitlines()) == 4, "south has tried")
        for port in {*listening(made["server"]), *listening(made["north"])}:
            refused(port, "CERTIFICATE_REQUIRED")
        heard = (made["north"] / HEARD).read_text().splitlines()
        before = len(heard)
        awaited(lambda: len((made["north"] / HEARD).read_text().splitlines()) > before, "the server asks on")
        stop.touch()
        awaited(lambda: session.state(job_id).startswith("FINISHED"), "the job ends")
        assert set((made["north"] / HEARD).read_text().splitlines()) == {"the server asks"}
        assert "answered" not in tried.read_text()
        said = (made["server"] / "log.txt").read_text()
        assert f"a note of south.{job_id}, in the name of south.{job_id}, is not passed on" in said
        assert f"bound to origin south, not message origin server.{job_id}" in said


def listening(kit: Path) -> list[int]:
    """The ports of a kit's processes, those that its jobs come in by too."""
    pids = [processes.running(kit), *processes.jobs_of(kit)]
    ends = psutil.net_connections("inet")
    ports = [end.laddr.port for end in ends if end.pid in pids and end.status == psutil.CONN_LISTEN]
    assert ports
    return ports


class Cell:
    def register_request_cb(self, channel: str, topic: str, cb: Any) -> None:
        self.asked = cb

    def set_message_interceptor(self, cb: Any) -> None:
        self.passed = cb


@pytest.mark.parametrize(
    ("sender", "channel", "passes"),
    [
        ("server.job", CHANNEL, True),
        ("south.job", CHANNEL, False),  # whatever it says that it is
        ("south", CHANNEL, False),
        ("south", "server_command", True),  # the engine's own business
    ],
)
def test_the_server_passes_on_no_note_that_a_site_wrote(sender: str, channel: str, passes: bool) -> None:
    cell = Cell()
    guard_notes(cell)
    said = {MessageHeaderKey.ORIGIN: "server.job", MessageHeaderKey.CHANNEL: channel}
    message = Message(said, b"note")
    message.set_prop(MessagePropKey.ENDPOINT, Endpoint(sender))
    reply = cell.passed(message)
    assert (reply is None) == passes


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("server.job", ReturnCode.OK),
        ("server", ReturnCode.AUTHENTICATION_ERROR),
        ("server.another", ReturnCode.AUTHENTICATION_ERROR),
        ("north.job", ReturnCode.AUTHENTICATION_ERROR),
        ("server.job.child", ReturnCode.AUTHENTICATION_ERROR),
        (None, ReturnCode.AUTHENTICATION_ERROR),
    ],
)
def test_a_site_answers_the_server_of_its_own_job(origin: str | None, code: str) -> None:
    cell, heard = Cell(), []
    serve_notes(cell, "job", lambda note: heard.append(note) or b"done")
    message = Message({} if origin is None else {MessageHeaderKey.ORIGIN: origin}, b"note")
    reply = cell.asked(message)
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) == code
    assert heard == ([b"note"] if code == ReturnCode.OK else [])


def test_what_is_in_a_damaged_file_of_readings_is_not_told_to_the_server(tmp_path: Path) -> None:
    file = tmp_path / "readings.csv"
    file.write_text('time,s0\n2024-01-01T00:00,61.5\n2024-01-01T00:05,"437,25"\n')
    project = read_project(write_project(tmp_path, readings=f'"{file}"'))
    nodes = SiteNodes(make_kits(project, tmp_path / "kits")["north"])
    said = awaited(
        lambda: nodes.about()["problem"] != "it is still reading its data" and nodes.about(), "read"
    )
    assert "437" not in str(said)
    assert "federation check" in said["problem"]
