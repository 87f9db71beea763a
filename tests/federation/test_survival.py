"""Real processes that are killed or go wrong while they train: what the others do, and how it ends.

The short set; the rest is in tests/chaos.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.federation import processes
from cnfgnn.federation.server_task import Task
from cnfgnn.federation.task_client import TaskError
from cnfgnn.runs.training_loop import Phase
from tests.federation import faulty
from tests.federation.living import ENGINE_WARNINGS, dealt, living
from tests.federation.undisturbed import assert_same, config, simulated

pytestmark = ENGINE_WARNINGS


@pytest.mark.slow
def test_killed_sites_and_a_killed_server_lose_nothing_where_all_are_needed(tmp_path: Path) -> None:
    data, c = dealt(tmp_path / "city", days=2), config(4)
    with living(tmp_path, data, min_sites=3, faults=True) as sites:
        sites.begin_training(c)
        sites.stands("north", 1)
        sites.kill_job("north")
        sites.stands("south", 2)
        sites.kill("south")
        sites.until(lambda: sites.waits_for("south"), "it says that it waits for south")
        processes.up(sites.kits["south"])
        sites.during(2)
        sites.stands("west", 3)
        sites.kill_job("server")
        with pytest.raises(TaskError, match="ended before it was done; go on with --resume one"):
            sites.end()
        broken = sites.run().progress
        assert broken.phase == Phase(len(broken.history) + 1, 1)
        sites.begin(Task("train", "one", resume=True))
        result = sites.end()
        expected = simulated(data, c)
        assert_same(sites.run(), expected)
        assert result["scores"]["overall"]["rmse"] == pytest.approx(expected.test.overall.rmse, abs=1e-6)


@pytest.mark.slow
def test_nonsense_is_refused_by_name_left_out_of_the_average_and_counted(tmp_path: Path) -> None:
    data = dealt(tmp_path / "city", days=2)
    with living(tmp_path, data, faults=True) as sites:
        sites.begin_training(config(300, "gru-fedavg"))
        said = {"nan": "not a finite number", "shape": "shape", "large": "times as large"}
        for count, (what, words) in enumerate(said.items(), 1):
            sites.until(lambda: sites.site("south").get("present", False), "south takes part")
            faulty.arm(sites.kits["south"], "weights", what)
            sites.until(lambda count=count: sites.site("south")["refused"] == count, f"{what} is refused")
            assert "'south' failed at 'weights'" in sites.site("south")["problem"]
            assert words in sites.site("south")["problem"]
        now = sites.status["round"]
        sites.until(lambda: sites.status["round"] > now + 1, "rounds go on")
        assert sites.site("north")["refused"] == sites.site("west")["refused"] == 0
        assert sites.status["error"] < 30
        sites.stop()
