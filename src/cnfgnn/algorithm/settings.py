"""What every node must know to take part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from cnfgnn.algorithm.memory_plan import StateFormat
from cnfgnn.algorithm.number_rules import Rule, flag, one_of, real, whole
from cnfgnn.config.settings import MOST_UNITS, Missing, Wire
from cnfgnn.data.batch import Loss
from cnfgnn.models.options import Decoder, Encoder, Options, numbers_sent


@dataclass(frozen=True)
class NodeSettings:
    """What every node must know to take part: it travels with `prepare`."""

    seed: int
    hidden: int
    layers: int
    embedding: int
    client_batch: int
    server_batch: int
    client_lr: float
    keep_optimizer: bool
    sampling: float
    missing: Missing
    keeping: StateFormat  # one choice for all sites, or results would depend on who shares a site
    wire: Wire
    encoder: Encoder = "gru"
    decoder: Decoder = "autoregressive"
    change: bool = False
    gaps: bool = False
    profile: bool = False
    calendar: int = 0
    personal: int = 0
    personal_head: bool = False
    sent: int = 0
    loss: Loss = "square"
    decay_rounds: int = 0  # over which learning rates fall to nothing; 0: they stay

    def to_numbers(self) -> dict[str, int | float | str | bool]:
        """Everything by name, as `prepare` carries it."""
        return dict(vars(self))

    @classmethod
    def from_numbers(cls, numbers: Mapping[str, Any]) -> NodeSettings:
        """The settings among the numbers of `prepare`."""
        return cls(**{f.name: numbers[f.name] for f in fields(cls)})

    @property
    def options(self) -> Options:
        return Options(**{f.name: getattr(self, f.name) for f in fields(Options)})

    @property
    def numbers_sent(self) -> int:
        """Of h_c."""
        return numbers_sent(self.sent, self.hidden * self.layers)


def _not_negative(value: object) -> bool:
    return real()(value) and not (isinstance(value, int | float) and value < 0)


# Which values a site accepts for each of them.
NODE_SETTING_RULES: Mapping[str, Rule] = {
    "seed": whole(0),
    "hidden": whole(1, MOST_UNITS),
    "layers": whole(1, 100),
    "embedding": whole(0, MOST_UNITS),
    "client_batch": whole(1),
    "server_batch": whole(1),
    "client_lr": real(above=0),
    "keep_optimizer": flag,
    "sampling": _not_negative,
    "missing": one_of(*get_args(Missing)),
    "keeping": one_of(*get_args(StateFormat)),
    "wire": one_of(*get_args(Wire)),
    "encoder": one_of(*get_args(Encoder)),
    "decoder": one_of(*get_args(Decoder)),
    "change": flag,
    "gaps": flag,
    "profile": flag,
    "calendar": whole(0, MOST_UNITS),
    "personal": whole(0, MOST_UNITS),
    "personal_head": flag,
    "sent": whole(0, MOST_UNITS),
    "loss": one_of(*get_args(Loss)),
    "decay_rounds": whole(0),
}
