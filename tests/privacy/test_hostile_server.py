"""A server that does not follow the protocol learns no more than one that does.

It sends one site whatever hypothesis thinks of: crafted weights and embeddings, verbs in any order and more
than once, windows that differ by one, states that were never saved, and what is no request at all. The site
is there twice, with other true readings and the same copy: every answer, refusal and sentence is the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cnfgnn.algorithm.messages import verbs
from cnfgnn.algorithm.messages.calls import Call
from cnfgnn.algorithm.messages.randomness import Draw, Minibatches
from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.messages.window_plan import WindowPlan
from cnfgnn.config.settings import Missing
from cnfgnn.data.windows import SPLITS
from cnfgnn.testing.two_truths import HISTORY, HORIZON, TRUTHS, TwoTruths, brief
from cnfgnn.transports.remote.header import Malformed
from cnfgnn.transports.remote.messages import unpack
from cnfgnn.transports.remote.schema import check_calls
from tests.privacy.recorded_sites import RecordedSites, Sender
from tests.privacy.test_non_interference import LEAKS, Leaky
from tests.privacy.two_truths import city, quick_fits
from tests.transports.remote.both_ways import decode_answers

ROWS, SENSORS = 50, 3
TAGS = ("round-00001", "round-00002", "round-99999", "round-00002-phase-1", "x", "owner", "site-0")
SIZES = (0.0, 1.0, -1.0, 1e-30, 1e4, 1e30, -1e38, math.inf, math.nan)
METHODS = ("cnfgnn-private", "at-fedavg", "mlp-fedavg")

# Few of them, so that one verb continues what another began.
draws = st.sampled_from([Draw(1, 0, 0), Draw(1, 0, 1), Draw(0, 2, 3)])
splits = st.sampled_from(SPLITS)


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...], dtypes: frozenset[torch.dtype]) -> Tensor:
    """Everything the same, one input isolated, or drawn at random; often of an absurd size."""
    dtype = draw(st.sampled_from(sorted(dtypes, key=str)))
    kind, size = draw(st.sampled_from(["same", "isolated", "random"])), draw(st.sampled_from(SIZES))
    if dtype == torch.int8:
        size = 127.0 if size else 0.0
    x = torch.full(shape, size, dtype=torch.float64)
    if kind == "isolated" and x.numel():
        x = torch.zeros(shape, dtype=torch.float64)
        x.view(-1)[draw(st.integers(0, x.numel() - 1))] = size
    elif kind == "random":
        seed = draw(st.integers(0, 99))
        x = x * (
            2 * torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
        )
    return x.to(dtype)


@st.composite
def starts(draw: st.DrawFn) -> Mapping[str, Tensor]:
    """Windows anywhere in the series, also beyond its end; another set may differ by a single one."""
    cuts = draw(
        st.sampled_from([(0, 30, 35, 40), (1, 30, 35, 40), (0, 31, 36, 43), (0, 1, 1, 1), (0, 30, 40, 60)])
    )
    found = {}
    for k, split in enumerate(SPLITS):
        rows = np.arange(cuts[k], cuts[k + 1])
        if len(rows) > 1 and draw(st.booleans()):
            rows = np.delete(rows, draw(st.integers(0, len(rows) - 1)))
        found[split] = torch.from_numpy(rows.astype(np.int64))[None]
    return found


USUAL_SETTINGS = [NodeSettings.of(brief(method)) for method in METHODS]


@st.composite
def node_settings(draw: st.DrawFn) -> NodeSettings:
    """Those of a method, with a few that a server would choose to learn more."""
    usual = draw(st.sampled_from(USUAL_SETTINGS))
    return replace(
        usual,
        seed=draw(st.integers(0, 3)),
        missing=draw(st.sampled_from(get_args(Missing))),
        wire=draw(st.sampled_from(["full", "bf16", "int8"])),
        client_lr=draw(st.sampled_from([usual.client_lr, 1e-30, 1e6])),
        client_batch=draw(st.sampled_from([1, 30])),
        server_batch=draw(st.sampled_from([1, 30])),
        sampling=draw(st.sampled_from([0.0, 30.0])),
    )


plans = st.builds(WindowPlan, st.just(HISTORY), st.just(HORIZON), st.booleans())
tags = st.sampled_from(TAGS)
# Any verb, with numbers that it allows.
REQUESTS: Sequence[st.SearchStrategy[Verb]] = (
    st.builds(verbs.Census, plans, st.sampled_from(get_args(Missing))),
    st.builds(
        verbs.Prepare,
        node_settings(),
        st.sampled_from([0.0, 50.0, -1e30]),
        st.sampled_from([1.0, 1e-300, 1e30]),
        plans,
    ),
    st.builds(verbs.Turn, st.integers(0, 100)),
    st.just(verbs.Load()),
    st.just(verbs.Inform()),
    st.just(verbs.Levels()),
    st.builds(verbs.Embed, st.booleans(), st.none() | draws),
    st.builds(
        verbs.Update,
        st.integers(0, 3),
        st.integers(1, 2),
        st.integers(0, 5),
        st.none() | st.builds(Minibatches, st.integers(0, 1), st.integers(2, 3)),
    ),
    st.builds(verbs.Step, draws),
    st.just(verbs.Pull()),
    st.just(verbs.Forecast()),
    st.builds(verbs.Save, tags, st.sampled_from(["", " ".join(TAGS)])),
    st.builds(verbs.Restore, tags),
    st.builds(verbs.Inherit, tags, tags),
    st.just(verbs.Weights()),
    st.builds(verbs.Encode, splits, st.none() | draws),
    st.builds(verbs.Backward, draws, st.integers(0, 5), st.booleans()),
    st.builds(verbs.Score, splits),
)
requests = st.one_of(REQUESTS)
# Nodes learn, and the server looks at what they learned: chance alone puts these in a row too rarely.
lessons = draws.map(lambda draw: [verbs.Backward(draw, 0, learn=True), verbs.Step(draw), verbs.Weights()])
plan = WindowPlan(HISTORY, HORIZON, ahead=False)
sensible = st.builds(verbs.Prepare, node_settings(), st.just(50.0), st.just(10.0), st.just(plan))


def test_a_hostile_server_may_send_any_verb() -> None:
    assert len(REQUESTS) == len(verbs.VERBS)


@st.composite
def calls(draw: st.DrawFn, known: Sizes, request: Verb) -> Call:
    """A call with arrays of the names, types and shapes that the site expects, if there are any."""
    if isinstance(request, verbs.Census | verbs.Prepare):
        return Call(request.name, request.call({}, "full").numbers, draw(starts()))
    try:
        expected = request.down(known, {})
    except (KeyError, ZeroDivisionError):  # the site has not been prepared
        expected = {}
    tensors = {
        name: draw(arrays(draw(st.sampled_from(list(shapes))), dtypes))
        for name, (dtypes, shapes) in expected.items()
    }
    return Call(request.name, request.call({}, "full").numbers, tensors)


def sites_with(folder: Path, kinds: tuple[str, str]) -> list[RecordedSites]:
    """A site with each of two kinds of readings, whose copies are the same."""
    truths = TwoTruths.of(folder, brief("cnfgnn-private"), city(n=SENSORS, rows=ROWS), kinds)
    return [RecordedSites(truths, truth, [list(range(SENSORS))]) for truth in truths]


@quick_fits()
def check_that_nothing_is_learned(folder: Path, data: st.DataObject) -> None:
    kinds = data.draw(st.tuples(*[st.sampled_from(list(TRUTHS))] * 2), "truths")
    sites = sites_with(folder, kinds)
    senders = [Sender(site.ends[0], site.terms) for site in sites]
    known = Sizes(SENSORS)
    for _ in range(data.draw(st.integers(1, 6), "requests")):
        sent: list[Call] = []
        after = known
        if not known.prepared and data.draw(st.integers(0, 3)):  # mostly: else it refuses everything else
            sent.append(data.draw(calls(after, data.draw(sensible))))
            after = _after(sent[-1:], after)
        for _ in range(data.draw(st.integers(1, 3))):
            for request in data.draw(requests.map(lambda one: [one]) | lessons, "request"):
                sent += [data.draw(calls(after, request))] * data.draw(st.sampled_from([1, 1, 1, 3]))
                after = _after(sent[-1:], after)
        one, other = (sender.send(sent) for sender in senders)
        assert one == other
        known = after if _succeeded(one) else Sizes(SENSORS)
    nonsense = data.draw(st.binary(max_size=40), "no request")
    one, other = (sender.send_bytes(nonsense) for sender in senders)
    assert one == other


def _after(sent: Sequence[Call], known: Sizes) -> Sizes:
    try:
        return check_calls(sent, known)
    except Malformed:
        return known


def _succeeded(note: bytes) -> bool:
    answer = unpack(note)
    return answer.kind == "done" and all(one.problem is None for one in decode_answers(answer.payload))


# ---- one attack, step by step ---------------------------------------------------------------------------


def attack(sender: Sender, times: int) -> list[bytes]:
    """Teach with crafted weights and one window that stands out, and look at what was learned, again and
    again with windows that differ by one."""
    config = brief("cnfgnn-private", **{"training.wire": "full"})
    plan = WindowPlan(HISTORY, HORIZON, ahead=False)
    prepare = verbs.Prepare(NodeSettings.of(config), 50.0, 10.0, plan)
    got = []
    for first in range(times):
        rows = {"train": range(first, 30), "validation": range(30, 35), "test": range(35, 40)}
        at = {split: torch.tensor([list(of_split)]) for split, of_split in rows.items()}
        known = _after([prepare.call(at, "full")], Sizes(SENSORS))
        crafted_weights = {
            name: torch.randn(1, *shape, generator=torch.Generator().manual_seed(first))
            for name, shape in known.model.items()
        }
        draw = Draw(1, 0, 0)
        crafted = torch.zeros(SENSORS, known.drawn(draw), known.embedding)
        crafted[:, 0, 0] = 1e3
        all_ones = torch.ones(SENSORS, 5, known.embedding)
        learn = [
            verbs.Census(plan, "as-truth").call(at, "full"),
            prepare.call(at, "full"),
            verbs.Load().call(crafted_weights, "full"),
            *[verbs.Backward(draw, 0, learn=True).call({"h_G": crafted}, "full")] * times,
        ]
        look = [  # in a request of its own: by then the owner has learned, too
            *[verbs.Encode("train").call({}, "full")] * times,
            verbs.Save("x", "").call({}, "full"),
            verbs.Restore("x").call({}, "full"),
            verbs.Weights().call({}, "full"),
            verbs.Embed(for_evaluation=True).call({"h_G": all_ones}, "full"),
            verbs.Score("test").call({}, "full"),
        ]
        got += [sender.send(learn), sender.send(look)]
        assert all(map(_succeeded, got[-2:])), got[-1][:300]
    return got


@pytest.mark.slow
def test_an_attack_gets_the_same_from_both(tmp_path: Path) -> None:
    sites = sites_with(tmp_path, ("plain", "shuffled"))
    one, other = (attack(Sender(site.ends[0], site.terms), 5) for site in sites)
    assert one == other
    assert len(set(one)) == len(one)  # the windows do make a difference
    errors = [site.owners[0].errors for site in sites if site.owners[0] is not None]
    assert not torch.equal(*errors)  # of the owners, who have different readings


def test_the_attack_would_see_hidden_states_of_true_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LEAKS["h_c of true readings"](Leaky(monkeypatch))
    sites = sites_with(tmp_path, ("plain", "shuffled"))
    one, other = (attack(Sender(site.ends[0], site.terms), 2) for site in sites)
    assert one != other


# ---- any attack -----------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_hostile_server_learns_no_more_in_many_trials(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    check_that_nothing_is_learned(tmp_path_factory.mktemp("copies"), data)


@pytest.mark.trials
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_hostile_server_learns_no_more_in_a_thousand_trials(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    check_that_nothing_is_learned(tmp_path_factory.mktemp("copies"), data)
