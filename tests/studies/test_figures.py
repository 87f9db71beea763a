"""Figures show the data they were given, and their files are whole, valid and always the same."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import DataError, StorageError
from cnfgnn.runs.simulation import seen_sensors
from cnfgnn.studies import drawing, figures
from cnfgnn.studies.error_by_bytes import error_by_bytes
from cnfgnn.studies.figures import Inductive, Point
from tests.conftest import network

CURVES = {"at": [[30.0, 5.0, 4.0, 4.5], [28.0, 5.2, 4.4]], "sl": [[9.0, 6.0, 5.5, 5.6, 5.7]]}
GIB = 2**30
POINTS = [
    Point("local", "baselines", 0, 5.0),
    Point("fedavg", "baselines", 2 * GIB, 4.5, 0.1),
    Point("cnfgnn", "ours", 300 * GIB, 4.0, 0.05),
    Point("cnfgnn again", "ours", 301 * GIB, 4.01, 0.05),
]
ROWS = {
    "cnfgnn": [Inductive(0.5, 4.4, 4.0, 4.8), Inductive(0.25, 5.0, 4.2, 5.3), Inductive(1.0, 4.1)],
    "fedavg": [Inductive(0.25, 4.9), Inductive(0.5, 4.9)],
}
EVERY: dict[str, Callable[[], Figure]] = {
    "validation": lambda: figures.validation_curves(CURVES, "Curves"),
    "bytes": lambda: figures.error_against_bytes(POINTS, "Bytes"),
    "histograms": lambda: figures.histograms(network(), "Histograms", limit=3),
    "subgraphs": lambda: figures.subgraphs(network(), [0.5, 1.0], "Maps"),
    "inductive": lambda: figures.inductive(ROWS, "Inductive"),
}


def only(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def lines(axes: Axes) -> list[list[tuple[float, float]]]:
    return [
        list(zip(*(np.atleast_1d(d).tolist() for d in line.get_data()), strict=True)) for line in axes.lines
    ]


def check_png(content: bytes) -> tuple[int, int]:
    """Width and height of a PNG whose every chunk is whole."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, kinds = 8, []
    while at < len(content):
        (length,), kind = struct.unpack(">I", content[at : at + 4]), content[at + 4 : at + 8]
        body, crc = content[at + 4 : at + 8 + length], content[at + 8 + length : at + 12 + length]
        assert struct.pack(">I", zlib.crc32(body)) == crc
        kinds.append(kind)
        at += 12 + length
    assert kinds[0] == b"IHDR"
    assert kinds[-1] == b"IEND"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


@pytest.mark.parametrize("name", EVERY)
def test_both_files_are_written_whole_and_valid(name: str, tmp_path: Path) -> None:
    figure = EVERY[name]()
    png, vector = figures.save(figure, tmp_path / "docs" / f"{name}.v1")
    assert [path.name for path in (png, vector)] == [f"{name}.v1.png", f"{name}.v1.svg"]
    width, height = check_png(png.read_bytes())
    assert (width, height) == pytest.approx(figure.get_size_inches() * 160, abs=1)
    assert ElementTree.parse(vector).getroot().tag.endswith("svg")
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == sorted([png.name, vector.name])


@pytest.mark.parametrize("name", EVERY)
def test_the_same_figure_is_the_same_svg(name: str, tmp_path: Path) -> None:
    one, two = figures.svg(EVERY[name]()), figures.svg(EVERY[name]())
    assert one == two
    assert one.startswith("<svg")
    assert ElementTree.fromstring(one).tag.endswith("svg")
    figures.save(EVERY[name](), tmp_path / "figure")
    assert (tmp_path / "figure.svg").read_text().endswith(one)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(StorageError, match="taken"):
        figures.save(EVERY["validation"](), tmp_path / "taken" / "figure")


def test_drawing_leaves_the_style_of_others_alone() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    figures.svg(EVERY["validation"]())
    assert dict(matplotlib.rcParams) == before


# ---- validation curves ----------------------------------------------------------------------------------


