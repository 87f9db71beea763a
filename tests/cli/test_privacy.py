"""`cnfgnn privacy` as a user sees it: what it prints and writes, and its error messages."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from cnfgnn.attack.smoothed_copies import SmoothedCopies
from cnfgnn.cli.privacy import _table
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.description import DataDescription, FederatedData
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.files.folder import load_readings
from cnfgnn.data.series import Scaler
from cnfgnn.data.synthetic.city import city
from cnfgnn.errors import RunError
from cnfgnn.privacy.explanation import Measures, explain
from cnfgnn.runs.folder import Run
from cnfgnn.runs.training_loop import Progress
from tests.commands import COMMAND, ENVIRONMENT, said
from tests.tiny_runs import tiny

ASKED = ("privacy", "--blur", 5, "--unit", "mph", "--step", "5min")


def one_line(text: str) -> str:
    return " ".join(text.split())


def rows_of(printed: str) -> list[list[str]]:
    """The cells of the lines that show an event, words of the verdict apart."""
    return [line.split() for line in printed.splitlines() if line.rstrip().endswith(" hidden")]


def test_the_guarantee_comes_first_then_the_table_then_the_caveats() -> None:
    printed = one_line(said(*ASKED))
    assert printed.startswith(
        "The server learns at most what it would learn if you handed it your readings with noise of 5 mph"
        " added"
    )
    assert printed.index("learns at most") < printed.index("epsilon") < printed.index("Keep in mind:")
    assert printed.index("Keep in mind:") < printed.index("Which readings are missing")


def test_the_table_has_the_figures_of_every_size_and_duration() -> None:
    rows = rows_of(said(*ASKED))
    assert len(rows) == 20
    assert rows[0] == ["1", "mph", "5", "min", "1", "54", "%", "0.20", "0.84", "well", "hidden"]
    assert rows[7] == ["5", "mph", "1", "h", "12", "96", "%", "3.46", "21.9", "hardly", "hidden"]


@pytest.mark.parametrize(("width", "unit"), [(60, "vehicles/h"), (80, "mph")])
def test_a_narrow_terminal_cuts_no_figure(width: int, unit: str) -> None:
    (guarantee,) = explain({"": 12.5}, Measures(unit, 300))
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(_table(guarantee))
    printed = capture.get()
    assert "…" not in printed
    for row in guarantee.rows:
        assert f" {row.mu:.2f} " in printed
    assert len(rows_of(printed)) == 20 or width < 80  # a line for each event where there is room


def test_changes_and_durations_can_be_chosen() -> None:
    asked = (*ASKED, "--changes", "3, 1.5", "--durations", "1d,7min,1", "--json")
    (guarantee,) = json.loads(said(*asked))["guarantees"]
    shown = [(row["change"], row["readings"], row["seconds"]) for row in guarantee["rows"]]
    assert shown == [(c, k, 300.0 * k) for c in (1.5, 3.0) for k in (1, 2, 288)]
    assert guarantee["blur"] == 5.0


def test_without_a_step_durations_are_readings() -> None:
    printed = said("privacy", "--blur", 2.5)
    assert rows_of(printed)[1] == ["0.5", "3", "57", "%", "0.35", "1.51", "well", "hidden"]
    assert "lasts" not in printed.partition("Keep in mind")[0]


def test_without_blur_one_sentence_says_that_nothing_is_hidden() -> None:
    printed = one_line(said("privacy", "--blur", 0))
    assert printed.startswith("Nothing is guaranteed without a blur: from the hidden states")
    assert "Keep in mind" not in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--blur: give the blur in the unit of your readings, or a run folder"),
        (["--blur", "-1"], "--blur: must be 0 or at least 1e-09, not -1.0"),
        (["--blur", "nan"], "--blur: must be 0 or at least"),
        (["--blur", "inf"], "--blur: must be 0 or at least"),
        (["--blur", "5", "--step", "5"], "--step: '5' is not a time such as 30s, 5min, 1h, 1d or 1week"),
        (["--blur", "5", "--step", "0min"], "--step: '0min' is not a time"),
        (
            ["--blur", "5", "--changes", "1,x"],
            "--changes: 'x' is not a size above 0: give sizes like",
        ),
        (["--blur", "5", "--changes", "1,,2"], "--changes: '' is not a size above 0"),
        (["--blur", "5", "--changes", "0"], "--changes: '0' is not a size above 0"),
        (
            ["--blur", "5", "--durations", "1h"],
            "--durations: '1h' is not a number of readings; times",
        ),
        (["--blur", "5", "--step", "5min", "--durations", "1x"], "--durations: '1x' is not a time"),
        (["--blur", "5", "--durations", "0"], "--durations: '0' is not between 1 and 1,000,000,000 readings"),
        (["runs/any", "--blur", "5"], "--blur: a run has its own"),
        (["runs/any", "--step", "5min"], "--step: a run has its own"),
    ],
)
def test_bad_options_are_one_sentence(arguments: list[str], sentence: str) -> None:
    assert said("privacy", *arguments, fails=True).startswith(sentence)


def test_a_folder_that_is_not_a_run_is_named(tmp_path: Path) -> None:
    assert said("privacy", tmp_path, fails=True) == f"{tmp_path}: is not a run: it has no manifest.json"


@pytest.mark.slow
def test_the_process_ends_with_the_exit_code(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "privacy", str(tmp_path)], capture_output=True, env=ENVIRONMENT)
    assert done.returncode == RunError.exit_code
    assert done.stderr.decode().count("\n") == 1


def test_a_run_without_blur_says_so(city_data: Dataset, tmp_path: Path) -> None:
    Run.create(tmp_path / "run", tiny("gru-fedavg"), city_data)
    assert one_line(said("privacy", tmp_path / "run")).startswith("Nothing is guaranteed without a blur")
    told = json.loads(said("privacy", tmp_path / "run", "--changes", 5, "--json"))
    assert told["step_seconds"] == 300
    assert [row["epsilon"] for row in told["guarantees"][0]["rows"]] == [None] * 5


def test_a_run_of_a_federation_names_its_sites(tmp_path: Path) -> None:
    sites = FederatedData(0, "0123456789ab", {"north": ["a"], "south": ["b", "c"]})
    data = DataDescription("harbour", "0" * 64, ["a", "b", "c"], 1000, 900, True, sites)
    run = Run.begin(tmp_path / "run", tiny("gru-fedavg"), data)
    assert "has not begun yet" in said("privacy", tmp_path / "run", fails=True)
    run.append("start", data={"blur": {"north": 2.5, "south": 2.5}})
    run.commit(Progress(), Scaler(0.0, 1.0))
    told = json.loads(said("privacy", tmp_path / "run", "--json"))
    assert told["step_seconds"] == 900
    assert [guarantee["sites"] for guarantee in told["guarantees"]] == [["north", "south"]]
    assert [guarantee["blur"] for guarantee in told["guarantees"]] == [2.5]
    assert said("privacy", tmp_path / "run").startswith("north, south:\n")


def test_each_site_of_a_federation_has_its_own_blur(tmp_path: Path) -> None:
    sites = FederatedData(0, "0123456789ab", {"north": ["a"], "south": ["b"], "west": ["c"]})
    data = DataDescription("harbour", "0" * 64, ["a", "b", "c"], 1000, 900, True, sites)
    run = Run.begin(tmp_path / "run", tiny("gru-fedavg"), data)
    run.append("start", data={"blur": {"north": 2.5, "south": 0.5, "west": None}})
    run.commit(Progress(), Scaler(0.0, 1.0))
    [line] = [line for line in said("privacy", tmp_path / "run", "--json").splitlines() if line[0] == "{"]
    told = json.loads(line)["guarantees"]
    found = {site: guarantee["blur"] for guarantee in told for site in guarantee["sites"]}
    assert found == {"north": 2.5, "south": 0.5}  # west was away, and nothing is known of it


def test_the_blur_of_a_run_is_that_of_its_settings(city_data: Dataset, tmp_path: Path) -> None:
    Run.create(tmp_path / "run", tiny("gru-fedavg").with_changes({"privacy.blur": 2.5}), city_data)
    (guarantee,) = json.loads(said("privacy", tmp_path / "run", "--json"))["guarantees"]
    assert guarantee["blur"] == 2.5


# ---- what a smoother makes of the owner's copies -----------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Readings of four sensors over three days."""
    written = tmp_path_factory.mktemp("owner")
    write_folder(city(4, days=3, seed=3), written)
    return written


