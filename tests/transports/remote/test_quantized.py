"""Numbers in two bytes or one are what was agreed on, and have a scale that can be one; both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.messages.verbs import VERBS
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import DivergedError
from cnfgnn.runs.training_loop import train
from cnfgnn.transports.remote.codec import Answer, part_of
from cnfgnn.transports.remote.schema import Refused, check_answers, check_calls
from cnfgnn.transports.remote.values import check_call_values, check_values
from tests.conftest import server, small
from tests.transports.remote.test_schema import BATCH, DRAW, EMBEDDING, HIDDEN, LEVELS, OWN, PREPARE, THETA, N
from tests.transports.remote.test_transport import Wires, federated

KNOWN = {
    wire: check_calls([Call("prepare", {**PREPARE.numbers, "wire": wire}, PREPARE.tensors)], Sizes(N))
    for wire in ("full", "bf16", "int8")
}
H_G = torch.linspace(-1, 1, N * BATCH * EMBEDDING).view(N, BATCH, EMBEDDING)
GRAD_H_C = torch.linspace(-1, 1, N * BATCH * HIDDEN).view(N, BATCH, HIDDEN)
BACKWARD = {**DRAW, "step": 3, "learn": True}
TOLD = [
    Call("load", {}, THETA),
    Call("load", {}, OWN),
    Call("embed", {"for_evaluation": False, **DRAW}, {"h_G": H_G}),
    Call("step", DRAW, {"grad_h_c": GRAD_H_C}),
    Call("backward", BACKWARD, {"h_G": H_G}),
]
STATED = TOLD[2:]
ANSWERED: list[tuple[Call, dict[str, Tensor]]] = [
    (Call("weights"), OWN),
    (Call("encode", {"split": "train", **DRAW}), {"h_c": GRAD_H_C}),
    (TOLD[-1], {"grad_h_G": H_G[..., : EMBEDDING - 2 * LEVELS]}),
]


def come(call: Call, wire: str) -> None:
    """To a site that was prepared for a wire."""
    check_calls([part_of(call)], KNOWN[wire])
    check_call_values([call])


def answered(call: Call, reply: Mapping[str, Tensor], wire: str) -> None:
    asked = Call(call.verb, call.numbers, VERBS[call.verb].quantised(call.tensors, wire))  # type: ignore[arg-type]
    check_answers([part_of(Answer(call.verb, None, reply))], [asked], KNOWN[wire])
    check_values(call.verb, reply)


def one_byte(call: Call, **changes: Tensor) -> Call:
    return Call(call.verb, call.numbers, {**VERBS[call.verb].quantised(call.tensors, "int8"), **changes})


@pytest.mark.parametrize("sent", KNOWN)
@pytest.mark.parametrize("agreed", KNOWN)
@pytest.mark.parametrize("call", TOLD, ids=lambda c: c.verb)
def test_a_site_takes_numbers_the_way_that_was_agreed_on_and_no_other(
    call: Call, agreed: str, sent: str
) -> None:
    there = Call(call.verb, call.numbers, VERBS[call.verb].quantised(call.tensors, sent))  # type: ignore[arg-type]
    alike = {agreed, sent} == {"bf16", "int8"} and call.verb == "load"  # weights take two bytes in both
    kept_short = (agreed, sent) == ("full", "bf16") and call.verb != "load"  # where they are kept so
    if agreed == sent or alike or kept_short:
        come(there, agreed)
    else:
        with pytest.raises(Refused, match=r"cannot be of|this verb does not have|scale is missing"):
            come(there, agreed)


@pytest.mark.parametrize("sent", KNOWN)
@pytest.mark.parametrize("agreed", KNOWN)
@pytest.mark.parametrize("asked", ANSWERED, ids=lambda asked: asked[0].verb)
def test_the_server_takes_numbers_the_way_that_was_agreed_on_and_no_other(
    asked: tuple[Call, dict[str, Tensor]], agreed: str, sent: str
) -> None:
    call, reply = asked
    there = VERBS[call.verb].quantised(reply, sent)  # type: ignore[arg-type]
    alike = {agreed, sent} == {"bf16", "int8"} and call.verb == "weights"
    kept_short = (agreed, sent) == ("full", "bf16") and call.verb != "weights"
    if agreed == sent or alike or kept_short:
        answered(call, there, agreed)
    else:
        with pytest.raises(Refused, match=r"cannot be of|this verb does not have|scale is missing"):
            answered(call, there, agreed)


BAD_SCALES: list[tuple[Tensor, str]] = [
    (torch.ones(N, dtype=torch.float64), "scale cannot be of float64"),
    (torch.ones(N, dtype=torch.bfloat16), "scale cannot be of bfloat16"),
    (torch.ones(N, dtype=torch.int8), "scale cannot be of int8"),
    *((torch.tensor([0.0, 1.0, bad]), "scale has a value") for bad in (torch.nan, torch.inf, -torch.inf)),
    (torch.tensor([0.0, 1.0, -1e-6]), "scale has a value that is not a valid scale"),
    (
        torch.tensor([0.0, 1.0, 3e38]),
        "scale has a value that is not a valid scale",
    ),  # times 127 it is no number
]


def scales(of_nodes: Tensor, states: Tensor) -> Tensor:
    """The same scale for every number of a node's states: (n h)."""
    return of_nodes[:, None].expand(-1, states.shape[-1]).contiguous()