def test_each_seed_its_best_round_and_the_mean_as_far_as_all_go_are_drawn() -> None:
    drawn = lines(only(EVERY["validation"]()))
    for seeds in CURVES.values():
        for values in seeds:
            assert list(enumerate(values, start=1)) in drawn
            best = min(range(len(values)), key=values.__getitem__)
            assert [(best + 1, values[best])] in drawn
    mean = [(1, 29.0), (2, 5.1), (3, 4.2)]
    assert any(line == [pytest.approx(point) for point in mean] for line in drawn)
    assert len(drawn) == 3 + 3 + 1  # of a single seed there is no mean


def test_a_wild_first_round_does_not_flatten_the_others_and_is_mentioned() -> None:
    axes = only(EVERY["validation"]())
    low, high = axes.get_ylim()
    assert low < 4.0
    assert 6.0 < high < 15.0
    assert any("30" in text.get_text() for text in axes.texts)


def test_calm_curves_are_shown_whole() -> None:
    axes = only(figures.validation_curves({"at": [[5.0, 4.9, 4.85, 4.8, 4.8]], "sl": [[4.0, 4.0]]}, "Calm"))
    assert axes.get_ylim()[1] >= 5.0
    assert not axes.texts


def test_curves_of_a_few_rounds_are_shown_whole() -> None:
    axes = only(figures.validation_curves({"at": [[20.0, 18.0]], "sl": [[19.0]]}, "Few"))
    assert axes.get_ylim()[1] >= 20.0
    assert not axes.texts


def test_a_round_that_is_no_number_leaves_a_gap() -> None:
    axes = only(figures.validation_curves({"at": [[5.0, float("nan"), 4.8]]}, "Gap"))
    assert [(3, 4.8)] in lines(axes)


# ---- error against bytes --------------------------------------------------------------------------------


def test_every_point_stands_where_it_belongs_with_its_label() -> None:
    axes = only(EVERY["bytes"]())
    assert axes.get_xscale() == "log"
    at = {point for line in lines(axes) for point in line}
    assert {(2.0, 4.5), (300.0, 4.0), (301.0, 4.01)} <= at
    (free,) = (x for x, y in at if y == 5.0)
    assert 0 < free < 2.0 / 5  # what moves nothing stands apart, to the left
    written = {text.get_text() for text in axes.texts}
    assert {point.label for point in POINTS} <= written
    colours = {text.get_text(): text.get_color() for text in axes.texts}
    assert colours["local"] == colours["fedavg"] != colours["cnfgnn"]


def test_labels_cover_neither_each_other_nor_points() -> None:
    crowd = [Point(f"method {k}", "one", (100 + 5 * k) * GIB, 4.0 + 0.01 * k, 0.005) for k in range(6)]
    crowd += [Point("far", "one", GIB, 5.0)]
    figure = figures.error_against_bytes(crowd, "Crowd")
    axes = only(figure)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text() != "//"]
    assert not any(one.overlaps(two) for k, one in enumerate(boxes) for two in boxes[:k])
    marks = axes.transData.transform([(p.bytes / GIB, p.rmse) for p in crowd])
    assert not any(box.contains(*mark) for box in boxes for mark in marks)


@pytest.mark.parametrize(
    ("gib", "says"),
    [(0.1, "0.1 GiB"), (1, "1 GiB"), (100, "100 GiB"), (1000, "1,000 GiB"), (10000, "10,000 GiB")],
)
def test_ticks_read_as_people_write(gib: float, says: str) -> None:
    assert figures._gib(gib) == says


def test_small_amounts_get_a_smaller_unit() -> None:
    assert figures._gib(0.01) == "10.2 MiB"
    assert figures._gib(2**-20) == "1 KiB"


# ---- data -----------------------------------------------------------------------------------------------


def test_histograms_are_of_the_first_sensors_by_id(data: Dataset) -> None:
    ids = ("12", "3", "100", "7", "9", "1")
    data = Dataset("numbers", replace(data.readings, ids=ids), data.graph)
    figure = figures.histograms(data, "Numbers", limit=4)
    assert [axes.texts[0].get_text() for axes in figure.axes if axes.get_visible()] == ["1", "3", "7", "9"]
    (bars,) = figure.axes[0].patches
    shares, edges, _ = bars.get_data()  # type: ignore[attr-defined]
    column = data.readings.values[:, 5][~data.readings.missing[:, 5]]
    assert shares == pytest.approx(np.histogram(column, edges)[0] / len(column))
    assert figure.axes[0].get_ylim() == figure.axes[3].get_ylim()
    assert figure.axes[0].get_xlim() == figure.axes[3].get_xlim()


