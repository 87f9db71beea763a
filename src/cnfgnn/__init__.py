"""Cross-node federated graph neural networks: sensors forecast together without sharing their readings."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cnfgnn.version import __version__ as __version__

# Let PyTorch's threads sleep soon when they wait for each other. OpenMP reads this when PyTorch is imported.
# A thread that waits for another one checks 300,000 times, which takes milliseconds, before it sleeps. If a
# busy program has the processor that the other one needs, all of that is lost, in each of the thousands of
# operations of a round: a training on two processors was more than ten times as slow as alone
# (benchmarks/busy.py). Processes that we start inherit the setting.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # some tenths of a millisecond

if TYPE_CHECKING:
    from cnfgnn.api import *  # noqa: F403


def __getattr__(name: str) -> object:
    """Import the Python API on first use, so that `import cnfgnn` and the command line's help stay fast."""
    if name == "__all__":
        return __dir__()
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is not None:  # a module is not part of the API
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cnfgnn import api

    if name not in api.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(api, name)


def __dir__() -> list[str]:
    from cnfgnn import api

    return [*api.__all__, "__version__"]
