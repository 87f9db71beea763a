"""The programs that `confining` starts: each confines itself first."""

from __future__ import annotations

import json
import os
import sys

from cnfgnn.federation.engine.confine import confining, paths, privileges
from cnfgnn.federation.engine.confine.limits import Limits


def run(what: str, *arguments: str) -> None:
    """Carry out one of the programs; end with one sentence if it is impossible."""
    try:
        if what == "start":
            _start(*arguments)
        else:
            print(json.dumps(_try(what)))
    except (OSError, LookupError, RuntimeError) as error:
        sys.exit(error.args[0] if isinstance(error, LookupError) else str(error))


def _start(limits: str, report: str, *command: str) -> None:
    confinement = confining.confine(Limits.from_dict(json.loads(limits)))
    if report:
        with open(int(report), "w", encoding="utf-8") as file:
            file.write(json.dumps(confinement.to_dict()) + "\n")
    os.execv(command[0], command)


def _try(what: str) -> dict[str, object]:
    asked = json.load(sys.stdin)
    if what == "confine":
        return confining.confine(Limits.from_dict(asked)).to_dict()
    existing = [[path for path in asked[kind] if os.path.lexists(path)] for kind in ("readable", "writable")]
    privileges.become(asked["user"])
    return {"problem": paths.problem_with(*existing)}
