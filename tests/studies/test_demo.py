"""What the demo shows holds: with neighbours the forecast is better, and nobody shared a reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.data.source import open_data
from cnfgnn.studies.execute import run_plan
from cnfgnn.studies.plan import Plan
from tests.commands import Unobserved
from tests.one_baseline import last_value

DEMO = Path(__file__).parents[2] / "experiments" / "demo.toml"


@pytest.mark.slow
def test_the_graph_wins_the_demo(tmp_path: Path) -> None:
    plan = Plan.read(DEMO)
    config = plan.cases()[0].config
    data = open_data(config)
    rows = {row.case.name: row.median("masked_rmse") for row in run_plan(plan, data, tmp_path, Unobserved())}
    assert set(rows) == {"cnfgnn-plus", "mlp-fedavg", "gru-fedavg"}
    with_graph = rows.pop("cnfgnn-plus")
    assert with_graph < last_value(data, config.data).overall.masked_rmse
    for name, error in rows.items():
        assert with_graph < error, name
