"""Whatever the true readings are, a server sees the same bits if their blurred copy and mask are the same.

Each test does something twice, on two sets of true readings with one copy. "The same" means every byte of
every message and every file. Owners do not tell their errors here, except where a test says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.messages import verbs
from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.methods import METHODS
from cnfgnn.algorithm.node_state import TRUST
from cnfgnn.algorithm.owner import TOLD, Owner
from cnfgnn.data.readings import Readings
from cnfgnn.errors import CnfgnnError, DataError, StorageError
from cnfgnn.models.params import Params
from cnfgnn.privacy.truth_and_copy import Blurring
from cnfgnn.testing.two_truths import (
    CODE,
    TRUTHS,
    Faults,
    Seen,
    TwoTruths,
    brief,
    differences,
    train_with_faults,
)
from cnfgnn.transports.remote.endpoint import Endpoint
from tests.conftest import FEDERATED as ALL_FEDERATED
from tests.privacy.recorded_sites import train_over_wires
from tests.privacy.two_truths import city, quick_fits, restored, train_in_folder

GROUPS = ([0], [1, 2, 3])
PRIVATE = "cnfgnn-private"
FEDERATED = [name for name in ALL_FEDERATED if name != "cnfgnn-plus"]  # with a blur, it is the private one
KINDS = list(TRUTHS)
Pair = tuple[Seen, Seen]


@pytest.fixture(autouse=True, scope="module")
def cheap_trainings() -> Iterator[None]:
    with quick_fits():
        yield


def is_learned_from_truth(seen: Pair) -> bool:
    """Whether what the owners keep for themselves differs: the truths were used after all."""
    one, other = (seen.of_owner for seen in seen)
    assert one.keys() == other.keys()
    return all(one[name] != other[name] for name in one)


# ---- all methods ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """Runs of a method on two truths, made once; each method meets with other truths."""
    made: dict[str, Pair] = {}

    def get(method: str) -> Pair:
        if method not in made:
            folder, number = tmp_path_factory.mktemp(method), FEDERATED.index(method)
            kinds = KINDS[number % len(KINDS)], KINDS[(number + 1) % len(KINDS)]
            truths = TwoTruths.of(folder / "copies", brief(method), city(number), kinds)
            one, other = (train_in_folder(truths, data, folder / f"{k}", 6) for k, data in enumerate(truths))
            made[method] = one, other
        return made[method]

    return get


# Not called `method`: all of them belong to the quick tests.
@pytest.mark.parametrize("name", FEDERATED)
def test_every_message_and_every_file_of_the_server_is_the_same(
    trained: Callable[[str], Pair], name: str
) -> None:
    """Through training, a killed server, resume, evaluate and forecast."""
    one, other = trained(name)
    assert differences(one, other) == []
    assert {"manifest.json", "events.jsonl", "scores"} <= one.files.keys()
    assert is_learned_from_truth((one, other))
    kept = {path for path in one.of_owner if path.startswith("checkpoints/owner-0/")}
    assert kept  # the intervals that every owner has


def test_every_verb_was_among_these_messages(trained: Callable[[str], Pair]) -> None:
    seen = set().union(*(trained(name)[0].verbs for name in FEDERATED))
    # A training that goes on from another run is in tests/federation/test_warm_start.py, and the steps of a
    # live task are in test_live.py there.
    assert seen == set(verbs.VERBS) - {verbs.Inherit.name, verbs.Turn.name}


OVER_WIRES = [
    pytest.param(name, marks=() if name in (PRIVATE, "at-fedavg", "gru-fmtl") else pytest.mark.slow)
    for name in FEDERATED
]


@pytest.mark.parametrize("name", OVER_WIRES)
def test_every_byte_on_the_wire_is_the_same(tmp_path: Path, name: str) -> None:
    """With the federation's own protocol, through the restart of a site, evaluate and forecast."""
    truths = TwoTruths.of(tmp_path, brief(name), city(), ("plain", "huge"))
    one, other = (train_over_wires(truths, data, GROUPS) for data in truths)
    assert differences(one, other) == []
    assert len(one.messages) > 20
    assert is_learned_from_truth((one, other))


@pytest.mark.slow
@pytest.mark.parametrize("retires", [True, False])
def test_a_restored_site_sends_the_same_whatever_became_of_its_retired_readings(
    tmp_path: Path, retires: bool
) -> None:
    """A training, an evaluation and a forecast after the restore of a backup. Readings without a copy in it
    differ; the test of the test is that without retiring them, the server sees it."""
    owners = restored(tmp_path, brief(PRIVATE), city(), ("plain", "noisy"), retires)
    one, other = (train_over_wires(truths, truths.one, GROUPS) for truths in owners)
    assert (differences(one, other) == []) == retires
    assert is_learned_from_truth((one, other))


