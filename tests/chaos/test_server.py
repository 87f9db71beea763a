"""The whole server is killed: started again and told to resume, it gives what nothing had disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.federation import processes
from cnfgnn.federation.operating import TaskError
from cnfgnn.federation.serving import Task
from tests.federation.living import ENGINE_WARNINGS, dealt, living
from tests.federation.undisturbed import assert_same, config, simulated

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
