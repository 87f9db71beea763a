"""The engine at a site as a program: `python -m cnfgnn.federation.engine.client SOCKET WORKSPACE`.

It asks its site for its files and settings, writes them into a scratch workspace, has the operating system
confine it, and only then loads the engine. Whatever the server sends from then on can reach the workspace,
the server's address and the site's answers, and nothing else.
"""

from __future__ import annotations

import os
import pwd
import runpy
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from cnfgnn.errors import CnfgnnError, RunError, StorageError
from cnfgnn.federation.engine.carry import control
from cnfgnn.federation.engine.confine import (
    LISTABLE,
    WRITABLE_DEVICES,
    Limits,
    confine,
    python_paths,
    usable_by,
)
from cnfgnn.federation.kits.engine_files import KEPT, KNOWN_AS

PROGRAM = "nvflare.private.fed.app.client.client_train"
ASIDE = ".gone-"  # begins the names of what could not be removed
NAME_SERVICE = 53  # names may be resolved over TCP


def main() -> None:
    path, workspace = Path(sys.argv[1]), Path(sys.argv[2])
    close_inherited()
    try:
        connection = control.Control(path)
    except OSError as error:
        _end(RunError(path, f"the site does not answer ({error.strerror or error})"))
    settings = connection.frames.receive_json()
    try:
        write_workspace(workspace, settings["files"])
    except OSError as error:
        _end(StorageError(workspace, error))
    os.chdir(workspace)
    report = confine_to(workspace, settings)
    connection.begin(report)
    control.use(connection)
    os.environ[KNOWN_AS] = settings["known_as"]
    sys.argv = [PROGRAM, "-m", str(workspace), "-s", "fed_client.json", "--set", *settings["set"]]
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)


def _end(problem: CnfgnnError) -> NoReturn:
    print(problem, file=sys.stderr)
    sys.exit(problem.exit_code)


def close_inherited() -> None:
    """Close what the program that started this one had open, except for the output: confinement leaves open
    files as they are."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for file in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the list itself is closed by now
            if file > 2 and (file == null or os.get_inheritable(file)):
                os.close(file)


def write_workspace(workspace: Path, files: Mapping[str, str]) -> None:
    """Make the workspace anew: of what an earlier process left there, only its logs stay."""
    for old in list(workspace.iterdir()):
        if old.is_symlink() or not old.is_file() or not old.name.startswith(KEPT):
            _clear_away(old)
    for folder in ("transfer", "tmp", *{os.path.dirname(name) for name in files}):
        (workspace / folder).mkdir(mode=0o700)
    for name, content in files.items():
        with (workspace / name).open("x", encoding="utf-8") as file:  # which follows no link
            file.write(content)


def _clear_away(old: Path) -> None:
    """Remove a file or folder. If the process before has made that impossible, as it can with very deep
    folders, it is moved aside, where nothing is used."""
    try:
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    except (OSError, RecursionError):
        if not old.name.startswith(ASIDE):
            old.rename(old.with_name(f"{ASIDE}{time.time_ns()}"))


def confine_to(workspace: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Confine this process to its workspace; returns what holds, for the site's owner."""
    user, problem = settings["user"] if os.geteuid() == 0 else None, ""
    readable = python_paths()
    if user is not None:
        _give(workspace, user)
        problem = usable_by(user, readable, [str(workspace)])
        if problem:
            user = None
            _give(workspace, os.geteuid())
    limits = Limits(
        readable=readable,
        writable=(str(workspace), *WRITABLE_DEVICES),
        listable=LISTABLE,
        connect_ports=(settings["server_port"], settings["own_port"], NAME_SERVICE),
        listen_ports=(settings["own_port"],),
        user=user,
    )
    report = asdict(confine(limits))
    report["reaches"] = [*limits.readable, *limits.writable]
    if problem:
        report["user_problem"] = problem
    return report


def _give(workspace: Path, user: str | int) -> None:
    """Make a user the owner of the workspace; root without capabilities cannot use that of another user."""
    owner = user if isinstance(user, int) else pwd.getpwnam(user).pw_uid
    os.chown(workspace, owner, -1, follow_symlinks=False)
    for place, folders, names in os.walk(workspace):
        folders[:] = [name for name in folders if not name.startswith(ASIDE)]
        for name in (*folders, *names):
            os.chown(os.path.join(place, name), owner, -1, follow_symlinks=False)


if __name__ == "__main__":
    main()
