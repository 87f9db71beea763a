"""No reading leaves a site, in a real federation that trains, evaluates and forecasts.

Everything that a site's sockets carry in the clear, and every version of every file on the server's disk, is
searched for the site's readings and for the weekly profiles of its sensors.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import psutil
import pytest
from benchmarks.wire import Wire, wired

from cnfgnn.algorithm.methods import preset
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.federation.kits import processes
from cnfgnn.federation.kits.engine_files import ENGINE_FOLDER
from cnfgnn.federation.kits.ports import TORN
from cnfgnn.federation.site.store import OWNER, STATES
from cnfgnn.federation.task import Task, settings_of
from cnfgnn.runs.checkpoints import FolderStore
from cnfgnn.runs.simulation import simulate
from tests.federation.in_memory_federation import given_of
from tests.federation.reading_search import TYPES, ProfileSearch, Search, encoded, profiles_of
from tests.federation.running_federation import (
    ENGINE_WARNINGS,
    RunningFederation,
    city_on_disk,
    every_process,
    running_federation,
)

pytestmark = ENGINE_WARNINGS

TAP = Path(__file__).parent / "wire_tap"
TAPPED = "log.txt.tapped-"  # how the names of recordings begin that are in the engine's folder
SITES = {"audited": [0, 1, 2, 3], "other": [4, 5]}
PLANTED = (100, 420, 500)  # first rows of the planted windows, one in each split
LENGTH = 24
HANDSHAKE = 8192  # at most so many bytes of a TLS handshake
TOKENS = ("NVFLARE_JOB_AUTH_TOKEN", "NVFLARE_JOB_TOKEN_SIGNATURE")


@dataclass
class Audit:
    """What was recorded of one federation."""

    sites: RunningFederation
    data: Dataset
    wire: Wire
    tapped: Path
    disk: set[tuple[str, bytes]] = field(default_factory=set)  # every version of every file
    elsewhere: set[object] = field(
        default_factory=set
    )  # connections of the site that bypass the recorded wire
    secrets: set[str] = field(default_factory=set)
    commands: set[str] = field(default_factory=set)  # of all processes
    _suspected: set[object] = field(default_factory=set)
    _again: float = 0.0  # when to look at the processes again
    _seen: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def record(self) -> None:
        """Record the server's disk and the processes as they are now."""
        for path in self.sites.server.rglob("*"):
            try:
                stat = path.stat()
                if path.is_file() and self._seen.get(path) != (stat.st_mtime_ns, stat.st_size):
                    self.disk.add((str(path.relative_to(self.sites.server)), path.read_bytes()))
                    self._seen[path] = (stat.st_mtime_ns, stat.st_size)
            except OSError:  # the file has just been removed
                continue
        if time.monotonic() < self._again:
            return
        self._again = time.monotonic() + 1.0
        for name, kit in self.sites.kits.items():
            for pid in every_process(kit):
                self._record_process(pid, name)

    def _record_process(self, pid: int, party: str) -> None:
        try:
            process = psutil.Process(pid)
            self.commands.add(" ".join(process.cmdline()))
            if party != "server":  # whose jobs use their own id as a token
                self.secrets |= {value for key, value in process.environ().items() if key in TOKENS}
            ends = [one.raddr for one in process.net_connections("inet") if party == "audited" and one.raddr]
            pids = every_process(self.sites.kits["audited"])
            own = {one.laddr for one in psutil.net_connections("inet") if one.pid in pids} if ends else set()
        except (psutil.Error, *TORN):  # it is looked at again in a second
            return
        unknown = {end for end in ends if end.port != self.wire.port and end not in own}
        self.elsewhere |= unknown & self._suspected  # once may be a process that has just ended
        self._suspected |= unknown

    def follow(self, task: Task) -> None:
        self.sites.begin(task)
        assert self.sites.worker is not None
        while self.sites.worker.is_alive():
            self.record()
            self.sites.worker.join(0.1)
        self.sites.end()

    def carried(self, direction: str, kind: str = "*") -> bytes:
        """All streams of a direction, of the site's own processes and of its engine's."""
        engine = self.sites.kits["audited"] / ENGINE_FOLDER
        found = [*self.tapped.glob(f"*-{kind}-{direction}"), *engine.glob(f"{TAPPED}*-{kind}-{direction}")]
        return b"".join(path.read_bytes() for path in sorted(found))

    @cached_property
    def search(self) -> Search:
        readings = self.data.readings
        own, markers = (
            readings.values[:, SITES["audited"]].T.astype(np.float64),
            readings.values[[*PLANTED], 0],
        )
        scaler = self.sites.run().scaler
        assert scaler is not None
        return Search(own, readings.time_of_day, scaler, [float(value) for value in markers])

    @cached_property
    def profile_search(self) -> ProfileSearch:
        """A search for weekly profiles, raw and scaled."""
        run = self.sites.run("plus")
        [states] = (self.sites.kits["audited"] / STATES).glob(f"plus-*/{OWNER}")
        assert run.scaler is not None
        same = simulate(self.data, run.config, scaler=run.scaler)
        kept = FolderStore(states).read(run.progress.best.tag)
        return ProfileSearch(profiles_of(same, SITES["audited"], kept), run.scaler)


