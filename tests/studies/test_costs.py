"""Our own bytes stand beside the formula's, and the table says whether they are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import RunError
from cnfgnn.runs.folder import Run
from cnfgnn.runs.train import Unwatched, train_run
from cnfgnn.studies.costs import counted
from cnfgnn.studies.lines import Study
from cnfgnn.studies.plan import Case, Row
from tests.tiny_runs import tiny


def shown(run: Run, data: Dataset) -> dict[str, object]:
    row = Row(Case(run.config.method, "63k", run.config), (Run.open(run.folder),))
    (only,) = counted(Study("cost", data, "metr-la", [row], [])).rows
    return dict(only)


@pytest.mark.parametrize("method", ["at", "at-fedavg", "sl", "sl-fedavg"])
def test_the_ledger_equals_the_formula_to_the_byte(method: str, city_data: Dataset, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", tiny(method), city_data)
    train_run(run, city_data, Unwatched())
    row = shown(run, city_data)
    assert row["same"] == "yes"
    assert row["formula"] == row["per_node"]


def test_what_is_not_the_same_is_said(city_data: Dataset, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", tiny("at", **{"model.embedding": 5}), city_data)
    train_run(run, city_data, Unwatched())
    assert str(shown(run, city_data)["same"]).startswith("no, off by -")  # a narrower h_G than h_c


def test_a_damaged_beginning_is_one_sentence(city_data: Dataset, run_folders: list[Path]) -> None:
    run = Run.open(run_folders[0])
    first = {key: value for key, value in run.events()[0].items() if key != "parameters"}
    run.events = lambda: [first, *Run.open(run_folders[0]).events()[1:]]  # type: ignore[method-assign]
    with pytest.raises(RunError, match="damaged"):
        counted(Study("cost", city_data, "metr-la", [Row(Case("at-fedavg", "63k", run.config), (run,))], []))
