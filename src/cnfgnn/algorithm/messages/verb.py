"""What a verb is: one kind of request from the server to the nodes, as `verbs.py` declares them.

Its fields are the numbers that it carries, with their types and ranges (see `number_rules.py`); `down` and
`up` name the arrays that go to the nodes and come back, with their types and shapes; `tell` or `answer` calls
the method of `Clients` that carries it out, which has only a blurred copy of the readings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call, Number
from cnfgnn.algorithm.messages.ledger import Purpose
from cnfgnn.algorithm.messages.number_rules import InvalidCall, read_numbers, write_numbers
from cnfgnn.algorithm.messages.quantize import quantised
from cnfgnn.algorithm.messages.randomness import Draw
from cnfgnn.algorithm.messages.shapes import Arrays, Expected, Sizes
from cnfgnn.config.settings import Wire
from cnfgnn.models.params import Params

if TYPE_CHECKING:
    from cnfgnn.algorithm.clients import Clients

Reply = dict[str, Tensor]


@dataclass(frozen=True)
class Verb(ABC):
    """A request: the numbers that one call of a verb carries. The arrays travel beside it, by name."""

    name: ClassVar[str]
    purpose: ClassVar[Purpose] = "training"  # of its arrays in the ledger, unless the caller passes another
    before_prepare: ClassVar[bool] = False  # whether a site carries it out before it is prepared
    computes: ClassVar[bool] = False  # whether it may take a site minutes
    states: ClassVar[tuple[str, ...]] = ()  # arrays of hidden states or gradients: may be quantised to int8
    carries_weights: ClassVar[bool] = False  # its arrays are weights: may be quantised to bf16
    stays_bf16: ClassVar[bool] = False  # nodes store its arrays: they stay in bf16 if they arrive so

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__.lower()

    # ---- what it carries ----

    def down(self, known: Sizes, came: Arrays) -> Expected:
        """The arrays that go to the nodes with it; `came` are those that are declared in a message."""
        return {}

    def up(self, known: Sizes, came: Arrays) -> Expected:
        """The arrays that come back."""
        return {}

    def after(self, known: Sizes, came: Arrays) -> Sizes:
        """What is known of a site that has carried it out."""
        return known

    @property
    def minibatch(self) -> Draw | None:
        """The minibatch that it is about; None if it is about something else, or about all windows."""
        return next((value for value in vars(self).values() if isinstance(value, Draw)), None)

    # ---- how it is carried out ----

    @abstractmethod
    def carry_out(self, nodes: Clients, arrays: Params) -> Reply:
        """At a site: have the nodes do it, and return the arrays of the answer."""

    # ---- how it travels ----

    def call(self, arrays: Mapping[str, Tensor], wire: Wire) -> Call:
        return Call(self.name, write_numbers(self), self.quantised(arrays, wire))

    @classmethod
    def read(cls, numbers: Mapping[str, Number]) -> Self:
        """The request of a call that came; InvalidCall if its numbers are not those of this verb."""
        return read_numbers(cls, numbers)

    @classmethod
    def quantised(cls, arrays: Mapping[str, Tensor], wire: Wire) -> dict[str, Tensor]:
        return quantised(arrays, wire, cls.states, list(arrays) if cls.carries_weights else [])


class Tell(Verb):
    """Nothing comes back: it waits for the next ask and travels with it."""

    @abstractmethod
    def tell(self, nodes: Clients, arrays: Params) -> None: ...

    def carry_out(self, nodes: Clients, arrays: Params) -> Reply:
        self.tell(nodes, arrays)
        return {}


class Ask(Verb):
    """Every node answers."""

    @abstractmethod
    def up(self, known: Sizes, came: Arrays) -> Expected: ...

    @abstractmethod
    def answer(self, nodes: Clients, arrays: Params) -> Reply: ...

    def carry_out(self, nodes: Clients, arrays: Params) -> Reply:
        return self.answer(nodes, arrays)


def only(arrays: Params, name: str) -> Tensor:
    """The array of a verb that carries just this one."""
    if set(arrays) != {name}:
        raise InvalidCall(f"it carries {', '.join(arrays) or 'no array'} instead of {name}")
    return arrays[name]
