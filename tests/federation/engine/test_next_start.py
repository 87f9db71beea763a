"""What an engine leaves in its folder does not run when the next one starts, which is not confined yet."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cnfgnn.errors import StorageError
from cnfgnn.federation.engine import client
from cnfgnn.federation.frames import Frames
from cnfgnn.federation.kits.engine_files import SITE_PROGRAM, engine_environment
from tests.shared_folders import make_too_deep

USER_PACKAGES = f".local/lib/python{sysconfig.get_python_version()}/site-packages"
LEFT_BEHIND = "import pathlib; pathlib.Path({!r}).touch()"


@pytest.mark.parametrize(
    "module",
    [
        "cnfgnn/__init__.py",
        "socket.py",
        "sitecustomize.py",
        "usercustomize.py",
        f"{USER_PACKAGES}/usercustomize.py",
        f"{USER_PACKAGES}/left.pth",
    ],
)
def test_the_next_engine_loads_nothing_from_its_folder(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace, ran = tmp_path / "engine", tmp_path / "ran"
    left = workspace / module
    left.parent.mkdir(parents=True)
    left.write_text(LEFT_BEHIND.format(str(ran)))
    with started(workspace) as (engine, connection):
        connection.close()
        assert engine.wait(60) != 0
        assert b"the connection was closed" in engine.stderr.read()  # by the site
    assert not ran.exists()


@contextmanager
def started(workspace: Path, **more: Any) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """An engine that has connected to its site, and has not been given its files yet."""
    # Outside of a virtual environment, which has no packages of a user.
    python = os.path.realpath(sys.executable)
    place = str(Path(__file__).parents[3] / "src")
    environment = {**engine_environment(workspace), "PYTHONPATH": place}
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder) / "site.sock"
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(60)
        command = [python, "-m", SITE_PROGRAM, str(path), str(workspace)]
        with subprocess.Popen(
            command, cwd=workspace, env=environment, stderr=subprocess.PIPE, **more
        ) as engine:
            try:
                connection, _ = listener.accept()
                with connection:
                    yield engine, connection
            finally:
                engine.kill()


def test_an_engine_keeps_nothing_open_of_whoever_started_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with secret.open() as stdin, secret.open() as other:
        inherited = {"stdin": stdin, "pass_fds": [other.fileno()]}
        with started(tmp_path, **inherited) as (engine, _):
            opened = {int(file.name): os.readlink(file) for file in Path(f"/proc/{engine.pid}/fd").iterdir()}
    assert opened.pop(0) == os.devnull
    assert str(secret) not in opened.values()


def test_an_engine_that_cannot_write_its_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "log.txt").touch()
    with started(tmp_path) as (engine, connection):
        Frames(connection).send_json({"files": {"log.txt/below": "a file of this name stays"}})
        assert engine.wait(60) == StorageError.exit_code
        assert engine.stderr.read().decode() == f"{tmp_path}: cannot be written (File exists)\n"


def test_what_cannot_be_removed_is_moved_aside(tmp_path: Path) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "engine"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    for name in ("startup", "local", "tmp"):
        (workspace / name).mkdir(parents=True)
    (workspace / "transfer").symlink_to(outside)
    (workspace / "startup" / "left").symlink_to(outside)
    make_too_deep(workspace / "local")
    for _ in range(2):
        client.write_workspace(workspace, {"local/site.json": "new", "startup/client.key": "key"})
        found = {path.name for path in workspace.iterdir() if not path.name.startswith(client.ASIDE)}
        assert found == {"local", "startup", "tmp", "transfer"}
        assert [path.name for path in (workspace / "local").iterdir()] == ["site.json"]
        assert not (workspace / "transfer").is_symlink()
        assert (outside / "secret").read_text() == "secret"
    aside = list(workspace.glob(f"{client.ASIDE}*"))
    assert len(aside) == 1
    subprocess.run(["rm", "-rf", *aside], check=True)  # Python cannot
