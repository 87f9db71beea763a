"""The ledger agrees with the bytes on the wire within ten percent, at the size of a week of METR-LA."""

from __future__ import annotations

import pytest
from benchmarks.federation import against_the_wire
from benchmarks.wire import APPLICATION, RECORD, SEAL, _Records

from cnfgnn.algorithm.methods import preset
from cnfgnn.data.synthetic.city import city
from tests.federation.running_federation import ENGINE_WARNINGS

pytestmark = ENGINE_WARNINGS
ENGINE_BYTES_PER_SECOND = 4 * 1000  # sign-on, heartbeats and status of four sites


@pytest.mark.chaos
@pytest.mark.parametrize("method", ["gru-fedavg", "at-fedavg"])
def test_bytes_at_the_sockets_equal_the_ledger_within_ten_percent(method: str) -> None:
    """207 sensors in four sites, seven days: bytes do not depend on what the readings are."""
    config = preset(method).with_changes({"training.rounds": 1, "compute.device": "cpu"})
    counted = against_the_wire(city(207, 7.0), 4, config)
    assert counted["ledger"] > 40e6
    assert counted["ledger"] < counted["messages"] < 1.05 * counted["ledger"], counted
    # On a busy machine a training takes longer, and the engine's own traffic grows with time.
    heartbeats = ENGINE_BYTES_PER_SECOND * counted["elapsed"]
    assert counted["messages"] < counted["wire"] < 1.10 * counted["ledger"] + heartbeats, counted


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_the_counting_wire_counts_the_payload_of_tls_records(chunk: int) -> None:
    def record(kind: int, carried: int) -> bytes:
        size = carried + SEAL if kind == APPLICATION else carried
        return bytes([kind, 3, 3]) + size.to_bytes(2, "big") + bytes(size)

    stream = record(22, 300) + record(APPLICATION, 0) + record(APPLICATION, 1200) + record(21, 2)
    records = _Records()
    pieces = [stream[start : start + chunk] for start in range(0, len(stream), chunk)]
    assert sum(records.read(piece) for piece in pieces) == 1200
    assert len(stream) == 4 * RECORD + 300 + 1200 + 2 + 2 * SEAL
