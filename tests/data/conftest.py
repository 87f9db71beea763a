"""Real readings, where they lie beside the checkout; the project ships none."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the folder shared/data with parts of METR-LA and PEMS-BAY is not beside this checkout")
    return SHARED