@pytest.mark.parametrize("shape", [(N,), (1,), (N, 1), (N, 2 * BATCH)])
def test_a_scale_has_a_row_for_each_node_and_a_column_for_each_number(shape: tuple[int, ...]) -> None:
    for call in STATED:
        (name,) = call.tensors
        wrong = one_byte(call, **{f"{name}.scale": torch.ones(shape)})
        with pytest.raises(Refused, match=rf"^{call.verb}: {name}\.scale has the shape"):
            come(wrong, "int8")


@pytest.mark.parametrize(("scale", "why"), BAD_SCALES)
def test_a_scale_that_is_none_is_refused_at_both_ends(scale: Tensor, why: str) -> None:
    for call in STATED:
        (name,) = call.tensors
        largest = scales(torch.tensor([0.0, 1.0, 2.5e36]), call.tensors[name])
        come(one_byte(call, **{f"{name}.scale": largest}), "int8")
        with pytest.raises(Refused, match=rf"^{call.verb}: {name}\.{why}"):
            come(one_byte(call, **{f"{name}.scale": scales(scale, call.tensors[name])}), "int8")
    for call, reply in ANSWERED[1:]:
        (name,) = reply
        there = VERBS[call.verb].quantised(reply, "int8")
        with pytest.raises(Refused, match=rf"^{call.verb}: {name}\.{why}"):
            answered(call, {**there, f"{name}.scale": scales(scale, reply[name])}, "int8")


def test_steps_without_their_scale_beyond_it_or_of_another_shape_are_refused_at_both_ends() -> None:
    for call in STATED:
        (name,) = call.tensors
        steps = VERBS[call.verb].quantised(call.tensors, "int8")[name]
        for change, why in (
            (Call(call.verb, call.numbers, {name: steps}), "scale is missing"),
            (one_byte(call, **{name: torch.full_like(steps, -128)}), "has a value below -127"),
            (one_byte(call, **{name: steps[:, :1]}), "has the shape"),
            (one_byte(call, **{name: steps.to(torch.uint8)}), "cannot be of uint8"),
            (one_byte(call, **{name: steps.float()}), "cannot be of float32"),
        ):
            with pytest.raises(Refused, match=why):
                come(change, "int8")
    for call, reply in ANSWERED[1:]:
        (name,) = reply
        there = VERBS[call.verb].quantised(reply, "int8")
        for wrong, why in (
            ({name: there[name]}, "scale is missing"),
            ({**there, name: torch.full_like(there[name], -128)}, "has a value below -127"),
            ({**there, name: there[name][:1]}, "has the shape"),
            ({**there, name: reply[name]}, "cannot be of float32"),
        ):
            with pytest.raises(Refused, match=why):
                answered(call, wrong, "int8")


