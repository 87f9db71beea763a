"""A killed server is restarted and resumes training: the result equals the undisturbed one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cnfgnn.federation.kits import processes
from cnfgnn.federation.operator.tasks import TaskError
from cnfgnn.federation.task import Task
from tests.federation import fault_injection
from tests.federation.reference_training import (
    assert_own_state_is_at_the_site,
    assert_same,
    config,
    forecasts,
    simulated,
)
from tests.federation.running_federation import ENGINE_WARNINGS, SITES, city_on_disk, running_federation

pytestmark = [pytest.mark.chaos, *ENGINE_WARNINGS]


@pytest.mark.parametrize("phase", [1, 2, 3, 4])
def test_a_killed_server_resumes_from_the_last_finished_phase(phase: int, tmp_path: Path) -> None:
    data, c = city_on_disk(tmp_path / "city", days=2), config(3)
    with running_federation(tmp_path, data, min_sites=3, faults=True) as sites:
        sites.begin_training(c)
        sites.during(2)
        sites.block("west", phase)
        sites.kill("server")
        with pytest.raises(TaskError, match=r"start the server: cnfgnn federation up .*--resume one"):
            sites.end()
        interrupted = sites.run().progress
        assert (interrupted.phase.done if interrupted.phase else 0) == {1: 0, 2: 1, 3: 1, 4: 3}[phase]
        processes.up(sites.server)
        sites.begin(Task("train", "one", resume=True))
        sites.end()
        assert_same(sites.run(), simulated(data, c))


def test_what_owners_learned_survives_a_killed_site_and_a_killed_server(tmp_path: Path) -> None:
    """Joint split learning has no phases: all parties return to the end of the last round."""
    data = city_on_disk(tmp_path / "city", days=2)
    c = config(3, "cnfgnn-plus", **{"training.server_batch": 64, "training.average_every": 2})
    with running_federation(tmp_path, data, min_sites=3, faults=True) as sites:
        sites.begin_training(c)
        sites.during(2)
        sites.block("south", 3, number=0)
        west = sites.kits["west"]
        fault_injection.inject(west, fault_injection.PHASES[3], "block", 3)  # later in the same round
        sites.kill_job("south")
        sites.until((west / fault_injection.BLOCKED).exists, "south has rejoined, and the round reaches west")
        sites.kill_job("server")
        with pytest.raises(TaskError, match="ended before it was done; continue with --resume one"):
            sites.end()
        assert sites.run().progress.history
        sites.begin(Task("train", "one", resume=True))
        sites.end()
        run, expected = sites.run(), simulated(data, c)
        assert_same(run, expected)
        for k, name in enumerate(SITES):
            assert_own_state_is_at_the_site(sites.kits[name], "one", run, expected, k)
        sites.begin(Task("forecast", "one"))
        sites.end()
        ahead = pd.read_csv(west / "forecasts" / "latest.csv", index_col=0, parse_dates=True)
        together = forecasts(expected, data)[ahead.columns]
        np.testing.assert_allclose(ahead, together, rtol=0, atol=1e-3)
