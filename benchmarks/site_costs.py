"""What a site costs: seconds until it takes part in a task, milliseconds an exchange, memory, and silence.

Everything is a real process: the commands of cnfgnn, the engine, mutual TLS, on this machine. The script uses
commands and files of the kits only, so that it runs on checkouts whose modules and processes differ. First a
federation of one site with one sensor, then one of many such sites. What the rows of the table mean:

- **Seconds to the first exchange** are those from the start of the command `federation train` or `forecast`
  (its process is being created) until the server's status.json shows an exchange with a site (`exchanges`).
  Beside them: until it shows that the task has begun (its process has written a status) and that a site has
  answered a hello (`ready`). The server writes the file twice a second. A command starts only after the
  processes of the one before have ended. Medians.
- **An exchange** is a request of a training, from the moment in which the server begins to ask the site to
  that in which it has checked the answer (`engine_seconds`); *on the way* is what remains without the seconds
  that the site reports to have worked (`site_seconds`). They are differences between one status and the next
  in phase (3) of at-fedavg, whose exchanges are alike; medians over the statuses. Sizes are bytes of
  messages, both ways together. A **hello** is the server's small request whether a site is there (`latency`).
- **Memory** is that of the process in process.json of a kit, of all processes below it, and of those that
  name the kit in their command line. PSS counts a page that n processes map as 1/n for each, also if the
  others are not the site's: the server and the commands are on this machine, too. RSS counts it in each. *By
  itself* is what the site would have without them: each page of a file once, however many of the site's
  processes map it, and all other pages as in PSS. In a training it is the most of several samples, which take
  at most a tenth of one core.
- **Silence** is the longest time between two lines that a command wrote to a pipe, from its start to its end;
  the largest of all commands of that kind.

    python benchmarks/site_costs.py
    python benchmarks/site_costs.py --sites 8 --json costs.json
    python benchmarks/site_costs.py --sites 2 --quick              # only to see that it runs
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

import cnfgnn
from cnfgnn.data.windows import Windows
from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.example import write_example

if __package__:  # imported by tests
    from benchmarks.shapes import OneSentence, random_network
else:
    from shapes import OneSentence, random_network

BLUR = 5.0  # of every site; the method is the default one, which needs a blur
TRAINING = {"training.rounds": 2}
STEPS_A_DAY = 288
SILENT, LISTED = 5.0, 3  # seconds: longer silences are listed, so many in the table
WITHIN = 600.0  # seconds for anything that is waited for
LOOK_EVERY = 0.02  # seconds between looks at a status file
SAMPLING = 0.1  # at most this share of one processor is used for measuring memory
SAMPLE_EVERY = 0.25  # seconds, at least
STEADY_MIB, STEADY_FOR = 1.0, 3  # memory is steady if so many samples, a second apart, agree
UNCHANGED_FOR = 10.0  # seconds after which processes that stay are no leftovers of the last task
JOINED = re.compile(r"New client (\S+)@\S+ joined")  # in the server's log, once a site has logged in


class Failed(Exception):
    """A command did not succeed, or something did not happen in time."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    days: float  # of readings, at the one site
    many_days: float  # at each of many sites
    times: int  # that a command is repeated
    small: int  # epochs of small exchanges
    large: int  # epochs of large exchanges, one each
    embedding: int  # numbers per window in a large exchange, each way


WHOLE = Size(days=7.0, many_days=3.0, times=3, small=20, large=60, embedding=384)
QUICK = Size(days=1.5, many_days=1.5, times=1, small=20, large=150, embedding=64)


# ---- commands ---------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """For all processes: the code that this one has imported, and one thread each, as all compute here."""
    code = str(Path(cnfgnn.__file__).parents[1])
    places = [code, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}


