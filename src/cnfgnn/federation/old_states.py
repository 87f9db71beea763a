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
from typing import Any, NamedTuple

from cnfgnn.algorithm.number_rules import TAG
from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.federated_run import terms_of
from cnfgnn.federation.live_models import TRAINED, FederatedModels
from cnfgnn.federation.live_relay import LIVE, MODEL
from cnfgnn.federation.newcomer_fits import FOLDER as NEW_SENSORS
from cnfgnn.federation.retention import remove_folder
from cnfgnn.federation.site_owner import EVALUATIONS
from cnfgnn.federation.site_store import STATES
from cnfgnn.files import read_json_or_empty
from cnfgnn.runs.folder import Run


class KeptStates(NamedTuple):
    """What a retraining tells its sites.

    models  how the names of its models begin: with that of the run that went live first
    kept    the states of these models that stay, by the name that a site has them under
    """

    models: str
    kept: tuple[str, ...]

    @classmethod
    def of(cls, models: FederatedModels) -> KeptStates | None:
        """Those of the models that one can go back to; None if that is not known of one of them."""
        try:
            line = [Run.open(models.folder(name)) for name in models.read().line]
            return cls(models.prefix, tuple(terms_of(run).run for run in line))
        except CnfgnnError:
            return None

    @classmethod
    def told(cls, fields: Any) -> KeptStates | None:
        """As they came with the task; None if they cannot be meant."""
        if not isinstance(fields, dict):
            return None
        models, kept = fields.get("models"), fields.get("kept")
        if not isinstance(kept, list) or not kept or not all(isinstance(name, str) for name in kept):
            return None
        valid = isinstance(models, str) and all(map(TAG.fullmatch, [models, *kept]))
        return cls(str(models), tuple(kept)) if valid else None


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
