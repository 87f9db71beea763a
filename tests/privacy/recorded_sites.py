"""Sites in this process behind the real protocol: endpoint, notes and codec. Every note is recorded.

Durations and clocks are left out of the record: what takes how long is visible, and listed as such.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.experiment import federate
from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.owner import Owner
from cnfgnn.algorithm.server import Server
from cnfgnn.algorithm.store import MemoryStore, SiteMemoryStore
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.inputs import InputCounts, used_inputs
from cnfgnn.data.series import Scaler, Series
from cnfgnn.data.windows import Split, Windows
from cnfgnn.runs.simulation import truth_and_copy
from cnfgnn.testing.two_truths import HISTORY, HORIZON, Seen, TwoTruths, as_bytes
from cnfgnn.transports.remote.endpoint import Endpoint, Terms
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.messages import Note, Unreachable, pack, unpack
from cnfgnn.transports.remote.transport import RemoteTransport, Site
from tests.transports.remote.both_ways import encode_calls

TIMING = {"seconds", "verbs", "clock", "busy"}  # fields of notes that tell how long something took
SESSION = "session"


class RecordedSites:
    """The sites of a federation, made from one of two truths; `cut` names those that cannot be reached."""

    def __init__(self, truths: TwoTruths, data: Dataset, groups: Sequence[Sequence[int]]) -> None:
        self.truths, self.groups = truths, groups
        self.truth, self.copy = truth_and_copy(
            used_inputs(data.readings, truths.config), truths.config, truths.copies
        )
        assert self.truth is not self.copy
        self.stores = [(SiteMemoryStore(), SiteMemoryStore()) for _ in groups]
        self.owners: list[Owner | None] = [None for _ in groups]
        self.ends = [self.started(k) for k in range(len(groups))]
        self.cut: set[str] = set()
        self.log: list[list[bytes]] = [[] for _ in groups]

    def started(self, k: int) -> Endpoint:
        """A site's process, after a start or a restart: it has what is in its stores, and nothing else."""

        def join(terms: Terms) -> Owner:
            rows, (of_site, of_owner) = np.array(self.groups[k]), self.stores[k]
            compute = Compute.of(self.truths.config.compute)
            nodes = Clients(Series.of(self.copy, rows), compute, of_site, f"site-{k}")
            self.owners[k] = owner = Owner(nodes, Series.of(self.truth, rows), of_owner)
            return owner

        return Endpoint(join, lambda: {"name": f"site-{k}"})

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        k = int(site.removeprefix("site-"))
        if site in self.cut:
            raise Unreachable("cut")
        answer = self.ends[k].answer(request)
        asked, answered = unpack(request), unpack(answer)
        if asked.kind != "hello":
            if asked.kind != "wait":  # how often the server has to wait is a matter of time
                self.log[k].append(request)
            if answered.kind != "working":
                self.log[k].append(timeless(answered))
        return answer

    def transport(self) -> RemoteTransport:
        rows = [torch.tensor(group) for group in self.groups]
        parties = [
            Site(f"site-{k}", rows[k], Link(f"site-{k}", self, SESSION), Sizes(len(rows[k])))
            for k in range(len(rows))
        ]
        transport = RemoteTransport(parties, self.terms)
        transport._closed.set()  # nobody asks in between who is there: the test decides
        return transport

    @property
    def terms(self) -> Terms:
        return Terms(0, 3600, len(self.truth.times), self.truths.config.compute.precision, "run")


def timeless(note: Note) -> bytes:
    """A note without what depends on time."""
    return pack(note.kind, note.payload, **{k: v for k, v in note.fields.items() if k not in TIMING})


def train_over_wires(truths: TwoTruths, data: Dataset, groups: Sequence[Sequence[int]]) -> Seen:
    """Two rounds; a site is away in the second, restarts and is back for the evaluation. Then a restore, an
    evaluation and a forecast."""
    sites = RecordedSites(truths, data, groups)
    transport, store = sites.transport(), MemoryStore()
    seen, d = Seen(), truths.config.data
    windows = Windows.of(len(sites.truth.times), d.history, d.horizon, d.shares)

    def server(windows: Windows, scaler: Scaler | None = None) -> tuple[Server, Scaler]:
        experiment = federate(
            transport,
            data.graph,
            windows,
            truths.config,
            None,
            "federation",
            store,
            scaler=scaler,
            inputs=InputCounts.of(sites.copy.others),
        )
        assert isinstance(experiment.strategy, Server)
        return experiment.strategy, experiment.scaler

    def evaluated(split: Split) -> None:
        seen.messages.append(as_bytes(strategy.score(split)._asdict()))

    strategy, scaler = server(windows)
    transport.setting_up = False
    strategy.round(1)
    strategy.save("round-00001", ())
    evaluated("validation")
    sites.cut = {f"site-{len(groups) - 1}"}
    strategy.round(2)
    sites.ends[-1], sites.cut = sites.started(len(groups) - 1), set()
    transport.parties[-1].reachable = True
    evaluated("validation")
    strategy.save("round-00002", ["round-00001"])
    strategy.restore("round-00001")
    evaluated("test")
    strategy, _ = server(Windows.next(len(sites.truth.times) - HORIZON, HISTORY, HORIZON), scaler)
    strategy.restore("round-00002", to_learn=False)
    strategy.forecast([80, 95])
    transport.close()
    seen.messages += [*itertools.chain(*sites.log), *(site.problem.encode() for site in transport.parties)]
    for tag, state in store.states.items():
        seen.files[f"server/{tag}"] = as_bytes(state)
    for k, ((of_site, of_owner), owner) in enumerate(zip(sites.stores, sites.owners, strict=True)):
        assert owner is not None
        if owner.forecasts is not None:
            seen.of_owner[f"forecasts of site-{k}"] = as_bytes({"forecasts": owner.forecasts})
        for tag, state in of_site.states.items():
            seen.files[f"site-{k}/{tag}"] = as_bytes(state)
        for tag, state in of_owner.states.items():
            seen.of_owner[f"owner-{k}/{tag}"] = as_bytes(state)
    return seen


class Sender:
    """A server that sends one site whatever it likes, and keeps what comes back."""

    def __init__(self, end: Endpoint, terms: Terms) -> None:
        self.end, self.terms, self.numbers = end, terms, itertools.count(1)

    def send(self, calls: Sequence[Call]) -> bytes:
        return self.send_bytes(encode_calls(calls))

    def send_bytes(self, request: bytes) -> bytes:
        """The note that answers this request, without what depends on time."""
        same = {"session": SESSION, "number": next(self.numbers), "piece": 1 << 24}
        note = unpack(
            self.end.answer(pack("run", request, start=0, size=len(request), **same, **self.terms._asdict()))
        )
        while note.kind == "working":
            note = unpack(self.end.answer(pack("wait", **same)))
        return timeless(note)
