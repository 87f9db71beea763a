"""A live federation of real processes on this machine, started with `cnfgnn federation live`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import rows_of
from cnfgnn.federation.kits.processes import read_live
from cnfgnn.federation.site.status import read_site_status
from cnfgnn.live.web.token_file import read_token
from tests.commands import COMMAND
from tests.conftest import network
from tests.federation.live_federation import ABSENT, qualities, row_of
from tests.federation.reference_training import config
from tests.federation.running_federation import RunningFederation, running_federation
from tests.federation.undisturbed_ranges import assert_same_ranges, undisturbed
from tests.live.small_service import Client
from tests.waiting import wait_for

SITES: Mapping[str, Sequence[int]] = {"north": [0, 1], "south": [2, 3], "west": [4, 5]}
KNOWN, ROWS = 150, 600
TELLS = "west"  # the site whose owner tells the server how many readings lay within their ranges
FULL = {"full"}
TIMEOUT = 180.0  # seconds, on a busy machine


class LiveProcesses:
    """The processes of a live federation; each row is sent to the sites over HTTP."""

    def __init__(self, federation: RunningFederation, data: Dataset, options: Sequence[str] = ()) -> None:
        self.federation, self.data, self.row, self.options = federation, data, KNOWN, options
        self.sent = {name: list(columns) for name, columns in SITES.items()}  # columns of data
        self.lines: list[str] = []

    # ---- the command --------------------------------------------------------------------------------

    def start(self) -> None:
        options = ["--clock", "feed", "--speed", "60", "--deadline", "60", "--port", "0"]
        command = [
            *COMMAND,
            "federation",
            "live",
            str(self.federation.server),
            "one",
            *options,
            *self.options,
        ]
        self.command = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ.copy()
        )
        threading.Thread(target=self._listen, daemon=True).start()
        wait_for(lambda: any("page of this federation" in line for line in self.lines), "the page", TIMEOUT)
        [address, file] = re.findall(r"(http://[\d.:]+)/ \(its token is in (\S+)\)", "".join(self.lines))[0]
        self.page = Client(address, read_token(Path(file)))

    def _listen(self) -> None:
        assert self.command.stdout is not None
        for line in self.command.stdout:
            self.lines.append(line)

    def end(self) -> int:
        """Ctrl-C; returns the exit code."""
        self.command.send_signal(signal.SIGINT)
        return self.command.wait(TIMEOUT)

    # ---- sites --------------------------------------------------------------------------------------

    @property
    def sites(self) -> Mapping[str, Any]:
        """What the page tells about the sites."""
        found: Mapping[str, Any] = self.page.get("/status").json["sites"]
        return found

    def is_joined(self, name: str) -> bool:
        if not read_live(self.federation.kits[name]):
            return False
        told = self.sites.get(name) or {}
        health = self.client(name).get("/health").json
        here = health.get("server", "present") == "present"
        return here and bool(told.get("reachable")) and told.get("quality") not in (None, *ABSENT)

    def wait_until_joined(self, *names: str) -> None:
        def joined() -> bool:
            with suppress(OSError, KeyError, TypeError):
                return all(self.is_joined(name) for name in names or SITES)
            return False

        wait_for(joined, f"{names or 'all sites'} take part; {self.lines[-3:]}", TIMEOUT)

    def client(self, name: str) -> Client:
        live = read_site_status(self.federation.kits[name])["live"]
        return Client(live["address"], read_token(Path(live["token_file"])))

    def assert_ranges_are_undisturbed(self, name: str) -> None:
        """The last forecast of a site has the ranges of a service that was never killed."""
        made = self.client(name).get("/forecasts").json
        assert_same_ranges(made, undisturbed(self.federation.kits[name], self.data, SITES[name]))

    def kill_service(self, name: str) -> None:
        os.kill(read_live(self.federation.kits[name])["pid"], signal.SIGKILL)

    # ---- steps --------------------------------------------------------------------------------------

    def next_forecasts(self, *names: str) -> dict[str, set[str]]:
        """Send the next row to these sites, or to all; the qualities of the forecasts after it, by site."""
        row, self.row = self.row, self.row + 1
        names = names or tuple(SITES)
        for name in names:
            assert self.client(name).post(row_of(self.data, row, self.sent[name])).status == 200
        step = str(self.data.readings.times[row])
        return {name: qualities(self.client(name).forecast_after(step)) for name in names}

    def until_full(self, *names: str) -> None:
        """Send rows until all these sites, or all, have a full forecast of the same step."""
        self.wait_until_joined(*names)
        wait_for(
            lambda: all(found == FULL for found in self.next_forecasts(*names).values()),
            "forecasts are full",
            TIMEOUT,
        )

    def until(self, condition: Callable[[], object]) -> None:
        """Send rows to all sites until something is true."""
        wait_for(lambda: bool(self.next_forecasts() and condition()), "the condition", TIMEOUT)


@contextmanager
def live_processes(
    folder: Path,
    up: bool = True,
    options: Sequence[str] = (),
    method: str = "cnfgnn-private",
    planted: str = "",
) -> Iterator[LiveProcesses]:
    """Kits of three sites with a trained run; with `up`, their processes run and the federation is live."""
    data = network(7, ROWS, dropout=0)  # the last sensor belongs to nobody yet
    known = data.select(data.readings.ids[:6])
    known = replace(known, readings=rows_of(known.readings, slice(0, KNOWN)))
    with running_federation(folder, known, SITES, blur=5.0, up=False, planted=planted) as federation:
        for name in SITES:
            file = federation.kits[name] / "local" / "site.toml"
            tells = "true" if name == TELLS else "false"
            file.write_text(
                file.read_text() + f'\n[live]\nport = 0\nclock = "feed"\ntell_coverage = {tells}\n'
            )
        live = LiveProcesses(federation, data, options)
        if up:
            go_live(live, method)
        try:
            yield live
        finally:
            if hasattr(live, "command") and live.command.poll() is None:
                live.end()


def go_live(live: LiveProcesses, method: str = "cnfgnn-private") -> None:
    from cnfgnn.federation.kits import processes

    for kit in live.federation.kits.values():
        processes.up(kit)
    small = {"training.client_batch": 32, "training.server_batch": 32}
    live.federation.train(config(1, method, **small))
    live.start()
    live.until_full()
