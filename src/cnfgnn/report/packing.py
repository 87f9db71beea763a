"""Pack arrays into compressed text that a browser can unpack."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

ABSENT = -32768  # stands for NaN among integers
ABSENT_FINE = 65535  # the same among fine numbers
LEVELS = 2000  # the fewest steps between the lowest and the highest value of a rounded series

T = TypeVar("T")


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

    def fine(self, values: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Add an array as 65,534 even steps between its lowest and its highest value, two bytes each."""
        known = values[np.isfinite(values)]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        unit = (high - low) / (ABSENT_FINE - 1) or 1.0
        steps = np.where(np.isfinite(values), np.round((values - low) / unit), ABSENT_FINE)
        return self._add(steps.astype("<u2"), "u2") | {"low": low, "unit": unit}

    def relative(self, values: npt.NDArray[np.float64]) -> dict[str, Any]:
        """Add an array of numbers that are not negative, two bytes each, in steps that grow with the numbers:
        one huge number does not coarsen the others."""
        positive = values[np.isfinite(values) & (values > 0)]
        low, high = (float(positive.min()), float(positive.max())) if len(positive) else (1.0, 1.0)
        unit = math.log(high / low) / (ABSENT_FINE - 2) or 1.0
        with np.errstate(invalid="ignore", divide="ignore"):
            steps = np.where(values > 0, 1 + np.round(np.log(values / low) / unit), 0)
        steps = np.where(np.isfinite(values), steps, ABSENT_FINE)
        return self._add(steps.astype("<u2"), "u2") | {"low": low, "ratio": math.exp(unit)}

    def whole(self, values: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Add an array of numbers from 0 to 2 ** 32 - 1."""
        return self._add(values.astype("<u4"), "u4")

    def json(self, value: Any) -> dict[str, Any]:
        """Add anything that JSON can express, such as names."""
        text = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
        return self._add(np.frombuffer(text, np.uint8), "json")

    def if_it_fits(self, most: int, add: Callable[[Pack], T]) -> T | None:
        """Add something unless the block, compressed, would become larger than `most` bytes."""
        before = len(self.content)
        added = add(self)
        if len(gzip.compress(self.content, 6)) <= most:
            return added
        del self.content[before:]
        return None

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
