"""Truth and copy: the central rule of privacy, in one place.

Which readings are missing is public and decided first, so codes for "missing" are masked before anything is
blurred. Then the copy is made. Outliers are sought in the true readings and in the copy, each by itself: the
copy tells nothing more of the readings than the blur lets through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from cnfgnn.config.settings import Config, DataConfig
from cnfgnn.data.quality import mask_codes, mask_outliers
from cnfgnn.data.readings import Readings
from cnfgnn.privacy.copies import Copies, SimulatedCopies
from cnfgnn.privacy.inputs import read_input_blurs

READINGS = ""  # among the names of further inputs: the readings that are forecast


@dataclass(frozen=True)
class Blurring:
    """How readings and their further inputs are blurred.

    sigmas  by name; whatever is not named is public, that is its own copy
    copies  where the copies come from
    """

    sigmas: Mapping[str, float]
    copies: Copies

    @classmethod
    def of(cls, config: Config, copies: Copies | None = None) -> Blurring:
        """As a run's settings say; by default, copies are drawn with a key that follows from the seed."""
        sigmas = {READINGS: config.privacy.blur, **read_input_blurs(config.privacy.inputs)}
        blurred = {name: sigma for name, sigma in sigmas.items() if sigma > 0}
        return cls(blurred, copies or SimulatedCopies(config.seed))

    def copy_of(self, observed: Readings) -> Readings:
        """The copy of readings and of their further inputs."""
        others = (replace(one, readings=self._copied(one.readings, one.name)) for one in observed.others)
        return replace(self._copied(observed, READINGS), others=tuple(others))

    def _copied(self, observed: Readings, name: str) -> Readings:
        return self.copies.blur(observed, self.sigmas[name], name) if name in self.sigmas else observed


class TruthAndCopy:
    """Readings as their owner uses them, and the copy that everything sent is computed from.

    Each is made when it is first asked for: what the server can notice must not depend on whether the truth
    could be made. Both are the same object if nothing is blurred.
    """

    def __init__(self, readings: Readings, cleaning: DataConfig, blurring: Blurring | None) -> None:
        self.readings, self.cleaning, self.blurring = readings, cleaning, blurring

    @cached_property
    def observed(self) -> Readings:
        """The readings whose gaps are decided: codes for "missing" are missing, also in further inputs."""
        readings, cleaning = self.readings, self.cleaning
        others = (replace(one, readings=mask_codes(one.readings, cleaning)) for one in readings.others)
        return replace(mask_codes(readings, cleaning), others=tuple(others))

    @cached_property
    def truth(self) -> Readings:
        """The true readings without outliers."""
        return self._without_outliers(self.observed)

    @cached_property
    def copy(self) -> Readings:
        """The blurred copy without its own outliers."""
        if self.blurring is None or not self.blurring.sigmas:
            return self.truth
        return self._without_outliers(self.blurring.copy_of(self.observed))

    def _without_outliers(self, readings: Readings) -> Readings:
        """Outliers are missing, also in other variables. A covariate has none: rare values are its point."""
        others = (
            one if one.known_ahead else replace(one, readings=mask_outliers(one.readings, self.cleaning))
            for one in readings.others
        )
        return replace(mask_outliers(readings, self.cleaning), others=tuple(others))
