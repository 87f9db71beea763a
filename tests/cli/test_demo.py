"""The demo runs from the package, without the checkout, and ends with a table and a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnfgnn.errors import ConfigError
from cnfgnn.studies import experiments
from cnfgnn.studies.experiments import experiment_file
from tests.commands import said

A_PLAN = """
methods = ["gru-fedavg"]
seeds = [1]
[city]
sensors = 3
days = 1
[model]
hidden = 4
[training]
rounds = 1
"""


def test_the_demo_prints_a_table_and_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "demo.toml"
    plan.write_text(A_PLAN)
    monkeypatch.setattr(experiments, "experiment_file", lambda name: plan)
    out = tmp_path / "out"
    told = said("demo", "--out", out)
    assert "last value" in told
    assert "gru-fedavg" in told
    assert f"open {out / 'report.html'}" in told.replace("\n", "")
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert [folder.name for folder in out.iterdir() if folder.is_dir()] == ["gru-fedavg-seed1"]


def test_the_plan_is_found_in_the_package_or_in_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert experiment_file("demo").parts[-2:] == ("experiments", "demo.toml")
    package = tmp_path / "site-packages" / "cnfgnn"
    (package / "experiments").mkdir(parents=True)
    (package / "experiments" / "demo.toml").touch()
    monkeypatch.setattr(experiments, "__file__", str(package / "studies" / "experiments.py"))
    assert experiment_file("demo") == package / "experiments" / "demo.toml"
    with pytest.raises(ConfigError, match="install the package again"):
        experiment_file("forecasting")
