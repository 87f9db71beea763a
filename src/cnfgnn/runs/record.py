"""The record of a finished run, `record.json`: what a table needs of it, small enough to be kept for good."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from cnfgnn.algorithm.experiment import fit_to_windows
from cnfgnn.algorithm.methods import method_of, preset
from cnfgnn.config.presets import BASELINE_SIZES, LIKES
from cnfgnn.config.settings import Config
from cnfgnn.data.description import checksum
from cnfgnn.data.readings import Readings
from cnfgnn.errors import ConfigError
from cnfgnn.files import make_folder, write_whole
from cnfgnn.runs.events import plain
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Scores
from cnfgnn.version import __version__

FILE = "record.json"
COMMIT = "CNFGNN_COMMIT"  # set it where the code is not a git checkout
OF_THE_PLACE = ("data.path", "method", "seed", "compute.device", "compute.memory")  # not of the method


def write_record(run: Run, readings: Readings, scores: Scores) -> None:
    """Leave the record of a finished run in its folder."""
    best, events = run.progress.best, run.events()
    windows, origin = int(events[0]["windows"]["train"]), run.origin
    nearest, settings = settings_that_differ(run.config, run.data.name, windows)
    record = {
        "method": method_of(run.config.method).name,
        "preset": nearest,
        "settings": settings,
        "seed": run.config.seed,
        **({"from": f"round {origin.round} of {Path(origin.run).name}"} if origin else {}),
        **about(run.data.name, readings),
        "errors": scores.summary(),
        "bytes": vars(best.training_bytes),
        "rounds": {"best": best.r_g, "all": len(run.progress.history)},
        "seconds": round(sum(event.get("seconds", 0.0) for event in events), 1),
    }
    write_json(run.folder / FILE, record)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, whatever it is of; its folder is made."""
    make_folder(path.parent)
    write_whole(path, (json.dumps(plain(record), indent=1, allow_nan=False) + "\n").encode())


def about(name: str, readings: Readings) -> dict[str, Any]:
    """The part of a record that says what was measured where: data, version, machine."""
    return {
        "data": {
            "name": name,
            "checksum": checksum(readings),
            "sensors": len(readings.ids),
            "rows": len(readings.times),
        },
        "version": __version__,
        "commit": commit(),
        "torch": torch.__version__,
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else _processor(),
    }


def settings_that_differ(config: Config, data: str, windows: int) -> tuple[Mapping[str, str], dict[str, Any]]:
    """The preset that the settings are nearest to, as it suits so many training windows, and those in which
    they differ from it. If several are as near, it is the one of the data set that `data` is named after."""
    method = method_of(config.method)
    values = {key: config.setting(key) for key in config.keys if key not in OF_THE_PLACE}
    found = []
    for size in BASELINE_SIZES:
        for like in sorted((None, *LIKES), key=lambda like: like is None or not data.startswith(like)):
            with suppress(ConfigError):  # the method has no such preset
                other = fit_to_windows(preset(method.name, size, like), method, windows)
                differ = {key: value for key, value in values.items() if value != other.setting(key)}
                found.append(({"size": size, "like": like or ""}, differ))
    return min(found, key=lambda one: len(one[1]))


@cache
def commit() -> str | None:
    """The commit of the code, with + if any Python file was changed since; None if that is not known."""
    if known := os.environ.get(COMMIT):
        return known
    here = ["git", "-C", str(Path(__file__).parent)]
    with suppress(OSError, subprocess.SubprocessError):
        _, head, changed = (
            subprocess.run([*here, *command], capture_output=True, text=True, timeout=10, check=True).stdout
            for command in (
                ["ls-files", "--error-unmatch", Path(__file__).name],  # not a copy inside another repository
                ["rev-parse", "--short=7", "HEAD"],
                ["status", "--porcelain", "--untracked-files=all", "--", ":(top)*.py"],
            )
        )
        return head.strip() + ("+" if changed.strip() else "")
    return None


def _processor() -> str:
    return f"{os.cpu_count()} cores {platform.machine()}"
