"""Rounds are counted by what is asked for: a server cannot make many of them look like one."""

from __future__ import annotations

import pytest

from cnfgnn.algorithm.messages.randomness import Draw, Minibatches
from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.messages.verbs import Backward, Encode, Update, Weights
from cnfgnn.transports.remote.rounds import Rounds


def update(r_g: int, first: int | None = None, r_c: int = 2) -> Update:
    return Update(r_g, r_c, 0, None if first is None else Minibatches(first, first + 1))


def backward(r_g: int, epoch: int, number: int) -> Backward:
    return Backward(Draw(r_g, epoch, number), 0, False)


def begun(*requests: Verb) -> list[int]:
    """How many rounds each request begins."""
    rounds, found = Rounds(), []
    for request in requests:
        rounds, count = rounds.begin([request])
        found.append(count)
    return found


def test_the_requests_of_a_round_count_once() -> None:
    alternating = [
        update(1),
        Weights(),
        Encode("train"),
        backward(1, 0, 0),
        backward(1, 0, 1),
        backward(1, 1, 0),
    ]
    assert begun(*alternating, update(2), backward(2, 0, 0)) == [1, 0, 0, 0, 0, 0, 1, 0]
    assert begun(update(1, 0), Weights(), update(1, 1), update(1, 2), update(2, 0)) == [1, 0, 0, 0, 1]
    assert begun(backward(1, 0, 0), backward(1, 0, 1), backward(2, 0, 0)) == [1, 0, 1]


@pytest.mark.parametrize(
    "again", [[update(1)] * 3, [update(1, 1)] * 3, [backward(1, 0, 0)] * 3, [backward(1, 2, 5)] * 3]
)
def test_a_server_that_repeats_the_number_of_a_round_begins_one_each_time(again: list[Verb]) -> None:
    assert begun(*again) == [1, 1, 1]


def test_a_round_that_never_ends_counts_as_many() -> None:
    assert sum(begun(*(backward(1, epoch, 0) for epoch in range(1000)))) == 10
    assert begun(update(1, r_c=1000)) == [10]
    assert begun(update(1, 0), update(1, 1, r_c=3), update(1, 2, r_c=4)) == [1, 1, 1]


def test_all_requests_of_a_message_count() -> None:
    rounds, count = Rounds().begin([update(1), update(2), update(2), backward(1, 0, 0)])
    assert count == 3
    assert rounds.begin([backward(2, 0, 0)])[1] == 0
    assert rounds.begin([update(9)])[1] == 1


def test_asking_does_not_count() -> None:
    rounds = Rounds()
    assert [rounds.begin([update(1)])[1] for _ in range(3)] == [1, 1, 1]
    assert begun(update(1)) == [1]
