"""How long an old embedding helps: the test error of forecasts whose embeddings are some steps old.

A site of a live federation that does not reach its server goes on with its last embedding for some steps, and
then without one. This trains a run in the simulator and forecasts its test windows with the embeddings of
earlier windows, and with none.

    python benchmarks/embedding_age.py                         # 8 sensors of the synthetic city, 3 days
    python benchmarks/embedding_age.py --sensors 16 --days 6 --rounds 10 --json
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import Tensor

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.algorithm.methods import preset
from cnfgnn.data.prepared_series import SUMS
from cnfgnn.data.synthetic.city import city
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import train

if __package__:  # imported by tests
    from benchmarks.shapes import OneSentence
else:
    from shapes import OneSentence

AGES = (0, 1, 2, 3, 6, 12, 24)
BLUR = 5.0


def error(experiment: Experiment, h_G: Tensor | None) -> float:
    """The root of the mean squared error of the test windows that have an embedding of every age."""
    [(_, owner)] = experiment.owners
    windows = slice(max(AGES), len(owner.data.starts["test"]))
    y_hat = owner.nodes.forecaster.forecasts(owner.nodes.theta, owner.data, h_G, "test", windows, owner.trust)
    sums = owner.data.errors(y_hat, "test", windows).sum(dim=(0, 1))
    squares, count = sums[SUMS.index("masked_square")], sums[SUMS.index("masked_count")]
    return float((squares / count).sqrt())


def measured(method: str, sensors: int, days: float, rounds: int) -> dict[str, float]:
    changes: dict[str, object] = {"training.rounds": rounds, "compute.device": "cpu"}
    if method == "cnfgnn-private":
        changes["privacy.blur"] = BLUR
    experiment = simulate(city(sensors, days, seed=1), preset(method).with_changes(changes))
    experiment.strategy.restore(train(experiment).best.tag, to_learn=False)
    experiment.strategy.score("validation")
    experiment.strategy.ready("test")
    [(_, owner)] = experiment.owners
    h_G = owner.h_G
    assert h_G is not None
    aged = {str(age): torch.roll(h_G, age, dims=1) for age in AGES}  # the first windows are not counted
    return {age: error(experiment, old) for age, old in aged.items()} | {"none": error(experiment, None)}


def main() -> None:
    parser = OneSentence(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="cnfgnn-private")
    parser.add_argument("--sensors", type=int, default=8, help="of the synthetic city")
    parser.add_argument("--days", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(options.method, options.sensors, options.days, options.rounds)
    print("age of the embedding in steps, and the test RMSE of the forecasts")
    for age, rmse in found.items():
        print(f"{age:>5} {rmse:8.3f}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
