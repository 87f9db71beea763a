"""The engine's commands at a site: which of them are carried out, and what they may contain.

A site's parent process obeys whatever command arrives: the sender says whether its right to it is to be
checked. Some run programs, read files or delete folders. So all but those that a task needs are taken away,
and of these everything that becomes a path, a program or a right is checked, after it was decoded.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import verify_folder_signature_and_get_signers
from nvflare.private.admin_defs import Message as Command
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import RequestHeader, TrainingTopic, new_cell_message
from nvflare.private.fed.client import training_cmds
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.communicator import Communicator

from cnfgnn.federation.engine.carry.jobs import APP, client_config
from cnfgnn.federation.engine.guard.allowed import STATUS_OF_JOB, printable
from cnfgnn.federation.engine.guard.message_checks import REFUSED, record
from cnfgnn.federation.kits.engine_files import OPERATOR, TASK_ID

# The processors of all other commands are not registered.
COMMANDS: Mapping[str, str] = {
    TrainingTopic.CHECK_RESOURCE: "asks whether the site can take part in a task",
    TrainingTopic.CANCEL_RESOURCE: "says that the task will not begin",
    TrainingTopic.DEPLOY: "hands out a task: two class names and their arguments, signed by the operator",
    TrainingTopic.START_JOB: "begins a task",
    TrainingTopic.CHECK_STATUS: "asks which tasks run at the site, so that a late one can be handed out",
    TrainingTopic.ABORT: "ends a task",
    TrainingTopic.NOTIFY_JOB_STATUS: "a task's process tells its parent how it is",
}
JOB_ID_NEEDED = (TrainingTopic.DEPLOY, TrainingTopic.START_JOB, TrainingTopic.ABORT)
WRITTEN_DOWN = (RequestHeader.USER_NAME, ConnProps.EVENT_ID)  # to the audit log, which nobody shortens
LONGEST_NAME = 200
OPERATOR_ROLE = "project_admin"
ROLES = (RequestHeader.USER_ROLE, RequestHeader.SUBMITTER_ROLE)
# The files of our tasks. Others, such as code or a logging configuration, would be loaded by the engine.
CLIENT_CONFIG = "config/config_fed_client.json"
FILES = {"config/", CLIENT_CONFIG, "config/config_fed_server.json"}
FILES |= {
    f"{folder}{name}" for folder in ("", "config/") for name in (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
}
OF_CLASSES = {"path", "class_path", "name", "class_attributes"}  # whatever has one of these is a class
LARGEST_JOB = 1 << 20  # bytes, unpacked

_register_processor = FedAdminAgent.register_processor
_dispatch_request = FedAdminAgent._dispatch_request


def install() -> None:
    """Have every command to this process checked from now on."""
    FedAdminAgent.register_processor = _register_if_needed
    FedAdminAgent._dispatch_request = _dispatch_if_allowed
    # The engine would send what the kit's settings hold to the server, and that to all sites.
    Communicator._get_site_config_for_registration = lambda *args: None
    training_cmds.require_signed_jobs = lambda *args: True  # whatever fed_client.json says
    training_cmds.verify_folder_signature = is_signed_by_operator


def _register_if_needed(agent: FedAdminAgent, processor: Any) -> None:
    if set(processor.get_topics()) <= COMMANDS.keys():
        _register_processor(agent, processor)


def _dispatch_if_allowed(agent: FedAdminAgent, request: Message) -> Message:
    try:
        problem = command_problem(request)
    except Exception as error:  # whatever it holds, it is nothing that a task sends
        problem = f"a damaged command ({type(error).__name__})"
    if problem:
        record(FQCN.get_root(request.get_prop(MessagePropKey.ENDPOINT).name), problem)
        return new_cell_message({}, error_reply(REFUSED))
    return _dispatch_request(agent, request)


def command_problem(request: Message) -> str:
    """Why a command to a site is refused; empty if it may be carried out."""
    command = request.payload
    if not isinstance(command, Command) or not isinstance(command.headers, dict):
        return "a message that is no command"
    topic = command.topic
    if topic not in COMMANDS:
        return f"the command {printable(topic)}: no task needs it"
    if request.get_header(MessageHeaderKey.TOPIC) == STATUS_OF_JOB and topic != STATUS_OF_JOB:
        return f"the command {printable(topic)}: the message says that it is another one"
    meta = command.headers.get(RequestHeader.JOB_META)
    about = meta if isinstance(meta, dict) else {}
    # Every id of a task that a command names: they become names of folders and files.
    ids = [command.headers[RequestHeader.JOB_ID]] if RequestHeader.JOB_ID in command.headers else []
    ids += [about.get(JobMetaKey.JOB_ID.value)] if meta is not None else []
    if not all(isinstance(job_id, str) and TASK_ID.fullmatch(job_id) for job_id in ids) or len(set(ids)) > 1:
        return f"the command {topic} with a task's id that is none: {printable(ids)}"
    if topic in JOB_ID_NEEDED and RequestHeader.JOB_ID not in command.headers:
        return f"the command {topic} without a task's id"
    if not all(_is_name(command.headers.get(key)) for key in WRITTEN_DOWN):
        return f"the command {topic} with a name that is none"
    roles = {command.headers.get(key) for key in ROLES} | {about.get(JobMetaKey.SUBMITTER_ROLE.value)}
    if not roles <= {None, "", OPERATOR_ROLE}:
        return f"the command {topic} by a person who is not the operator"
    if topic == TrainingTopic.DEPLOY and command.headers.get(RequestHeader.APP_NAME) != APP:
        return f"the command {topic} with a name that no task has"
    return _job_problem(command.body) if topic == TrainingTopic.DEPLOY else ""


def _is_name(value: Any) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable())


def _job_problem(packed: object) -> str:
    """Why the files of a task are refused; empty if they are such as ours."""
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as files:  # type: ignore[arg-type]
            names = [entry.filename for entry in files.infolist()]
            if foreign := sorted({*names} - FILES):
                return f"a task with the file {printable(foreign[0])}"
            if len(names) > len(set(names)) or sum(one.file_size for one in files.infolist()) > LARGEST_JOB:
                return "a task with too many or too large files"
            config = json.loads(files.read(CLIENT_CONFIG))
    except (TypeError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile):
        return "a task whose files cannot be read"
    return "" if _names_one_class(config) else "a task that would load more than one class"


def _names_one_class(config: Any) -> bool:
    """Whether this is what our jobs say. The engine would make an object of each part that looks like a
    class, and checks only that the kit lists it."""
    try:
        executor = config["executors"][0]["executor"]
        ours = client_config(executor["path"], executor["args"])
    except (LookupError, TypeError, ValueError):
        return False
    return bool(config == ours) and _is_plain([executor["path"], executor["args"]])


def _is_plain(part: Any) -> bool:
    """Whether the engine would take it as it is, and neither make an object of it nor put something else in
    place of a {name}, such as a variable of the environment."""
    if isinstance(part, dict):
        return not part.keys() & OF_CLASSES and all(map(_is_plain, part.values()))
    if isinstance(part, list):
        return all(map(_is_plain, part))
    return not (isinstance(part, str) and "{" in part)


def is_signed_by_operator(folder: str, authority: str, *args: Any, **named: Any) -> bool:
    """Whether all files of a task are signed, by the operator and nobody else.

    The engine would accept a signer of any role, and ask nothing of one with the role `super`.
    """
    verified, signers = verify_folder_signature_and_get_signers(folder, authority, *args, **named)
    return bool(verified and signers) and all(
        (name, role) == (OPERATOR, OPERATOR_ROLE) for name, _, role in signers
    )
