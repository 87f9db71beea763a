"""Removing a site's states of models that were trained beside a live task and are no longer wanted.

Each retraining leaves a run of its own, and a site keeps states of it. The server keeps the models that went
live, as far as one can go back to them, and deletes the others. A retraining tells sites which ones it keeps,
and they delete their states of the others: never those of a run that somebody trained by name, and never
those that the site's live service uses.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from cnfgnn.federation.kept_states import KeptStates
from cnfgnn.federation.kits.retention import remove_folder
from cnfgnn.federation.run_names import TRAINED
from cnfgnn.federation.site.newcomer_fits import FOLDER as NEW_SENSORS
from cnfgnn.federation.site.owner import EVALUATIONS
from cnfgnn.federation.site.status import MODEL, STATES
from cnfgnn.files import read_json_or_empty
from cnfgnn.live.options import LIVE


def remove_old_states(kit: Path, wanted: KeptStates) -> list[str]:
    """Remove the site's states of models that are not kept; returns their names."""
    name = re.compile(rf"{re.escape(wanted.models)}-{TRAINED}-[0-9T]{{1,15}}-[0-9a-f]{{12}}")
    in_use = str(read_json_or_empty(kit / LIVE / MODEL).get("run") or "")
    found = sorted(path.name for path in (kit / STATES).glob("*") if name.fullmatch(path.name))
    old = [run for run in found if run not in wanted.kept and run != in_use]
    for run in old:
        _remove(kit, run)
    return old


def _remove(kit: Path, run: str) -> None:
    """Remove all that a site has of a run; its states last, so that the rest is found again otherwise."""
    for file in (kit / EVALUATIONS).glob(f"{run}-*.json"):
        file.unlink(missing_ok=True)
    shutil.rmtree(kit / LIVE / NEW_SENSORS / run, ignore_errors=True)
    remove_folder(kit, kit / STATES / run)
