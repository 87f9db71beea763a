"""The run folder of a federation: what it records about data that the server never sees.

A run records the sites, their sensors and the time steps. Every later task checks against that record and
derives the same windows from it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from cnfgnn.algorithm.compute.memory_plan import MemoryPlan
from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.messages.calls import Transport
from cnfgnn.attack.observe import TRAINING_WINDOWS, nothing_to_attack
from cnfgnn.attack.recording import RECORDING_FILE, Recorder
from cnfgnn.data.description import DataDescription, FederatedData
from cnfgnn.data.graph import Graph
from cnfgnn.data.inputs import NO_INPUTS, InputCounts, InputNames
from cnfgnn.data.windows import SPLITS
from cnfgnn.errors import ConfigError, DataError, RunError
from cnfgnn.federation.project import Project
from cnfgnn.federation.run_names import name_in_requests
from cnfgnn.federation.spans import Span
from cnfgnn.runs.folder import Run
from cnfgnn.transports.remote.endpoint import Terms


def describe_data(project: Project, graph: Graph, span: Span) -> DataDescription:
    """What a new run records about its data."""
    return DataDescription(
        name=project.name,
        fingerprint=_fingerprint(project, graph),
        sensors=list(project.sensors),
        rows=span.rows,
        step_seconds=span.step,
        utc=span.utc,
        inputs=span.inputs,
        federation=FederatedData(
            first=span.first,
            id=secrets.token_hex(6),  # distinguishes the run from a deleted one of the same name
            sites={site.name: list(site.sensors) for site in project.sites},
        ),
    )


def federated_data(run: Run) -> FederatedData:
    """What the run records about its sites; a run of the simulator has none and is refused."""
    if run.data.federation is None:
        raise RunError(run.folder, "is not a run of a federation")
    return run.data.federation


def check_same_federation(run: Run, project: Project, graph: Graph) -> None:
    """Refuse to continue a run with other sensors or another graph than it began with."""
    federated_data(run)
    if run.data.fingerprint != _fingerprint(project, graph):
        problem = "began with other sensors or another graph than this kit has: start a new run"
        raise RunError(run.folder, problem)


def check_same_times(run: Run, span: Span) -> None:
    """Refuse readings at another pace than the run was trained on, or by another clock."""
    if problem := run.data.other_times(f"run {run.folder.name}", span.step, span.utc):
        raise DataError(run.data.name, problem)


def inputs_of(run: Run, found: InputNames) -> InputCounts:
    """How many further inputs the run's model takes; refused if the sites have others now than it was
    trained with."""
    if not run.config.model.takes_inputs:
        return NO_INPUTS
    if run.data.inputs != found:
        problem = f"was trained with other further inputs ({run.data.inputs}) than the sites have ({found})"
        raise RunError(run.folder, f"{problem}: have each site offer the same ones, or start a new run")
    return found.counts


def check_same_windows(run: Run, experiment: Experiment, absent: Iterable[str]) -> None:
    """Refuse to resume with other windows than before: sites that are absent now may have had more."""
    if {split: experiment.windows.count(split) for split in SPLITS} != run.events()[0]["windows"]:
        names = ", ".join(sorted(absent)) or "none"
        problem = f"has other windows than it began with (absent sites: {names}); start the sites and resume"
        raise RunError(run.folder, f"{problem} again")


def terms_of(run: Run) -> Terms:
    """The terms that sites agree to when they join the run."""
    data, federated = run.data, federated_data(run)
    name = name_in_requests(run.folder.name, federated.id)
    return Terms(federated.first, data.step_seconds, data.rows, run.config.compute.precision, name)


def memory_plan_of(run: Run) -> MemoryPlan | None:
    """The memory plan of a run that has begun: it also depends on sites that may be absent now."""
    if not run.started:
        return None
    return MemoryPlan.from_json(run.events()[0]["memory"])


def first_event(
    run: Run,
    project: Project,
    graph: Graph,
    positions: np.ndarray[Any, Any],
    blurs: Mapping[str, float | None],
) -> dict[str, Any]:
    """What the run's first event records about its data; `blurs` has None for sites that are absent."""
    terms = terms_of(run)
    ends = np.array([terms.first, terms.first + (terms.rows - 1) * terms.step]).astype("datetime64[s]")
    return {
        "name": project.name,
        "sensors": list(project.sensors),
        "positions": positions.tolist(),
        "from": str(ends[0]),
        "to": str(ends[1]),
        "rows": terms.rows,
        "missing": None,
        "edges": [graph.senders.tolist(), graph.receivers.tolist(), graph.weights.tolist()],
        "sites": federated_data(run).sites,
        "blur": dict(blurs),
    }


def _fingerprint(project: Project, graph: Graph) -> str:
    known = repr((project.sensors, graph.senders.tolist(), graph.receivers.tolist()))
    return hashlib.sha256(known.encode() + graph.weights.tobytes()).hexdigest()


# ---- a server that keeps what it receives: `cnfgnn attack` shows what can be learned from that -----------


def check_recordable(method: str, levels: bool = False) -> None:
    """Refuse to record a method of which there is nothing to attack; `levels`: whether nodes send levels."""
    if problem := nothing_to_attack(method, levels):
        raise ConfigError("--record", problem)


def recorder_for(do: str, split: Any, transport: Transport) -> Recorder:
    """A transport that also notes the hidden states of a task.

    An evaluation is recorded whole. Of a training, its last evaluation is recorded, and the first epoch of
    the last round for the newest training windows.
    """
    everything = slice(None)
    if do == "evaluate":
        return Recorder(transport, {split: everything})
    return Recorder(transport, {"test": everything, "train": slice(-TRAINING_WINDOWS, None)})


def keep_recording(recorder: Recorder, run: Run, blurs: Mapping[str, float | None]) -> str:
    """Write the recording into the run folder; returns the file's name.

    `blurs` has None for sites that were absent when the task began: what they told before is used.
    """
    told: Mapping[str, float | None] = run.events()[0].get("data", {}).get("blur", {})
    per_node: list[float] = []
    for site, sensors in federated_data(run).sites.items():
        blur = blurs.get(site) if blurs.get(site) is not None else told.get(site)
        per_node += [blur or 0.0] * len(sensors)
    recorder.recording(torch.tensor(per_node, dtype=torch.float64)).save(run.folder / RECORDING_FILE)
    return RECORDING_FILE
