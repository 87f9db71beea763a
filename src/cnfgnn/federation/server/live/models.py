"""The models of a live federation: the run that it went live with, and those that were trained beside it.

The server's kit records which one is live, as the folder of one machine's service does, and the live task
follows the record. All models are runs of the kit, so that the sites have states of them.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.kept_states import KeptStates
from cnfgnn.federation.run_names import OF_LINE, TRAINED
from cnfgnn.federation.server.federated_run import terms_of
from cnfgnn.federation.task import RUNS
from cnfgnn.live.learning.models import Models, Record, trained_at
from cnfgnn.live.options import LIVE
from cnfgnn.runs.folder import Run

WHEN = "????????T??????"  # when they were, at the end of the name: others may go on from such a run


def recorded(kit: Path, run: str) -> Record:
    """What is known of the models of the federation that went live with `run`; nothing is written."""
    if not (kit / LIVE / run).is_dir():
        return Record((run,))
    return FederatedModels(kit, run).read()


class FederatedModels(Models):
    """The models of the federation that went live with `run`, by name."""

    def __init__(self, kit: Path, run: str) -> None:
        super().__init__(kit / RUNS / run, kit / LIVE / run)
        self.runs = kit / RUNS

    @property
    def prefix(self) -> str:
        """How the names of models that were trained beside the live task begin."""
        return self.first[:OF_LINE]

    def folder(self, model: str) -> Path:
        return self.runs / model

    def new_name(self) -> str:
        """For a model that is trained now."""
        return f"{self.prefix}-{TRAINED}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"

    def about(self, model: str, run: Run) -> dict[str, Any]:
        """What the operator is told about the model that forecasts are made with."""
        switches = self.read().switches
        return {
            "name": model,
            "method": run.config.method,
            "round": run.progress.best.r_g,
            "trained": trained_at(run),
            "since": switches[-1].time if switches else time.time(),
        }

    def remove_others(self) -> None:
        """Delete the runs of models that are not in the line: rolled back, not better, or unfinished."""
        kept = set(self.read().line)
        for folder in self.runs.glob(f"{self.prefix}-{TRAINED}-{WHEN}"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def kept_states(self) -> KeptStates | None:
        """What sites keep: states of the models that one can go back to; None if those are not known."""
        try:
            line = [Run.open(self.folder(name)) for name in self.read().line]
            return KeptStates(self.prefix, tuple(terms_of(run).run for run in line))
        except CnfgnnError:
            return None