class Command:
    """A running command of `cnfgnn federation` that writes to a pipe; notes when each line came."""

    def __init__(self, *words: object) -> None:
        self.words = ["federation", *map(str, words)]
        self.begun, self.ended = time.monotonic(), 0.0
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cnfgnn", *self.words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((self.seconds, line.rstrip()))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def done(self) -> list[str]:
        """Wait until it has succeeded; returns what it wrote."""
        code = self.process.wait(WITHIN)
        self.ended = self.seconds
        self.reader.join(WITHIN)
        said = [line for _, line in self.lines]
        if code != 0:
            raise Failed(f"cnfgnn {' '.join(self.words)}: exit code {code}: {' / '.join(said[-5:])}")
        return said

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def silences(self) -> list[Silence]:
        """The times in which it said nothing, the longest first."""
        moments = [(0.0, ""), *self.lines, (self.ended, "")]
        found = [Silence(after - before, line) for (before, line), (after, _) in pairwise(moments)]
        return sorted(found, reverse=True)


class Silence(NamedTuple):
    seconds: float
    after: str  # the line before it; empty at the start of a command


def run(*words: object) -> list[str]:
    command = Command(*words)
    try:
        return command.done()
    finally:
        command.kill()


def finish(commands: Sequence[Command]) -> None:
    """Wait for all commands, also if one fails."""
    problems = []
    for command in commands:
        try:
            command.done()
        except (Failed, subprocess.TimeoutExpired) as problem:
            problems.append(str(problem))
        finally:
            command.kill()
    if problems:
        raise Failed("; ".join(problems))


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WITHIN
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"waited {WITHIN:.0f} s in vain until {what}")
        time.sleep(LOOK_EVERY)


# ---- a federation -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Federation:
    """Kits of a server and sites whose processes run."""

    server: Path
    sites: Mapping[str, Path]
    seconds: float  # from the commands `up` of all sites until all had logged in
    idle: int = 0  # how many processes it had before its first task

    @property
    def kits(self) -> dict[str, Path]:
        return {"server": self.server, **self.sites}

    def processes(self) -> set[int]:
        return set[int]().union(*processes_of(self.kits).values())


@contextmanager
def federation(folder: Path, count: int, days: float) -> Iterator[Federation]:
    """A server and sites with one sensor each; all are stopped at the end."""
    names = [f"site-{k + 1}" for k in range(count)]
    data = random_network(count, steps_of(days), min(7 * count, count**2))
    places = np.random.default_rng(0).random((count, 2))
    data = replace(data, readings=replace(data.readings, positions=places))
    project = write_example(folder / "project", data, {name: [k] for k, name in enumerate(names)}, blur=BLUR)
    run("init", project, "--out", folder / "kits")
    server, sites = folder / "kits" / "server", {name: folder / "kits" / name for name in names}
    try:
        run("up", server)
        seconds = seconds_to_connect(server, sites)
        there = Federation(server, sites, seconds)
        yield replace(there, idle=len(there.processes()))
    finally:
        finish([Command("down", kit) for kit in (server, *sites.values())])


def seconds_to_connect(server: Path, sites: Mapping[str, Path]) -> float:
    """Start all sites at the same time; seconds until the last one has logged in at the server."""
    begun = time.monotonic()
    commands = [Command("up", kit) for kit in sites.values()]

    def connected() -> bool:
        if any(command.process.poll() for command in commands):
            finish(commands)  # one has failed: that says why
        return set(JOINED.findall((server / "log.txt").read_text())) >= set(sites)

    wait_until(connected, "all sites had logged in")
    seconds = time.monotonic() - begun
    finish(commands)
    return seconds


def steps_of(days: float) -> int:
    return round(days * STEPS_A_DAY)


class Seen(NamedTuple):
    """A status of a task, and the seconds after the command's start in which it was seen."""

    seconds: float
    status: Mapping[str, Any]


