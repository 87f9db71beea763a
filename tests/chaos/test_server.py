"""The whole server is killed: started again and told to resume, it gives what nothing had disturbed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cnfgnn.federation import processes
from cnfgnn.federation.server_task import Task
from cnfgnn.federation.task_client import TaskError
from tests.federation import faulty
from tests.federation.living import ENGINE_WARNINGS, SITES, dealt, living
from tests.federation.undisturbed import assert_kept_by_its_site, assert_same, config, forecasts, simulated

pytestmark = [pytest.mark.chaos, *ENGINE_WARNINGS]


@pytest.mark.parametrize("phase", [1, 2, 3, 4])
def test_a_killed_server_goes_on_from_the_last_finished_phase(phase: int, tmp_path: Path) -> None:
    data, c = dealt(tmp_path / "city", days=2), config(3)
    with living(tmp_path, data, min_sites=3, faults=True) as sites:
        sites.begin_training(c)
        sites.during(2)
        sites.stands("west", phase)
        sites.kill("server")
        with pytest.raises(TaskError, match=r"start the server: cnfgnn federation up .*--resume one"):
            sites.end()
        broken = sites.run().progress
        assert (broken.phase.done if broken.phase else 0) == {1: 0, 2: 1, 3: 1, 4: 3}[phase]
        processes.up(sites.server)
        sites.begin(Task("train", "one", resume=True))
        sites.end()
        assert_same(sites.run(), simulated(data, c))


def test_after_a_killed_site_and_server_a_sensor_finds_what_is_its_own(tmp_path: Path) -> None:
    """Joint split learning has no phases: everybody goes back to the end of the last round."""
    data = dealt(tmp_path / "city", days=2)
    c = config(3, "cnfgnn-plus", **{"training.server_batch": 64, "training.average_every": 2})
    with living(tmp_path, data, min_sites=3, faults=True) as sites:
        sites.begin_training(c)
        sites.during(2)
        sites.stands("south", 3, number=0)
        west = sites.kits["west"]
        faulty.arm(west, faulty.PHASES[3], "stand", 3)  # later in the same round
        sites.kill_job("south")
        sites.until((west / faulty.STANDS).exists, "south is back, and the round goes on to west")
        sites.kill_job("server")
        with pytest.raises(TaskError, match="ended before it was done; go on with --resume one"):
            sites.end()
        assert sites.run().progress.history
        sites.begin(Task("train", "one", resume=True))
        sites.end()
        run, expected = sites.run(), simulated(data, c)
        assert_same(run, expected)
        for k, name in enumerate(SITES):
            assert_kept_by_its_site(sites.kits[name], "one", run, expected, k)
        sites.begin(Task("forecast", "one"))
        sites.end()
        ahead = pd.read_csv(west / "forecasts" / "latest.csv", index_col=0, parse_dates=True)
        together = forecasts(expected, data)[ahead.columns]
        np.testing.assert_allclose(ahead, together, rtol=0, atol=1e-3)
