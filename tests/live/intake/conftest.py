from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from cnfgnn.live.intake import folder_source


@pytest.fixture(scope="module", autouse=True)
def read_at_once() -> Iterator[None]:
    """A file that took long to read is left alone for a while; on a busy machine that may be any file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_source, "SLOW", math.inf)
        yield
