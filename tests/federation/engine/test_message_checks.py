"""Every message is checked where it arrives; what its headers are is up to its sender."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool

from cnfgnn.federation.engine.guard import message_checks
from cnfgnn.federation.kits.refusals import read_refusals


@pytest.mark.parametrize("headers", [None, ["a", "list"], 7, "text", {1: 2}])
def test_headers_that_are_none_are_refused_and_told(
    headers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(message_checks, "_recorded", {})
    resolver = SimpleNamespace(resolve=lambda name: "fed.example.org" if name == "server" else name)
    cell = SimpleNamespace(identity_resolver=resolver, my_info=SimpleNamespace(fqcn="north", root="north"))
    connection = SimpleNamespace(get_conn_properties=lambda: {"peer_cn": "fed.example.org"})
    message_checks._process_if_allowed(cell, SimpleNamespace(name="server"), connection, 1, Message(headers))
    [refused] = read_refusals(tmp_path)
    assert refused["who"] == "server"


def test_what_messages_are_counted_by_stays_small() -> None:
    """Senders make up these names; the engine would keep each of them for good."""
    counters = CounterPool("received", "messages", ["received"], dynamic_counter_name=False)
    times = HistPool("travel", "seconds", [1.0, 2.0], "seconds")
    for count in range(2 * message_checks.MOST_COUNTED):
        name = f"reply:{count}:" + "x" * (count % 2 * 1000)
        message_checks._increment_if_room(counters, category=name, counter_name="received")
        message_checks._record_value_if_room(times, category=name, value=0.5)
    for kept in (counters.cat_counters, times.cat_bins):
        assert len(kept) <= message_checks.MOST_COUNTED + 1
        assert max(map(len, kept)) <= message_checks.LONGEST_COUNTED
    assert counters.cat_counters["reply:0:"] == {"received": 1}
    message_checks._increment_if_room(counters, "reply:0:", "received")  # a known one is still counted
    assert counters.cat_counters["reply:0:"] == {"received": 2}
