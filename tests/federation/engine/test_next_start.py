"""What an engine leaves in its folder does not run when the next one starts, which is not confined yet."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from cnfgnn.federation.kits.engine_files import SITE_PROGRAM, engine_environment

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
    # Outside of a virtual environment, which has no packages of a user.
    python = os.path.realpath(sys.executable)
    place = str(Path(__file__).parents[3] / "src")
    environment = {**engine_environment(workspace), "PYTHONPATH": place}
    command = [python, "-m", SITE_PROGRAM, "no.sock", str(workspace)]
    done = subprocess.run(command, cwd=workspace, env=environment, capture_output=True, text=True, timeout=60)
    assert "FileNotFoundError" in done.stderr  # there is no site to connect to
    assert not ran.exists()
