"""A site's engine that somebody else starts, as in a container of its own."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from cnfgnn.federation.kits import processes
from cnfgnn.federation.site.settings import settings_file
from tests.commands import said
from tests.federation.running_federation import ENGINE_WARNINGS
from tests.federation.two_site_federation import connected, federation
from tests.waiting import wait_for

pytestmark = [*ENGINE_WARNINGS, pytest.mark.slow]


def test_an_engine_elsewhere_connects_if_it_is_the_right_user(tmp_path: Path) -> None:
    user = pwd.getpwuid(os.geteuid()).pw_name
    # Its socket's path is longer than the 107 bytes that the kernel takes.
    with federation(tmp_path / ("long" * 25)) as (_, made):
        north, workspace = made["north"], tmp_path / "workspace"
        workspace.mkdir()
        settings = settings_file(north)
        socket = north / "socket" / "site.sock"
        for name, admitted in (("daemon", False), (user, True)):
            text = settings.read_text().partition("[engine]")[0]
            settings.write_text(f'{text}\n[engine]\nelsewhere = true\nuser = "{name}"\n')
            assert "is up" in said("federation", "up", north)  # it does not wait for the engine
            wait_for(socket.exists, "the site listens")
            command = [sys.executable, "-m", "cnfgnn", "federation", "engine", socket, workspace]
            engine = subprocess.Popen([str(word) for word in command], stderr=subprocess.DEVNULL)
            has_ended = partial(_has_ended, engine)
            try:
                if admitted:
                    wait_for(lambda: connected(made["server"]) == {"north"}, "north is connected")
                    assert "confined by" in said("federation", "status", north)
                    os.kill(processes.running(north) or 0, 9)
                    assert wait_for(has_ended, "the engine ends with its site")
                else:
                    assert wait_for(has_ended, "the engine is sent away")
                    assert "is not the engine" in (north / "log.txt").read_text()
            finally:
                engine.kill()
                engine.wait()
            processes.down(north)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None
