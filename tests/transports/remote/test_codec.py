"""Calls and answers come back from bytes as they were; other bytes are refused, and cheaply."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call, Number
from cnfgnn.transports.remote import header
from cnfgnn.transports.remote.codec import Answer, decode_calls, encode_answers
from cnfgnn.transports.remote.header import Malformed, Part
from tests.transports.remote.both_ways import decode_answers, encode_calls

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,20}", fullmatch=True)
numbers = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20).filter(str.isprintable)
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(list(header.DTYPES.values())))
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    values = torch.randint(
        -100, 100, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))
    )
    tensor = values.to(dtype)
    way = draw(st.sampled_from(["plain", "turned", "expanded", "every other", "learning"]))
    if way == "turned":
        return tensor.transpose(0, -1)
    if way == "expanded":
        return tensor[:1].expand(3, *shape[1:]) if shape[0] else tensor
    if way == "every other":
        return tensor[::2]
    return tensor.requires_grad_() if way == "learning" and dtype.is_floating_point else tensor


named = st.dictionaries(names, tensors(), max_size=4)
calls = st.lists(st.builds(Call, names, st.dictionaries(names, numbers, max_size=4), named), max_size=4)


def assert_same(found: Any, sent: Any) -> None:
    assert list(found) == list(sent), "in the order in which they were sent"
    for name, tensor in sent.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor.detach())


def typed(values: Any) -> dict[str, tuple[type, Number]]:
    return {name: (type(value), value) for name, value in values.items()}


@settings(deadline=None)
@given(calls, st.sampled_from([bytes, bytearray, memoryview]))
def test_calls_come_back_as_they_were(sent: list[Call], kind: type) -> None:
    message = encode_calls(sent)
    found = decode_calls(kind(message))
    assert [call.verb for call in found] == [call.verb for call in sent]
    for one, other in zip(found, sent, strict=True):
        assert typed(one.numbers) == typed(other.numbers)
        assert_same(one.tensors, other.tensors)
    assert encode_calls(found) == message, "there is one way to write a message"


@settings(deadline=None)
@given(st.lists(st.builds(Answer, names, st.none(), named), max_size=4), st.none() | st.text(max_size=2000))
def test_answers_come_back_as_they_were(sent: list[Answer], problem: str | None) -> None:
    if problem is not None:
        sent = [*sent, Answer("score", problem)]
    message = encode_answers(sent)
    found = decode_answers(bytearray(message))
    assert [answer.verb for answer in found] == [answer.verb for answer in sent]
    for one, other in zip(found, sent, strict=True):
        assert (one.problem is None) == (other.problem is None)
        assert_same(one.tensors, other.tensors)


def test_a_problem_becomes_one_line_that_any_terminal_shows() -> None:
    sent = Answer("score", "no\nsuch \x1b[31mfile\ud800" + 2000 * "x")
    problem = decode_answers(encode_answers([sent]))[0].problem
    assert problem is not None
    assert problem.startswith("no such  [31mfile x")
    assert len(problem) == 1000


def test_numbers_that_are_not_finite_travel_in_arrays_to_the_last_bit() -> None:
    tensor = torch.tensor([[float("nan"), float("inf"), -0.0, 5e-324]], dtype=torch.float64)
    found = decode_calls(encode_calls([Call("load", {}, {"w": tensor})]))[0].tensors["w"]
    assert torch.equal(found.view(torch.int64), tensor.view(torch.int64))


def test_arrays_of_a_bytearray_are_views_and_can_be_written_to() -> None:
    message = bytearray(encode_calls([Call("load", {}, {"a": torch.ones(1, 3), "b": torch.zeros(2, 2)})]))
    found = decode_calls(message)[0].tensors
    found["a"].fill_(7)
    assert torch.equal(decode_calls(message)[0].tensors["a"], torch.full((1, 3), 7.0))
    assert torch.equal(found["b"], torch.zeros(2, 2))


def test_arrays_that_lie_badly_are_copied() -> None:
    message = encode_calls([Call("load", {}, {"a": torch.arange(6.0).double()[None]})])
    for shift in range(1, 8):
        found = decode_calls(memoryview(bytearray(shift) + message)[shift:])[0].tensors["a"]
        assert found.data_ptr() % 8 == 0
        assert found.sum() == 15


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_arrays_of_a_gpu_arrive_on_the_cpu() -> None:
    tensor = torch.arange(6.0, device="cuda")[None]
    assert_same(decode_calls(encode_calls([Call("load", {}, {"w": tensor})]))[0].tensors, {"w": tensor.cpu()})


@pytest.mark.parametrize(
    "call",
    [
        Call("load", {}, {"w": torch.tensor(1.0)}),
        Call("load", {}, {"w": torch.zeros(1, dtype=torch.complex64)}),
        Call("load", {}, {"w": torch.zeros(1, dtype=torch.int32)}),
        Call("load", {}, {"a name": torch.zeros(1)}),
        Call("load", {}, {"w": torch.zeros(1).expand(2**50)}),
        Call("load", {}, {f"w{k}": torch.zeros(1) for k in range(1025)}),
        Call("no verb"),
        Call("load", {"x": float("nan")}),
        Call("load", {"x": float("inf")}),
        Call("load", {"x": 2**63}),
        Call("load", {"x": "two\nlines"}),
        Call("load", {"x": 1001 * "a"}),
        Call("load", {"x": None}),  # type: ignore[dict-item]
        Call("load", {"x": [1]}),  # type: ignore[dict-item]
        Call("load", {"x": torch.ones(1)}),  # type: ignore[dict-item]
        Call("load", {f"x{k}": k for k in range(65)}),
    ],
)
def test_what_a_reader_would_refuse_is_not_written(call: Call) -> None:
    with pytest.raises(Malformed):
        encode_calls([call])


def test_messages_of_too_many_calls_are_not_written() -> None:
    with pytest.raises(Malformed, match="too long"):
        encode_calls(4097 * [Call("forecast")])
    long = {f"x{k}": 900 * "a" for k in range(60)}
    with pytest.raises(Malformed, match="header has"):
        encode_calls(20 * [Call("forecast", long)])


# ---- what others may send -------------------------------------------------------------------------------


def message(entries: Any, payload: bytes = b"", kind: bytes = b"C", length: int | None = None) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(12 + len(text)) % 8)
    return (
        struct.pack("<6s2sI", b"cnfgnn", kind + b"\x01", len(text) if length is None else length)
        + text
        + payload
    )


def test_the_format_is_what_the_module_says() -> None:
    entry = ["load", None, {"a": 1}, [["w", "float32", [1, 3]]]]
    sent = message([entry], struct.pack("<3f4x", 1, 2, 3))
    assert encode_calls([Call("load", {"a": 1}, {"w": torch.tensor([[1.0, 2.0, 3.0]])})]) == sent
    assert_same(decode_calls(sent)[0].tensors, {"w": torch.tensor([[1.0, 2.0, 3.0]])})


W = ["w", "uint8", [8]]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "too short"),
        (message([], kind=b"A"), "another kind"),
        (message([]).replace(b"\x01", b"\x02", 1), "another kind or version"),
        (message([], length=2**32 - 1), "are allowed"),
        (message([], length=500), "truncated"),
        (message(b"[" * 100_000), "not valid JSON"),
        (message(b"[" * 100_000 + b"]" * 100_000), "header"),
        (message(b"\xff\xfe[\x00]\x00"), "header"),
        (message(b'[["load",null,{"x":NaN},[]]]'), "not valid JSON"),
        (message(b'[["load",null,{"x":-Infinity},[]]]'), "not valid JSON"),
        (message(b'[["load",null,{"x":1e999},[]]]'), "not valid JSON"),
        (message(b'[["load",null,{"x":' + 5000 * b"9" + b"},[]]]"), "not valid JSON"),
        (message(b'[["load",null,{"x":1,"x":2},[]]]'), "not in canonical form"),
        (message(b'[["load",null,{"x":1.50},[]]]'), "not in canonical form"),
        (message(b'[ ["load",null,{},[]]]'), "not in canonical form"),
        (message(b'[["load",null,{"b":1,"a":1},[]]]'), "not in canonical form"),
        (message([]) + b"  ", "2 follow it"),
        (message({}), "not a list"),
        (message(None), "not a list"),
        (message(["load"]), "not a list"),
        (message([["load", None, {}]]), "does not have four parts"),
        (message([["load", None, [], []]]), "not a dictionary"),
        (message([["load", None, {}, {}]]), "not a list"),
        (message([["load", "hm", {}, []]]), "unexpected error field"),
        (message([["load", 3, {}, []]]), "error field is not"),
        (message([[3, None, {}, []]]), "a name"),
        (message([["../x", None, {}, []]]), "a name"),
        (message([["load", None, {"x": None}, []]]), "x is not a number"),
        (message([["load", None, {"x": {"y": 1}}, []]]), "x is not a number"),
        (message([["load", None, {"x": 2**63}, []]]), "x is not a number"),
        (message([["load", None, {"x": "\n"}, []]]), "x is not a number"),
        (message([["load", None, {"x": "\ud800"}, []]]), "x is not a number"),
        (message([["load", None, {}, [W, W]]], bytes(16)), "same name"),
        (message([["load", None, {}, [["w", "object", [1]]]]], bytes(8)), "type that cannot be sent"),
        (message([["load", None, {}, [["w", ["uint8"], [1]]]]], bytes(8)), "type that cannot be sent"),
        (message([["load", None, {}, [["w", "uint8", []]]]], bytes(8)), "no node axis"),
        (message([["load", None, {}, [["w", "uint8", 9 * [1]]]]], bytes(8)), "too long"),
        (message([["load", None, {}, [["w", "uint8", [-8, -1]]]]], bytes(8)), "size of w"),
        (message([["load", None, {}, [["w", "uint8", [8.0]]]]], bytes(8)), "size of w"),
        (message([["load", None, {}, [["w", "uint8", [True]]]]], bytes(8)), "size of w"),
        (message([["load", None, {}, [["w", "uint8"]]]], bytes(8)), "by name, type and shape"),
        (message([["load", None, {}, [["w", "float64", [2**60]]]]]), "too many elements"),
        (message([["load", None, {}, [["w", "float64", [2**32, 2**32, 2]]]]]), "too many elements"),
        (message([["load", None, {}, [["w", "float64", [0, 2**60, 2**60]]]]]), "too many elements"),
        (message([["load", None, {}, [["w", "float64", [2**45]]]]], bytes(8)), "8 follow it"),
        (message([["load", None, {}, [W]]], bytes(7)), "7 follow it"),
        (message([["load", None, {}, [W]]], bytes(16)), "16 follow it"),
        (message([["load", None, {}, [["w", "uint8", [3]]]]], b"abc\0\0\0\0!"), "padding"),
        (message([["load", None, {}, [["w", "bool", [8]]]]], b"\0\1\2\0\0\0\0\0"), "neither 0 nor 1"),
    ],
)
def test_messages_that_are_not_ours_are_refused(sent: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why) as refusal:
        decode_calls(sent)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    "entries",
    [
        [["score", "hm", {}, []], ["score", None, {}, []]],
        [["score", "hm", {}, [W]]],
        [["score", None, {"x": 1}, []]],
        [["score", "", {}, []], ["score", "", {}, []]],
    ],
)
def test_answers_end_with_the_first_problem_and_have_no_numbers(entries: Any) -> None:
    payload = bytes(8) if entries[0][3] else b""
    with pytest.raises(Malformed):
        decode_answers(message(entries, payload, kind=b"A"))


@settings(deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_refused(noise: bytes, framed: bool) -> None:
    with pytest.raises(Malformed):
        decode_calls(message(noise or b"x") if framed else noise)


SENT = encode_calls(
    [
        Call("prepare", {"mean": 1.5, "seed": 3}, {"train": torch.arange(9)[None]}),
        Call("load", {}, {"a": torch.ones(2, 3), "b": torch.zeros(1, 3, dtype=torch.bfloat16)}),
    ]
)


@settings(deadline=None)
@given(st.integers(0, len(SENT) - 1))
def test_a_message_that_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(Malformed):
        decode_calls(SENT[:length])


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SENT) - 1), st.integers(1, 255)), min_size=1, max_size=3))
def test_flipped_bytes_raise_nothing_else(flips: list[tuple[int, int]]) -> None:
    damaged = bytearray(SENT)
    for position, by in flips:
        damaged[position] ^= by
    with contextlib.suppress(Malformed):
        assert encode_calls(decode_calls(damaged)) == damaged  # what is read is what was written


def test_no_message_makes_its_reader_hold_much_more_than_was_sent() -> None:
    many = [[f"w{k}", "float64", [2**44]] for k in range(1000)]
    for sent in (message([["load", None, {}, many]]), message(b"[" * 900_000), SENT[:-8]):
        tracemalloc.start()
        with pytest.raises(Malformed):
            decode_calls(sent)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 30 * len(sent) + 50_000


def test_a_check_sees_the_header_before_any_array_is_made() -> None:
    seen: list[Part] = []

    def refuse(parts: Any) -> None:
        seen.extend(parts)
        raise Malformed("no")

    sent = encode_calls([Call("load", {"x": 1}, {"w": torch.zeros(1, 1 << 20)})])
    tracemalloc.start()
    with pytest.raises(Malformed, match="no"):
        decode_calls(sent, refuse)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert seen == [Part("load", None, {"x": 1}, {"w": header.Declared(torch.float32, (1, 1 << 20))})]


def test_a_message_over_the_limit_is_not_looked_at() -> None:
    assert decode_calls(SENT, most=len(SENT))
    with pytest.raises(Malformed, match="are allowed"):
        decode_calls(SENT, most=len(SENT) - 1)