# ---- other variables and covariates ---------------------------------------------------------------------

INPUTS = {"privacy.inputs": "flow=50, rain=0.5, holiday=public"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [PRIVATE, "mlp-fedavg"])
def test_blurred_variables_and_covariates_tell_no_two_truths_apart(tmp_path: Path, name: str) -> None:
    """Through training, a killed server, resume, evaluate and forecast; the covariate is known ahead."""
    truths = TwoTruths.of(tmp_path / "copies", brief(name, **INPUTS), city(inputs=True), ("plain", "noisy"))
    one, other = (train_in_folder(truths, data, tmp_path / f"{k}", 6) for k, data in enumerate(truths))
    assert differences(one, other) == []
    assert is_learned_from_truth((one, other))
    of_same_readings = replace(
        truths.one, readings=replace(truths.one.readings, others=truths.other.readings.others)
    )
    third = train_in_folder(truths, of_same_readings, tmp_path / "third", 6)
    assert differences(one, third) == []
    assert is_learned_from_truth((one, third))  # owners use the true inputs


@pytest.mark.slow
def test_variables_and_covariates_over_the_wire_tell_no_two_truths_apart(tmp_path: Path) -> None:
    truths = TwoTruths.of(tmp_path, brief(PRIVATE, **INPUTS), city(inputs=True), ("plain", "huge"))
    one, other = (train_over_wires(truths, data, GROUPS) for data in truths)
    assert differences(one, other) == []
    assert is_learned_from_truth((one, other))


@pytest.mark.parametrize("name", ["flow", pytest.param("rain", marks=pytest.mark.slow)])
def test_an_input_that_leaves_unblurred_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    truths = TwoTruths.of(tmp_path, brief(PRIVATE, **INPUTS), city(inputs=True), ("plain", "noisy"))

    copied = Blurring._copied

    def unblurred(self: Blurring, observed: Readings, of: str) -> Readings:
        return observed if of == name else copied(self, observed, of)

    monkeypatch.setattr(Blurring, "_copied", unblurred)
    one, other = (train_with_faults(truths, data, GROUPS) for data in truths)
    assert differences(one, other) != []


# ---- whatever happens -----------------------------------------------------------------------------------


@st.composite
def faults(draw: st.DrawFn, groups: int) -> Faults:
    """Groups that are away from some exchanges, though never all of them, and a server that is killed."""
    names = [f"site-{k}" for k in range(groups)]
    some = st.frozensets(st.sampled_from(names), max_size=groups - 1) if groups > 1 else st.just(frozenset())
    away = draw(st.dictionaries(st.integers(0, 40), some, max_size=4))
    return Faults(away, draw(st.frozensets(st.integers(1, 40), max_size=2)))


@st.composite
def partitions(draw: st.DrawFn, n: int) -> list[list[int]]:
    """The rows 0 .. n-1 in groups, in any order."""
    rows, cuts = draw(st.permutations(range(n))), draw(st.sets(st.integers(1, n - 1)))
    ends = [0, *sorted(cuts), n]
    return [list(rows[first:last]) for first, last in itertools.pairwise(ends)]


@st.composite
def changes(draw: st.DrawFn, method: str) -> dict[str, Any]:
    """Settings that change what leaves, and how."""
    return {
        "training.seen": draw(st.sampled_from([1.0, 0.5])) if METHODS[method].inductive else 1.0,
        "seed": draw(st.integers(0, 2**31)),
        "privacy.blur": draw(st.floats(0.01, 100)),
        "data.missing": draw(st.sampled_from(["masked", "as-truth"])),
        "data.missing_value": draw(st.sampled_from([(), (CODE,)])),
        "data.outliers": draw(st.sampled_from(["missing", "keep"])),
        "training.wire": draw(st.sampled_from(["full", "bf16", "int8"])),
        "training.client_batch": 20,  # also a short series has as many windows
        "training.server_batch": 20,
        "compute.precision": draw(st.sampled_from(["fp64", "fp32"])),
    }


