"""Many sites far away from one server: what an exchange takes beside the time of the slowest site.

Sites with one sensor each are in a few processes, with the endpoint of a real federation. Between them and
the server are the codec and the links of a federation and a channel that delays every note. The first table
has a line per request of a round: milliseconds until the last answer, those that the slowest site needed (its
work and the delay), and the sum over all sites, which asking one after the other would take. The ends share
the cores of this machine with the server, so a second table repeats the same requests to sites whose answers
are ready: what is left is the delay and the server's own work, of which it shows the processor time. It also
has a hello to every site, and bringing all sites up to date at once. At the end, one site stops answering.

    python benchmarks/many_sites.py
    python benchmarks/many_sites.py --sites 50 --latency 20 --method at-fedavg
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import Queue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.experiment import federate
from cnfgnn.algorithm.messages.calls import Call, Payload
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.methods import preset
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.server import Server
from cnfgnn.algorithm.store import MemoryStore, SiteMemoryStore
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.series import Series
from cnfgnn.data.windows import Windows
from cnfgnn.federation.server.task_context import strategy_of
from cnfgnn.transports.remote.endpoint import Endpoint, Terms
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.messages import Unreachable, unpack
from cnfgnn.transports.remote.transport import RemoteTransport, Site

if __package__:  # imported by tests
    from benchmarks.shapes import OneSentence, random_network
else:
    from shapes import OneSentence, random_network

WIRES = 2  # connections to each site: a hello must not wait for the answer to a request
SHORT = 100  # bytes
NUMBER = 8  # bytes of a number before each note: an answer that comes too late is recognised by it
STARTS_WITHIN = 300.0  # seconds in which the processes of the ends have to start
REPEATED = 15  # exchanges with answers that are ready
MIB = 2**20


def name(row: int) -> str:
    return f"site-{row}"


# ---- the sites --------------------------------------------------------------------------------------------


def host(data: Dataset, config: Config, wires: Mapping[int, Sequence[Connection]]) -> None:
    """A process with the ends of some sites, by row of the data."""
    torch.set_num_threads(1)

    def listen(end: Endpoint, wire: Connection) -> None:
        while True:
            try:
                request = wire.recv_bytes()
                wire.send_bytes(request[:NUMBER] + end.answer(request[NUMBER:]))
            except (EOFError, OSError):
                return

    for row, connections in wires.items():

        def join(terms: Terms, row: int = row) -> Owner:
            series = Series.of(data.readings, np.array([row]))
            nodes = Clients(series, Compute.of(config.compute), MemoryStore(), name(row))
            return Owner(nodes, series, SiteMemoryStore())

        end = Endpoint(join, lambda row=row: {"name": name(row)})  # type: ignore[misc]
        for wire in connections:
            threading.Thread(target=listen, args=[end, wire], daemon=True).start()
    threading.Event().wait()


@contextmanager
def hosted(data: Dataset, config: Config, hosts: int) -> Iterator[dict[str, Queue[Connection]]]:
    """The ends of one site per sensor, in so many processes; yields the connections to each."""
    context = multiprocessing.get_context("spawn")
    ours: dict[str, Queue[Connection]] = {}
    theirs: list[dict[int, list[Connection]]] = [{} for _ in range(hosts)]
    for row in range(data.graph.nodes):
        pairs = [context.Pipe() for _ in range(WIRES)]
        ours[name(row)] = Queue()
        for near, _ in pairs:
            ours[name(row)].put(near)
        theirs[row % hosts][row] = [far for _, far in pairs]
    started = [context.Process(target=host, args=(data, config, wires), daemon=True) for wires in theirs]
    for process in started:
        process.start()
    try:
        yield ours
    finally:
        for process in started:
            process.terminate()
            process.join()


@dataclass
class DelayingChannel:
    """Carries notes to the sites, each after a delay; those in `stuck` never answer."""

    wires: Mapping[str, Queue[Connection]]
    latency: float
    stuck: set[str] = field(default_factory=set)
    last: dict[str, bytes] = field(default_factory=dict)  # the last answer of each site to a request
    ready: Mapping[str, bytes] | None = None  # answers to send back without asking a site
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        begun = time.monotonic()
        if site in self.stuck:
            time.sleep(timeout)
            raise Unreachable("stuck")
        time.sleep(self.latency)
        # a hello is short: to unpack every note would count as work of the server
        hello = unpack(request).kind == "hello" if self.ready is None else len(request) < SHORT
        if self.ready is not None and not hello:
            return self.ready[site]
        wire, number = self.wires[site].get(), next(self.numbers).to_bytes(NUMBER, "little")
        answer = b""
        try:
            wire.send_bytes(number + request)
            while answer[:NUMBER] != number:
                if not wire.poll(max(0.0, timeout - (time.monotonic() - begun))):
                    raise Unreachable("no answer")
                answer = wire.recv_bytes()
        except OSError as error:
            raise Unreachable(str(error)) from error
        finally:
            self.wires[site].put(wire)
        if not hello:
            self.last[site] = answer[NUMBER:]
        return answer[NUMBER:]


# ---- what is measured -------------------------------------------------------------------------------------


@dataclass
class Asked:
    """One exchange, and what is needed to repeat it."""

    calls: Sequence[Call]
    rows: Tensor
    known: list[Sizes]
    answers: Mapping[str, bytes]


class Timed:
    """A transport that notes the seconds of each exchange, of its slowest site and of all sites."""

    def __init__(self, transport: RemoteTransport, channel: DelayingChannel) -> None:
        self.transport, self.channel = transport, channel
        self.first: dict[str, Asked] = {}
        self.seconds: dict[str, list[tuple[float, float, float]]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
        known = [site.known for site in self.transport.parties]
        begun = time.perf_counter()
        payload = self.transport.exchange(calls, rows)
        took = time.perf_counter() - begun
        each = [site.link.worked + self.channel.latency for site in self.transport.parties if site.present]
        verbs = "+".join(call.verb for call in calls)
        self.seconds[verbs].append((took, max(each, default=0.0), sum(each)))
        self.first.setdefault(verbs, Asked(calls, rows, known, dict(self.channel.last)))
        return payload

    def repeated(self, asked: Asked) -> None:
        """The same exchange with sites whose answers are ready."""
        for site, known in zip(self.transport.parties, asked.known, strict=True):
            site.known = known
        self.transport.exchange(asked.calls, asked.rows)


def median(work: Callable[[], object], times: int = REPEATED) -> tuple[float, float]:
    """The median of the seconds that something takes, and of those of this process's processor."""
    found = []
    for _ in range(times):
        begun = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    return statistics.median(f[0] for f in found), statistics.median(f[1] for f in found)


