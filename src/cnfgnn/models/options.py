"""What a node model may have beyond the paper's; all of it off is the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Encoder = Literal["gru", "perceptron"]
Decoder = Literal["autoregressive", "direct"]


@dataclass(frozen=True)
class Options:
    """Each can be switched on alone."""

    encoder: Encoder = "gru"  # over the readings of a window; a perceptron sees them all at once
    decoder: Decoder = "autoregressive"  # direct: all steps at once from [h_c ; h_G]
    change: bool = False  # forecast what is added to the last reading
    gaps: bool = False  # which of the readings behind are missing
    profile: bool = False  # what the sensor usually reads at the times ahead
    calendar: int = 0  # width of learned embeddings of time of day and of day of week
    personal: int = 0  # width of an embedding of the sensor, which never leaves it
    personal_head: bool = False  # what a sensor adds to everybody's last layer, which never leaves it
    sent: int = 0  # how many numbers of h_c are sent at most; 0: all

    @property
    def paper(self) -> bool:
        """Whether the model is the paper's (what is sent of h_c is not the model's business)."""
        return Options(sent=self.sent) == self


def numbers_sent(sent: int, h_c: int) -> int:
    """How many of h_c's numbers leave a node that has so many."""
    return min(sent, h_c) if sent else h_c