def test_an_owner_sees_by_how_much_a_smoother_would_miss(folder: Path) -> None:
    told = json.loads(said("privacy", "--data", folder, "--blur", 5, "--hide", 2, "--json"))
    assert told["step_seconds"] == 300
    smoothing = told["smoothing"]
    assert [row["blur"] for row in smoothing["rows"]] == [5, 10, 20, 40]
    for row in smoothing["rows"]:
        assert 0 < row["together"] <= row["alone"] < min(row["blur"], 1.02 * smoothing["guess"])
    readings = load_readings(folder)
    found = SmoothedCopies.of(readings.values, readings.missing)
    assert found is not None
    assert smoothing["blur"] == found.blur_that_hides(2.0)
    printed = one_line(said("privacy", "--data", folder, "--blur", 5, "--unit", "mph", "--hide", 2))
    row = smoothing["rows"][1]
    assert f"10 mph {row['alone']:.3g} {row['together']:.3g}" in printed
    assert f"Guessing each sensor's mean misses by {smoothing['guess']:.3g} mph." in printed
    assert f"To make a smoother miss by 2 mph or more, set a blur of {smoothing['blur']:g} mph." in printed
    assert printed.index("learns at most") < printed.index("smoother of your copies")


def test_readings_alone_are_enough_to_choose_a_blur(folder: Path) -> None:
    printed = said("privacy", "--data", folder)
    assert printed.startswith("By how much a smoother of your copies would miss your readings (RMSE):")
    assert "learns at most" not in printed


