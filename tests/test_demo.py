"""What the demo shows holds: with neighbours the forecast is better, and nobody shared a reading."""

from __future__ import annotations

from pathlib import Path

from cnfgnn.comparing import Plan
from cnfgnn.data.source import open_data
from cnfgnn.floors import last_value
from cnfgnn.performing import perform
from tests.commands import Unobserved

DEMO = Path(__file__).parents[1] / "experiments" / "demo.toml"


def test_cnfgnn_wins_the_demo(tmp_path: Path) -> None:
    plan = Plan.read(DEMO)
    config = plan.cases()[0].config
    data = open_data(config)
    rows = {row.case.name: row for row in perform(plan, data, tmp_path, Unobserved())}
    assert set(rows) == {"at-fedavg", "gru-local", "gru-fedavg"}
    assert len(rows["at-fedavg"].errors) == 3
    cnfgnn = rows.pop("at-fedavg").median("masked_rmse")
    assert cnfgnn < last_value(data, config.data).overall.masked_rmse
    for name, row in rows.items():
        assert cnfgnn < row.median("masked_rmse"), name
