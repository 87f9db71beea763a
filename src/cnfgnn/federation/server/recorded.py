"""A task whose server keeps what it receives: `cnfgnn attack` shows what can be learned from that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cnfgnn.algorithm.calls import Transport
from cnfgnn.attack.observe import TRAINING_WINDOWS, nothing_to_attack
from cnfgnn.attack.recording import RECORDING_FILE, Recorder
from cnfgnn.errors import ConfigError
from cnfgnn.federation.server.federated_run import federated_data
from cnfgnn.runs.folder import Run


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
    """Write the recording into the run folder, for nobody else to read; returns the file's name.

    `blurs` has None for sites that were absent when the task began: what they told before is used.
    """
    told: Mapping[str, float | None] = run.events()[0].get("data", {}).get("blur", {})
    per_node: list[float] = []
    for site, sensors in federated_data(run).sites.items():
        blur = blurs.get(site) if blurs.get(site) is not None else told.get(site)
        per_node += [blur or 0.0] * len(sensors)
    recorder.recording(torch.tensor(per_node, dtype=torch.float64)).save(run.folder / RECORDING_FILE)
    (run.folder / RECORDING_FILE).chmod(0o600)
    return RECORDING_FILE
