"""What the demo shows holds: with neighbours the forecast is better, and nobody shared a reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.comparing import Plan, compare
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.running import Unwatched

DEMO = Path(__file__).parents[1] / "experiments" / "demo.toml"
TINY = """
methods = ["cnfgnn", "gru-local"]
seeds = [1, 2]
[city]
sensors = 3
days = 2
[model]
hidden = 4
[training]
rounds = 1
client_rounds = 1
[only.cnfgnn.model]
embedding = 3
"""


def test_cnfgnn_wins_the_demo(tmp_path: Path) -> None:
    rows = {row.method: row for row in compare(Plan.read(DEMO), tmp_path, lambda name: Unwatched())}
    assert set(rows) == {"last value", "at-fedavg", "gru-local", "gru-fedavg"}
    assert len(rows["at-fedavg"].errors) == 3
    cnfgnn = rows.pop("at-fedavg").median("masked_rmse")
    for name, row in rows.items():
        assert cnfgnn < row.median("masked_rmse"), name


def test_a_comparison_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(TINY)
    begun: list[str] = []

    def watch(name: str) -> Unwatched:
        begun.append(name)
        return Unwatched()

    first = compare(Plan.read(file), tmp_path / "runs", watch)
    assert len(begun) == 4
    assert compare(Plan.read(file), tmp_path / "runs", watch) == first
    assert len(begun) == 4
    file.write_text(TINY.replace("rounds = 1", "rounds = 2", 1))
    with pytest.raises(RunError, match="other settings"):
        compare(Plan.read(file), tmp_path / "runs", watch)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('methods = ["cnfgnn", "gru-local"]', ""), "methods"),
        (("[1, 2]", "[]"), "seeds"),
        (("only.cnfgnn", "only.sl"), "no such method"),
        (("hidden = 4", "hiden = 4"), "hidden"),
        (('"gru-local"', '"gru"'), "gru-local"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(change: tuple[str, str], says: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(TINY.replace(*change))
    with pytest.raises(ConfigError, match=says):
        Plan.read(file)
