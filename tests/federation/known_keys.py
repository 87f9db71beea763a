"""Kits with the RSA keys of earlier kits, for tests in which nobody connects: making keys takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from nvflare.lighter.impl import cert

_KEYS: list[Any] = []


@contextmanager
def known_keys() -> Iterator[None]:
    """Give no two parties the same key, but the keys of kits that were made in an earlier such context."""
    make, used = cert.generate_keys, 0

    def next_keys() -> Any:
        nonlocal used
        if used == len(_KEYS):
            _KEYS.append(make())
        used += 1
        return _KEYS[used - 1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cert, "generate_keys", next_keys)
        yield
