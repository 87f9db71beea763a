"""Pack arrays into compressed text that a browser can unpack."""

from __future__ import annotations

import base64
import gzip
import math
from typing import Any

import numpy as np
import numpy.typing as npt

ABSENT = -32768  # stands for NaN among integers
LEVELS = 2000  # the fewest steps between the lowest and the highest value of a rounded series


class Pack:
    """Arrays in one compressed block; each method returns where and how its array is stored."""

    def __init__(self) -> None:
        self.content = bytearray()

    def exact(self, values: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Add an array as float64, to the last bit."""
        return self._add(values.astype("<f8"), "f8")

    def coarse(self, values: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Add an array as float32: enough for charts."""
        return self._add(values.astype("<f4"), "f4")

    def rounded(self, values: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Add an array as multiples of a power of ten, two bytes each: for charts of long series."""
        known = values[np.isfinite(values)]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        digits = -math.ceil(math.log10(max(high - low, abs(high) * 1e-12, 1e-12) / LEVELS))
        origin = round((low + high) / 2 * 10.0**digits)
        whole = np.nan_to_num(np.round(values * 10.0**digits) - origin, nan=ABSENT)
        return self._add(whole.astype("<i2"), "i2") | {"digits": digits, "origin": origin}

    def text(self) -> str:
        """The whole block as text."""
        return gzip_base64(bytes(self.content))

    def _add(self, values: npt.NDArray[Any], kind: str) -> dict[str, Any]:
        # Aligned, so that a browser can read the numbers in place.
        self.content += bytes(-len(self.content) % 8)
        at = len(self.content)
        self.content += np.ascontiguousarray(values).tobytes()
        return {"at": at, "shape": list(values.shape), "kind": kind}


def gzip_base64(content: bytes) -> str:
    """Compress with gzip and encode as base64; the same content always gives the same text."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()
