"""Sites answer the server of their own job only, and errors at a site reveal nothing to the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message

from cnfgnn.data.files.export import write_folder
from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.engine.carry import jobs
from cnfgnn.federation.engine.carry.cell import serve_requests
from cnfgnn.federation.kits.engine_files import ENGINE_FOLDER
from cnfgnn.federation.kits.refusals import read_refusals
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.project import read_project
from cnfgnn.federation.site.errors import without_paths
from cnfgnn.federation.site.nodes import NOT_READ_YET, SiteNodes
from cnfgnn.federation.site.status import read_site_status
from cnfgnn.transports.remote.endpoint import Terms
from tests.commands import said
from tests.conftest import network
from tests.federation.forged_requests import ATTEMPTS, RECEIVED
from tests.federation.running_federation import ENGINE_WARNINGS, every_process
from tests.federation.test_processes import refused
from tests.federation.two_site_federation import FORGING, REQUESTING, federation, write_project
from tests.waiting import wait_for

pytestmark = ENGINE_WARNINGS


@pytest.mark.slow
def test_a_site_receives_requests_of_its_server_only(tmp_path: Path) -> None:
    """Site south sends requests to north in its own name and in the server's."""
    with federation(tmp_path, "north", "south") as (_, made), jobs.connect(made["server"]) as session:
        stop = tmp_path / "stop"
        job = jobs.job_folder(tmp_path / "job", "forging", REQUESTING, {"stop": str(stop)}, FORGING, {})
        job_id = session.submit(job)
        attempts = made["south"] / ENGINE_FOLDER / ATTEMPTS
        wait_for(lambda: attempts.exists() and len(attempts.read_text().splitlines()) == 4, "south has tried")
        for port in {*listening(made["server"]), *listening(made["north"])}:
            refused(port, "CERTIFICATE_REQUIRED")
        received = made["north"] / ENGINE_FOLDER / RECEIVED
        before = len(received.read_text().splitlines())
        wait_for(lambda: len(received.read_text().splitlines()) > before, "the server is still served")
        stop.touch()
        wait_for(lambda: session.state(job_id).startswith("FINISHED"), "the job ends")
        assert set(received.read_text().splitlines()) == {"request of the server"}
        assert "answered" not in attempts.read_text()
        recorded = {(entry["who"], entry["what"]) for entry in read_refusals(made["server"])}
        # These jobs are not ours: their sites also ask the engine for its own tasks.
        asked = {(site, "no task needs it (server_command: get_task)") for site in ("north", "south")}
        assert recorded - asked == {
            ("south", "sites do not talk to each other (cnfgnn: request)"),
            ("south", "it claims to be from server (cnfgnn: request)"),
        }
        assert said("federation", "status", made["server"]).count("refused: ") == len(recorded)


def listening(kit: Path) -> list[int]:
    """The ports of a kit's processes, including the loopback ports for its jobs."""
    pids = every_process(kit)
    ends = psutil.net_connections("inet")
    ports = [end.laddr.port for end in ends if end.pid in pids and end.status == psutil.CONN_LISTEN]
    assert ports
    return ports


class Cell:
    def register_request_cb(self, channel: str, topic: str, cb: Any) -> None:
        self.asked = cb


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
def test_a_site_answers_only_the_server_of_its_own_job(origin: str | None, code: str) -> None:
    cell, received = Cell(), []
    serve_requests(cell, "job", lambda request: received.append(request) or b"done")
    message = Message({} if origin is None else {MessageHeaderKey.ORIGIN: origin}, b"request")
    reply = cell.asked(message)
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) == code
    assert received == ([b"request"] if code == ReturnCode.OK else [])


def test_the_content_of_a_damaged_file_is_not_sent_to_the_server(tmp_path: Path) -> None:
    file = tmp_path / "readings.csv"
    file.write_text('time,s0\n2024-01-01T00:00,61.5\n2024-01-01T00:05,"437,25"\n')
    project = read_project(write_project(tmp_path, readings=f'"{file}"'))
    nodes = SiteNodes(make_kits(project, tmp_path / "kits")["north"])
    described = described_once_read(nodes)
    assert "437" not in str(described)
    assert "federation check" in described["problem"]


def described_once_read(nodes: SiteNodes) -> dict[str, Any]:
    wait_for(lambda: nodes.problem != NOT_READ_YET, "the site has read its files")
    return dict(nodes.describe())


def test_the_server_does_not_learn_where_a_site_keeps_its_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors reach the server without local paths; the site's log and status have the full text."""
    kit = make_kits(read_project(write_project(tmp_path)), tmp_path / "kits")["north"]
    toml = kit / "local" / "site.toml"
    toml.write_text(toml.read_text().replace("/data/north", "") + 'outliers = "drop"\n')
    problem = described_once_read(SiteNodes(kit))["problem"]
    assert problem.startswith("local/site.toml: outliers: cannot be 'drop'")
    assert str(toml) in caplog.text
    [entry] = read_site_status(kit)["problems"]
    assert str(toml) in entry["problem"]

    write_folder(network(n=1), tmp_path)
    toml.write_text(f'name = "north"\nsensors = ["s0"]\nreadings = "{tmp_path / "readings.csv"}"\n')
    nodes = SiteNodes(kit)
    assert described_once_read(nodes)["ready"]
    with pytest.raises(CnfgnnError) as caught:
        nodes.join(Terms(0, 600, 150, "fp32", "run"))
    assert (
        str(caught.value) == "its readings: the readings are 300 s apart, and those of the other sites 600 s"
    )
    assert str(tmp_path / "readings.csv") in read_site_status(kit)["problems"][-1]["problem"]


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("/kits/north/states/one/a.safetensors: is damaged", "states/one/a.safetensors: is damaged"),
        ("/srv/my data/r.csv, row 3: it is empty", "its readings, row 3: it is empty"),
        ("cannot open '/etc/other/file' (denied)", "cannot open '(a local path)' (denied)"),
        ("speeds in km/h and m/s", "speeds in km/h and m/s"),
    ],
)
def test_local_paths_are_removed_from_a_text(text: str, sent: str) -> None:
    assert without_paths(text, Path("/kits/north"), "/srv/my data/r.csv") == sent
