"""What reads input from outside, good input for it, and the errors by which it may refuse."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from random import Random

import torch

from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.data.files.formats import read_readings
from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import DataError
from cnfgnn.federation.engine.guard.handshake import decode_frame, encode_frame
from cnfgnn.live.intake.clock import Zone
from cnfgnn.live.intake.observations import MalformedInput, read_json
from cnfgnn.transports.remote.codec import Answer, decode_calls, encode_answers
from cnfgnn.transports.remote.header import Malformed
from cnfgnn.transports.remote.schema import check_answers, check_calls
from tests.transports.remote.both_ways import decode_answers, encode_calls
from tests.transports.remote.test_schema import GOOD, HIDDEN, KNOWN, N

TOKENS = (
    b"\n",
    b",",
    b";",
    b'"',
    b"\x00",
    b"nan",
    b"1e309",
    b"-0",
    b"\xff\xfe",
    b"9" * 40,
    b"[[",
    b"{}",
    b"2024-10-27 02:30",
)
MOST_DAMAGE = 4


@dataclass(frozen=True)
class Target:
    """`read` takes each of `good`, and raises only `refusals` for anything else."""

    read: Callable[[bytes], object]
    good: Sequence[bytes]
    refusals: tuple[type[Exception], ...]


def damaged(random: Random, good: Sequence[bytes]) -> bytes:
    """One of these, changed in up to a few places."""
    content = bytearray(random.choice(good))
    for _ in range(random.randint(1, MOST_DAMAGE)):
        start = random.randrange(len(content) + 1)
        stop = min(len(content), start + random.choice((0, 1, 1, 2, 8, 64)))
        match random.randrange(5):
            case 0 if start < len(content):
                content[start] ^= 1 << random.randrange(8)
            case 1:
                del content[start:stop]
            case 2:
                content[start:start] = content[start:stop] * random.choice((1, 2, 50))
            case 3:
                content[start:stop] = random.choice(TOKENS)
            case _:
                other = random.choice(good)
                content[start:] = other[random.randrange(len(other) + 1) :]
    return bytes(content)


def _read_csv(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "readings.csv"
        file.write_bytes(content)
        read_readings(file, ReadingOptions())


ASKED = Call("encode", {"split": "validation"}, {})
ANSWERED = Answer("encode", None, {"h_c": torch.zeros(N, 7, HIDDEN)})


WIDE = "time,a,b\n" + "".join(
    f"2024-01-31 {h:02}:{m:02},{h}.5,{m}\n" for h in range(3) for m in range(0, 60, 5)
)
LONG = "time;sensor;value\n" + "".join(
    f"31.01.2024 {h:02}:00;s{k};{h},{k}\n" for h in range(9) for k in range(3)
)
READINGS = (
    b'[{"sensor": "s1", "time": "2024-01-31T08:05:00Z", "value": 51.2},'
    b' {"time": 1706688300, "values": {"s1": 1, "s2": null}}]'
)
OBSERVATION = b'{"phenomenonTime": "2024-01-31T08:05:00Z", "result": 51.2, "Datastream": {"@iot.id": "s1"}}'

TARGETS = {
    "calls": Target(
        lambda content: decode_calls(content, lambda parts: check_calls(parts, KNOWN)),
        [encode_calls([call]) for call in GOOD],
        (Malformed,),
    ),
    "answers": Target(
        lambda content: decode_answers(content, lambda parts: check_answers(parts, [ASKED], KNOWN)),
        [encode_answers([ANSWERED]), encode_answers([Answer("encode", "the disk is full")])],
        (Malformed,),
    ),
    "handshake": Target(decode_frame, [encode_frame(1, {"endpoint": {"name": "north"}, "n": 7})], ()),
    "csv": Target(_read_csv, [WIDE.encode(), LONG.encode(), WIDE.encode("utf-16")], (DataError,)),
    "json": Target(
        lambda content: read_json(content, Zone(True, UTC), 1706688300.0),
        [READINGS, OBSERVATION],
        (MalformedInput,),
    ),
}
