"""The engine's commands at a site: which are carried out, and what they may contain."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from nvflare.fuel.f3.message import Message
from nvflare.lighter.utils import load_private_key_file, sign_folders
from nvflare.private.admin_defs import Message as Command
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from cnfgnn.federation.engine.carry import jobs
from cnfgnn.federation.engine.guard.site_commands import (
    COMMANDS,
    LARGEST_JOB,
    command_problem,
    is_signed_by_operator,
)
from cnfgnn.federation.engine.provisioning import OPERATOR
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.project import read_project
from tests.federation.issued_certificates import issue
from tests.federation.two_site_federation import write_project

JOB, ANOTHER = "0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"
INVENTORY = Path(__file__).parents[1] / "hostile" / "engine_inventory.json"
OURS = jobs.client_config("an.Executor", {"live": {"speed": 1}})
ENGINES = sorted(topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("kits")
    return make_kits(read_project(write_project(folder)), folder / "kits")


def request(topic: object, headers: Mapping[str, Any], body: object = "", named: str = "admin") -> Message:
    command = Command(topic=topic, body=body)
    command.headers.update(headers)
    return Message({"cn__topic": named}, command)


def usual(**changes: Any) -> dict[str, Any]:
    """The headers with which the engine hands out a task."""
    meta = {"job_id": JOB, "submitter_role": "project_admin"}
    return {"job_id": JOB, "job_meta": meta, "app_name": "app", "_userRole": "project_admin"} | changes


def packed(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def packed_folder(folder: Path) -> bytes:
    return packed({str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*.*"))})


def test_every_command_of_the_engine_has_been_decided_about() -> None:
    assert json.loads(INVENTORY.read_text())["north"]["site commands"] == ENGINES
    assert set(ENGINES) > COMMANDS.keys()


@pytest.mark.parametrize("topic", ENGINES)
def test_commands_that_no_task_needs_are_refused(topic: str) -> None:
    body = packed({"config/config_fed_client.json": json.dumps(OURS)})
    assert (command_problem(request(topic, usual(), body)) == "") == (topic in COMMANDS)


@pytest.mark.parametrize("topic", COMMANDS)
@pytest.mark.parametrize(
    "changes",
    [
        {"job_id": "states"},
        {"job_id": ""},
        {"job_id": None},
        {"job_id": [JOB]},
        {"job_id": f"{JOB}/../states"},
        {"job_id": ANOTHER},  # another one than in the description of the task
        {"job_meta": {"job_id": "states"}},
        {"job_meta": {"job_id": ["states"]}},
        {"job_meta": {}},
        {"job_meta": "states"},
        {"_userName": "x" * 201},  # it is written to a log
        {"_userName": "operator\n[U:somebody]"},
        {"_eventId": ["a", "list"]},
        {"_userRole": "super"},
        {"_submitterRole": "super"},
        {"job_meta": {"job_id": JOB, "submitter_role": "super"}},
    ],
)
def test_what_becomes_a_path_or_a_right_is_checked(topic: str, changes: dict[str, Any]) -> None:
    body = packed({"config/config_fed_client.json": json.dumps(OURS)})
    assert command_problem(request(topic, usual(**changes), body))


@pytest.mark.parametrize("topic", ["train.deploy", "train.start_job", "train.abort"])
def test_the_id_in_the_description_of_a_task_alone_is_not_enough(topic: str) -> None:
    body = packed({"config/config_fed_client.json": json.dumps(OURS)})
    headers = usual()
    del headers["job_id"]
    assert command_problem(request(topic, headers, body))


def test_the_command_itself_decides_not_the_name_on_its_envelope() -> None:
    assert command_problem(request("sys.shell", {}, "ls", named="train.deploy"))
    assert command_problem(request("train.abort", usual(), named="train.notify_job_status"))
    assert command_problem(request("train.notify_job_status", usual(), named="train.notify_job_status")) == ""


@pytest.mark.parametrize("payload", [None, b"", "train.abort", {"topic": "train.abort"}, [1]])
def test_what_is_no_command_is_refused(payload: object) -> None:
    assert command_problem(Message({}, payload)) == "a message that is no command"


@pytest.mark.parametrize("topic", ["train.abort", "train.deploy", "scheduler.start_job"])
def test_a_command_about_a_task_names_it(topic: str) -> None:
    assert command_problem(request(topic, {}))


def test_our_own_tasks_pass_and_others_do_not(made: Mapping[str, Path], tmp_path: Path) -> None:
    job = jobs.job_folder(tmp_path / "job", "ours", "a.Controller", {}, "an.Executor", {})
    sign(job, made, tmp_path, OPERATOR, "project_admin")
    ours = packed_folder(job / "app")
    assert command_problem(request("train.deploy", usual(), ours)) == ""
    assert "with a name" in command_problem(request("train.deploy", usual(app_name="../x"), ours))
    for file in ("custom/sitecustomize.py", "config/log_config.json", "../x", "config/../../x", "elsewhere/"):
        assert f"the file {file}" in command_problem(request("train.deploy", usual(), packed({file: ""})))
    large = packed({"config/config_fed_client.json": "x" * (LARGEST_JOB + 1)})
    assert "too large" in command_problem(request("train.deploy", usual(), large))
    for damaged in (b"", b"PK", None, "text"):
        assert "cannot be read" in command_problem(request("train.deploy", usual(), damaged))


@pytest.mark.parametrize(
    "config",
    [
        [],
        {},
        OURS | {"components": [{"id": "x", "path": "os.system", "args": {"command": "id"}}]},
        OURS | {"task_data_filters": [{"tasks": ["*"], "filters": []}]},
        OURS | {"executors": OURS["executors"] * 2},
        OURS | {"executors": []},
        OURS | {"executors": [OURS["executors"][0] | {"more": {"path": "os.system"}}]},
        OURS | {"also": []},
        jobs.client_config("an.Executor", {"live": {"path": "os.system", "args": {"command": "id"}}}),
        jobs.client_config("an.Executor", {"live": {"deep": [{"class_path": "os.system"}]}}),
        jobs.client_config("an.Executor", {"live": {"name": "Popen"}}),
        jobs.client_config("an.Executor", {"class_attributes": {}}),
        jobs.client_config("an.Executor", {"live": {"x": ["{$PASSWORD}"]}}),  # of the site's environment
        jobs.client_config("{$PASSWORD}", {}),
    ],
)
def test_a_task_names_one_class(config: Any) -> None:
    packed_config = packed({"config/config_fed_client.json": json.dumps(config)})
    assert "more than one class" in command_problem(request("train.deploy", usual(), packed_config))


def sign(job: Path, made: Mapping[str, Path], folder: Path, name: str, role: str | None) -> None:
    """Sign a task with a new certificate of the federation's own authority."""
    certificate, key = issue(made["server"].parent / "authority", folder, name, role)
    sign_folders(str(job / "app"), load_private_key_file(key), str(certificate))


@pytest.mark.parametrize(
    ("name", "role", "accepted"),
    [
        (OPERATOR, "project_admin", True),
        (OPERATOR, "super", False),  # the engine would let it do everything
        (OPERATOR, "lead", False),
        (OPERATOR, None, False),
        ("north", None, False),
        ("somebody", "project_admin", False),
    ],
)
def test_a_task_is_signed_by_the_operator(
    made: Mapping[str, Path], tmp_path: Path, name: str, role: str | None, accepted: bool
) -> None:
    job = jobs.job_folder(tmp_path / "job", "signed", "a.Controller", {}, "an.Executor", {})
    root = str(made["north"] / "startup" / "rootCA.pem")
    assert not is_signed_by_operator(str(job / "app"), root)
    sign(job, made, tmp_path, name, role)
    assert is_signed_by_operator(str(job / "app"), root) == accepted
    (job / "app" / "config" / "config_fed_client.json").write_text("{}")
    assert not is_signed_by_operator(str(job / "app"), root)


def test_kits_require_signed_tasks(made: Mapping[str, Path]) -> None:
    for kit, file in (("server", "fed_server.json"), ("north", "fed_client.json")):
        assert json.loads((made[kit] / "startup" / file).read_text())["require_signed_jobs"] is True