def config(method: str, **more: object) -> Config:
    sizes = {"model.hidden": 16, "model.embedding": 16, "model.gn_widths": [32, 32]}
    batches = {"training.client_batch": 128, "training.server_batch": 128}
    return preset(method).with_changes(
        {**sizes, **batches, "training.rounds": 1, "compute.device": "cpu", **more}
    )


def planted(data: Dataset) -> Dataset:
    """Plant unique, impossible speeds in windows of the first sensor."""
    values = data.readings.values.copy()
    missing = data.readings.missing.copy()
    for k, start in enumerate(PLANTED):
        values[start : start + LENGTH, 0] = 371.2519 + 17.77 * k + 0.3137 * np.arange(LENGTH)
        missing[start : start + LENGTH, 0] = False
    return replace(data, readings=replace(data.readings, values=values, missing=missing))


def audited_federation(folder: Path, stack: ExitStack) -> Audit:
    """A federation of two sites that has trained and evaluated two methods, and forecast with one."""
    data = planted(city_on_disk(folder / "city", 6, 2.0))
    tapped = folder / "tapped"
    tapped.mkdir()
    sites = stack.enter_context(running_federation(folder, data, SITES, up=False))
    wire = stack.enter_context(wired(sites.kits["audited"]))
    for name, kit in sites.kits.items():
        with pytest.MonkeyPatch.context() as patch:
            if name == "audited":
                places = [str(TAP), os.environ.get("PYTHONPATH", "")]
                patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, places)))
                patch.setenv("CNFGNN_TAP", str(tapped))
            processes.up(kit)
    audit = Audit(sites, data, wire, tapped)
    audit.follow(Task("train", "one", settings=settings_of(config("at-fedavg"))))
    # at full precision: values rounded to one byte would not be found
    plus = config("cnfgnn-plus", **{"training.wire": "full", "model.sent": 8})
    audit.follow(Task("train", "plus", settings=settings_of(plus), given=given_of(plus)))
    audit.follow(Task("forecast", "plus"))
    audit.record()
    return audit


@pytest.mark.slow
def test_no_reading_leaves_a_site(tmp_path: Path) -> None:
    """One test for all checks, because each test process would start a federation of its own."""
    with ExitStack() as stack:
        audit = audited_federation(tmp_path, stack)
        check_that_sockets_carry_no_readings(audit)
        check_that_the_tap_recorded_every_byte(audit)
        check_that_the_servers_disk_holds_no_readings(audit)
        check_that_no_weekly_profile_leaves_the_site(audit)
        check_that_the_search_finds_readings(audit)
        check_that_secrets_are_in_no_log_file_or_command(audit)
        check_that_files_are_private(audit)


def check_that_sockets_carry_no_readings(audit: Audit) -> None:
    for direction in ("out", "in"):
        carried = audit.carried(direction)
        assert audit.search.found(carried) == set()
        assert b'"clock"' in carried or direction == "in"  # the recording is not empty


def check_that_the_tap_recorded_every_byte(audit: Audit) -> None:
    """Compare with an independent count: the lengths of the TLS records on the wire."""
    assert audit.elsewhere == set()
    for way, direction in ((audit.wire.up, "out"), (audit.wire.down, "in")):
        kept = len(audit.carried(direction, f"tls-{audit.wire.port}"))
        assert kept > 300_000  # hidden states and gradients
        assert kept <= way.carried <= kept + HANDSHAKE * audit.wire.connections


def check_that_the_servers_disk_holds_no_readings(audit: Audit) -> None:
    search, names = audit.search, {name for name, _ in audit.disk}
    assert {name: hit for name, content in audit.disk if (hit := search.found(content))} == {}
    assert {"status.json", "runs/one/manifest.json", "runs/one/events.jsonl", "log.txt"} <= names
    assert any(name.startswith("jobs/") for name in names)
    assert any(name.endswith(".safetensors") for name in names)


