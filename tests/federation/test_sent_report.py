"""What an owner is shown: who asked for what, how many copies are out, and what these give away."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cnfgnn.cli.federation_owner import approve, sent
from cnfgnn.cli.federation_status import _site_lines
from cnfgnn.errors import ConfigError
from cnfgnn.federation.site.approvals import approved_file, note_waiting, waiting_now
from cnfgnn.federation.site.readings import SiteData
from cnfgnn.federation.site.sent_entries import FILE, Counts, Entry, Key, line_of
from cnfgnn.federation.site.sent_report import sent_report
from cnfgnn.federation.site.settings import read_site
from cnfgnn.federation.site_task import SiteTask
from cnfgnn.federation.status import Status
from cnfgnn.privacy.guarantee import detection, distance
from tests.conftest import network, small
from tests.federation.in_memory_federation import must_finish, with_row
from tests.federation.permitted_federation import PermittedFederation

SITES = {"south": [0, 1], "west": [2, 3, 4, 5]}
BLUR, ROWS = 5.0, 120


class Tapped(PermittedFederation):
    """Adds up the messages of each site."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.carried: dict[str, list[int]] = {name: [0, 0, 0] for name in SITES}
        super().__init__(*arguments, **more)

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        answer = super().ask(site, request, timeout)
        carried = self.carried[site]
        carried[:] = carried[0] + 1, carried[1] + len(request), carried[2] + len(answer)
        return answer


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Tapped:
    found = Tapped(tmp_path_factory.mktemp("sites"), network(rows=ROWS), SITES, blur=BLUR)
    must_finish(found.train(small("gru-fedavg", **{"training.rounds": 2})))
    must_finish(found.evaluate())
    found.close()
    return found


def test_every_message_is_counted_by_task_day_and_verb(sites: Tapped) -> None:
    for name in SITES:
        report = sent_report(sites.kits[name], 1, sites.now)
        assert [report.total.messages, report.total.received, report.total.sent] == sites.carried[name]
        (first, trained, _), (second, evaluated, _) = report.tasks
        assert (first.do, trained.run, trained.method, trained.rounds) == ("train", "one", "gru-fedavg", 2)
        assert (second.do, evaluated.run, evaluated.rounds) == ("evaluate", "one", 0)
        assert trained.verbs["update"].requests == trained.verbs["weights"].requests == 2
        assert trained.verbs["weights"].sent > trained.verbs["census"].sent
        assert {"hello", "census", "score"} <= set(evaluated.verbs)
        assert "update" not in evaluated.verbs


def test_the_copies_that_are_out_are_those_of_the_times_that_were_used(sites: Tapped) -> None:
    kit = sites.kits["south"]
    observed = [int((~SiteData(read_site(kit), kit).observed.missing[:, k]).sum()) for k in (0, 1)]
    report = sent_report(kit, 1, sites.now)
    assert report.series is not None
    assert [(one.sensor, one.out, one.copies, dict(one.sigmas)) for one in report.series] == [
        ("s0", observed[0], observed[0], {BLUR: observed[0]}),
        ("s1", observed[1], observed[1], {BLUR: observed[1]}),
    ]
    assert [copies for *_, copies in report.tasks] == [sum(observed)] * 2
    before = sites.readings("south")
    longer = with_row(before, 1)
    longer.iloc[-1] = 50.0
    sites.write("south", longer)
    SiteData(read_site(kit), kit)  # makes the copies, which nobody has asked for
    later = sent_report(kit, 1, sites.now)
    sites.write("south", before)
    assert later.series is not None
    assert [(one.out, one.copies) for one in later.series] == [(n, n + 1) for n in observed]


def test_the_guarantee_is_that_of_the_copies_that_are_out(sites: Tapped) -> None:
    report = sent_report(sites.kits["west"], 1, sites.now)
    [guarantee] = report.guarantees
    assert guarantee.sigma == BLUR
    assert guarantee.durations[-1] == report.most_out < ROWS  # an event cannot change more of them
    told = report.as_json()["guarantee"]["guarantees"][0]["rows"]
    for row in told:
        assert row["detection"] == detection(distance(row["change"], row["readings"], BLUR))


