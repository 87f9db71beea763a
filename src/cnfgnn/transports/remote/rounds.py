"""How many rounds of training a server has had a site begin, by what it asked for and not by what it says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.messages.verbs import Backward, Update

MOST_EPOCHS = 100  # of a round; whoever asks for more begins as many further rounds


class _Place(NamedTuple):
    """Where a request is in a training: requests of the same round follow each other there."""

    round: tuple[int, int]  # its number, and its epochs, or which hundred of them this is
    minibatch: tuple[int, int]
    rounds: int  # that such a round counts as


class Rounds:
    """Counts rounds by the requests that train: `update`, and `backward` where both sides learn together.

    Requests of one round name ever later minibatches of it. A request that names another round, or one that
    does not come after the last one, begins a round, so that a server that repeats a number for ever counts
    like one that does not.
    """

    def __init__(self) -> None:
        self._last: dict[str, _Place] = {}  # by verb: a round may have both
        self._begun: dict[str, int] = {}

    def begin(self, requests: Iterable[Verb]) -> tuple[Rounds, int]:
        """The count after these requests, and how many rounds they begin; this object does not change."""
        after = Rounds()
        after._last, after._begun = dict(self._last), dict(self._begun)
        for request in requests:
            after._note(request)
        return after, after.total - self.total

    @property
    def total(self) -> int:
        return max(self._begun.values(), default=0)

    def _note(self, request: Verb) -> None:
        place = _place_of(request)
        if place is None:
            return
        before = self._last.get(request.name)
        goes_on = before is not None and before.round == place.round and before.minibatch < place.minibatch
        self._last[request.name] = place
        if not goes_on:
            self._begun[request.name] = self._begun.get(request.name, 0) + place.rounds


def _place_of(request: Verb) -> _Place | None:
    match request:
        case Update(r_g=r_g, r_c=r_c, minibatches=chosen):
            first = 0 if chosen is None else chosen.first
            return _Place((r_g, r_c), (0, first), -(-r_c // MOST_EPOCHS))
        case Backward(draw=draw):
            return _Place((draw.r_g, draw.epoch // MOST_EPOCHS), (draw.epoch, draw.number), 1)
    return None