def connected(data: Dataset, config: Config, channel: DelayingChannel) -> tuple[Timed, Server]:
    parties = [
        Site(name(row), torch.tensor([row]), Link(name(row), channel, "session"), Sizes(1))
        for row in range(data.graph.nodes)
    ]
    terms = Terms(0, 300, len(data.readings.times), config.compute.precision, "run")
    timed, d = Timed(RemoteTransport(parties, terms), channel), config.data
    windows = Windows.of(len(data.readings.times), d.history, d.horizon, d.shares)
    experiment = federate(timed, data.graph, windows, config, None, "many", MemoryStore())
    timed.transport.setting_up = False
    return timed, strategy_of(experiment)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    data = random_network(options.sites, options.steps, min(7 * options.sites, options.sites**2))
    changes = {"training.rounds": 1, "compute.device": "cpu"}
    config = preset(options.method).with_changes(changes)
    with hosted(data, config, options.hosts) as wires:
        channel = DelayingChannel(wires, options.latency / 1e3)
        for site in wires:
            Link(site, channel, "session").hello(STARTS_WITHIN)
        timed, strategy = connected(data, config, channel)
        try:
            timed.seconds.clear()
            some_minibatches(strategy, options.minibatches)
            strategy.share(strategy.nodes)
            strategy.score("validation")
            strategy.nodes.up[:] = False
            strategy.nodes.rejoin()
            results = {"at work": at_work(timed), "ready": with_answers_ready(timed)}
            return results | {"stuck": with_a_stuck_site(timed)}
        finally:
            timed.transport.close()


