"""The ledger agrees with the bytes on the wire within ten percent, with as many sensors as METR-LA has."""

from __future__ import annotations

import pytest
from benchmarks.federation import against_the_wire
from benchmarks.wire import APPLICATION, RECORD, SEAL, _Records

from cnfgnn.algorithm.methods import preset
from cnfgnn.data.synthetic.city import city
from tests.federation.running_federation import ENGINE_WARNINGS

pytestmark = ENGINE_WARNINGS
ENGINE_BYTES_PER_SECOND = 4 * 1000  # sign-on, heartbeats and status of four sites


@pytest.mark.parametrize(
    ("method", "sites", "days"),
    [
        pytest.param("gru-fedavg", 2, 1.0, marks=pytest.mark.slow),  # weights, however many windows there are
        pytest.param("gru-fedavg", 4, 7.0, marks=pytest.mark.chaos),
        pytest.param("at-fedavg", 4, 7.0, marks=pytest.mark.chaos),
    ],
)
def test_bytes_at_the_sockets_equal_the_ledger_within_ten_percent(
    method: str, sites: int, days: float
) -> None:
    """Bytes do not depend on what the readings are."""
    config = preset(method).with_changes({"training.rounds": 1, "compute.device": "cpu"})
    counted = against_the_wire(city(207, days), sites, config)
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