def test_small_multiples_fill_rows_of_ten() -> None:
    figure = figures.histograms(network(13, rows=60), "Many")
    assert len(figure.axes) == 20
    assert sum(axes.get_visible() for axes in figure.axes) == 13


def test_a_sensor_that_never_measured_has_an_empty_panel(data: Dataset) -> None:
    values = data.readings.values.copy()
    values[:, 1] = np.nan
    readings = replace(data.readings, values=values, missing=np.isnan(values))
    figure = figures.histograms(Dataset("silent", readings, data.graph), "Silent")
    assert (figure.axes[1].patches[0].get_data()[0] == 0).all()  # type: ignore[attr-defined]
    silent = replace(readings, values=np.full_like(values, np.nan), missing=np.ones_like(values, dtype=bool))
    with pytest.raises(DataError, match="no readings"):
        figures.histograms(Dataset("silence", silent, data.graph), "Silence")


def test_maps_show_what_training_sees(data: Dataset) -> None:
    shares = [0.34, 0.5, 1.0]
    figure = figures.subgraphs(data, shares, "Maps")
    assert len(figure.axes) == 3
    pairs = {tuple(sorted(pair)) for pair in zip(data.graph.senders, data.graph.receivers, strict=True)}
    pairs = {pair for pair in pairs if pair[0] != pair[1]}
    positions = data.readings.positions
    assert positions is not None
    for axes, share in zip(figure.axes, shares, strict=True):
        found = seen_sensors(data, share)
        seen = np.ones(6, dtype=bool) if found is None else found.numpy()
        hidden, shown = (np.asarray(dots.get_offsets()) for dots in axes.collections)
        assert shown == pytest.approx(positions[seen][:, ::-1])
        assert len(hidden) == 6 - seen.sum()
        among = sum(bool(seen[i] and seen[j]) for i, j in pairs)
        counts = [len(line.get_xdata()) // 3 for line in axes.lines]  # type: ignore[arg-type]
        assert counts == [len(pairs) - among, among]
        assert f"{seen.sum()} of 6" in axes.get_title(loc="left")


def test_a_map_needs_positions(data: Dataset) -> None:
    with pytest.raises(DataError, match="positions"):
        figures.subgraphs(Dataset("lost", replace(data.readings, positions=None), data.graph), [1.0], "Lost")


# ---- inductive ------------------------------------------------------------------------------------------


def test_errors_of_all_unseen_and_seen_sensors_are_lines_over_the_share() -> None:
    figure = EVERY["inductive"]()
    drawn = lines(only(figure))
    assert len(drawn) == 3 + 1
    assert [(0.25, 5.0), (0.5, 4.4), (1.0, 4.1)] in drawn
    assert [(0.25, 5.3), (0.5, 4.8)] in drawn
    assert [(0.25, 4.2), (0.5, 4.0)] in drawn
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["cnfgnn", "fedavg", "all sensors", "unseen", "seen"]


def test_more_lines_than_colours_differ_by_their_dashes() -> None:
    kinds = {(drawing.colour(k), str(drawing.dash(k))) for k in range(2 * len(drawing.COLOURS))}
    assert len(kinds) == 2 * len(drawing.COLOURS)


def test_every_method_s_best_round_is_inside_the_axes_however_late_it_starts() -> None:
    ours = [[(1e6 * k, 3.95 - 0.02 * k) for k in range(1, 11)] for _ in range(5)]
    theirs = [[(4e8 * k, 4.5 - 0.1 * k) for k in range(1, 5)]]
    drawn = error_by_bytes({"ours": ours, "theirs": theirs}, "Error by bytes")
    (axes,) = drawn.axes
    low, high = axes.get_ylim()
    assert low < 3.75 < 4.1 < high
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [float(dot.get_ydata()[0]) for dot in dots] == pytest.approx([3.75] * 5 + [4.1])
    assert axes.get_xscale() == "log"
