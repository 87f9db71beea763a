"""Sites with other variables and covariates: all have the same, and each owner decides on their blur."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from cnfgnn.config.toml import dump_table
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.files.export import write_folder
from cnfgnn.data.inputs import InputNames
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.operator.check import _inputs
from cnfgnn.federation.server.rendezvous import incompatible_sites
from cnfgnn.federation.site.readings import SiteData
from cnfgnn.federation.site.settings import read_site
from cnfgnn.federation.spans import Span
from cnfgnn.federation.task import RUNS, check_federated
from cnfgnn.privacy.copies import CopyStore
from cnfgnn.runs.folder import Run
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import Progress, evaluate_best, train
from tests.conftest import network, small
from tests.federation.in_memory_federation import SITES, InMemoryFederation, must_finish
from tests.privacy.two_truths import with_inputs

NAMES = "variables: flow; covariates: holiday, rain"


def city() -> Dataset:
    data = network(seconds=3600)
    return replace(data, readings=with_inputs(data.readings))


def say(sites: InMemoryFederation, name: str, **blurs: object) -> None:
    """Add a table [inputs] to a site's settings."""
    file = sites.kits[name] / "local" / "site.toml"
    before = file.read_text().split("\n[inputs]")[0]
    file.write_text(before + dump_table({"inputs": blurs}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> InMemoryFederation:
    sites = InMemoryFederation(tmp_path_factory.mktemp("inputs"), city())
    must_finish(sites.train(small("cnfgnn-plus", **{"training.rounds": 1})))
    return sites


@pytest.mark.slow
def test_a_federation_learns_what_the_simulator_learns(trained: InMemoryFederation) -> None:
    config = small("cnfgnn-plus", **{"training.rounds": 1})
    experiment = simulate(city(), config, list(SITES.values()))
    expected = evaluate_best(experiment, train(experiment, Progress()))
    run = Run.open(trained.server / RUNS / "one")
    assert run.data.inputs == (("flow",), ("holiday", "rain"))
    state = run.store("server").read(run.progress.best.tag)
    theta = experiment.strategy.theta_bar  # type: ignore[attr-defined]
    for name, w in theta.items():
        torch.testing.assert_close(state[f"theta_bar.{name}"], w, rtol=1e-6, atol=1e-7)
    assert run.test()["overall"]["masked_rmse"] == pytest.approx(expected.test.overall.masked_rmse, rel=0.05)


@pytest.mark.slow
def test_sites_forecast_with_covariates_ahead_and_warn_their_owners_of_those_that_end(
    trained: InMemoryFederation, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        must_finish(trained.forecast())
    said = [line for line in caplog.messages if "covariate rain" in line]
    assert len(said) == len(SITES)
    assert all("is not known from" in line and "so its last value is used" in line for line in said)
    before = trained.latest("west")
    assert before is not None
    assert np.isfinite(before.to_numpy()).all()
    file = trained.folder / "example" / "data" / "west" / "covariates" / "rain.csv"
    rain = pd.read_csv(file, index_col="time", parse_dates=True)
    stronger = rain.copy()
    stronger[rain.index >= before.index[0]] += 5
    try:
        stronger.to_csv(file)
        trained.forecast()
        after = trained.latest("west")
        assert after is not None
        assert not np.allclose(after, before)
        must_finish(trained.resume())  # later values of a covariate may still change
    finally:
        rain.to_csv(file)


@pytest.mark.slow
def test_a_site_whose_inputs_differ_is_refused_by_name(trained: InMemoryFederation) -> None:
    file = trained.folder / "example" / "data" / "south" / "variables" / "flow.csv"
    flow = file.read_text()
    file.unlink()
    try:
        status = trained.train(small("cnfgnn-plus"), "other")
        assert status["state"] == "failed"
        problem = f"its further inputs (covariates: holiday, rain) are not those of the other sites ({NAMES})"
        assert status["problem"] == f"site 'south' failed at 'hello': {problem}"
        assert trained.evaluate()["problem"] == status["problem"]
    finally:
        file.write_text(flow)


@pytest.mark.slow
def test_a_run_is_not_used_with_other_inputs_than_it_was_trained_with(trained: InMemoryFederation) -> None:
    settings = {name: (trained.kits[name] / "local" / "site.toml").read_text() for name in SITES}
    for name, text in settings.items():
        (trained.kits[name] / "local" / "site.toml").write_text(f'{text}[reading]\ninputs = "rain"\n')
    try:
        status = trained.evaluate()
        assert status["state"] == "failed"
        assert (
            f"was trained with other further inputs ({NAMES}) than the sites have (covariates: rain)"
            in (status["problem"])
        )
        must_finish(trained.train(small("at-fedavg", **{"training.rounds": 1}), "paper"))
    finally:
        for name, text in settings.items():
            (trained.kits[name] / "local" / "site.toml").write_text(text)


def test_sites_with_other_names_are_found_by_the_names_of_most() -> None:
    span = Span(0, 3000, 300, True, inputs=InputNames(("flow",)))
    spans = {"a": span, "b": replace(span, inputs=InputNames()), "c": span}
    assert incompatible_sites(spans) == {
        "b": "its further inputs (none) are not those of the other sites (variables: flow)"
    }


# ---- blur -----------------------------------------------------------------------------------------------


def test_a_site_that_blurs_its_readings_has_to_decide_about_its_inputs(tmp_path: Path) -> None:
    sites = InMemoryFederation(tmp_path, city(), blur=5.0)
    say(sites, "south", flow=60.0, holiday="public")
    kit = sites.kits["south"]
    with pytest.raises(
        ConfigError, match=r"site.toml: inputs.rain: the readings are blurred, and nothing is"
    ):
        SiteData(read_site(kit), kit)


def test_an_input_that_has_copies_does_not_leave_as_it_is_because_nothing_is_said_any_more(
    tmp_path: Path,
) -> None:
    """Readings keep their copies with a blur of 0; the copy of an input is as final."""
    sites = InMemoryFederation(tmp_path, city())
    kit = sites.kits["south"]
    file = kit / "local" / "site.toml"
    unblurred = file.read_text()
    say(sites, "south", flow=30.0, holiday="public")
    flow = SiteData(read_site(kit), kit).copy.others[0]
    file.write_text(unblurred)
    with pytest.raises(ConfigError, match=r"inputs.flow: copies of it have been made, and nothing is said"):
        SiteData(read_site(kit), kit)
    say(sites, "south", flow=1.0)
    again = SiteData(read_site(kit), kit).copy.others[0]
    np.testing.assert_array_equal(again.readings.values, flow.readings.values)


@pytest.mark.slow
def test_each_site_blurs_its_inputs_in_their_own_units(tmp_path: Path) -> None:
    sites = InMemoryFederation(tmp_path, city(), blur=5.0)
    for name in SITES:
        say(sites, name, flow=30.0, rain=0.5, holiday="public")
    must_finish(sites.train(small("cnfgnn-private", **{"training.rounds": 1}), "two"))
    owner = sites.ends["south"].owner
    assert owner is not None
    pairs = zip(owner.truth.others, owner.nodes.series.others, strict=True)
    noise = {true.name: np.nanstd(copy.values - true.values) for true, copy in pairs}
    assert noise["flow"] == pytest.approx(30, rel=0.15)
    assert noise["holiday"] == 0
    assert noise["rain"] == pytest.approx(0.5, rel=0.25)
    plan = read_site(sites.kits["south"])
    assert list(_inputs(SiteData(plan, sites.kits["south"]), plan)) == [
        "variable flow: blur 30",
        "covariate holiday: public: the server can estimate it, nearly exactly",
        "covariate rain: blur 0.5",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[inputs]\nflow = true\n", "inputs.flow: must be the noise in its own unit"),
        ("[inputs]\nflow = 0\n", "inputs.flow: must be the noise in its own unit"),
        (f"[inputs]\nflow = {10**400}\n", "inputs.flow: must be the noise in its own unit"),
        ("inputs = 3\n", r"inputs: it must be a table, \[inputs\]"),
        ("[reading]\ntarget = 3\n", "reading.target: takes text, not 3"),
    ],
)
def test_invalid_settings_of_inputs_are_refused_with_file_and_key(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "site.toml").write_text(f'name = "a"\nsensors = ["s0"]\n{text}')
    with pytest.raises(ConfigError, match=f"site.toml: {says}"):
        read_site(tmp_path)


def test_the_operator_cannot_decide_for_the_sites() -> None:
    for key, value in {"privacy.inputs": "flow=1", "data.target": "speed", "data.inputs": "none"}.items():
        config = small("cnfgnn-plus").with_given(()).with_changes({key: value})
        with pytest.raises(ConfigError, match=rf"^{key}: each site sets this under \["):
            check_federated(config)


# ---- copies ---------------------------------------------------------------------------------------------


LONG = ["time,id,speed,flow"]
LONG += [f"2024-01-01 {hour:02}:00,s{n},{50 + hour + n},{900 + hour}" for hour in range(16) for n in (0, 1)]


def site(folder: Path, target: str, rows: list[str] = LONG, **settings: object) -> SiteData:
    """A site with a long table of two variables, of which it forecasts one."""
    (folder / "readings").mkdir(exist_ok=True)
    (folder / "readings" / "readings.csv").write_text("\n".join(rows))
    (folder / "kit" / "local").mkdir(parents=True, exist_ok=True)
    other = {"speed": "flow", "flow": "speed"}.get(target, "flow")
    content = {"name": "a", "sensors": ["s0", "s1"], "readings": "../readings", "blur": 5.0, **settings}
    content |= {"reading": {"target": target}, "inputs": {other: 7.0}}
    (folder / "kit" / "local" / "site.toml").write_text(dump_table(content))
    return SiteData(read_site(folder / "kit"), folder / "kit")


def test_a_variable_keeps_its_copies_when_another_one_is_forecast(tmp_path: Path) -> None:
    first, then = site(tmp_path, "speed"), site(tmp_path, "flow")
    np.testing.assert_array_equal(then.copy.others[0].readings.values, first.copy.values)
    np.testing.assert_array_equal(then.copy.values, first.copy.others[0].readings.values)
    assert then.sigmas == {7.0: 32}
    count = CopyStore(tmp_path / "readings" / "cnfgnn-private").count()
    assert count == 64
    again = site(tmp_path, "speed")
    np.testing.assert_array_equal(again.copy.values, first.copy.values)


def test_a_variable_whose_name_is_gone_is_not_copied_again(tmp_path: Path) -> None:
    site(tmp_path, "speed")
    renamed = ["time,id,velocity,flow", *LONG[1:]]
    with pytest.raises(
        RunError, match="first copies were made of the variable 'speed', and the readings have velocity"
    ):
        site(tmp_path, "velocity", renamed)


def test_readings_of_one_variable_keep_their_copies_whatever_its_column_is_called(tmp_path: Path) -> None:
    data = network(n=2, rows=40)
    (tmp_path / "readings").mkdir()
    write_folder(data, tmp_path / "readings")
    (tmp_path / "kit" / "local").mkdir(parents=True)
    content = {"name": "a", "sensors": ["s0", "s1"], "readings": "../readings", "blur": 5.0}
    (tmp_path / "kit" / "local" / "site.toml").write_text(dump_table(content))

    def copy() -> np.ndarray:
        return SiteData(read_site(tmp_path / "kit"), tmp_path / "kit").copy.values

    before = copy()
    frame = pd.read_csv(tmp_path / "readings" / "readings.csv")
    frame.melt("time", var_name="id", value_name="speed").to_csv(
        tmp_path / "readings" / "readings.csv", index=False
    )
    np.testing.assert_array_equal(copy(), before)
