"""The blurred copy of a live site's newest readings, of further variables and of covariates."""

from __future__ import annotations

from dataclasses import replace

from cnfgnn.config.settings import Config
from cnfgnn.data.inputs import Input
from cnfgnn.data.readings import Readings
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.site.copies import LiveCopies
from cnfgnn.live.engine import CopyOfRows


class CopyOfNewest:
    """Makes the copy of what has arrived; only what is new or has changed is drawn.

    An input that its owner has declared public is its own copy, as in training.
    """

    def __init__(self, plan: SitePlan, copies: LiveCopies) -> None:
        config = Config().with_changes({"privacy.blur": plan.blur})
        self._readings = CopyOfRows(config, copies)
        self._inputs = {
            name: CopyOfRows(config, copies, name, sigma)
            for name, sigma in plan.input_blurs.items()
            if sigma > 0
        }

    def __call__(self, observed: Readings) -> Readings:
        others = tuple(self._copied(one) for one in observed.others)
        return replace(self._readings(observed), others=others)

    def _copied(self, one: Input) -> Input:
        copy = self._inputs.get(one.name)
        return one if copy is None else replace(one, readings=copy(one.readings))
