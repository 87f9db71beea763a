"""What a server learns of errors: against the blurred copies, and against true readings where owners tell."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from cnfgnn.data.prepared_series import SUMS


class Sums(NamedTuple):
    """Summed errors of n nodes at t steps ahead, see `data.prepared_series.SUMS`.

    of_copy  (n t 8)  of forecasts from the copy, against the copy: they choose the best round
    told     (n t 8)  of forecasts from true readings, against true readings; zeros for owners who do not tell
    """

    of_copy: Tensor
    told: Tensor

    @property
    def all_told(self) -> bool:
        """Whether all owners who answered tell true errors."""
        count = SUMS.index("count")
        answered, telling = (sums[..., count].sum(dim=1) > 0 for sums in self)
        return bool((telling | ~answered).all())

    @property
    def best_known(self) -> Tensor:
        """True errors if all owners who answered tell them, otherwise those against the copy."""
        return self.told if self.all_told else self.of_copy
