"""A federation of real processes with planted code: a test acts as its server, or as one of its sites."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest

from cnfgnn.federation.engine.carry import jobs
from tests.federation.hostile import planted
from tests.federation.two_site_federation import ROOT, Echo, federation
from tests.waiting import wait_for

CODE = "from tests.federation.hostile import planted\nplanted.plant({}, guarded={}, walled={})\n"


class Process:
    """One process of the engine, of any party; its name is the one that the engine uses."""

    def __init__(self, name: str, place: Path) -> None:
        self.name, self.place = name, place
        self.pid = int(wait_for(self.answers, f"{name} answers"))

    def answers(self) -> int | None:
        try:
            return int(self.ask("who"))
        except (OSError, EOFError):
            return None

    def ask(self, question: str, *args: Any) -> Any:
        with Client(str(self.place)) as connection:
            connection.send((question, *args))
            answer = connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def send(self, *attacks: tuple[dict[str, Any], planted.Content, float]) -> list[tuple[str, Any]]:
        return list(self.ask("send", list(attacks)))


class Canaries:
    """Files of a site and of the server that nobody else may read, change or delete, each with a secret."""

    def __init__(self, site: Path, server: Path, outside: Path) -> None:
        self.files: dict[Path, str] = {}
        for name in ("states/a.safetensors", "forecasts/f.csv", "local/site.toml", "live/token"):
            self._plant(site / name)
        for name in ("readings.csv", "private/noise.key", "private/copies.sqlite"):
            self._plant(outside / name)
        for name in ("runs/one/run.json", "page-token"):
            self._plant(server / name)
        keys = (
            site / "startup/client.key",
            server / "startup/server.key",
            server / "operator/startup/client.key",
        )
        for key in keys:
            self.files[key] = key.read_text().split()[5]
        self.before = self._fingerprints()

    def _plant(self, path: Path) -> None:
        secret = secrets.token_hex(16)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        path.write_text(f"{text}# {secret}\n")
        self.files[path] = secret

    def _fingerprints(self) -> dict[Path, str]:
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.files}

    def stolen(self, replies: list[tuple[str, Any]]) -> set[str]:
        """The names of the files whose content is in a reply."""
        return {
            path.name
            for path, secret in self.files.items()
            for _, content in replies
            if secret in (content.decode("latin-1") if isinstance(content, bytes) else str(content))
        }

    def check_untouched(self) -> None:
        assert self._fingerprints() == self.before


class Parties:
    """The processes of the federation by name, and the files that they must not give away."""

    def __init__(self, kits: Mapping[str, Path], folder: Path, echo: Echo, outside: Path) -> None:
        self.kits, self.echo = kits, echo
        names = ["server", "north", "south"]
        self.processes = {name: Process(name, folder / name) for name in names}
        for name in names:
            job = f"{name}.{planted.JOB}"
            self.processes[job] = Process(f"{name}.{echo.id}", folder / job)
        self.canaries = Canaries(kits["north"], kits["server"], outside)

    def __getitem__(self, name: str) -> Process:
        return self.processes[name]

    def check_all_go_on(self) -> None:
        """Every process is still the same one, and the task goes on."""
        for process in self.processes.values():
            assert process.answers() == process.pid, f"{process.name} has ended"
        asked = len(self.echo.log.read_text().splitlines())
        wait_for(lambda: len(self.echo.log.read_text().splitlines()) > asked + 2, "the task goes on")
        pids = {name: self[f"{name}.job"].pid for name in ("north", "south")}
        wait_for(lambda: self.echo.answers() == pids, "both sites answer")


@contextmanager
def parties(folder: Path, guarded: bool = True, walled: bool = True) -> Iterator[Parties]:
    """A server and two sites with a running task; if told so, without our guards or the wall."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="h") as sockets,  # the path of a Unix socket has 108 bytes
    ):
        planting = folder / "planting"
        planting.mkdir(parents=True)
        (planting / "sitecustomize.py").write_text(CODE.format(repr(sockets), guarded, walled))
        patch.setenv("NVFLARE_DATUM_DIR", str(folder / "datums"))  # for files that it is sent
        patch.setenv("PYTHONPATH", os.pathsep.join([str(planting), str(ROOT / "src"), str(ROOT)]))
        with federation(folder, "north", "south") as (_, kits), jobs.connect(kits["server"]) as session:
            echo = Echo(session, folder / "echo", ["north", "south"])
            for site in ("north", "south"):
                echo.pid(site)
            yield Parties(kits, Path(sockets), echo, folder / "elsewhere")
            echo.stop()
