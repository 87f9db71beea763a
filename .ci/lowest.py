"""Print pip constraints that pin every direct dependency to the lowest version that pyproject.toml admits.

PyTorch is left out: wheels of its older versions are large, and the pinned one is already there.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

LEFT_OUT = {"torch", "cnfgnn"}


def lowest() -> list[str]:
    """One `name==version` for each run-time dependency, with those of the federation and the live service."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["federation"], *extras["live"]]
    pins = []
    for requirement in requirements:
        found = re.match(r"([\w.-]+)(?:\[.*\])?>=([\d.]+)", requirement)
        if found is None:
            raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound")
        name, version = found.groups()
        if name not in LEFT_OUT:
            pins.append(f"{name}=={version}")
    return pins


if __name__ == "__main__":
    print("\n".join(lowest()))
