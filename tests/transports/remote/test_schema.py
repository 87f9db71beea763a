"""Every verb carries what it must and nothing else, both ways; runs over bytes equal runs without."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cnfgnn.algorithm import dispatch
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.number_rules import write_numbers
from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.messages.verbs import VERBS
from cnfgnn.algorithm.owner import Owner
from cnfgnn.config.settings import ModelConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.windows import Windows
from cnfgnn.errors import NodeError
from cnfgnn.models.plus import node_model
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import train
from cnfgnn.transports import in_process
from cnfgnn.transports.remote.codec import Answer, decode_calls, encode_answers, part_of
from cnfgnn.transports.remote.header import DTYPES, Declared, Malformed, Part
from cnfgnn.transports.remote.schema import Refused, check_answers, check_calls, largest_answer
from cnfgnn.transports.remote.values import check_call_values, check_values
from tests.conftest import server, small
from tests.transports.remote.both_ways import decode_answers, encode_calls

N, BATCH, HORIZON = 3, 8, 6
WINDOWS = {"train": 20, "validation": 7, "test": 9}
STARTS = {split: torch.arange(count)[None] for split, count in WINDOWS.items()}
PLAN = {"history": 12, "horizon": HORIZON, "ahead": False}
DRAW = {"r_g": 1, "epoch": 0, "number": 0}
MODEL = ModelConfig(hidden=5, embedding=4, levels=True)
HIDDEN, EMBEDDING, LEVELS = MODEL.sent_width, MODEL.embedding_width, MODEL.level_width
SETTINGS = NodeSettings(MODEL, 1, "masked", 8, BATCH, 1e-3, 0.0, "square", "full")
PREPARE = Call("prepare", {**write_numbers(SETTINGS), **PLAN, "mean": 50.0, "std": 2.0}, STARTS)
THETA = node_model(MODEL, 12, HORIZON).init(torch.Generator())
OWN = {name: w.expand(N, *w.shape[1:]) for name, w in THETA.items()}
ANCHORS = {f"anchor.{name}": w for name, w in OWN.items()}
MANY = torch.zeros(1, 1, dtype=torch.int64).expand(1, 1 << 25)
H_G = torch.zeros(N, BATCH, EMBEDDING)
KNOWN = check_calls([PREPARE], Sizes(N))


def call(verb: str, numbers: Mapping[str, Any] | None = None, **tensors: Tensor) -> Call:
    return Call(verb, numbers or {}, tensors)


GOOD = [
    Call("census", {**PLAN, "missing": "masked"}, STARTS),
    PREPARE,
    call("turn", {"row": 1 << 40}),
    Call("load", {}, THETA),
    Call("load", {}, OWN),
    Call("load", {}, dict(reversed(THETA.items()))),
    call("inform", {}, means=torch.zeros(N, 20, 2 * LEVELS)),
    call("embed", {"for_evaluation": False}, h_G=torch.zeros(N, 20, EMBEDDING)),
    call("embed", {"for_evaluation": False}, h_G=torch.zeros(N, 20, EMBEDDING, dtype=torch.bfloat16)),
    call("embed", {"for_evaluation": False, **DRAW}, h_G=H_G),
    call("embed", {"for_evaluation": False, **DRAW, "number": 2}, h_G=H_G[:, :4]),
    call("embed", {"for_evaluation": True}, h_G=torch.zeros(N, 7, EMBEDDING).double()),
    call("embed", {"for_evaluation": True}, h_G=torch.zeros(N, 9, EMBEDDING)),
    call("update", {"r_g": 1, "r_c": 2, "step": 10}),
    call("update", {"r_g": 1, "r_c": 2, "step": 10, "first": 0, "until": 3}),
    call("step", DRAW, grad_h_c=torch.zeros(N, BATCH, HIDDEN)),
    call("pull", {}, weight=torch.zeros(N), **ANCHORS),
    call("forecast"),
    call("save", {"tag": "round-00001", "keep": "round-00001 best"}),
    call("save", {"tag": "best", "keep": ""}),
    call("restore", {"tag": "round-00001"}),
    call("inherit", {"run": "first-0123456789ab", "tag": "round-00001"}),
    call("weights"),
    call("levels"),
    call("encode", {"split": "validation"}),
    call("encode", {"split": "train", **DRAW}),
    call("backward", {**DRAW, "step": 3, "learn": True}, h_G=H_G),
    call("score", {"split": "test"}),
]


def test_every_verb_has_an_example() -> None:
    assert set(VERBS) == {good.verb for good in GOOD}


def test_prepare_carries_every_setting() -> None:
    assert set(write_numbers(SETTINGS)) <= set(PREPARE.numbers)
    assert VERBS["prepare"].read(PREPARE.numbers).call({}, "full").numbers == PREPARE.numbers


@pytest.mark.parametrize("good", GOOD, ids=lambda c: c.verb)
def test_what_the_server_says_may_come(good: Call) -> None:
    check_calls([good], KNOWN)
    check_calls([part_of(good)], KNOWN)


@pytest.mark.parametrize("good", GOOD, ids=lambda c: c.verb)
def test_nothing_may_be_left_out_or_added(good: Call) -> None:
    with pytest.raises(Refused, match="this verb does not have"):
        check_calls([Call(good.verb, {**good.numbers, "more": 1}, good.tensors)], KNOWN)
    with pytest.raises(Refused, match="this verb does not have"):
        check_calls([Call(good.verb, good.numbers, {**good.tensors, "more": torch.zeros(1, 1)})], KNOWN)
    for name in good.numbers:
        less: Mapping[str, Any] = {k: v for k, v in good.numbers.items() if k != name}
        with pytest.raises(Refused, match=f"^{good.verb}: {name} is missing"):
            check_calls([Call(good.verb, less, good.tensors)], KNOWN)
    for name in good.tensors:
        fewer = {k: v for k, v in good.tensors.items() if k != name}
        with pytest.raises(Refused, match=f"^{good.verb}: {name} is missing"):
            check_calls([Call(good.verb, good.numbers, fewer)], KNOWN)


@pytest.mark.parametrize("good", GOOD, ids=lambda c: c.verb)
def test_every_number_has_its_kind_and_every_tensor_its_type_and_shape(good: Call) -> None:
    for name in good.numbers:
        for odd in (-1, True, 0.5, "../x") if name not in ("mean", "std") else (True, "x"):
            if type(odd) is not type(good.numbers[name]) or odd == -1 or odd == "../x":
                if name in ("client_lr", "sampling") and odd == 0.5:
                    continue
                with pytest.raises(Refused, match=f"{name} cannot be"):
                    check_calls([Call(good.verb, {**good.numbers, name: odd}, good.tensors)], KNOWN)
    for name, tensor in good.tensors.items():
        for bad in (tensor.bool(), tensor.to(torch.uint8), tensor[None], tensor[:, None], tensor[:0]):
            with pytest.raises(Refused, match=r"cannot be of|has the shape"):
                check_calls([Call(good.verb, good.numbers, {**good.tensors, name: bad})], KNOWN)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (call("losses"), "no such verb"),
        (call("__init__"), "no such verb"),
        (call("save", {"tag": "../../x", "keep": ""}), "tag cannot be"),
        (call("save", {"tag": "best", "keep": "best /etc/passwd"}), "keep cannot be"),
        (call("save", {"tag": "", "keep": ""}), "tag cannot be"),
        (call("save", {"tag": "best", "keep": "a b c d e f g h i"}), "keep cannot be"),
        (call("restore", {"tag": ".hidden"}), "tag cannot be"),
        (call("inherit", {"run": "../other", "tag": "round-00001"}), "run cannot be"),
        (call("score", {"split": "all"}), "split cannot be"),
        (call("encode", {"split": "train", **DRAW, "number": 3}), "no minibatch 3"),
        (call("encode", {"split": "train", **DRAW, "number": 2**62}), "no minibatch"),
        (call("encode", {"split": "train", "number": 0}), "r_g is missing"),
        (call("update", {"r_g": 1, "r_c": 2, "step": 0, "first": 3, "until": 2}), "first cannot be 3"),
        (call("update", {"r_g": 1, "r_c": 2, "step": 0, "first": 3, "until": 3}), "first cannot be 3"),
        (call("update", {"r_g": 1, "r_c": 2, "step": 0, "first": 0, "until": 0}), "until cannot be 0"),
        (call("update", {"r_g": 1, "r_c": 2, "step": 0, "first": 1}), "until is missing"),
        (call("update", {"r_g": 1, "r_c": 2, "step": 0, "until": 1}), "first is missing"),
        (call("backward", {**DRAW, "step": 3, "learn": 1}, h_G=H_G), "learn cannot be"),
        (
            call("backward", {**DRAW, "step": 3, "learn": True}, h_G=H_G[:1]),
            r"\(1, 8, 8\) instead of \(3, 8, 8\)",
        ),
        (
            call("backward", {**DRAW, "number": 2, "step": 3, "learn": True}, h_G=H_G),
            r"instead of \(3, 4, 8\)",
        ),
        (
            call("embed", {"for_evaluation": False}, h_G=torch.zeros(N, 7, EMBEDDING)),
            r"instead of \(3, 20, 8\)",
        ),
        (call("embed", {"for_evaluation": True}, h_G=torch.zeros(N, 8, EMBEDDING)), "or"),
        (call("embed", {"for_evaluation": True}, h_G=torch.zeros(N, 7, EMBEDDING + 1)), "has the shape"),
        (Call("load", {}, {**OWN, "output.bias": THETA["output.bias"]}), "has the shape"),
        (Call("load", {}, {name: w[:2] for name, w in OWN.items()}), "has the shape"),
        (Call("load", {}, {name: w.bfloat16() for name, w in THETA.items()}), "cannot be of bfloat16"),
        (Call("load", {}, {}), "is missing"),
        (Call("pull", {}, {**ANCHORS, "weight": torch.zeros(1)}), "weight has the shape"),
        (Call("census", {**PLAN, "missing": "masked"}, {k: v[0] for k, v in STARTS.items()}), "the shape"),
        (Call("census", {**PLAN, "missing": "masked", "history": 0}, STARTS), "history cannot be 0"),
        (
            Call("census", {**PLAN, "missing": "masked"}, {**STARTS, "test": MANY}),
            r"instead of \(1, 16777216\)",
        ),
        (Call("prepare", {**PREPARE.numbers, "mean": float("nan")}, STARTS), "mean cannot be nan"),
        (Call("prepare", {**PREPARE.numbers, "missing": 900 * "x"}, STARTS), "missing cannot be 'x{59}$"),
        (Call("prepare", {**PREPARE.numbers, "std": 0.0}, STARTS), "std cannot be"),
        (Call("prepare", {**PREPARE.numbers, "hidden": 10**9}, STARTS), "hidden cannot be"),
        (Call("prepare", {**PREPARE.numbers, "hidden": 60_000}, STARTS), "too large"),
        (Call("prepare", {**PREPARE.numbers, "keeping": "all"}, STARTS), "keeping cannot be"),
    ],
)
def test_what_a_hostile_server_sends_is_refused(bad: Call, why: str) -> None:
    with pytest.raises(Refused, match=why) as refusal:
        check_calls([bad], KNOWN)
    assert refusal.value.verb == bad.verb
    assert str(NodeError("a", refusal.value.verb, refusal.value.reason)).endswith(refusal.value.reason)


odd_numbers = (
    st.booleans() | st.integers(-2, 2**63 - 1) | st.floats(-1, 1) | st.sampled_from(["train", "", "é"])
)
odd_arrays = st.builds(
    Declared, st.sampled_from(list(DTYPES.values())), st.lists(st.integers(0, 9), min_size=1).map(tuple)
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(GOOD), st.data(), st.booleans())
def test_whatever_comes_is_taken_or_refused(good: Call, data: st.DataObject, prepared: bool) -> None:
    numbers, tensors = dict(good.numbers), dict(part_of(good).tensors)
    for name in data.draw(st.sets(st.sampled_from(sorted(numbers) or ["x"]), max_size=2)):
        numbers[name] = data.draw(odd_numbers)
    for name in data.draw(st.sets(st.sampled_from(sorted(tensors) or ["x"]), max_size=2)):
        tensors[name] = data.draw(odd_arrays)
    with contextlib.suppress(Refused):
        check_calls([Part(good.verb, None, numbers, tensors)], KNOWN if prepared else Sizes(N))


@pytest.mark.parametrize("good", [c for c in GOOD if not VERBS[c.verb].before_prepare], ids=lambda c: c.verb)
def test_before_it_is_prepared_a_site_takes_nothing(good: Call) -> None:
    with pytest.raises(Refused, match="not been prepared"):
        check_calls([good], Sizes(N))
    assert check_calls([PREPARE, good], Sizes(N)) == KNOWN, "but in the message that prepares it"


# ---- answers --------------------------------------------------------------------------------------------

MOMENTS = torch.tensor([[4.0, 8.0, 20.0], [0, 0, 0], [1, -3, 9]]).double()
HAS = {f"has.{split}": torch.ones(N, count, dtype=torch.uint8) for split, count in WINDOWS.items()}
REPLIES: dict[int, dict[str, Tensor]] = {
    k: reply
    for k, good in enumerate(GOOD)
    for reply in [
        {
            "census": {**HAS, "moments": MOMENTS},
            "turn": {"has": torch.ones(N, 1, dtype=torch.uint8)},
            "weights": OWN,
            "levels": {"levels": torch.zeros(N, 20, LEVELS)},
            "encode": {"h_c": torch.zeros(N, BATCH if "number" in good.numbers else 7, HIDDEN)},
            "backward": {"grad_h_G": H_G[..., : EMBEDDING - 2 * LEVELS].bfloat16()},
            "score": {name: torch.zeros(N, HORIZON, 8).double() for name in ("sums", "told")},
        }.get(good.verb, {})
    ]
}


def answered(tensors: Mapping[str, Tensor], to: Call) -> None:
    check_answers([part_of(Answer(to.verb, None, tensors))], [to], KNOWN)
    check_values(to.verb, tensors)


@pytest.mark.parametrize("k", range(len(GOOD)), ids=lambda k: GOOD[k].verb)
def test_an_answer_is_what_was_asked_and_nothing_else(k: int) -> None:
    asked, reply = GOOD[k], REPLIES[k]
    answered(reply, asked)
    with pytest.raises(Refused, match="this verb does not have"):
        answered({**reply, "readings": torch.zeros(N, 9)}, asked)
    for name, tensor in reply.items():
        for bad in (tensor.long(), tensor[:2], tensor[:, None], torch.cat([tensor, tensor], dim=-1)):
            with pytest.raises(Refused, match=r"cannot be of|has the shape"):
                answered({**reply, name: bad}, asked)
        with pytest.raises(Refused, match="is missing"):
            answered({k: v for k, v in reply.items() if k != name}, asked)
        for value in (torch.nan, torch.inf, -torch.inf) if tensor.is_floating_point() else ():
            spoilt = tensor.clone()
            spoilt[-1, ..., -1] = value
            with pytest.raises(Refused, match=f"{name} has a value that is not a finite number"):
                answered({**reply, name: spoilt}, asked)


def test_answers_are_to_the_calls_in_their_order() -> None:
    asked = [call("forecast"), call("weights"), call("score", {"split": "test"})]
    parts = [part_of(Answer(c.verb, None, OWN if c.verb == "weights" else {})) for c in asked]
    for some, why in (
        (parts, "score: sums is missing"),
        (parts[:1], "weights: there is no answer"),
        ([], "forecast: there is no answer"),
        ([*parts, parts[0]], "score: 4 answers came to 3"),
        ([parts[1]], "the answer is to weights"),
    ):
        with pytest.raises(Refused, match=why):
            check_answers(some, asked, KNOWN)
    check_answers([parts[0], part_of(Answer("weights", "disk full"))], asked, KNOWN)
    check_answers([part_of(Answer("score", "split cannot be 'test'"))], asked, KNOWN)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"has.test": torch.full((N, 9), 2, dtype=torch.uint8)}, "neither 0 nor 1"),
        (
            {"moments": torch.tensor([[-1.0, 0, 0]] * N).double()},
            "reading count must be a non-negative integer",
        ),
        (
            {"moments": torch.tensor([[1.5, 0, 0]] * N).double()},
            "reading count must be a non-negative integer",
        ),
        ({"moments": torch.tensor([[2.0, 1, -1]] * N).double()}, "no readings can have these sums"),
        ({"moments": torch.tensor([[0.0, 1, 1]] * N).double()}, "no readings can have these sums"),
        ({"moments": torch.tensor([[2.0, 1e6, 1]] * N).double()}, "no readings can have these sums"),
    ],
)
def test_a_census_counts(change: dict[str, Tensor], why: str) -> None:
    with pytest.raises(Refused, match=why):
        answered({**REPLIES[0], **change}, GOOD[0])


def test_a_node_has_the_window_of_a_step_or_not() -> None:
    turn = call("turn", {"row": 12})
    with pytest.raises(Refused, match="turn: has has a value that is neither 0 nor 1"):
        answered({"has": torch.full((N, 1), 2, dtype=torch.uint8)}, turn)
    for row in (-1, (1 << 40) + 1, 1.5, True):
        with pytest.raises(Refused, match="row cannot be"):
            check_calls([call("turn", {"row": row})], KNOWN)


def test_the_largest_answer_is_that_of_the_widest_type() -> None:
    asked = [call("forecast"), call("encode", {"split": "test"})]
    empty = largest_answer(asked[:1], KNOWN)
    assert largest_answer(asked, KNOWN) == empty + 8 * N * WINDOWS["test"] * HIDDEN


# ---- over bytes -----------------------------------------------------------------------------------------


class OverBytes:
    """`dispatch.run` of a site that gets its calls as bytes and answers in bytes, checked at both ends."""

    def __init__(self) -> None:
        self.known: dict[str, Sizes] = {}
        self.verbs: set[str] = set()

    def __call__(self, owner: Owner, calls: Sequence[Call]) -> list[dict[str, Tensor]]:
        known = self.known.get(owner.nodes.name, Sizes(owner.nodes.series.nodes))
        there = decode_calls(bytearray(encode_calls(calls)), lambda parts: check_calls(parts, known))
        check_call_values(there)
        replies = dispatch.run(owner, there)
        sent = encode_answers([Answer(c.verb, None, r) for c, r in zip(there, replies, strict=True)])
        most = largest_answer(calls, known)
        answers = decode_answers(bytearray(sent), lambda parts: check_answers(parts, calls, known), most)
        for one in answers:
            check_values(one.verb, one.tensors)
        self.known[owner.nodes.name] = check_calls(calls, known)
        self.verbs |= {c.verb for c in calls}
        return [dict(answer.tensors) for answer in answers]


def outcome(experiment: Experiment) -> dict[str, Tensor]:
    train(experiment)
    strategy = server(experiment)
    strategy.save("again", ["round-00001"])
    strategy.restore("again")
    found = {f"theta.{name}": w for name, w in strategy.everyone.weights().items()}
    for split in ("train", "validation", "test"):
        found[split], found[f"told.{split}"] = strategy.score(split)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("at-fedavg", {}),
        ("sl", {}),
        ("gru-fmtl", {}),
        ("cnfgnn-private", {}),
        ("at-fedavg", {"compute.memory": 4e-5}),  # GiB: hidden states are kept in bf16
        ("at-fedavg", {"compute.memory": 1e-5}),  # they are recomputed
        ("at-fedavg", {"training.seen": 0.5}),
        ("gru-fedavg", {"model.layers": 2, "compute.precision": "fp32"}),
    ],
)
def test_a_run_over_bytes_equals_one_without_bit_for_bit(
    method: str, changes: dict[str, Any], data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(method, **changes)
    groups = [[0, 3, 5], [1], [2, 4]]
    plain = simulate(data, config, groups)
    expected = outcome(plain)
    wire = OverBytes()
    monkeypatch.setattr(in_process, "run", wire)
    over_bytes = simulate(data, config, groups)
    found = outcome(over_bytes)
    how = {4e-5: "bf16", 1e-5: "recomputed"}.get(changes.get("compute.memory", 0), "full")
    assert over_bytes.memory_plan.state_format == how
    assert over_bytes.ledger.state() == plain.ledger.state()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert {"census", "prepare", "save", "restore", "score"} <= wire.verbs


def test_forecasting_ahead_goes_over_bytes_too(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    config, groups = small("at-fedavg"), [[0, 1, 2], [3, 4, 5]]
    ahead = Windows.next(
        len(data.readings.times) - config.data.horizon, config.data.history, config.data.horizon
    )
    scaler = simulate(data, config).scaler
    plain = simulate(data, config, groups, windows=ahead, scaler=scaler)
    server(plain).forecast()
    monkeypatch.setattr(in_process, "run", OverBytes())
    over_bytes = simulate(data, config, groups, windows=ahead, scaler=scaler)
    server(over_bytes).forecast()
    for (_, one), (_, other) in zip(plain.owners, over_bytes.owners, strict=True):
        assert one.forecasts is not None
        assert other.forecasts is not None
        torch.testing.assert_close(other.forecasts, one.forecasts, rtol=0, atol=0, equal_nan=True)


def test_a_refusal_is_malformed() -> None:
    with pytest.raises(Malformed):
        decode_calls(encode_calls([call("losses")]), lambda parts: check_calls(parts, KNOWN))
