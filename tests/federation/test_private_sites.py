"""Sites that blur their readings: what the server learns, what it refuses, and what owners get."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from cnfgnn.cli.federation_tasks import DEFAULT_METHOD, _print_about_errors
from cnfgnn.cli.settings import resolve
from cnfgnn.config.presets import BLUR
from cnfgnn.errors import ConfigError
from cnfgnn.federation.server.status import STATUS
from cnfgnn.federation.site.owner import EVALUATIONS, SiteOwner
from cnfgnn.federation.site.readings import SiteData
from cnfgnn.federation.site.settings import PRIVATE
from cnfgnn.federation.site.status import read_site_status
from cnfgnn.federation.site.store import OWNER, STATES, OwnerStore
from cnfgnn.federation.task import RUNS, check_federated, settings_of
from cnfgnn.privacy.copies import KEY_FILE
from cnfgnn.runs.folder import Run
from cnfgnn.runs.scores import Errors
from tests.conftest import network, small
from tests.federation.in_memory_federation import SITES, InMemoryFederation, must_finish
from tests.privacy.test_by_construction import arrays_of, holds, reachable
from tests.privacy.test_by_construction import check as check_that_no_way_leads_to_the_owner

SIGMA = 5.0
NO_BLUR = "no blur: from what they send, this server can estimate each of their readings, nearly exactly"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> InMemoryFederation:
    """Sites that have trained with `cnfgnn-private`; one owner tells its errors."""
    data = network(seconds=3600)
    sites = InMemoryFederation(tmp_path_factory.mktemp("private"), data, blur=SIGMA)
    sites.set("south", tell_errors=True)
    sites.set("west", blur=7.0)
    must_finish(sites.train(small("cnfgnn-private")))
    return sites


@pytest.fixture
def sites(trained: InMemoryFederation) -> Iterator[InMemoryFederation]:
    """The same; readings and settings are restored after a test."""
    files = {name: trained.readings(name) for name in SITES}
    settings = {name: (trained.kits[name] / "local" / "site.toml").read_text() for name in SITES}
    yield trained
    for name in SITES:
        trained.write(name, files[name])
        (trained.kits[name] / "local" / "site.toml").write_text(settings[name])


def owner_of(sites: InMemoryFederation, name: str) -> SiteOwner:
    owner = sites.ends[name].owner
    assert isinstance(owner, SiteOwner)
    return owner


def evaluation(sites: InMemoryFederation, name: str, split: str) -> dict[str, object]:
    [file] = (sites.kits[name] / EVALUATIONS).glob(f"*-{split}.json")
    assert file.stat().st_mode & 0o077 == 0
    return dict(json.loads(file.read_text()))


def test_there_is_no_way_from_a_sites_nodes_to_its_owner(sites: InMemoryFederation) -> None:
    sites.evaluate()
    for name in SITES:
        owner = owner_of(sites, name)
        truth = owner.site_data.truth
        assert owner.site_data.copy is not truth
        check_that_no_way_leads_to_the_owner(owner.nodes, owner)
        assert holds(arrays_of(owner), truth.values)  # as they were read from the file
        assert not holds(arrays_of(owner.nodes), truth.values)
        assert not any(isinstance(thing, OwnerStore | SiteData) for thing in reachable(owner.nodes))
        assert not hasattr(owner.nodes.store, "of_owner")


# ---- what the server knows ------------------------------------------------------------------------------


def test_the_run_records_each_sites_blur_and_what_its_errors_are_about(
    sites: InMemoryFederation,
) -> None:
    run = Run.open(sites.server / RUNS / "one")
    first, *_, test = run.events()
    assert first["data"]["blur"] == {"north": SIGMA, "south": SIGMA, "west": 7.0}
    assert test["errors_against"] == "copies"
    assert run.config.method == "cnfgnn-private"
    assert run.config.privacy.blur == 0
    result = sites.status["result"] if sites.status["do"] == "train" else sites.evaluate()["result"]
    assert result["errors_against"] == "copies"
    assert result["without_trust"]
    assert list(result["told"]) == ["south"]
    assert result["blur"] == first["data"]["blur"]
    assert not [line for line in sites.status["warnings"] if "no blur" in line]


def test_told_errors_are_true_and_the_others_are_errors_against_the_copies(sites: InMemoryFederation) -> None:
    result = sites.evaluate()["result"]
    told = result["told"]["south"]
    own = evaluation(sites, "south", "test")["overall"]
    assert told == pytest.approx(own)
    against_copy = Errors(**result["scores"]["per_node"]["s0"])
    true = Errors(**evaluation(sites, "north", "test")["per_node"]["s0"])  # type: ignore[index]
    assert against_copy.masked_rmse != pytest.approx(true.masked_rmse, rel=1e-6)
    assert "north" not in result["told"]


def test_if_all_owners_tell_the_result_is_the_true_one(sites: InMemoryFederation) -> None:
    for name in SITES:
        sites.set(name, tell_errors=True)
    result = sites.evaluate()["result"]
    assert (result["errors_against"], result["without_trust"]) == ("readings", False)
    assert list(result["told"]) == list(SITES)
    for name in SITES:
        for sensor, errors in evaluation(sites, name, "test")["per_node"].items():  # type: ignore[attr-defined]
            assert result["scores"]["per_node"][sensor] == pytest.approx(errors)


@pytest.mark.slow
def test_each_task_with_sites_without_blur_says_what_its_server_can_estimate(tmp_path: Path) -> None:
    sites = InMemoryFederation(tmp_path, network(dropout=0))
    sites.set("south", blur=2.0)
    for status in (
        sites.train(small("gru-fedavg", **{"training.rounds": 1})),
        sites.evaluate(),
        sites.forecast(),
    ):
        must_finish(status)
        assert f"sites north, west have {NO_BLUR}" in status["warnings"]
    sites.set("west", blur=2.0)
    said = "site north has no blur: from what it sends, this server can estimate each of its readings, nearly"
    assert f"{said} exactly" in sites.forecast()["warnings"]


@pytest.mark.slow
def test_a_site_below_the_projects_blur_is_refused_by_name(sites: InMemoryFederation) -> None:
    """Even if its kit does not know what the project asks for."""
    sites.set("north", least_blur=None, blur=1.5)
    status = must_finish(sites.forecast())
    assert status["result"]["without"]["north"] == (
        "the blur of site north is 1.5, and this federation asks for at least 5: its owner sets it in"
        " local/site.toml"
    )
    assert status["result"]["sites"] == ["south", "west"]
    sites.set("north", least_blur=SIGMA)
    status = sites.forecast()
    assert "local/site.toml: blur: the blur of site north is 1.5" in status["result"]["without"]["north"]


def test_the_server_cannot_choose_a_blur() -> None:
    with pytest.raises(ConfigError, match=r"privacy.blur: each site sets its own blur, in its local"):
        check_federated(small("cnfgnn-private", **{BLUR: 1.0}))
    assert BLUR not in settings_of(small("cnfgnn-private"))


def test_train_uses_the_private_method_unless_another_is_asked_for(tmp_path: Path) -> None:
    def method(asked: str | None, file: Path | None = None) -> str:
        return resolve(None, asked, None, None, file, [], None, None, DEFAULT_METHOD).method

    assert method(None) == "cnfgnn-private"
    assert method("cnfgnn") == "at-fedavg"
    (tmp_path / "settings.toml").write_text('method = "gru-fedavg"\n')
    assert method(None, tmp_path / "settings.toml") == "gru-fedavg"
    with pytest.raises(ConfigError, match=r"privacy\.blur"):
        check_federated(resolve(None, None, None, None, None, [f"{BLUR}=3"], None, None, DEFAULT_METHOD))
    check_federated(resolve(None, None, None, "metr-la", None, [], None, None, DEFAULT_METHOD))


def test_a_result_says_what_its_errors_are_about(
    sites: InMemoryFederation, capsys: pytest.CaptureFixture[str]
) -> None:
    result = dict(sites.evaluate()["result"])
    _print_about_errors(result)
    copies, south = capsys.readouterr().out.splitlines()
    assert copies.startswith("these are errors against the blurred copies of the readings; each site has its")
    assert south.startswith("true errors that site south tells: RMSE ")
    _print_about_errors({**result, "errors_against": "readings", "told": {}})
    assert "all that the network adds" in capsys.readouterr().out
    _print_about_errors({**result, "errors_against": "readings", "without_trust": False, "told": {}})
    assert capsys.readouterr().out == ""


# ---- what owners get ------------------------------------------------------------------------------------


def test_nodes_have_the_copy_and_owners_the_readings(sites: InMemoryFederation) -> None:
    sites.evaluate()
    for name in SITES:
        owner = owner_of(sites, name)
        frame = sites.readings(name).to_numpy().T
        np.testing.assert_allclose(owner.truth.values, frame, rtol=1e-6)
        seen = owner.nodes.series
        assert seen is not owner.truth
        np.testing.assert_array_equal(np.isnan(seen.values), np.isnan(frame))
        assert np.nanstd(seen.values - frame) == pytest.approx(owner.site_data.blur, rel=0.2)


def test_owners_have_states_of_their_own_and_true_errors_are_shown_at_the_site(
    sites: InMemoryFederation,
) -> None:
    for name in SITES:
        [states] = (sites.kits[name] / STATES).glob("one-*")
        assert list((states / OWNER).glob("*.safetensors"))
        recorded = read_site_status(sites.kits[name])["evaluation"]
        assert recorded["split"] == "test"
        content = evaluation(sites, name, "test")
        assert recorded["rmse"] == pytest.approx(content["overall"]["masked_rmse"])  # type: ignore[index]
        assert set(content["per_node"]) == set(sites.readings(name).columns)  # type: ignore[call-overload]
    assert not list(sites.server.rglob(f"*{EVALUATIONS}*"))


@pytest.mark.slow
def test_a_corrected_reading_keeps_its_copy_so_that_the_run_goes_on(sites: InMemoryFederation) -> None:
    before = sites.evaluate()["result"]["scores"]
    frame = sites.readings("north")
    sites.write("north", frame + 1.25)
    status = must_finish(sites.evaluate())
    assert status["result"]["scores"] == before  # the server notices nothing
    np.testing.assert_allclose(owner_of(sites, "north").truth.values, (frame + 1.25).to_numpy().T, rtol=1e-6)
    frame.iloc[40] = np.nan
    sites.write("north", frame)
    assert "its readings have changed" in sites.evaluate()["problem"]


def test_forecasts_are_made_from_true_readings(sites: InMemoryFederation) -> None:
    sites.forecast()
    before = sites.latest("west")
    sites.write("west", sites.readings("west") + 2.0)
    sites.forecast()
    after = sites.latest("west")
    assert before is not None
    assert after is not None
    # The copies are the same as before, so only the true readings can have changed the forecasts.
    assert (after - before).abs().to_numpy().max() > 0.1


def test_the_server_does_not_notice_that_an_owner_failed(
    sites: InMemoryFederation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = sites.forecast()["result"]
    latest = sites.latest("north")
    real = SiteOwner.forecasts_of

    def diverged(self: SiteOwner, split: object, windows: slice) -> torch.Tensor:
        return real(self, "test", windows) * (torch.nan if self.nodes.name == "north" else 1)

    monkeypatch.setattr(SiteOwner, "forecasts_of", diverged)
    caplog.set_level(logging.ERROR)
    status = sites.forecast()
    assert status["result"] == expected
    assert all(not site["problem"] for site in status["sites"].values())
    assert [record for record in caplog.records if "no finite number" in record.message]
    assert "no finite number" in read_site_status(sites.kits["north"])["problems"][-1]["problem"]
    assert latest is not None
    assert latest.equals(sites.latest("north"))  # the previous forecasts are kept


def test_lost_copies_stop_a_site_and_the_server_is_not_told_more(sites: InMemoryFederation) -> None:
    folder = sites.folder / "example" / "data" / "north" / PRIVATE
    aside = folder.rename(sites.folder / "aside")
    try:
        status = sites.forecast()
    finally:
        aside.rename(folder)
    assert status["result"]["without"]["north"] == (
        "its blurred copies cannot be used; run cnfgnn federation check at the site to see why"
    )
    assert str(folder) in read_site_status(sites.kits["north"])["problems"][-1]["problem"]


def test_no_key_is_in_any_other_file(sites: InMemoryFederation, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    sites.forecast()
    keys = {path: path.read_text().strip() for path in sites.folder.rglob(f"{PRIVATE}/{KEY_FILE}")}
    assert len(set(keys.values())) == len(SITES)
    assert (sites.server / STATUS).exists()
    for path in sites.folder.rglob("*"):
        if path.is_file() and path not in keys:
            content = path.read_bytes()
            for key in keys.values():
                assert key.encode() not in content, path
                assert bytes.fromhex(key) not in content, path
    for record in caplog.records:
        assert not [key for key in keys.values() if re.search(key, record.getMessage())]
