"""Real processes are killed or answer nonsense during training: the others continue, and it recovers.

This is the short set; the rest is in tests/chaos.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.federation.kits import processes
from cnfgnn.federation.operator.tasks import TaskError
from cnfgnn.federation.task import Task
from cnfgnn.runs.training_loop import Phase
from tests.federation import fault_injection
from tests.federation.reference_training import assert_same, config, simulated
from tests.federation.running_federation import (
    ALL_COME,
    ENGINE_WARNINGS,
    SITES,
    city_on_disk,
    running_federation,
)

pytestmark = ENGINE_WARNINGS


@pytest.mark.slow
def test_killed_processes_of_sites_and_a_killed_server_do_not_change_the_result_if_all_sites_are_required(
    tmp_path: Path,
) -> None:
    data, c = city_on_disk(tmp_path / "city", days=2), config(4)
    with running_federation(tmp_path, data, min_sites=3, faults=True) as sites:
        sites.begin_training(c, wait=ALL_COME)
        sites.block("north", 1)
        sites.kill_job("north")
        sites.block("south", 2)
        sites.kill("south")
        sites.until(lambda: sites.is_paused_without("south"), "training pauses without south")
        processes.up(sites.kits["south"])
        sites.during(2)
        sites.block("west", 1)
        sites.kill_relay("west")
        sites.release("west")
        sites.block("north", 2)
        sites.kill_engine("north")
        sites.release("north")
        sites.block("west", 3)
        sites.kill_job("server")
        with pytest.raises(TaskError, match="ended before it was done; continue with --resume one"):
            sites.end()
        interrupted = sites.run().progress
        assert interrupted.phase == Phase(len(interrupted.history) + 1, 1)
        sites.begin(Task("train", "one", resume=True, wait=ALL_COME))
        result = sites.end()
        logs = [log.read_text() for name in SITES for log in sites.kits[name].glob("engine/*/log.txt")]
        assert logs
        assert not any("authentication failed" in log for log in logs), "sites that were restarted are known"
        expected = simulated(data, c)
        assert_same(sites.run(), expected)
        assert result["scores"]["overall"]["rmse"] == pytest.approx(expected.test.overall.rmse, abs=1e-6)


@pytest.mark.slow
def test_corrupted_answers_are_refused_by_name_excluded_from_the_average_and_counted(tmp_path: Path) -> None:
    data = city_on_disk(tmp_path / "city", days=2)
    with running_federation(tmp_path, data, faults=True) as sites:
        sites.begin_training(config(300, "gru-fedavg"))
        problems = {"nan": "not a finite number", "shape": "shape", "large": "times as large"}
        for count, (fault, words) in enumerate(problems.items(), 1):
            sites.until(lambda: sites.site("south").get("present", False), "south takes part")
            fault_injection.inject(sites.kits["south"], "weights", fault)
            sites.until(lambda count=count: sites.site("south")["refused"] == count, f"{fault} is refused")
            assert "'south' failed at 'weights'" in sites.site("south")["problem"]
            assert words in sites.site("south")["problem"]
        now = sites.status["round"]
        sites.until(lambda: sites.status["round"] > now + 1, "rounds continue")
        assert sites.site("north")["refused"] == sites.site("west")["refused"] == 0
        assert sites.status["error"] < 30
        sites.stop()