def test_the_command_shows_tables_and_json(
    sites: Tapped, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    sent(sites.kits["west"], days=2)
    told = capsys.readouterr().out
    for text in ("train one", "gru-fedavg", "2 rounds", "weights", "update", "evaluate one", "altogether:"):
        assert text in told
    assert "copies of a sensor's readings are out" in told
    assert "noise of 5 added" in " ".join(told.split())
    sent(sites.kits["west"], days=2, as_json=True)
    content = json.loads(capsys.readouterr().out)
    assert content["total"]["messages"] == sites.carried["west"][0]
    assert content["tasks"][0]["verbs"]["weights"]["requests"] == 2
    assert content["sensors"]["s2"]["readings"]["out"] > 0
    assert content["damaged"] == 0
    with pytest.raises(ConfigError, match="this is the server's kit"):
        sent(sites.server)


def test_days_that_were_not_asked_for_are_not_listed(sites: Tapped) -> None:
    later = sites.now + 3 * 86_400
    report = sent_report(sites.kits["west"], 2, later)
    assert not report.tasks
    assert report.total.messages == sites.carried["west"][0]
    assert len(sent_report(sites.kits["west"], 36_500, later).tasks) == 2


def test_months_of_long_ago_are_listed_if_they_are_asked_for(sites: Tapped) -> None:
    kit = sites.kits["south"]
    entry = Entry(verbs={"encode": Counts(1, 1, 5, 7)}, rounds=3)
    before = (kit / FILE).read_bytes()
    (kit / FILE).write_bytes(before + line_of(Key("2021-05", "", "train"), entry) + b"{\n")
    report = sent_report(kit, 36_500, sites.now)
    assert report.tasks[0][0] == Key("2021-05", "", "train")
    assert report.damaged == 1
    assert len(sent_report(kit, 7, sites.now).tasks) == 2
    (kit / FILE).write_bytes(before)


def test_nothing_was_sent_and_nothing_is_blurred(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = PermittedFederation(tmp_path, network(rows=ROWS), {"all": [0, 1, 2, 3, 4, 5]})
    sent(found.kits["all"])
    assert capsys.readouterr().out == "nothing was sent in the last 7 days\n"
    must_finish(found.train(small("gru-local", **{"training.rounds": 1})))
    found.close()
    sent(found.kits["all"])
    told = " ".join(capsys.readouterr().out.split())
    assert "nothing is blurred at this site: what was sent was computed from the readings themselves" in told
    assert "Nothing is guaranteed without a blur" in told
    report = sent_report(found.kits["all"], 1).as_json()
    assert report["blurred"] is False
    assert report["guarantee"]["guarantees"][0]["blur"] == 0


# ---- approvals ------------------------------------------------------------------------------------------


def test_an_owner_approves_lists_and_revokes(sites: Tapped, capsys: pytest.CaptureFixture[str]) -> None:
    kit = sites.kits["south"]

    def told(run: str | None = None, **options: bool) -> str:
        approve(kit, run, **options)
        return capsys.readouterr().out

    assert told(listed=True) == "no run waits, and none is approved\n"
    note_waiting(kit, SiteTask("1", "train", "spring", "sl", 30), sites.now)
    assert told(listed=True).startswith("waits: spring (sl, 30 rounds), asked ")
    assert told("spring") == "spring is approved, with sl\n"
    assert told("summer") == "summer is approved, with any method\n"
    listed = told(listed=True)
    assert "waits" not in listed
    assert "approved: spring (sl), " in listed
    assert "approved: summer (any method), " in listed
    assert told("spring", revoke=True).startswith("spring is no longer approved")
    with pytest.raises(ConfigError, match=r"RUN: 'spring' is not approved \(valid: summer\)"):
        approve(kit, "spring", revoke=True)
    with pytest.raises(ConfigError, match="RUN: name the run, or use --list"):
        approve(kit)
    with pytest.raises(ConfigError, match="this is the server's kit"):
        approve(sites.server, "spring")
    assert approved_file(kit).stat().st_mode & 0o77 == 0


def test_the_status_of_a_site_says_which_runs_wait(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    note_waiting(tmp_path, SiteTask("1", "train", "spring", "sl", 30), 1000.0)
    waits = [asdict(one) for one in waiting_now(tmp_path, 1000.0)]
    nothing: dict[str, Any] = dict.fromkeys(("heard", "evaluation", "forecast", "live"))
    known = {**nothing, "failed": [], "confinement": [], "kit": "north", "waits": waits}
    told = _site_lines(Status("site", "north", "does not run", known=known))
    assert "spring (sl, 30 rounds) waits: cnfgnn federation approve north spring" in told
