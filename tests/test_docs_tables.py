"""Tables of the documentation are those that the records give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from studies import docs_tables


def record(
    method: str = "cnfgnn-plus", seed: int | None = 1, rmse: float = 2.0, **changes: Any
) -> dict[str, Any]:
    return {
        "method": method,
        "preset": {"size": "63k", "like": ""},
        "settings": {"compute.precision": "tf32"},
        "seed": seed,
        "data": {"name": "lake", "checksum": "a1", "sensors": 2, "rows": 9},
        "commit": "abc1234",
        "machine": "a machine",
        "errors": {"overall": {"rmse": rmse}},
        "bytes": {"per_node": 3_000_000, "per_site": 1},
    } | changes


def written(folder: Path, *found: dict[str, Any]) -> None:
    folder.mkdir()
    for number, one in enumerate(found):
        (folder / f"{number}.json").write_text(json.dumps(one))


def test_the_pages_are_current() -> None:
    """If not, `make tables` writes them."""
    assert [path.name for path, text, wanted in docs_tables.pages() if text != wanted] == []


def test_seeds_are_averaged_and_commits_and_settings_have_lines_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs_tables, "RECORDS", tmp_path)
    other = record(settings={"compute.precision": "tf32", "training.rounds": 3})
    simple = record("last value", None, 9.0, preset={}, settings={}, bytes=None)
    written(tmp_path / "lake", record(), record(seed=2, rmse=3.0), record(commit="later"), other, simple)
    table = docs_tables.records("lake", "rmse")
    assert not isinstance(table, str)
    assert [" | ".join(cells) for cells in table.cells()] == [
        "last value | 9.000 | - | - | abc1234",
        "cnfgnn-plus | 2.500 ± 0.707 | 1.5 ± 0.0 | 1, 2 | abc1234",
        "cnfgnn-plus | 2.000 | 1.5 | 1 | later",
        "cnfgnn-plus, training.rounds = 3 | 2.000 | 1.5 | 1 | abc1234",
    ]
    assert table.notes == ["Measured on a machine; compute.precision = tf32."]


def test_published_errors_stand_beside_ours_on_both_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs_tables, "RECORDS", tmp_path)
    found = []
    for name in ("metr-la", "pems-bay"):
        data = {"name": f"{name}-7", "checksum": name, "sensors": 2, "rows": 9}
        presets = [{"size": "63k", "like": like} for like in (name, "")]
        found += [record("gru-fedavg", data=data, preset=preset) for preset in presets]
    written(tmp_path / "both", *found)
    table = docs_tables.records("both", "rmse", "published")
    assert not isinstance(table, str)
    assert [" | ".join(cells) for cells in table.cells()] == [
        "gru-fedavg | 2.000 | 12.132 | 1.5 | 2.000 | 4.512 | 1.5 | 1 | abc1234",
        "gru-fedavg, like = none | 2.000 | 12.132 | 1.5 | 2.000 | 4.512 | 1.5 | 1 | abc1234",
    ]


def test_records_of_different_readings_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_tables, "RECORDS", tmp_path)
    other = {"name": "lake", "checksum": "b2", "sensors": 2, "rows": 9}
    written(tmp_path / "lake", record(), record(data=other))
    with pytest.raises(SystemExit, match="the records of lake are of different readings"):
        docs_tables.records("lake", "rmse")
