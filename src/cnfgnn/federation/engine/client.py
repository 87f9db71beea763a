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
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cnfgnn.federation.engine.carry import control
from cnfgnn.federation.engine.confine import (
    LISTABLE,
    WRITABLE_DEVICES,
    Limits,
    confine,
    python_paths,
    usable_by,
)
from cnfgnn.federation.kits.engine_files import KEPT

PROGRAM = "nvflare.private.fed.app.client.client_train"
NAME_SERVICE = 53  # names may be resolved over TCP


def main() -> None:
    path, workspace = Path(sys.argv[1]), Path(sys.argv[2])
    connection = control.Control(path)
    settings = connection.frames.receive_json()
    write_workspace(workspace, settings["files"])
    os.chdir(workspace)
    report = confine_to(workspace, settings)
    connection.begin(report)
    control.use(connection)
    sys.argv = [PROGRAM, "-m", str(workspace), "-s", "fed_client.json", "--set", *settings["set"]]
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)


def write_workspace(workspace: Path, files: Mapping[str, str]) -> None:
    """Make the workspace anew: of what an earlier process left there, only its logs stay."""
    for old in workspace.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        elif old.is_symlink() or not old.is_file() or not old.name.startswith(KEPT):
            old.unlink()
    for name, content in files.items():
        file = workspace / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    for folder in ("transfer", "tmp"):
        (workspace / folder).mkdir(mode=0o700)


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
    if problem:
        report["user_problem"] = problem
    return report


def _give(workspace: Path, user: str | int) -> None:
    """Make a user the owner of the workspace; root without capabilities cannot use that of another user."""
    owner = user if isinstance(user, int) else pwd.getpwnam(user).pw_uid
    os.chown(workspace, owner, -1, follow_symlinks=False)
    for place, folders, names in os.walk(workspace):
        for name in (*folders, *names):
            os.chown(os.path.join(place, name), owner, -1, follow_symlinks=False)


if __name__ == "__main__":
    main()
