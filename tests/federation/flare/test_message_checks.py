"""Every message is checked where it arrives; what its headers are is up to its sender."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.f3.message import Message

from cnfgnn.federation.flare import message_checks
from cnfgnn.federation.refusals import read_refusals


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
