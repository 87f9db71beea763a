"""What a comparison file says: lines, their settings, their names, and what it may not say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cnfgnn.algorithm.messages.ledger import Bytes
from cnfgnn.algorithm.methods import preset
from cnfgnn.cli.studies import _print_choice
from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Errors
from cnfgnn.studies.plan import Case, Plan, Row, like_of, runs_of
from tests.commands import A_PLAN

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
TINY = A_PLAN + "[quick.training]\nclient_lr = 0.5\n"


def plan(tmp_path: Path, text: str = TINY) -> Plan:
    file = tmp_path / "plan.toml"
    file.write_text(text)
    return Plan.read(file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('methods = ["cnfgnn", "gru-local"]', ""), "methods"),
        (("[1, 2]", "[]"), "seeds"),
        (("[1, 2]", "[1, -1]"), "seeds"),
        (("only.cnfgnn", "only.sl"), "no such method"),
        (("hidden = 4", "hiden = 4"), "hidden"),
        (('"gru-local"', '"gru"'), "gru-local"),
        (('"gru-local"', '"gru-local 12k"'), "12k"),
        (("client_lr = 0.5", "client_lr = -1"), "client_lr"),
        (("seeds =", 'like = "london"\nseeds ='), "london"),
        (("seeds =", "variants = [3]\nseeds ="), "variants"),
        (("seeds =", "grid.training.seen = [0.5, 7]\nseeds ="), "seen"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(change: tuple[str, str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(tmp_path, TINY.replace(*change))


def test_settings_of_one_method_are_of_no_other(tmp_path: Path) -> None:
    cnfgnn, local = plan(tmp_path).cases()
    assert (cnfgnn.method, cnfgnn.config.model.embedding, cnfgnn.config.model.hidden) == (
        "at-fedavg",
        3,
        4,
    )
    assert (local.method, local.config.model.embedding, local.config.model.hidden) == ("gru-local", 0, 4)


def test_a_grid_has_a_line_for_every_combination_named_by_what_differs_from_the_preset(
    tmp_path: Path,
) -> None:
    grid = "\n[grid.training]\nclient_rounds = [1, 10]\nserver_rounds = [1, 20]\n"
    cases = plan(tmp_path, TINY.replace('"cnfgnn", "gru-local"', '"cnfgnn"') + grid).cases()
    values = [(c.config.training.client_rounds, c.config.training.server_rounds) for c in cases]
    assert values == [(1, 1), (1, 20), (10, 1), (10, 20)]
    assert [c.name for c in cases] == [
        "at-fedavg",
        "at-fedavg-server_rounds-20",
        "at-fedavg-client_rounds-10",
        "at-fedavg-client_rounds-10-server_rounds-20",
    ]


def test_a_method_can_have_a_grid_of_its_own_or_no_line_at_all(tmp_path: Path) -> None:
    grid = "\n[grid.privacy]\nblur = [0.0, 1.0]\n[only.gru-local.grid.privacy]\nblur = [3.0]\n"
    made = plan(tmp_path, TINY + grid)
    blurs = [(case.method, case.config.privacy.blur) for case in made.cases()]
    assert blurs == [("at-fedavg", 0.0), ("at-fedavg", 1.0), ("gru-local", 3.0)]
    none = plan(tmp_path, TINY + grid.replace("[3.0]", "[]"))
    assert {case.method for case in none.cases()} == {"at-fedavg"}
    with pytest.raises(ConfigError, match="sets this for each"):
        plan(tmp_path, TINY + grid[grid.index("[only") :]).with_changes({"privacy.blur": 2.0})


def test_methods_can_be_chosen_among_those_of_the_plan(tmp_path: Path) -> None:
    made = plan(tmp_path)
    assert [case.name for case in made.with_methods(["gru-local"]).cases()] == ["gru-local"]
    made = replace(made, methods=(*made.methods, ("gru-local", "727k")))
    assert made.with_methods(["gru-local"]).methods == (("gru-local", "63k"), ("gru-local", "727k"))
    assert made.with_methods(["gru-local 63k"]).methods == (("gru-local", "63k"),)
    with pytest.raises(ConfigError, match=r"no method 'sl'.*at-fedavg, gru-local"):
        made.with_methods(["sl"])


def test_a_variant_is_one_more_line_of_the_methods_it_names(tmp_path: Path) -> None:
    variant = '\n[[variants]]\nlabel = "other"\nmethods = ["cnfgnn"]\ntraining.sampling = 7.0\n'
    cases = plan(tmp_path, TINY + variant).cases()
    assert [(c.name, c.label) for c in cases] == [
        ("at-fedavg", ""),
        ("at-fedavg-sampling-7.0", "other"),
        ("gru-local", ""),
    ]
    assert cases[1].config.training.sampling == 7.0


def test_quick_and_single_settings_win_over_the_file(tmp_path: Path) -> None:
    quick = plan(tmp_path).quick()
    assert quick.seeds == (1,)
    assert [c.config.training.client_lr for c in quick.cases()] == [0.5, 0.5]
    changed = quick.with_changes({"training.client_lr": 0.25}).cases()
    assert [c.config.training.client_lr for c in changed] == [0.25, 0.25]
    assert [c.name for c in changed] == ["at-fedavg", "gru-local"]


PUBLISHED = ["forecasting", "cost", "inductive", "strategies", "rounds", "deviations", "beyond"]


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("like", ["metr-la", "pems-bay"])
def test_plans_of_the_paper_hold_the_published_settings(name: str, like: Any, data: Dataset) -> None:
    """Apart from what they vary and say so, every line is its method's preset for that data set."""
    cases = Plan.read(EXPERIMENTS / f"{name}.toml").cases(replace(data, name=like))
    assert cases
    for case in cases:
        published = preset(case.method, case.size, like, inductive=name == "inductive")
        assert case.config == published.with_changes(case.varied)
        assert case.config.training.sampling == published.training.sampling or "sampling" in case.name


