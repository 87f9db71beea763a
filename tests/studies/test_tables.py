"""A table says the same wherever it is written, and leaves no number out."""

from __future__ import annotations

import csv
import io
import json
import statistics

import pytest

from cnfgnn.studies.tables import Column, Mean, Table

MEAN = Mean.of([1.0, 2.0, 4.5])
TABLE = Table(
    name="made",
    title="A <table> | of ours",
    columns=[
        Column("method", "method"),
        Column("rmse", "RMSE"),
        Column("share", "share", 1, share=True),
        Column("mae", "MAE", 2, spread=False),
        Column("count", "count"),
    ],
    rows=[
        {"method": "a|b", "rmse": MEAN, "share": 0.125, "mae": MEAN, "count": 12345},
        {"method": "<c>", "rmse": 3.0, "share": None, "mae": None},
        {"method": "d", "rmse": Mean.of([2.5]), "share": float("nan")},
    ],
    notes=["Read <me>."],
)


def test_a_mean_has_a_spread_only_over_several_seeds() -> None:
    assert Mean(2.5, statistics.stdev([1.0, 2.0, 4.5]), 3) == MEAN
    assert Mean.of([2.0]) == Mean(2.0, None, 1)


def test_cells_show_means_with_their_spread_and_nothing_as_a_dash() -> None:
    assert TABLE.cells() == [
        ["a|b", "2.500 ± 1.803", "12.5%", "2.50", "12,345"],
        ["<c>", "3.000", "-", "-", "-"],
        ["d", "2.500", "-", "-", "-"],
    ]


def test_markdown_has_a_line_a_row_and_as_many_bars_in_each() -> None:
    lines = [line for line in TABLE.markdown().splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(TABLE.rows)
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(TABLE.columns) + 1}
    assert TABLE.markdown().rstrip().endswith("Read <me>.")


def test_csv_holds_raw_numbers_with_the_spread_in_columns_of_its_own() -> None:
    head, first, second, third = csv.reader(io.StringIO(TABLE.csv()))
    assert head == [
        *("method", "RMSE", "RMSE, spread", "RMSE, seeds", "share"),
        *("MAE", "MAE, spread", "MAE, seeds", "count"),
    ]
    assert [float(first[k]) for k in (1, 2, 3, 4, 6)] == [2.5, MEAN.spread, 3, 0.125, MEAN.spread]
    assert second[:4] == ["<c>", "3.0", "", ""]
    assert third[1:4] == ["2.5", "", "1"]
    assert {len(row) for row in (head, first, second, third)} == {9}


def test_json_names_every_column_and_keeps_seeds() -> None:
    made = json.loads(json.dumps(TABLE.plain()))
    assert made["columns"]["rmse"] == "RMSE"
    assert made["rows"][0]["rmse"] == {"mean": 2.5, "spread": pytest.approx(MEAN.spread), "seeds": 3}
    assert made["notes"] == ["Read <me>."]


def test_html_escapes_what_it_is_given_and_puts_numbers_to_the_right() -> None:
    made = TABLE.html()
    assert "&lt;c&gt;" in made
    assert "<c>" not in made
    assert "Read &lt;me&gt;." in made
    assert made.count("<tr>") == 1 + len(TABLE.rows)
    assert made.count("class=text") == 1 + len(TABLE.rows)  # of the one column of words
