"""Every verb is declared once: what it carries is what both sides take, and nothing else gets through."""

from __future__ import annotations

import inspect

import pytest
import torch

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.dispatch import run
from cnfgnn.algorithm.messages import verbs
from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.catch_up import CatchUp
from cnfgnn.algorithm.messages.nodes import Nodes
from cnfgnn.algorithm.messages.number_rules import InvalidCall, number_fields
from cnfgnn.algorithm.messages.randomness import Draw, Minibatches
from cnfgnn.algorithm.messages.verb import Ask, Tell, Verb
from cnfgnn.algorithm.messages.verbs import VERBS
from cnfgnn.algorithm.messages.window_plan import WindowPlan
from cnfgnn.config.declarations import fields_of
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import NodeError
from cnfgnn.runs.simulation import simulate
from tests.conftest import small, transport

ONLY_THE_SERVERS = {"mean_by", "purpose", "wire"}  # how the server counts and quantises; nodes need not know
DRAW = Draw(3, 1, 0)
REQUESTS: list[Verb] = [
    verbs.Census(WindowPlan(12, 6, False), "masked"),
    verbs.Turn(12),
    verbs.Load(),
    verbs.Inform(),
    verbs.Embed(True),
    verbs.Embed(False, DRAW),
    verbs.Update(1, 2, 0),
    verbs.Update(1, 2, 0, Minibatches(4, 8)),
    verbs.Step(DRAW),
    verbs.Pull(),
    verbs.Forecast(),
    verbs.Save("round-00001", "best round-00001"),
    verbs.Restore("best"),
    verbs.Inherit("run", "best"),
    verbs.Weights(),
    verbs.Levels(),
    verbs.Encode("test"),
    verbs.Encode("train", DRAW),
    verbs.Backward(DRAW, 7, True),
    verbs.Score("validation"),
]


def parameters(side: type, verb: str) -> dict[str, object]:
    """Name and type of each parameter of the method that has the name of a verb."""
    method = inspect.signature(getattr(side, verb)).parameters.values()
    return {p.name: p.annotation for p in method if p.name not in ONLY_THE_SERVERS | {"self"}}


@pytest.mark.parametrize("verb", VERBS)
def test_server_and_nodes_have_a_method_of_the_same_parameters(verb: str) -> None:
    if verb == "forecast":  # which is the owner's alone
        assert not hasattr(Clients, verb)
        return
    assert parameters(Nodes, verb) == parameters(Clients, verb)


def test_nodes_can_do_nothing_else_for_the_server() -> None:
    told = {name for name in vars(Nodes) if not name.startswith("_")}
    several_at_once = {"encode_each", "backward_and_encode"}
    no_verbs = {"among", "grow", "present", "flush", "rejoin", "recovering"}
    assert told - set(VERBS) == several_at_once | no_verbs


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_a_verb_is_a_tell_or_an_ask_and_the_page_lists_it(verb: type[Verb]) -> None:
    assert issubclass(verb, Tell) != issubclass(verb, Ask)
    assert ("up" in vars(verb)) == issubclass(verb, Ask)
    assert verbs.__doc__ is not None
    assert f"\n{verb.name} " in verbs.__doc__ or f"\n{verb.name}\n" in verbs.__doc__
    assert verb.__doc__
    assert not verb.__doc__.startswith(f"{verb.__name__}(")  # which dataclasses would make up


def test_every_verb_but_prepare_has_an_example_here() -> None:
    assert {request.name for request in REQUESTS} == set(VERBS) - {"prepare"}  # which is in test_schema.py


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.name)
def test_a_request_arrives_as_it_was_sent(request_: Verb) -> None:
    call = request_.call({}, "full")
    assert VERBS[call.verb].read(call.numbers) == request_


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.name)
def test_numbers_that_do_not_belong_or_are_missing_are_refused(request_: Verb) -> None:
    numbers = dict(request_.call({}, "full").numbers)
    with pytest.raises(InvalidCall, match="more, which this verb does not have"):
        request_.read({**numbers, "more": 1})
    for name in numbers:
        with pytest.raises(InvalidCall, match=f"{name} is missing"):
            request_.read({key: value for key, value in numbers.items() if key != name})
        with pytest.raises(InvalidCall, match=f"{name} cannot be"):
            request_.read({**numbers, name: [0]})  # type: ignore[dict-item]


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_every_number_has_a_name_of_its_own_and_a_type_that_can_be_checked(verb: type[Verb]) -> None:
    found, names = number_fields(verb), []
    for field in fields_of(verb):
        names += number_fields(field.kind) if field.several else [field.key]
    assert names == list(found)
    assert all(field.kind in (int, float, bool) or field.choices or field.form for field in found.values())


@pytest.mark.parametrize("verb", ["embed", "step", "backward"])
def test_arrays_that_a_verb_does_not_declare_are_not_carried_out(verb: str, data: Dataset) -> None:
    experiment = simulate(data, small("sl"))
    owner = transport(experiment).groups[0][1]
    numbers = next(one.call({}, "full").numbers for one in REQUESTS if one.name == verb)
    arrays = {"h_G": torch.zeros(6, 24, 4), "grad_h_c": torch.zeros(6, 24, 5)}
    for sent in (arrays, {}, {"readings": torch.zeros(6, 9)}):
        with pytest.raises(NodeError, match=f"{verb}.*it carries .* instead of"):
            run(owner, [Call(verb, numbers, sent)])


# ---- catching up ----------------------------------------------------------------------------------------


def caught_up(*requests: Verb) -> list[str]:
    catch_up = CatchUp()
    for request in requests:
        catch_up.note(request, request.call({}, "full"))
    return [call.verb for call in catch_up.calls(torch.arange(2))]


def test_a_site_that_rejoins_is_told_what_defines_its_state_and_no_more() -> None:
    first, second = verbs.Embed(False, Draw(0, 0, 0)), verbs.Embed(False, Draw(0, 0, 1))
    rest = [verbs.Update(1, 1, 0), verbs.Weights(), verbs.Embed(True), verbs.Score("test")]
    assert caught_up(verbs.Pull(), verbs.Load(), *rest) == ["load", "pull"]
    assert caught_up(first, second, verbs.Load(), verbs.Load()) == ["load", "embed", "embed"]
    assert caught_up(first, second, first) == ["embed"]
    assert caught_up(verbs.Load(), verbs.Save("round-00001", "")) == ["restore", "load"]
    assert caught_up(verbs.Load(), verbs.Embed(False), verbs.Restore("best")) == ["restore"]
    assert caught_up(verbs.Restore("best"), verbs.Inherit("run", "best"), verbs.Load()) == ["inherit", "load"]


def test_weights_that_nodes_have_trained_since_are_not_sent_again() -> None:
    catch_up = CatchUp()
    catch_up.note(verbs.Load(), verbs.Load().call({}, "full"))
    catch_up.nodes_learned()
    assert not catch_up.calls(torch.arange(2))
    assert not catch_up.needed
