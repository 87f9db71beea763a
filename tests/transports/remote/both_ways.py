"""The directions that only tests take: no site writes calls, and no server reads answers one by one."""

from __future__ import annotations

from collections.abc import Sequence

from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.transports.remote.codec import Answer, Check, decoded, encoded
from cnfgnn.transports.remote.header import ANSWERS, CALLS
from cnfgnn.transports.remote.messages import Buffer


def encode_calls(calls: Sequence[Call]) -> bytes:
    return encoded(CALLS, calls)


def decode_answers(message: Buffer, check: Check | None = None, most: int | None = None) -> list[Answer]:
    found = decoded(ANSWERS, message, check, most)
    return [Answer(part.verb, part.problem, tensors) for part, tensors in found]