def check_that_no_weekly_profile_leaves_the_site(audit: Audit) -> None:
    search = audit.profile_search
    for direction in ("out", "in"):
        assert search.found(audit.carried(direction)) == set()
    assert {name: hit for name, content in audit.disk if (hit := search.found(content))} == {}
    assert any(name.startswith("runs/plus/") and name.endswith(".safetensors") for name, _ in audit.disk)
    carried, scaler = audit.carried("out")[:100_001], audit.sites.run("plus").scaler
    assert scaler is not None
    for kind in search.kinds:  # the search itself works
        own = search.example(kind)
        for some in (own, (own - scaler.mean) / scaler.std) if kind == "usual_weeks" else (own,):
            for name, dtype in TYPES.items():
                hits = search.found(carried + encoded(some, dtype) + carried)
                assert any(hit.startswith(kind) and name in hit for hit in hits), (kind, name)
            assert search.found(",".join(repr(float(value)) for value in some).encode()), kind


def check_that_the_search_finds_readings(audit: Audit) -> None:
    """Insert readings in each type and layout at odd offsets into the recorded bytes."""
    search, carried = audit.search, audit.carried("out")[:100_001]
    own = audit.data.readings.values[:, SITES["audited"]].T.astype(np.float64)
    scaler = audit.sites.run().scaler
    assert scaler is not None
    window = own[1, 50:74]
    assert np.isfinite(window).all()
    for values in (window, (window - scaler.mean) / scaler.std, own[:, 60], own[0, PLANTED[1] :][:8]):
        for name, dtype in TYPES.items():
            assert any(name in hit for hit in search.found(carried + encoded(values, dtype) + carried)), name
        text = ",".join(f"{value:.8f}" for value in values)
        assert search.found(b'{"a": 1.5} ' + text.encode())
    marker = own[0, PLANTED[2]]
    assert search.found(carried + np.float32(marker).tobytes())
    assert search.found(carried + np.float32((marker - scaler.mean) / scaler.std).tobytes())
    assert search.found(f"the reading {marker:.4f} is odd".encode())
    own_disk = (audit.sites.folder / "example" / "data" / "audited" / "readings.csv").read_bytes()
    assert search.found(own_disk) >= {"readings as text"}


def test_the_wire_tap_records_every_kind_of_socket(tmp_path: Path) -> None:
    recordings = tmp_path / "tapped"
    recordings.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(TAP), "CNFGNN_TAP": str(recordings)}
    subprocess.run(
        [sys.executable, str(Path(__file__).parent / "socket_chatter.py"), str(tmp_path)],
        env=environment,
        check=True,
        timeout=60,
    )
    recorded = {
        direction: b"".join(path.read_bytes() for path in sorted(recordings.glob(f"*-{direction}")))
        for direction in ("out", "in")
    }
    for way in ("send", "sendall", "sendto", "sendmsg", "tls-send", "tls-sendall", "tls-write", "tls-bio"):
        assert f"<{way}>".encode() in recorded["out"], way
    for way in (
        "recv",
        "recv_into",
        "recvfrom",
        "recvmsg",
        "tls-recv",
        "tls-recv_into",
        "tls-read",
        "tls-bio",
    ):
        assert f"[{way}]".encode() in recorded["in"], way


def check_that_secrets_are_in_no_log_file_or_command(audit: Audit) -> None:
    secrets = {value.encode() for value in audit.secrets if len(value) >= 16}
    assert len(secrets) >= 2 * len(SITES)  # a token and a signature of each site, at least
    kits = audit.sites.server.parent
    for key in kits.rglob("*.key"):
        secrets |= {line for line in key.read_bytes().splitlines() if len(line) >= 40}
    assert len(secrets) >= 3 * 20
    for path in kits.rglob("*"):
        recorded_here = path.name.startswith(TAPPED)
        if path.is_file() and path.suffix != ".key" and path.parent.name != "authority" and not recorded_here:
            content = path.read_bytes()
            assert not [secret for secret in secrets if secret in content], path
    for _, content in audit.disk:
        assert b"PRIVATE KEY" not in content or content.startswith(b"-----BEGIN")
    assert audit.commands
    assert not [line for line in audit.commands if any(secret.decode() in line for secret in secrets)]


def check_that_files_are_private(audit: Audit) -> None:
    kits = audit.sites.server.parent
    names = {path.relative_to(kits).as_posix() for path in kits.rglob("*")}
    assert {"audited/forecasts/latest.csv", "server/status.json"} <= names
    assert any(name.startswith("audited/states/one-") for name in names)
    entered = {audit.sites.kits[name]: 0o011 for name in SITES}  # by the engine, as another user
    open_to_others = [
        path for path in [kits, *kits.rglob("*")] if path.lstat().st_mode & 0o077 & ~entered.get(path, 0)
    ]
    assert open_to_others == []