@dataclass(frozen=True)
class Followed:
    """A command that ran a task to its end."""

    seen: Sequence[Seen]
    silences: Sequence[Silence]

    def until(self, condition: Callable[[Mapping[str, Any]], object]) -> float:
        """Seconds from the command's start to the first status of which this holds."""
        return next(seconds for seconds, status in self.seen if condition(status))

    def begins(self) -> dict[str, float]:
        """Seconds to each of the moments in which a task begins."""
        return {
            "begun": self.seen[0].seconds,
            "answered": self.until(lambda status: status.get("ready")),
            "exchanged": self.until(lambda status: status.get("exchanges")),
        }


def follow(there: Federation, *words: object) -> Followed:
    """Run a task, and look at its status all the time."""
    wait_until_settled(there)
    file = there.server / "status.json"
    before = read(file).get("token")
    seen: list[Seen] = []
    written = None
    command = Command(*words)

    def look() -> None:
        nonlocal written
        status, now = read(file), command.seconds
        if status.get("token") != before and status.get("time") != written:
            written = status.get("time")
            seen.append(Seen(now, status))

    try:
        while command.process.poll() is None:
            look()
            if command.seconds > WITHIN:
                raise Failed(f"cnfgnn {' '.join(command.words)} takes more than {WITHIN:.0f} s")
            time.sleep(LOOK_EVERY)
        look()
        command.done()
    finally:
        command.kill()
    print(f"{words[0]}: {command.ended:.1f} s", flush=True)
    return Followed(seen, command.silences())


def read(file: Path) -> dict[str, Any]:
    """A JSON file that is replaced as a whole; empty if there is none yet."""
    with suppress(FileNotFoundError):
        found = json.loads(file.read_text())
        return found if isinstance(found, dict) else {}
    return {}


def train(there: Federation, name: str, settings: Mapping[str, object], *options: str) -> Followed:
    changes = [f"--set={key}={value}" for key, value in settings.items()]
    return follow(there, "train", there.server, "--name", name, "--wait", WITHIN, *options, *changes)


# ---- memory -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """MiB of some processes; `by_itself` only where it was asked for."""

    pss: float
    rss: float
    processes: int
    by_itself: float = 0.0


