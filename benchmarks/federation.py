"""A federation of real processes on this machine: exchanges, rounds, and the ledger against the network.

It prints three tables. **Exchanges**: a payload of each size goes to every site and comes back, all sites at
once, with nothing to compute. **Rounds**: at-fedavg on the synthetic city, with the seconds of the last
round, its number of exchanges, the time spent in exchanges while no site was computing (engine, codec,
network), and the simulator's round on one thread. **Ledger**: one round of 207 sensors and a week of readings
at four sites, with validation and test; the bytes of the TCP streams, counted by a relay, against the
per-site ledger. The streams also carry sign-on, heartbeats and the job itself.

    python benchmarks/federation.py
    python benchmarks/federation.py --table exchanges --sites 2 --payloads 32 1024
    python benchmarks/federation.py --table ledger --method gru-fedavg at-fedavg --sensors 207 --days 7
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cnfgnn.algorithm.methods import preset
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.synthetic.city import city
from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.engine.carry.jobs import connect, job_folder
from cnfgnn.federation.example import write_example
from cnfgnn.federation.kits import processes
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.operator.tasks import run_task, session_when_ready
from cnfgnn.federation.project import read_project
from cnfgnn.federation.server.status import read_status
from cnfgnn.federation.task import RUNS, Task, settings_of
from cnfgnn.process_setup import keep_freed_memory
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import simulate

if __package__:  # imported by tests
    from benchmarks.shapes import OneSentence
    from benchmarks.wire import Wire, wired
else:
    from shapes import OneSentence
    from wire import Wire, wired

TABLES = ("exchanges", "rounds", "ledger")
HERE = Path(__file__).parent
ECHO = ("echo_job.EchoServer", "echo_job.EchoSite")
MIB = 2**20


@dataclass(frozen=True)
class Federated:
    """Kits with running processes, and the relays between them if there are any."""

    kits: Mapping[str, Path]
    wires: Mapping[str, Wire]
    folder: Path

    @property
    def server(self) -> Path:
        return self.kits["server"]


@contextmanager
def federated(
    data: Dataset, sites: Mapping[str, Sequence[int]], counted: bool = False
) -> Iterator[Federated]:
    """Distribute the data to processes on this machine and stop all of them at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="federation-")))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        kits = make_kits(read_project(write_example(folder / "example", data, sites)), folder / "kits", ECHO)
        wires = {name: stack.enter_context(wired(kits[name])) for name in sites} if counted else {}
        for kit in kits.values():
            stack.callback(processes.down, kit)
        started = {name: processes.up(kit) for name, kit in kits.items()}
        processes.wait_until_listening(kits["server"], started["server"])
        yield Federated(kits, wires, folder)


