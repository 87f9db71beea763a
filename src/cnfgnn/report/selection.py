"""Which sensors a page shows in full if there are too many for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MANY = 1000  # with more sensors, a page shows all of them on the map but only some in full
OF_EACH_KIND = 12


def sensors_in_full(
    errors: npt.NDArray[np.float64], named: Sequence[int] = (), each: int = OF_EACH_KIND
) -> dict[str, list[int]]:
    """The sensors to show in full, by kind: those that were asked for, and those with the highest errors,
    with errors nearest to the median, and with the lowest. A sensor without an error (NaN) is never chosen;
    if none has one, the first sensors stand for all."""
    order = np.argsort(errors, kind="stable")[: int(np.isfinite(errors).sum())].tolist()
    if not order:
        return {"named": list(named), "highest": [], "typical": list(range(len(errors)))[:each], "lowest": []}
    median = float(np.median(errors[order]))
    highest = order[::-1][:each]
    lowest = [row for row in order[:each] if row not in highest]
    ends = {*highest, *lowest}
    typical = [row for row in sorted(order, key=lambda row: abs(errors[row] - median)) if row not in ends]
    return {"named": list(named), "highest": highest, "typical": typical[:each], "lowest": lowest}