class Enough(Exception):
    """As many minibatches as were asked for."""


def some_minibatches(strategy: Server, count: int) -> None:
    """Begin a round, and end it after so many minibatches of the Graph Network."""
    left = iter(range(count - 1))

    def tick() -> None:
        if next(left, None) is None:
            raise Enough

    strategy.tick = tick
    with suppress(Enough):
        strategy.round(1)


def at_work(timed: Timed) -> dict[str, Any]:
    """Each request of a round, answered by sites that compute."""
    print("\n| request | times | ms | slowest site, ms | ratio | one by one, ms |\n|---|---|---|---|---|---|")
    rows = {}
    for verbs, found in sorted(timed.seconds.items()):
        took, slowest, total = (1e3 * statistics.median(part) for part in zip(*found, strict=True))
        rows[verbs] = {"ms": took, "slowest": slowest, "one_by_one": total}
        cells = [verbs, f"{len(found)}", f"{took:,.0f}", f"{slowest:,.0f}", f"{took / slowest:.2f}"]
        print("| " + " | ".join([*cells, f"{total:,.0f}"]) + " |", flush=True)
    return rows


def with_answers_ready(timed: Timed) -> dict[str, Any]:
    """The same requests, answered at once after the delay, and a hello to all sites."""
    print("\n| request | ms | over the delay | server's processor, ms a site | KiB a site, both ways |")
    print("|---|---|---|---|---|")
    sites, channel, rows = timed.transport.parties, timed.channel, {}

    def line(what: str, seconds: float, processor: float, carried: float) -> None:
        share = seconds / channel.latency - 1 if channel.latency else float("nan")
        each = 1e3 * processor / len(sites)
        rows[what] = {"ms": 1e3 * seconds, "processor_ms_a_site": each}
        print(f"| {what} | {1e3 * seconds:.0f} | {share:+.0%} | {each:.3f} | {carried:.1f} |", flush=True)

    timed.transport._closed.set()  # no hellos in between
    for verbs, asked in sorted(timed.first.items()):
        channel.ready = asked.answers
        before = sum(site.carried for site in sites)
        seconds, processor = median(lambda asked=asked: timed.repeated(asked))  # type: ignore[misc]
        line(
            verbs, seconds, processor, (sum(s.carried for s in sites) - before) / REPEATED / len(sites) / 1024
        )
    channel.ready = None
    with ThreadPoolExecutor(len(sites)) as pool:
        line("hello", *median(lambda: list(pool.map(lambda site: site.link.hello(), sites))), 0.0)
    return rows


def with_a_stuck_site(timed: Timed) -> dict[str, float]:
    """One site stops answering: the exchange in which that happens, and the next."""
    asked = next(asked for verbs, asked in timed.first.items() if verbs.endswith("encode"))
    timed.channel.ready, timed.channel.stuck = asked.answers, {name(0)}
    seconds = []
    for _ in range(2):
        begun = time.perf_counter()
        timed.repeated(asked)
        seconds.append(time.perf_counter() - begun)
    given_up = timed.transport.parties[0].link.silent_for
    print(
        f"\none stuck site: {seconds[0]:.1f} s for the exchange in which it stops answering (given up after"
        f" {given_up:.0f} s), {1e3 * seconds[1]:.0f} ms for the next"
    )
    return {"first": seconds[0], "next": seconds[1], "given_up_after": given_up}


def main() -> None:
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=200)
    parser.add_argument("--latency", type=float, default=50.0, help="ms of a round trip")
    parser.add_argument("--method", default="cnfgnn-plus")
    parser.add_argument("--steps", type=int, default=600, help="of readings")
    parser.add_argument("--minibatches", type=int, default=3, help="of the round")
    parser.add_argument("--hosts", type=int, default=2, help="processes that the ends are in")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    if options.sites < 1 or options.hosts < 1 or options.latency < 0:
        parser.error("sites and hosts must be at least 1, latency at least 0")
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results = measure(options)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
