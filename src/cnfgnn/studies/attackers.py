"""How near attackers come to the readings of runs, for the table `privacy`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from cnfgnn.attack.execute import ATTACKS, SENSOR_MEAN, Effort, attack_run
from cnfgnn.data.dataset import Dataset
from cnfgnn.runs.folder import Run
from cnfgnn.studies.execute import Observer

# The attack with gradients is left out: it is about minibatches of training, the others about the test split.
CHOSEN = [attack for attack in ATTACKS if attack != "gradients"]
Watch = Callable[[str, float], None]


def attack_runs(
    runs: Sequence[Run], data: Dataset, observer: Observer, jobs: int, effort: Effort | None = None
) -> list[dict[str, float]]:
    """What attackers find in each of these runs, see `attackers_errors`; several at a time with `jobs`."""
    if jobs == 1 or len(runs) < 2:
        return [attackers_errors(run, data, _announced(run, observer), effort) for run in runs]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as processes:
        started = []
        for run in runs:
            observer.attack(run, ", ".join(CHOSEN))
            started.append(processes.submit(_attack_folder, run.folder, data, effort))
        return [one.result() for one in started]


def attackers_errors(
    run: Run, data: Dataset, watch: Watch = lambda attack, share: None, effort: Effort | None = None
) -> dict[str, float]:
    """RMSE of the readings that the strongest attack reconstructs from what was sent (wire), of those that
    the same attacker makes of the copies (copy, if there is a blur), and of a guess (mean)."""
    left_out = {"smoother": not run.config.privacy.blur, "levels": not run.config.model.levels}
    chosen = [attack for attack in CHOSEN if not left_out.get(attack)]
    lines = attack_run(run, data, attacks=chosen, watch=watch, effort=effort).lines
    found: Mapping[str, list[float]] = {
        "wire": [line.all.rmse for line in lines if line.attack in ATTACKS],
        "copy": [line.all.rmse for line in lines if line.attack == "copy"],
        "mean": [line.all.rmse for line in lines if line.label == SENSOR_MEAN],
    }
    return {key: min(errors) for key, errors in found.items() if errors}


def _attack_folder(folder: Path, data: Dataset, effort: Effort | None) -> dict[str, float]:
    return attackers_errors(Run.open(folder), data, effort=effort)


def _announced(run: Run, observer: Observer) -> Watch:
    """Tells the observer when an attack begins."""
    begun: set[str] = set()

    def watch(attack: str, share: float) -> None:
        if attack not in begun:
            begun.add(attack)
            observer.attack(run, attack)

    return watch
