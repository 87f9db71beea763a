"""How windows travel: what all of them have in common as numbers, their start rows as arrays."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch

from cnfgnn.config.declarations import Declaration
from cnfgnn.data.windows import SPLITS, Windows
from cnfgnn.models.params import Params

MOST_STEPS = 1 << 16  # of a window's history or horizon
Steps = Annotated[int, Declaration(at_least=1, at_most=MOST_STEPS)]


class WindowPlan(NamedTuple):
    """What all windows have in common; their start rows are arrays."""

    history: Steps
    horizon: Steps
    ahead: bool


def plan_of(windows: Windows) -> WindowPlan:
    return WindowPlan(windows.history, windows.horizon, windows.ahead)


def starts_of(windows: Windows) -> Params:
    return {split: torch.from_numpy(windows.starts[split])[None] for split in SPLITS}


def windows_of(plan: WindowPlan, starts: Params) -> Windows:
    """The windows that `census` and `prepare` carry, at the other end."""
    rows = {split: starts[split][0].cpu().numpy() for split in SPLITS}
    return Windows(rows, plan.history, plan.horizon, plan.ahead)
