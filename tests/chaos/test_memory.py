"""Memory does not grow over thousands of exchanges."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from cnfgnn.federation.kits import processes
from tests.federation.reference_training import config
from tests.federation.running_federation import (
    ENGINE_WARNINGS,
    RunningFederation,
    city_on_disk,
    running_federation,
)
from tests.federation.site_processes import workers_of

pytestmark = [pytest.mark.chaos, *ENGINE_WARNINGS]


def resident(sites: RunningFederation, name: str) -> float:
    """Resident memory of a kit's processes for the task in MB: of its job, and of a site's worker."""
    kit = sites.kits[name]
    pids = [*processes.jobs_of(kit), *workers_of(kit)]
    assert len(pids) == (1 if name == "server" else 2)
    return sum(float(psutil.Process(pid).memory_info().rss) for pid in pids) / 1e6


def test_memory_after_2000_exchanges_is_about_the_same_as_after_200(tmp_path: Path) -> None:
    data = city_on_disk(tmp_path / "city", days=1)
    c = config(1000, "at-fedavg", **{"training.server_batch": 8, "training.client_batch": 64})
    with running_federation(tmp_path, data) as sites:
        sites.begin_training(c)
        sites.until(lambda: sites.status.get("exchanges", 0) >= 200, "200 exchanges", 300)
        early = {name: resident(sites, name) for name in sites.kits}
        sites.until(lambda: sites.status["exchanges"] >= 2000, "2,000 exchanges", 600)
        late = {name: resident(sites, name) for name in sites.kits}
        print({name: (round(early[name]), round(late[name])) for name in early})
        assert all(late[name] < 1.2 * early[name] for name in early), (early, late)
        sites.stop()
