"""Kits and requests with the RSA keys of earlier ones, for tests: making keys takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

_KEYS: list[rsa.RSAPrivateKey] = []


@contextmanager
def known_keys(after: int = 0) -> Iterator[None]:
    """Give no two parties the same key, but the keys that were made in an earlier such context.

    The first `after` of them are left out, for parties that know others from an earlier context.
    """
    make, used = rsa.generate_private_key, after

    def next_key(public_exponent: int, key_size: int, backend: Any = None) -> rsa.RSAPrivateKey:
        nonlocal used
        if (public_exponent, key_size) != (65537, 2048):
            return make(public_exponent, key_size)
        while used >= len(_KEYS):
            _KEYS.append(make(public_exponent, key_size))
        used += 1
        return _KEYS[used - 1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rsa, "generate_private_key", next_key)
        yield