def processes_of(kits: Mapping[str, Path]) -> dict[str, set[int]]:
    """The processes of each kit: the recorded one, all below it, and those whose command line names the kit.

    The commands that we have started name kits, too, but they are not the kits' own.
    """
    commands = {child.pid for child in psutil.Process().children(recursive=True)}
    children: dict[int, list[int]] = defaultdict(list)
    lines: dict[int, str] = {}
    for process in psutil.process_iter(["ppid", "cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE:
            children[process.info["ppid"]].append(process.pid)
            lines[process.pid] = "\0".join(process.info["cmdline"] or [])
    found = {}
    for name, kit in kits.items():
        named = re.compile(re.escape(str(kit)) + r"(?![\w.-])")  # not the kit of site-10 for that of site-1
        below, pids = [read(kit / "process.json").get("pid")], set[int]()
        while below:
            pid = below.pop()
            if pid in lines and pid not in pids:
                pids.add(pid)
                below += children[pid]
        found[name] = pids | {pid for pid, line in lines.items() if named.search(line)} - commands
    return found


def memory_of(pids: Sequence[int], in_detail: bool = False) -> Memory:
    """The memory of processes, of which some may end while it is measured."""
    pss = rss = anonymous = 0.0
    files: dict[str, float] = defaultdict(float)
    count = 0
    for pid in pids:
        try:
            mapped = pages_of_files(pid) if in_detail else {}
            rollup = fields(Path(f"/proc/{pid}/smaps_rollup").read_text())
            pss, rss, count = pss + rollup["Pss"], rss + rollup["Rss"], count + 1
            anonymous += rollup["Pss_Anon"]
            for file, mib in mapped.items():
                files[file] = max(files[file], mib)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except PermissionError as error:
            raise Failed(f"process {pid}: only root may read its memory") from error
    return Memory(pss, rss, count, anonymous + sum(files.values()) if in_detail else 0.0)


def pages_of_files(pid: int) -> dict[str, float]:
    """MiB of each file that a process has mapped, without the pages that it has made its own."""
    found: dict[str, float] = defaultdict(float)
    # A mapping begins with addresses, permissions, offset, device, inode and the file, if there is one.
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text()):
        head, _, rest = part.partition("\n")
        words = head.split(maxsplit=5)
        if len(words) == 6 and words[4] != "0":
            sizes = fields(rest)
            found[words[5]] += sizes["Rss"] - sizes["Anonymous"]
    return found


def fields(text: str) -> dict[str, float]:
    """MiB by name, from lines like `Pss:   12 kB`."""
    return {name: int(kib) / 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


class Sampler(threading.Thread):
    """Measures the memory of the server, and of all sites together, again and again."""

    def __init__(self, there: Federation, in_detail: bool) -> None:
        super().__init__(daemon=True)
        self.there, self.in_detail = there, in_detail
        self.samples: list[dict[str, Memory]] = []
        self.problem: Failed | None = None
        self.ended = threading.Event()

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()
        if self.problem is not None:
            raise self.problem

    def run(self) -> None:
        pause = 0.0
        while not self.ended.wait(pause):
            begun = time.monotonic()
            try:
                self.samples.append(sample(self.there, self.in_detail))
            except Failed as problem:
                self.problem = problem
                return
            pause = max(SAMPLE_EVERY, (time.monotonic() - begun) / SAMPLING)

    def most(self, party: str) -> Memory:
        return max((found[party] for found in self.samples), key=lambda memory: memory.pss)


def sample(there: Federation, in_detail: bool = False) -> dict[str, Memory]:
    pids = processes_of(there.kits)
    at_server = pids.pop("server")
    return {
        "server": memory_of(sorted(at_server)),
        "sites": memory_of(sorted(set().union(*pids.values())), in_detail),
    }


def steady(there: Federation) -> dict[str, Memory]:
    """The memory of processes that wait, once it no longer changes."""
    found = [sample(there, in_detail=True)]
    deadline = time.monotonic() + WITHIN

    def spread(party: str) -> float:
        last = [one[party].pss for one in found[-STEADY_FOR:]]
        return max(last) - min(last)

    while len(found) < STEADY_FOR or max(spread("server"), spread("sites")) > STEADY_MIB:
        if time.monotonic() > deadline:
            raise Failed(f"the memory of waiting processes was not steady within {WITHIN:.0f} s")
        time.sleep(1.0)
        found.append(sample(there, in_detail=True))
    return found[-1]


def wait_until_settled(there: Federation) -> None:
    """Until the processes of the last task have ended: the next one would wait for that."""
    last, since = there.processes(), time.monotonic()

    def settled() -> bool:
        nonlocal last, since
        if (now := there.processes()) != last:
            last, since = now, time.monotonic()
        time.sleep(SAMPLE_EVERY)
        return len(now) <= there.idle or time.monotonic() - since > UNCHANGED_FOR

    wait_until(settled, "the processes of a task had ended")


# ---- what is measured -------------------------------------------------------------------------------------


def exchanges(found: Followed) -> dict[str, float]:
    """Medians over the statuses of phase (3): milliseconds of an exchange, those on the way, and its KiB."""
    known = [status for _, status in found.seen if status.get("phase") == 3]
    rows = []
    for before, after in pairwise(known):
        if count := after["exchanges"] - before["exchanges"]:
            whole = after["engine_seconds"] - before["engine_seconds"]
            worked = after["site_seconds"] - before["site_seconds"]
            rows.append((1e3 * whole / count, 1e3 * (whole - worked) / count, carried(before, after) / count))
    if not rows:
        raise Failed("the exchanges were over before they could be measured")
    whole, on_the_way, kib = (statistics.median(part) for part in zip(*rows, strict=True))
    counted = known[-1]["exchanges"] - known[0]["exchanges"]
    return {"ms": whole, "on_the_way_ms": on_the_way, "kib": kib, "exchanges": counted}


def carried(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """KiB of all messages between two statuses."""
    new = [site["bytes"] - before["sites"][name]["bytes"] for name, site in after["sites"].items()]
    return float(sum(new)) / 1024


def latencies(found: Followed) -> set[float]:
    """The milliseconds of the hellos that a task sent to the sites it has exchanges with."""
    sites = [site for _, status in found.seen for site in (status.get("sites") or {}).values()]
    return {1e3 * site["latency"] for site in sites if site["latency"] is not None}


def measure_one(folder: Path, size: Size) -> dict[str, Any]:
    """A site by itself: when its tasks begin, its exchanges, its memory, what the commands say."""
    load = os.getloadavg()[0]
    with federation(folder, 1, size.days) as there:
        idle = steady(there)
        with Sampler(there, in_detail=True) as sampler:
            trained = [train(there, f"run-{k}", TRAINING) for k in range(size.times)]
        forecast = [follow(there, "forecast", there.server, "run-0") for _ in range(size.times)]
        asked = {
            "small": measured_exchanges(there, size, "small", size.small, embedding=8, batch=32),
            "large": measured_exchanges(there, size, "large", size.large, size.embedding),
        }
    hellos = set().union(*(latencies(found) for found in (*trained, *asked.values())))
    return {
        "load": load,
        "train": begins(trained),
        "forecast": begins(forecast),
        "exchange": {name: exchanges(found) for name, found in asked.items()},
        "hello": {"ms": statistics.median(hellos) if hellos else None, "hellos": len(hellos)},
        "idle": {party: asdict(memory) for party, memory in idle.items()},
        "training": {party: asdict(sampler.most(party)) for party in idle},
        "silence": {"train": silence(trained), "forecast": silence(forecast)},
    }


def measured_exchanges(
    there: Federation, size: Size, name: str, epochs: int, embedding: int, batch: int = 0
) -> Followed:
    """A training whose exchanges are nearly all alike; without a batch, each has all windows."""
    windows = Windows.of(steps_of(size.days), 1, 1).count("train")
    settings = {
        "data.history": 1,
        "data.horizon": 1,
        "model.hidden": 8,
        "model.embedding": embedding,
        "model.gn_widths": "[8,8]",
        "training.rounds": 1,
        "training.server_rounds": epochs,
        "training.server_batch": batch or windows,
    }
    return train(there, name, settings, "--method", "at-fedavg")


def measure_many(folder: Path, count: int, size: Size) -> dict[str, Any]:
    """Many sites: from `up` to all connected, from the command to the end of round 1, and the memory."""
    load = os.getloadavg()[0]
    with federation(folder, count, size.many_days) as there:
        wait_until_settled(there)
        with Sampler(there, in_detail=False) as sampler:
            trained = train(there, "run", TRAINING)
    return {
        "load": load,
        "sites": count,
        "connected": there.seconds,
        "train": trained.begins(),
        "round_1": trained.until(lambda status: status.get("done")),
        "training": {party: asdict(sampler.most(party)) for party in ("server", "sites")},
        "samples": len(sampler.samples),
        "silence": {"train": silence([trained])},
    }


def begins(found: Sequence[Followed]) -> dict[str, Any]:
    each = [one.begins() for one in found]
    return {**{key: statistics.median(one[key] for one in each) for key in each[0]}, "each": each}


def silence(found: Sequence[Followed]) -> dict[str, Any]:
    """The longest silence of some commands, and all long ones of the command that has it."""
    quietest = max(found, key=lambda one: one.silences[0].seconds).silences
    return {
        "longest": quietest[0].seconds,
        "long": [one._asdict() for one in quietest if one is quietest[0] or one.seconds > SILENT],
    }


# ---- the table --------------------------------------------------------------------------------------------


def table(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What, how much, and details."""
    one, many = found["one"], found["many"]
    for verb in ("train", "forecast"):
        yield from begin_rows(f"`{verb}`, one site", one[verb])
    for name in ("small", "large"):
        row = one["exchange"][name]
        details = f"ms; of these {row['on_the_way_ms']:.1f} ms on the way; {row['exchanges']} exchanges"
        yield f"exchange of {row['kib']:,.1f} KiB with one site", f"{row['ms']:.1f}", details
    if (ms := one["hello"]["ms"]) is not None:
        yield "hello to one site", f"{ms:.1f}", f"ms; median of {one['hello']['hellos']}"
    for state, when in (("idle", "idle after `up`"), ("training", "in a training, most")):
        for party in ("sites", "server"):
            who = "site of one sensor" if party == "sites" else "its server"
            yield f"{who}, {when}", *memory_cells(one[state][party])
    sites = f"{many['sites']} sites"
    yield f"{sites}: `up` of all to all connected", f"{many['connected']:.1f}", "s"
    yield from begin_rows(f"{sites}: `train`", many["train"])
    yield f"{sites}: `train` to the end of round 1", f"{many['round_1']:.1f}", "s"
    for party, who in (("sites", "all sites together"), ("server", "the server")):
        value, details = memory_cells(many["training"][party])
        yield f"{sites}: {who}, in a training, most", value, f"{details}; {many['samples']} samples"
    for who, told in (("one site", one["silence"]), (sites, many["silence"])):
        for verb, silent in told.items():
            listed = "; ".join(
                f"{gap['seconds']:.1f} after {short(gap['after'])}" for gap in silent["long"][:LISTED]
            )
            yield f"longest silence of `{verb}`, {who}", f"{silent['longest']:.1f}", f"s; {listed}"
    loads = ", ".join(f"{load:.1f}" for load in (one["load"], many["load"], found["load"]))
    yield "load of the machine", loads, f"before one site, before {sites}, at the end; {found['cores']} cores"


def begin_rows(what: str, row: Mapping[str, float]) -> Iterator[tuple[str, str, str]]:
    details = f"s; begun after {row['begun']:.1f} s, a site answered after {row['answered']:.1f} s"
    yield f"{what} to the first exchange", f"{row['exchanged']:.1f}", details


def memory_cells(memory: Mapping[str, float]) -> tuple[str, str]:
    alone = f"; by itself {memory['by_itself']:.0f} MiB" if memory["by_itself"] else ""
    count = f"{memory['processes']} process{'es' if memory['processes'] != 1 else ''}"
    return f"{memory['pss']:,.0f}", f"MiB (PSS){alone}; RSS {memory['rss']:,.0f} MiB; {count}"


def short(line: str) -> str:
    """The beginning of a line, without what would end a cell."""
    return f'"{line[:40].replace("|", "/")}"' if line else "its start"


def main() -> None:
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=20, help="of the federation of many sites")
    parser.add_argument("--quick", action="store_true", help="little data, every command once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    options = parser.parse_args()
    if options.sites < 1:
        parser.error(f"argument --sites: at least 1, not {options.sites}")
    signal.signal(signal.SIGTERM, partial(sys.exit, 143))  # so that all processes are stopped
    size = QUICK if options.quick else WHOLE
    print(f"code: {Path(cnfgnn.__file__).parent}", flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="costs-") as folder:
            found: dict[str, Any] = {
                "cores": len(os.sched_getaffinity(0)),
                "one": measure_one(Path(folder) / "one", size),
                "many": measure_many(Path(folder) / "many", options.sites, size),
            }
    except (Failed, CnfgnnError) as problem:
        sys.exit(f"site_costs.py: {problem}")
    found["load"] = os.getloadavg()[0]
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))
    print("\n| what | | |\n|---|---|---|")
    for row in table(found):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
