"""What every node must know to take part."""

from __future__ import annotations

from dataclasses import dataclass, fields

from cnfgnn.algorithm.memory_plan import How
from cnfgnn.config.settings import Missing, Wire
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
    keeping: How  # one choice for all: were it each site's own, results would depend on who shares a site
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

    @property
    def options(self) -> Options:
        return Options(**{f.name: getattr(self, f.name) for f in fields(Options)})

    @property
    def numbers_sent(self) -> int:
        """Of h_c."""
        return numbers_sent(self.sent, self.hidden * self.layers)
