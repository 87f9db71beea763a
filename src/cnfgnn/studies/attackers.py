"""How near attackers come to the readings of a run, for the table `privacy`."""

from __future__ import annotations

from collections.abc import Mapping

from cnfgnn.attack.execute import ATTACKS, SENSOR_MEAN, attack_run
from cnfgnn.data.dataset import Dataset
from cnfgnn.runs.folder import Run
from cnfgnn.studies.execute import Observer

# Without the attack with gradients: it takes as long as all others together and never came nearer.
CHOSEN = [attack for attack in ATTACKS if attack != "gradients"]


def attackers_errors(run: Run, data: Dataset, observer: Observer) -> Mapping[str, float]:
    """RMSE of the readings that the strongest attack reconstructs from what was sent (wire), of those that
    the same attacker makes of the copies (copy, if there is a blur), and of a guess (mean)."""
    begun: set[str] = set()

    def watch(attack: str, share: float) -> None:
        if attack not in begun:
            begun.add(attack)
            observer.attack(run, attack)

    lines = attack_run(run, data, attacks=CHOSEN, watch=watch).lines
    found = {
        "wire": [line.all.rmse for line in lines if line.attack in ATTACKS],
        "copy": [line.all.rmse for line in lines if line.attack == "copy"],
        "mean": [line.all.rmse for line in lines if line.label == SENSOR_MEAN],
    }
    return {key: min(errors) for key, errors in found.items() if errors}
