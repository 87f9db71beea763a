"""The calls that a site that rejoins has to carry out before it can take part again."""

from __future__ import annotations

from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call, for_rows
from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.messages.verbs import Census, Embed, Inform, Inherit, Load, Prepare, Pull, Restore, Save

ORDER = (
    Prepare,
    Inherit,
    Restore,
    Inform,
    Load,
    Pull,
    Embed,
)  # each continues from what the ones before it set up


class CatchUp:
    """Remembers the calls that define the state of a node: how to prepare, which saved state to restore, and
    the weights, anchors and embeddings that were sent since."""

    def __init__(self) -> None:
        self._calls: dict[type[Verb], list[Call]] = {}

    def note(self, request: Verb, call: Call) -> None:
        """Remember a call that is about to be sent, if it changes the state of the nodes."""
        match request:
            case Prepare():
                self._calls = {Prepare: [call]}
            case Restore():
                self._calls = {Prepare: self._calls.get(Prepare, []), Restore: [call]}
            case Save(tag=tag):
                self._calls[Restore] = [Restore(tag).call({}, "full")]
            case Inherit():
                self._calls = {Prepare: self._calls.get(Prepare, []), Inherit: [call]}
            case Load() | Pull() | Inform():
                self._calls[type(request)] = [call]
            case Embed(for_evaluation=False, draw=draw):
                first = draw is None or draw.number == 0
                self._calls[Embed] = [call] if first else [*self._calls.get(Embed, []), call]

    def nodes_learned(self) -> None:
        """From now on the weights of the nodes are their own, not those that were loaded last."""
        self._calls.pop(Load, None)

    @property
    def needed(self) -> bool:
        """Whether the nodes have been prepared: before that there is nothing to catch up with."""
        return Prepare in self._calls

    def calls(self, rows: Tensor) -> list[Call]:
        """In the order in which these rows have to carry them out."""
        return [for_rows(call, rows) for verb in ORDER for call in self._calls.get(verb, [])]

    def census(self) -> Call:
        """For a site that missed the census: the same question, about the windows that were prepared."""
        (prepare,) = self._calls[Prepare]
        request = Prepare.read(prepare.numbers)
        return Census(request.plan, request.settings.missing).call(prepare.tensors, "full")

    def among(self, rows: Tensor) -> CatchUp:
        """The same for some of the rows."""
        selected = CatchUp()
        for verb, calls in self._calls.items():
            selected._calls[verb] = [for_rows(call, rows) for call in calls]
        return selected