def test_what_follows_from_readings_is_in_no_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said(*ASKED, "--data", folder, "--hide", 2)
    assert not list(tmp_path.iterdir())
    assert sorted(path.name for path in folder.iterdir()) == ["edges.csv", "readings.csv", "sensors.csv"]


def test_readings_are_read_as_the_settings_say(folder: Path, tmp_path: Path) -> None:
    marked = tmp_path / "readings.csv"
    lines = (folder / "readings.csv").read_text().splitlines()
    for row in range(3, len(lines), 7):
        lines[row] = f"{lines[row].split(',', 1)[0]},-999,-999,-999,-999"
    marked.write_text("\n".join(lines) + "\n")
    plain, cleaned = (
        json.loads(said("privacy", "--data", marked, "--json", *option))["smoothing"]["guess"]
        for option in ((), ("--set", "data.missing_value=-999"))
    )
    assert plain > 10 * cleaned


def test_too_few_readings_and_options_that_need_some_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    short = tmp_path / "readings.csv"
    short.write_text("\n".join((folder / "readings.csv").read_text().splitlines()[:300]) + "\n")
    told = said("privacy", "--data", short, fails=True)
    assert told.startswith(f"{short}: too few readings to say what a smoother would make of their copies")
    for option, value in (("--hide", 2), ("--set", "data.missing_value=-999")):
        problem = f"{option}: needs your readings: add --data with their file or folder"
        assert said("privacy", "--blur", 5, option, value, fails=True) == problem
    assert said("privacy", "--data", folder, "--hide", 0, fails=True) == "--hide: must be above 0, not 0.0"