def shared_out(sites: int, sensors: int) -> dict[str, list[int]]:
    """Split the sensors, in order, into parts of nearly equal size."""
    cuts = [sensors * k // sites for k in range(sites + 1)]
    return {f"site-{k + 1}": list(range(cuts[k], cuts[k + 1])) for k in range(sites)}


def trained(there: Federated, config: Config, name: str = "one") -> tuple[Run, Mapping[str, Any]]:
    """Run a whole training and return it with its last status."""
    run_task(there.server, Task("train", name, settings=settings_of(config)), lambda status: None)
    return Run.open(there.server / RUNS / name), read_status(there.server) or {}


# ---- exchanges ------------------------------------------------------------------------------------------


def exchanges(sites: int, payloads: Sequence[int]) -> dict[int, float]:
    """Map the KiB of a payload to the seconds of an exchange with all sites."""
    parts = shared_out(sites, sites)
    with federated(city(sites, 1.0), parts) as there:
        file = there.folder / "echo.json"
        args = {"file": str(file), "sites": list(parts), "sizes": [kib * 1024 for kib in payloads]}
        with session_when_ready(there.server):
            pass
        with connect(there.server) as session:
            while len(session.connected()) < sites:
                time.sleep(0.1)
            job = session.submit(job_folder(there.folder / "job", "echo", ECHO[0], args, ECHO[1], {}))
            while not file.exists():
                if session.state(job).startswith("FINISHED"):
                    raise CnfgnnError("the job that measures exchanges ended before it was done")
                time.sleep(0.2)
        return {int(size) // 1024: seconds for size, seconds in json.loads(file.read_text()).items()}


def table_of_exchanges(options: argparse.Namespace) -> list[dict[str, float]]:
    print("\n| sites | KiB | ms an exchange | exchanges a second | MiB a second, both ways |")
    print("|---|---|---|---|---|", flush=True)
    rows = []
    for sites in options.sites:
        for kib, seconds in exchanges(sites, options.payloads).items():
            rate = 2 * sites * kib / 1024 / seconds
            rows.append({"sites": sites, "kib": kib, "seconds": seconds, "mib_a_second": rate})
            print(
                f"| {sites} | {kib:,} | {1000 * seconds:.1f} | {1 / seconds:.1f} | {rate:.0f} |", flush=True
            )
    return rows


# ---- rounds ---------------------------------------------------------------------------------------------


def rounds(sites: int, each: int, days: float) -> dict[str, float]:
    data, parts = city(sites * each, days), shared_out(sites, sites * each)
    config = preset("at-fedavg").with_changes({"training.rounds": 2, "compute.device": "cpu"})
    with federated(data, parts) as there:
        seen: list[tuple[int, float, float, float]] = []  # at the end of each round

        def watch(status: Mapping[str, Any]) -> None:
            if len(seen) < status.get("done", 0):
                spent = (status["engine_seconds"], status["site_seconds"])
                seen.append((status["exchanges"], status["seconds"], *spent))

        task = Task("train", "one", settings=settings_of(config))
        run_task(there.server, task, watch)
        ledger = Run.open(there.server / RUNS / "one").test()["ledger"]
    asked = seen[-1][0] - seen[0][0] if len(seen) > 1 else seen[-1][0]
    on_the_way = (seen[-1][2] - seen[-1][3]) - (seen[0][2] - seen[0][3] if len(seen) > 1 else 0.0)
    total = sum(item[4] for item in ledger if item[0] in ("training", "evaluation"))
    return {
        "sites": sites,
        "sensors": each,
        "seconds": seen[-1][1],
        "exchanges": asked,
        "on_the_way": on_the_way,
        "mib": int(total) / MIB / config.training.rounds,
        "simulated": simulated(data, config, list(parts.values())),
    }


def simulated(data: Dataset, config: Config, groups: list[list[int]]) -> float:
    """Seconds of the simulator's second round, with validation."""
    experiment = simulate(data, config, groups=groups)
    for r_g in (1, 2):
        begun = time.perf_counter()
        experiment.strategy.round(r_g)
        experiment.strategy.score("validation")
    return time.perf_counter() - begun


def table_of_rounds(options: argparse.Namespace) -> list[dict[str, float]]:
    heads = (
        "sites",
        "sensors each",
        "s a round",
        "exchanges",
        "on the way, s",
        "share",
        "MiB",
        "simulator, s",
    )
    print("\n| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    rows = []
    for each in options.each:
        for sites in options.sites:
            row = rounds(sites, each, options.round_days)
            rows.append(row)
            cells = [f"{sites}", f"{each}", f"{row['seconds']:.2f}", f"{row['exchanges']:.0f}"]
            cells += [f"{row['on_the_way']:.2f}", f"{row['on_the_way'] / row['seconds']:.0%}"]
            cells += [f"{row['mib']:.1f}", f"{row['simulated']:.2f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
    return rows


# ---- ledger ---------------------------------------------------------------------------------------------


def against_the_wire(data: Dataset, sites: int, config: Config) -> dict[str, Any]:
    """Bytes of one training: in the ledger, in our messages, and in the TCP streams of all sites."""
    with federated(data, shared_out(sites, len(data.readings.ids)), counted=True) as there:
        begun = time.perf_counter()
        run, status = trained(there, config)
        elapsed = time.perf_counter() - begun
        wire = sum(one.bytes for one in there.wires.values())
        ledger = sum(item[4] for item in run.test()["ledger"])
    messages = sum(site["bytes"] for site in status["sites"].values())
    return {
        "method": config.method,
        "ledger": int(ledger),
        "messages": messages,
        "wire": wire,
        "overhead": wire / ledger - 1,
        "exchanges": status["exchanges"],
        "seconds": status.get("seconds"),
        "elapsed": elapsed,
    }


def table_of_ledger(options: argparse.Namespace) -> list[dict[str, Any]]:
    print("\n| method | ledger, MiB | messages, MiB | wire, MiB | wire over ledger | exchanges | s a round |")
    print("|---|---|---|---|---|---|---|", flush=True)
    data, rows = city(options.sensors, options.days), []
    for method in options.method:
        config = preset(method).with_changes({"training.rounds": 1, "compute.device": "cpu"})
        row = against_the_wire(data, options.ledger_sites, config)
        rows.append(row)
        cells = [method, *(f"{row[key] / MIB:.2f}" for key in ("ledger", "messages", "wire"))]
        cells += [f"{row['overhead']:+.2%}", f"{row['exchanges']}", f"{row['seconds']:.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    return rows


def main() -> None:
    keep_freed_memory()
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--payloads", type=int, nargs="+", default=[32, 1024, 10240], help="KiB, each way")
    parser.add_argument("--each", type=int, nargs="+", default=[1, 8], help="sensors per site, for rounds")
    parser.add_argument("--round-days", type=float, default=2.0, help="of the city, for rounds")
    parser.add_argument("--method", nargs="+", default=["gru-fedavg", "at-fedavg"], help="for the ledger")
    parser.add_argument("--sensors", type=int, default=207, help="of the city, for the ledger")
    parser.add_argument("--days", type=float, default=7, help="of the city, for the ledger")
    parser.add_argument("--ledger-sites", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    make = {"exchanges": table_of_exchanges, "rounds": table_of_rounds, "ledger": table_of_ledger}
    try:
        results = {table: make[table](options) for table in options.table}
    except CnfgnnError as problem:
        parser.error(str(problem))
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