def check_that_two_truths_look_the_same(folder: Path, draw: st.DataObject) -> None:
    method = draw.draw(st.sampled_from(FEDERATED), "method")
    n = draw.draw(st.integers(2, 4), "sensors")
    data = city(draw.draw(st.integers(0, 1000), "data"), n, draw.draw(st.integers(45, 60), "rows"))
    values, missing = data.readings.values, data.readings.missing
    values[5:7, 0] = CODE
    values[9:12, 1], missing[9:12, 1] = 0, True  # a number that is no reading
    groups = draw.draw(partitions(n), "groups")
    kinds = draw.draw(st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)), "truths")
    truths = TwoTruths.of(folder, brief(method, **draw.draw(changes(method))), data, kinds, seed=1)
    met = draw.draw(faults(len(groups)), "faults")
    one, other = (train_with_faults(truths, truth, groups, met) for truth in truths)
    assert differences(one, other) == []


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_nothing_tells_two_truths_apart(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    check_that_two_truths_look_the_same(tmp_path_factory.mktemp("copies"), draw)


@pytest.mark.slow
@settings(max_examples=35, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_nothing_tells_two_truths_apart_in_many_trials(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    check_that_two_truths_look_the_same(tmp_path_factory.mktemp("copies"), draw)


@pytest.mark.trials
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_nothing_tells_two_truths_apart_in_hundreds_of_trials(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    check_that_two_truths_look_the_same(tmp_path_factory.mktemp("copies"), draw)


# ---- what an owner chooses to tell ----------------------------------------------------------------------


def test_an_owner_who_tells_adds_the_sums_of_true_errors_and_nothing_else(tmp_path: Path) -> None:
    truths = TwoTruths.of(tmp_path, brief(PRIVATE), city(), ("plain", "noisy"))
    one, other = (train_with_faults(truths, data, GROUPS, tells=True, left_out=TOLD) for data in truths)
    assert one.messages == other.messages
    assert one.left_out != other.left_out
    assert one.files["result"] != other.files["result"]  # it quotes the true errors that it was told
    del one.files["result"], other.files["result"], one.files["progress"], other.files["progress"]
    assert differences(one, other) == []


# ---- a test of the test ---------------------------------------------------------------------------------


class Leaky:
    """Gives nodes the reference to their owner that they must not have, so that a mutation can leak."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.owners: dict[Clients, Owner] = {}
        self.patch, init = patch, Owner.__init__

        def remembered(owner: Owner, nodes: Clients, *args: Any, **kwargs: Any) -> None:
            init(owner, nodes, *args, **kwargs)
            self.owners[nodes] = owner

        patch.setattr(Owner, "__init__", remembered)

    def replace(self, name: str, leak: Callable[..., Any]) -> None:
        """Replace a method of `Clients`; `leak` gets the nodes, their owner, the original and arguments."""
        original = getattr(Clients, name)

        def leaking(nodes: Clients, *args: Any, **kwargs: Any) -> Any:
            return leak(nodes, self.owners[nodes], original, *args, **kwargs)

        self.patch.setattr(Clients, name, leaking)

    def on_true_readings(self, name: str) -> None:
        """Have a method of `Clients` compute with the owner's readings."""

        def leak(nodes: Clients, owner: Owner, original: Any, *args: Any, **kwargs: Any) -> Any:
            kept, nodes.data = nodes.data, owner.data
            try:
                return original(nodes, *args, **kwargs)
            finally:
                nodes.data = kept

        self.replace(name, leak)


def is_negative(owner: Owner) -> bool:
    return bool(np.nansum(owner.truth.values) < 0)


def _census_of_true_readings(leaky: Leaky) -> None:
    def census(nodes: Clients, owner: Owner, original: Any, *args: Any, **kwargs: Any) -> Any:
        kept, nodes.series = nodes.series, owner.truth
        try:
            return original(nodes, *args, **kwargs)
        finally:
            nodes.series = kept

    leaky.replace("census", census)


def _one_bit_of_the_census(leaky: Leaky) -> None:
    def census(nodes: Clients, owner: Owner, original: Any, *args: Any, **kwargs: Any) -> Any:
        moments, has = original(nodes, *args, **kwargs)
        if is_negative(owner):
            moments[0, 1] = torch.nextafter(moments[0, 1], moments.new_tensor(torch.inf))
        return moments, has

    leaky.replace("census", census)


def _true_errors_as_score(leaky: Leaky) -> None:
    def score(nodes: Clients, owner: Owner, original: Any, split: Any) -> Any:
        original(nodes, split)
        return nodes.forecaster.summed_errors(nodes.theta, owner.data, owner.h_G, split)

    leaky.replace("score", score)


def _usual_week_of_true_readings(leaky: Leaky) -> None:
    prepare = Owner.prepare

    def leaking(owner: Owner) -> None:
        prepare(owner)
        owner.nodes.data.usual = owner.data.usual

    leaky.patch.setattr(Owner, "prepare", leaking)


def _linear_forecasts_of_true_readings(leaky: Leaky) -> None:
    def backward(nodes: Clients, owner: Owner, original: Any, *args: Any, **kwargs: Any) -> Any:
        owner.data.fit()
        nodes.data.linear = owner.data.linear
        return original(nodes, *args, **kwargs)

    leaky.replace("backward", backward)


def _trust_in_a_state_of_the_nodes(leaky: Leaky) -> None:
    def save(nodes: Clients, owner: Owner, original: Any, tag: str, keep: Any) -> None:
        original(nodes, tag, keep)
        assert owner.trust is not None
        nodes.store.write(tag, nodes.store.read(tag) | {TRUST: owner.trust}, keep)

    leaky.replace("save", save)


def _failure_at_negative_readings(leaky: Leaky) -> None:
    follow = Owner.follow

    def failing(owner: Owner, request: Verb, *rest: Any) -> Params:
        if isinstance(request, verbs.Score) and is_negative(owner):
            raise DataError("readings", "they are negative")
        return follow(owner, request, *rest)

    leaky.patch.setattr(Owner, "follow", failing)


LEAKS: Mapping[str, Callable[[Leaky], None]] = {
    "h_c of true readings": lambda leaky: leaky.on_true_readings("encoded"),
    "gradients from true readings": lambda leaky: leaky.on_true_readings("backward"),
    "weights that learn from true readings": lambda leaky: leaky.on_true_readings("step"),
    "census of true readings": _census_of_true_readings,
    "one bit of the census": _one_bit_of_the_census,
    "true errors as score": _true_errors_as_score,
    "usual week of true readings": _usual_week_of_true_readings,
    "levels of true readings": lambda leaky: leaky.on_true_readings("levels"),
    "linear forecasts of true readings": _linear_forecasts_of_true_readings,
    "trust in a state of the nodes": _trust_in_a_state_of_the_nodes,
    "failure that depends on readings": _failure_at_negative_readings,
}


QUICK_LEAKS = ("h_c of true readings", "one bit of the census", "failure that depends on readings")


@pytest.mark.parametrize(
    "leak", [pytest.param(leak, marks=[] if leak in QUICK_LEAKS else pytest.mark.slow) for leak in LEAKS]
)
def test_a_leak_is_noticed(leak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = brief(PRIVATE, **{"training.rounds": 1})
    truths = TwoTruths.of(tmp_path, config, city(n=3, rows=60), ("plain", "negative"))
    LEAKS[leak](Leaky(monkeypatch))
    one, other = (train_with_faults(truths, data, ([0], [1, 2])) for data in truths)
    assert differences(one, other) != []


# ---- owners that fail -----------------------------------------------------------------------------------


def fail_at_negative_readings(patch: pytest.MonkeyPatch, verb: type[Verb], error: Exception) -> None:
    follow = Owner.follow

    def failing(owner: Owner, request: Verb, *rest: Any) -> Params:
        if isinstance(request, verb) and is_negative(owner):
            raise error
        return follow(owner, request, *rest)

    patch.setattr(Owner, "follow", failing)


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        (verbs.Prepare, DataError("readings", "-12.5 is no speed")),
        pytest.param(verbs.Backward, FloatingPointError("-12.5"), marks=pytest.mark.slow),
        pytest.param(verbs.Score, ValueError("-12.5"), marks=pytest.mark.slow),
        pytest.param(verbs.Save, MemoryError(), marks=pytest.mark.slow),
        pytest.param(verbs.Restore, CnfgnnError("-12.5 is no speed"), marks=pytest.mark.slow),
        pytest.param(verbs.Forecast, KeyError("-12.5"), marks=pytest.mark.slow),
        pytest.param(
            verbs.Prepare, StorageError("ranges.json", "No space left on device"), marks=pytest.mark.slow
        ),
        pytest.param(
            verbs.Score, StorageError("evaluations", "No space left on device"), marks=pytest.mark.slow
        ),
        pytest.param(
            verbs.Forecast, StorageError("forecasts", "No space left on device"), marks=pytest.mark.slow
        ),
    ],
    ids=lambda value: value.name if isinstance(value, type) else type(value).__name__,
)
def test_no_server_notices_that_an_owner_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: type[Verb], error: Exception
) -> None:
    truths = TwoTruths.of(tmp_path, brief(PRIVATE), city(n=3, rows=60), ("plain", "one negative"))
    fail_at_negative_readings(monkeypatch, verb, error)
    one, other = (train_over_wires(truths, data, ([0], [1, 2])) for data in truths)
    assert differences(one, other) == []
    assert one.of_owner != other.of_owner


@pytest.mark.slow
def test_a_server_that_notices_a_failure_of_the_owner_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truths = TwoTruths.of(tmp_path, brief(PRIVATE), city(n=3, rows=60), ("plain", "one negative"))
    fail_at_negative_readings(monkeypatch, verbs.Score, DataError("readings", "-12.5 is no speed"))

    def unguarded(end: Endpoint, answered: Any) -> Params:
        assert end.owner is not None
        return end.owner.follow(*answered)

    monkeypatch.setattr(Endpoint, "_follow", unguarded)
    one, other = (train_over_wires(truths, data, ([0], [1, 2])) for data in truths)
    assert differences(one, other) != []
