"""Tables of the documentation are those that the records give."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cnfgnn.studies.tables import Table
from studies import docs_tables, pictures


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
        "errors": {"overall": {"rmse": rmse, "masked_rmse": rmse}},
        "bytes": {"per_node": 3_000_000, "per_site": 1},
    } | changes


def of_traffic(like: str, method: str = "gru-fedavg", **changes: Any) -> dict[str, Any]:
    """A record with the published settings on a part of one of the paper's data sets."""
    data = {"name": f"{like}-7", "checksum": like, "sensors": 2, "rows": 9}
    settled: dict[str, Any] = {"data": data, "preset": {"size": "63k", "like": like}}
    return record(method, **settled | changes)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes the records of a folder."""
    monkeypatch.setattr(docs_tables, "RECORDS", tmp_path)

    def write(folder: str, *found: dict[str, Any]) -> None:
        (tmp_path / folder).mkdir()
        for number, one in enumerate(found):
            (tmp_path / folder / f"{number}.json").write_text(json.dumps(one))

    return write


def made(*mark: str) -> Table:
    table = docs_tables.records(*mark)
    assert not isinstance(table, str)
    return table


def cells(table: Table | str) -> list[str]:
    assert not isinstance(table, str)
    return [" | ".join(row) for row in table.cells()]


def lines(*mark: str) -> list[str]:
    return cells(made(*mark))


def heads(*mark: str) -> list[str]:
    return [column.label for column in made(*mark).columns]


def test_the_pages_are_current() -> None:
    """If not, `make tables` writes them."""
    assert [path.name for path, text, wanted in docs_tables.pages() if text != wanted] == []


def test_the_pictures_are_current() -> None:
    """If not, `python studies/pictures.py` draws them."""

    def drawn(svg: str) -> tuple[list[str], list[float]]:
        """What is written, and where points and words are."""
        return re.findall("<!--(.*?)-->", svg), [float(at) for at in re.findall(r' [xy]="([-\d.]+)"', svg)]

    for path, wanted in pictures.pictures().items():
        (words, places), (wanted_words, wanted_places) = (
            drawn(path.read_text(encoding="utf-8")),
            drawn(wanted),
        )
        assert words == wanted_words, path.name
        assert places == pytest.approx(wanted_places, abs=1.0), path.name


def test_seeds_are_averaged_commits_are_named_and_settings_have_lines_of_their_own(
    written: Callable[..., None],
) -> None:
    other = record(settings={"compute.precision": "tf32", "training.rounds": 3})
    simple = record("last value", None, 9.0, preset={}, settings={}, bytes=None)
    written("lake", record(), record(seed=2, rmse=3.0, commit="later"), other, simple)
    assert lines("lake", "masked_rmse", "bytes") == [
        "last value | 9.000 | - | - | abc1234",
        "cnfgnn-plus | 2.500 ± 0.707 | 1.5 ± 0.0 | 1, 2 | abc1234, later",
        "cnfgnn-plus, training.rounds = 3 | 2.000 | 1.5 | 1 | abc1234",
    ]
    notes = made("lake", "masked_rmse").notes
    assert notes == ["Measured on a machine; data.missing = masked, compute.precision = tf32."]


def test_published_errors_stand_beside_ours_on_both_data_sets(written: Callable[..., None]) -> None:
    written("both", of_traffic("metr-la"), of_traffic("pems-bay"))
    assert lines("both", "rmse", "published") == ["gru-fedavg | 2.000 | 12.132 | 2.000 | 4.512 | 1 | abc1234"]
    assert heads("both", "rmse", "published")[1:4] == [
        "METR-LA 7: RMSE",
        "METR-LA 7: published",
        "PEMS-BAY 7: RMSE",
    ]


def test_bytes_of_all_nodes_stand_beside_the_published_ones_of_one_data_set(
    written: Callable[..., None],
) -> None:
    def run(like: str, seed: int, best: int) -> dict[str, Any]:
        sent, rounds = {"per_node": best * 2**30, "per_site": 1}, {"best": best, "all": 9}
        return of_traffic(like, "at-fedavg", seed=seed, bytes=sent, rounds=rounds)

    written("both", run("metr-la", 2, 8), run("metr-la", 1, 6), run("pems-bay", 1, 2))
    columns = ("rmse", "gib", "published_gib", "best")
    assert lines("both", *columns, "@metr-la-7") == [
        "at-fedavg (CNFGNN) | 2.000 ± 0.000 | 7.000 ± 1.414 | 222.246 | 6, 8 | 1, 2 | abc1234"
    ]
    assert lines("both", *columns, "@pems-bay-7") == [
        "at-fedavg (CNFGNN) | 2.000 | 2.000 | 237.654 | 2 | 1 | abc1234"
    ]
    assert docs_tables.records("both", *columns, "@lake") == "*No records yet.*"


def test_a_method_that_two_commits_measured_on_two_data_sets_has_one_line(
    written: Callable[..., None],
) -> None:
    new = [of_traffic("pems-bay", commit="new", seed=seed, rmse=4.0) for seed in (1, 2)]
    written("both", of_traffic("metr-la", commit="old"), *new)
    assert lines("both", "rmse") == ["gru-fedavg | 2.000 | 4.000 ± 0.000 | 1; 1, 2 | old, new"]


def test_runs_without_any_setting_have_one_line_whatever_was_published_for_their_data(
    written: Callable[..., None],
) -> None:
    default: dict[str, Any] = {
        "preset": {"size": "63k", "like": ""},
        "settings": {"compute.precision": "tf32"},
    }
    ours = {**of_traffic("metr-la", "cnfgnn-plus"), **default}
    written("both", ours, record(**default))
    assert lines("both", "masked_rmse") == ["cnfgnn-plus | 2.000 | 2.000 | 1 | abc1234"]


def test_a_run_that_was_told_nothing_was_trained_in_the_default_precision(
    written: Callable[..., None],
) -> None:
    simple = record("last value", None, 9.0, preset={}, settings={"data.missing": "masked"}, bytes=None)
    written("lake", record(), record("gru-fedavg", settings={}, rmse=3.0), simple)
    assert lines("lake", "masked_rmse") == [
        "last value | 9.000 | - | - | abc1234",
        "gru-fedavg | 3.000 | fp32 | 1 | abc1234",
        "cnfgnn-plus | 2.000 | tf32 | 1 | abc1234",
    ]


def test_a_seed_that_was_measured_twice_is_refused(written: Callable[..., None]) -> None:
    written("both", of_traffic("metr-la", commit="a"), of_traffic("metr-la", commit="b"))
    with pytest.raises(
        SystemExit, match="two records of gru-fedavg on metr-la-7 have seed 1: keep the later"
    ):
        made("both", "rmse")


def test_what_the_first_data_set_lacks_comes_last(written: Callable[..., None]) -> None:
    other = of_traffic("pems-bay", "gru-local", rmse=9.0)
    written("both", other, of_traffic("metr-la"), of_traffic("pems-bay", rmse=5.0))
    assert lines("both", "rmse") == [
        "gru-fedavg | 2.000 | 5.000 | 1 | abc1234",
        "gru-local | - | 9.000 | 1 | abc1234",
    ]


def test_a_table_may_take_some_methods_of_several_folders(written: Callable[..., None]) -> None:
    large = of_traffic("metr-la", preset={"size": "727k", "like": "metr-la"})
    written("theirs", of_traffic("metr-la", rmse=3.0), of_traffic("metr-la", "gru-local"), large)
    written("ours", of_traffic("metr-la", "cnfgnn-plus", settings={}), of_traffic("metr-la", "mlp-fedavg"))
    mark = "theirs:gru-fedavg+ours:cnfgnn-plus"
    assert lines(mark, "rmse") == [
        "gru-fedavg | 3.000 | tf32 | 1 | abc1234",
        "cnfgnn-plus | 2.000 | fp32 | 1 | abc1234",
    ]
    assert heads(mark, "rmse") == ["method", "RMSE", "precision", "seeds", "commit"]
    assert "gru-fedavg, size = 727k | 2.000 | 1 | abc1234" in lines("theirs", "rmse")


def test_without_records_in_the_first_folder_there_is_no_table(written: Callable[..., None]) -> None:
    written("ours", of_traffic("metr-la"))
    assert docs_tables.records("peers+ours", "rmse") == "*No records yet.*"
    assert docs_tables.attacks("none") == docs_tables.paired("none", "masked") == "*No records yet.*"
    assert lines("ours+peers", "rmse") == ["gru-fedavg | 2.000 | 1 | abc1234"]


def test_masked_and_unmasked_errors_never_share_a_table(written: Callable[..., None]) -> None:
    masked = of_traffic("metr-la", "cnfgnn-plus", settings={"data.missing": "masked"}, rmse=8.0)
    written("both", of_traffic("metr-la"), masked)
    assert lines("both", "rmse") == ["gru-fedavg | 2.000 | 1 | abc1234"]
    assert lines("both", "masked_rmse") == ["cnfgnn-plus | 8.000 | 1 | abc1234"]
    for columns in (("rmse", "masked_mae"), ("masked_rmse", "published")):
        with pytest.raises(SystemExit, match="masked and unmasked errors never share a table"):
            docs_tables.records("both", *columns)


def test_the_default_on_each_kind_is_compared_with_the_best_simple_forecast(
    written: Callable[..., None],
) -> None:
    def kind(name: str, error: float, **simple: float) -> dict[str, Any]:
        seen = {"sensors": 2, "windows": 9, "settings": {"seed": 1}, "test": True}
        seen |= {"commit": "abc1234", "machine": "a machine"}
        return seen | {
            "kind": name,
            "error": error,
            "linear": 2 * error,
            "simple": simple | {"LightGBM": 2.0},
            "ratio": error / min(simple.values()),
        }

    written(
        "kinds", kind("wind", 1.0, ridge=2.0, yesterday=3.0), kind("prices", 9.0, ridge=8.0, yesterday=4.5)
    )
    assert cells(docs_tables.kinds("kinds")) == [
        "prices | 2 | 9 | yesterday | 2.000 | 4.000 | 4.500 | abc1234",
        "wind | 2 | 9 | ridge | 0.500 | 1.000 | 0.500 | abc1234",
        "geometric mean | - | - | - | 1.000 | 2.000 | 1.500 | -",
    ]
    table = docs_tables.kinds("kinds")
    assert not isinstance(table, str)
    assert table.notes == ["Measured on a machine; seed 1."]
    written("before", kind("wind", 1.0, ridge=2.0) | {"test": False})
    with pytest.raises(SystemExit, match="errors before the test split are no results"):
        docs_tables.kinds("before")


def test_the_same_settings_are_recognised_however_a_record_tells_them(written: Callable[..., None]) -> None:
    """`record.json` names the nearest preset, which is not the same for every method."""
    absolute = {"training.loss": "absolute"}
    near = of_traffic("metr-la", "cnfgnn-plus", settings=absolute | {"data.missing": "masked"})
    far = of_traffic("metr-la", "mlp-fedavg", settings=absolute, preset={"size": "63k", "like": ""}, rmse=3.0)
    written("masked", near, far)
    table = made("masked", "masked_rmse")
    assert [row["method"] for row in table.rows] == ["mlp-fedavg", "cnfgnn-plus"]
    assert table.notes == [
        "Measured on a machine; data.missing = masked, compute.precision = fp32, training.loss = absolute."
    ]
    written("other", of_traffic("metr-la", "gru-local", preset={"size": "63k", "like": "pems-bay"}))
    assert made("other", "rmse").notes == [
        "Measured on a machine; data.missing = as-truth, compute.precision = tf32, "
        "training.client_batch = 128, training.patience = 20."
    ]


def test_a_run_that_went_on_from_another_one_has_a_line_of_its_own(written: Callable[..., None]) -> None:
    written("both", of_traffic("metr-la"), of_traffic("metr-la", rmse=1.0) | {"from": "round 3 of old"})
    assert lines("both", "rmse") == [
        "gru-fedavg | 2.000 | 1 | abc1234",
        "gru-fedavg, from = round 3 of old | 1.000 | 1 | abc1234",
    ]


def test_pooled_methods_and_those_of_others_say_so_and_send_nothing(written: Callable[..., None]) -> None:
    told = {"compute.precision": "tf32", "training.loss": "square", "data.missing": "as-truth"}
    peer = of_traffic("metr-la", "Some Net, pooled", settings=told | {"cut off after": "9 s"}, bytes=None)
    del peer["preset"]
    nothing = {"per_node": 0, "per_site": 0}
    written("peers", peer)
    written("ours", of_traffic("metr-la", "mlp-central", bytes=nothing), of_traffic("metr-la", "at-fedavg"))
    assert sorted(lines("peers+ours", "rmse", "bytes")) == [
        "Some Net, pooled, cut off after = 9 s | 2.000 | - | 1 | abc1234",
        "at-fedavg (CNFGNN) | 2.000 | 1.5 | 1 | abc1234",
        "mlp-central, pooled | 2.000 | - | 1 | abc1234",
    ]
    assert heads("peers", "rmse", "bytes") == ["method", "RMSE", "seeds", "commit"]


def test_inductive_learning_has_a_line_for_each_share_of_sensors(written: Callable[..., None]) -> None:
    found = []
    for method, share, rmse in (("gru-fedavg", 0.25, 9.0), ("at-fedavg", 0.9, 2.0), ("at-fedavg", 0.25, 3.0)):
        errors = {"overall": {"rmse": rmse}, "unseen": {"rmse": rmse + 1}}
        # Patience is 20 in the published settings of this experiment, and 50 otherwise.
        settings = {"training.seen": share} | ({"training.patience": 20} if method == "gru-fedavg" else {})
        found.append(of_traffic("metr-la", method, settings=settings, errors=errors))
    written("inductive", *found)
    assert lines("inductive", "rmse", "unseen_rmse", "published") == [
        "at-fedavg (CNFGNN) | 25% | 3.000 | 4.000 | 12.013 | 1 | abc1234",
        "at-fedavg (CNFGNN) | 90% | 2.000 | 3.000 | 11.629 | 1 | abc1234",
        "gru-fedavg | 25% | 9.000 | 10.000 | 11.993 | 1 | abc1234",
    ]


def test_a_method_that_saw_all_sensors_stands_beside_those_that_did_not(written: Callable[..., None]) -> None:
    errors = {"overall": {"rmse": 3.0}, "unseen": {"rmse": 4.0}}
    part = of_traffic("metr-la", settings={"training.seen": 0.5, "training.patience": 20}, errors=errors)
    written("inductive", of_traffic("metr-la"), part)
    assert lines("inductive", "rmse") == [
        "gru-fedavg | 50% | 3.000 | fp32 | 1 | abc1234",
        "gru-fedavg | - | 2.000 | tf32 | 1 | abc1234",
    ]


def test_records_of_different_readings_are_not_mixed(written: Callable[..., None]) -> None:
    other = {"name": "lake", "checksum": "b2", "sensors": 2, "rows": 9}
    written("lake", record(), record(data=other))
    with pytest.raises(SystemExit, match="the records of lake are of different readings"):
        docs_tables.records("lake", "masked_rmse")


def test_attacks_stand_beside_the_blur_and_what_the_copy_gives(written: Callable[..., None]) -> None:
    def line(label: str, rmse: float, split: str = "test") -> dict[str, Any]:
        return {"attack": "any", "label": label, "split": split, "all": {"rmse": rmse}}

    found = [
        line("guess: each sensor's mean", 9.0),
        line("whole series at once", 4.98),
        line("whole series at once", 1.0, "train"),
        line("the copy itself", 4.97),
        line("the copy, smoother (network)", 2.5),
    ]
    written(
        "attacks", of_traffic("metr-la", blur=5.0, attacks=found), of_traffic("metr-la", blur=0, attacks=[])
    )
    assert cells(docs_tables.attacks("attacks")) == [
        "METR-LA 7 | 0 | 2.000 | - | - | - | - | - | - | abc1234",
        "METR-LA 7 | 5 | 2.000 | 9.00 | 4.98 | - | - | - | 2.50 | abc1234",
    ]


def test_a_paired_comparison_names_the_better_one_or_none(written: Callable[..., None]) -> None:
    def compared(low: float, high: float, verdict: str) -> dict[str, Any]:
        over_all = {"a": 2.0, "b": 3.0, "low": low, "high": high, "days": 60, "verdict": verdict}
        names = {"data": "lake", "a": "ours", "b": "b", "error": "masked_mae", "commit": "abc1234"}
        return names | {"steps": {"all": over_all}}

    other = compared(-1.5, -0.5, "a is better") | {"error": "mae"}  # in a table of its own
    written("pairs", other, compared(-1.5, -0.5, "a is better"), compared(-2.5, 0.5, "no difference shown"))
    assert cells(docs_tables.paired("pairs", "masked")) == [
        "lake | masked MAE | ours: 2.000 | b: 3.000 | -1.000 (-1.500 to -0.500) | 60 | ours | abc1234",
        "lake | masked MAE | ours: 2.000 | b: 3.000 | -1.000 (-2.500 to +0.500) | 60 | not shown | abc1234",
    ]
    assert len(cells(docs_tables.paired("pairs", "unmasked"))) == 1


def test_ranges_of_each_data_set_have_a_row(written: Callable[..., None]) -> None:
    levels = {"80": {"coverage": 0.79, "width": 2.0}, "95": {"coverage": 0.9545, "width": 4.0}}
    wide = {level: found | {"width": 3 * found["width"]} for level, found in levels.items()}
    records = [of_traffic("metr-la"), of_traffic("metr-la", seed=2), of_traffic("metr-la", "gru-local")]
    for one, ranges in zip(records, (levels, wide, None), strict=True):
        one["errors"]["intervals"] = ranges
    written("ranges", *records)
    row = "METR-LA 7 | gru-fedavg | 79.0% | 4.00 ± 2.83 | 95.5% | 8.00 ± 5.66 | 1, 2 | abc1234"
    assert cells(docs_tables.intervals("ranges")) == [row]
    assert docs_tables.intervals("none") == "*No records yet.*"
