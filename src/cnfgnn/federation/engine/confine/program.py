"""What `confining` starts to try something out: a process that confines itself, or becomes another user."""

from __future__ import annotations

import json
import os
import sys

from cnfgnn.federation.engine.confine import confining, paths, privileges
from cnfgnn.federation.engine.confine.limits import Limits


def run(what: str) -> None:
    """Try something and print what came of it; end with one sentence if it is impossible."""
    try:
        print(json.dumps(_try(what)))
    except (OSError, LookupError, RuntimeError) as error:
        sys.exit(error.args[0] if isinstance(error, LookupError) else str(error))


def _try(what: str) -> dict[str, object]:
    asked = json.load(sys.stdin)
    if what == "confine":
        return confining.confine(Limits.from_dict(asked)).to_dict()
    existing = [[path for path in asked[kind] if os.path.lexists(path)] for kind in ("readable", "writable")]
    privileges.become(asked["user"])
    return {"problem": paths.problem_with(*existing)}