def test_the_same_case_has_the_same_name_in_every_plan(data: Dataset) -> None:
    bay = replace(data, name="pems-bay")
    by_name: dict[str, Case] = {}
    for name in ("forecasting", "cost", "strategies", "rounds", "deviations", "beyond", "privacy"):
        for case in Plan.read(EXPERIMENTS / f"{name}.toml").cases(bay):
            assert by_name.setdefault(case.name, case).config == case.config
    assert by_name["at-fedavg"].config.training.server_rounds == 20


@pytest.mark.parametrize(
    ("name", "asked", "like"),
    [
        ("metr-la-29", "data", "metr-la"),
        ("PEMS-BAY", "data", "pems-bay"),
        ("rain gauges", "data", "metr-la"),
        ("metr-la-29", "pems-bay", "pems-bay"),
    ],
)
def test_the_published_settings_are_those_of_the_data(
    name: str, asked: str, like: str, data: Dataset
) -> None:
    assert like_of(replace(data, name=name), asked) == like


def test_a_run_is_found_again_unless_its_settings_or_readings_are_others(
    tmp_path: Path, data: Dataset
) -> None:
    case = plan(tmp_path).cases()[0]
    run = runs_of(case, [1], tmp_path, data, tmp_path / "plan.toml")[0]
    longer = replace(case, config=case.config.with_changes({"training.rounds": 9, "data.path": "elsewhere"}))
    assert runs_of(longer, [1], tmp_path, data, tmp_path)[0].folder == run.folder
    other = replace(case, config=case.config.with_changes({"training.client_lr": 0.125}))
    with pytest.raises(RunError, match="other settings"):
        runs_of(other, [1], tmp_path, data, tmp_path)
    fewer = data.select(data.readings.ids[:-1])
    with pytest.raises(RunError, match="other readings"):
        runs_of(case, [1], tmp_path, fewer, tmp_path)
    assert Run.open(run.folder).config == case.of_seed(1)


def line(name: str, validation: list[float], test: float) -> Row:
    """A line of finished runs with these validation errors, and the same test error for each."""
    config = preset("at-fedavg")

    def errors(figure: float) -> Errors:
        return Errors(figure, figure, figure, figure, figure)

    runs = [
        SimpleNamespace(
            test=lambda: {"overall": vars(errors(test))},
            progress=SimpleNamespace(
                best=SimpleNamespace(validation=errors(figure), training_bytes=Bytes(2048, 1024))
            ),
        )
        for figure in validation
    ]
    return Row(Case(name, "63k", config), tuple(runs))  # type: ignore[arg-type]


def test_a_sweep_is_chosen_by_validation_and_only_the_chosen_one_shows_its_test_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    rows = [line("lucky", [5.0, 5.2, 9.0], 3.125), line("chosen", [4.0, 6.0, 4.5], 7.625)]
    assert _print_choice("sweep", rows) is rows[1]
    printed = capsys.readouterr().out
    assert all(shown in printed for shown in ("4.500", "5.200", "7.625"))
    assert "3.125" not in printed
    assert printed.endswith("chosen by validation: chosen\n")
    monkeypatch.setenv("COLUMNS", "80")
    _print_choice("sweep", [line(f"{'a' * 40}{name}", [4.0, 5.0], 3.0) for name in ("b", "c")])
    assert "…" not in capsys.readouterr().out  # a name is folded, not cut
    assert Plan.read(EXPERIMENTS / "choose.toml").choose == "validation"
    with pytest.raises(ConfigError, match=r"choose: .* cannot choose by 'test'.*validation"):
        plan(tmp_path, 'choose = "test"\n' + TINY)
    for setting in ("horizon = [3, 12]", 'missing = ["masked", "as-truth"]'):
        with pytest.raises(ConfigError, match=r"data\.\w+: .* cannot choose among lines that differ in it"):
            plan(tmp_path, f'choose = "validation"\n{TINY}\n[grid.data]\n{setting}\n')