def test_weights_have_no_scale_and_never_one_byte() -> None:
    short = VERBS["load"].quantised(THETA, "int8")
    name = next(iter(short))
    with pytest.raises(Refused, match="this verb does not have"):
        come(Call("load", {}, {**short, f"{name}.scale": torch.ones(1)}), "int8")
    with pytest.raises(Refused, match="cannot be of int8"):
        come(Call("load", {}, {**short, name: short[name].to(torch.int8)}), "int8")


# ---- whole sites ----------------------------------------------------------------------------------------


def _as_computed(clients: Clients) -> None:
    clients.wire = "full"


def _nan(clients: Clients) -> None:
    clients.encode = lambda **asked: Clients.encode(clients, **asked) * torch.nan  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("method", "fault", "verb", "said"),
    [
        pytest.param("cnfgnn-plus", _as_computed, "encode", "h_c.scale is missing", marks=pytest.mark.slow),
        pytest.param(
            "cnfgnn-plus",
            _nan,
            "encode",
            "h_c.scale has a value that is not a finite number",
            marks=pytest.mark.slow,
        ),
        ("mlp-fedavg", _as_computed, "weights", "cannot be of float64"),
    ],
)
def test_a_site_that_does_not_keep_to_the_wire_is_left_out_by_name(
    method: str, fault: Callable[[Clients], None], verb: str, said: str, data: Dataset
) -> None:
    wires = Wires(data, small(method))
    transport = wires.transport()
    strategy = server(federated(wires, transport))
    strategy.round(1)
    fault(wires.owner(1).nodes)
    refusals: list[str] = []
    refuse = transport._refuse
    transport._refuse = lambda *why: (refuse(*why), refusals.append(why[0].problem))  # type: ignore[assignment, method-assign]
    strategy.round(2)
    assert refusals
    assert all("'site-1' failed" in problem for problem in refusals)
    assert f"at '{verb}'" in refusals[0]
    assert said in refusals[0]
    assert strategy.theta_bar is not None
    assert all(torch.isfinite(w).all() for w in strategy.theta_bar.values())
    assert strategy.gn is None or torch.isfinite(strategy.gn.weights).all()


def test_a_site_keeps_out_what_the_server_sends_another_way(data: Dataset) -> None:
    wires = Wires(data, small("cnfgnn-plus"))
    transport = wires.transport()
    strategy = server(federated(wires, transport))
    strategy.round(1)
    clients = wires.owner(1).nodes
    before = {name: w.clone() for name, w in clients.theta.items()}
    rows, sites = strategy.nodes.rows, transport.parties
    draw = next(iter(strategy.batches.epoch(2, 0)))
    numbers = {**draw._asdict(), "step": 0, "learn": True}
    h_G = torch.zeros(6, strategy.batches.size, 8, dtype=torch.float64)
    steps = VERBS["backward"].quantised({"h_G": h_G}, "int8")
    for tensors, said in (
        ({"h_G": h_G}, "h_G.scale is missing"),
        ({**steps, "h_G": h_G}, "h_G cannot be of float64"),
        ({**steps, "h_G": h_G.bfloat16()}, "h_G cannot be of bfloat16"),
        ({**steps, "h_G.scale": torch.full((6, 8), 3e38)}, "h_G.scale has a value that is not a valid scale"),
        ({**steps, "h_G.scale": torch.full((6, 8), -1.0)}, "h_G.scale has a value that is not a valid scale"),
    ):
        assert not transport.exchange([Call("backward", numbers, tensors)], rows).present.any()
        assert [said in site.problem for site in sites] == [True] * 3, said
    for name, w in clients.theta.items():
        assert torch.equal(w, before[name]), name
    strategy.nodes.up[:] = False  # they are told their part anew
    strategy.round(2)
    assert strategy.nodes.up.all()


@pytest.mark.parametrize("wire", KNOWN)
@pytest.mark.parametrize("method", ["cnfgnn-plus", "at-fedavg"])
def test_a_graph_network_that_diverged_ends_the_training_instead_of_waiting_for_sites(
    method: str, wire: str, data: Dataset
) -> None:
    wires = Wires(data, small(method, **{"training.wire": wire}))
    experiment = federated(wires, wires.transport())
    gn = server(experiment).gn
    assert gn is not None
    gn.weights.detach().fill_(torch.nan)
    with pytest.raises(DivergedError, match="round 1"):
        train(experiment)
