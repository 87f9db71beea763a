"""A site takes part in what its owner permits, and says why not in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from cnfgnn.algorithm.messages.number_rules import TAG
from cnfgnn.algorithm.messages.shapes import Sizes
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.permission_rules import Hours, PermissionRules, bytes_as_text
from cnfgnn.federation.run_names import RUN_NAME, is_about, line_of, name_in_requests
from cnfgnn.federation.server.live.task import SiteSteps
from cnfgnn.federation.site import approvals
from cnfgnn.federation.site import permissions as permissions_module
from cnfgnn.federation.site.permissions import Permissions, Refusal, Used
from cnfgnn.federation.site.settings import read_site
from cnfgnn.federation.site_task import SiteTask
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.messages import Note, refused, unpack
from cnfgnn.transports.remote.transport import Site
from tests.conftest import network, small
from tests.federation.in_memory_federation import must_finish
from tests.federation.permitted_federation import PermittedFederation
from tests.waiting import wait_for

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()
TRAIN = SiteTask("1", "train", "northtown-a", "cnfgnn-private", 30)
RETRAIN = SiteTask("2", "retrain", "northtown-a-trained-20260301T040000", "cnfgnn-private", 10)
EVALUATE = SiteTask("3", "evaluate", "northtown-a")
HELLO = Note("hello", {"session": "s"})
NOTHING = Used()


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions_module, "LOOKED_EVERY", 0.0)


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    (tmp_path / "local").mkdir()
    permit(tmp_path, "")
    return tmp_path


def permit(kit: Path, rules: str, more: str = '[live]\ntimezone = "UTC"\n') -> None:
    text = f'name = "north"\nsensors = ["s0"]\n{more}[permissions]\n{rules}\n'
    file = kit / "local" / "site.toml"
    file.write_text(text)
    os.utime(file, ns=(0, next(TIMES)))  # two writes may share a tick of the clock


TIMES: Iterator[int] = iter(range(10**9, 10**12, 10**6))


def why(kit: Path, task: SiteTask, now: float = NOON, note: Note | None = HELLO, used: Used = NOTHING) -> str:
    found = Permissions(kit).refusal(task, note, used, now)
    return "" if found is None else found.reason


# ---- the settings ---------------------------------------------------------------------------------------


def test_without_a_word_everything_is_permitted(kit: Path) -> None:
    (kit / "local" / "site.toml").write_text('name = "north"\nsensors = ["s0"]\n')
    assert read_site(kit).permissions == PermissionRules()
    for task in (TRAIN, RETRAIN, EVALUATE, SiteTask("4", "live", "x"), SiteTask("5", "forecast", "x")):
        for note in (None, HELLO, Note("wait", {})):
            assert Permissions(kit).refusal(task, note, Used(10**9, 1 << 60, True), NOON) is None


def test_the_settings_are_read(kit: Path) -> None:
    permit(
        kit,
        'tasks = ["train", "live"]\nmethods = ["cnfgnn", "sl"]\nruns = ["a-*"]\nhours = "20:00-06:00"\n'
        'most_rounds = 200\nmost_bytes = "1.5 GiB"\napprove = true',
    )
    assert read_site(kit).permissions == PermissionRules(
        ("train", "live"), ("at-fedavg", "sl"), ("a-*",), Hours(1200, 360), 200, 3 << 29, True
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("night = 1", r"permissions.night: unknown key \(valid: tasks, methods, runs, hours"),
        ("tasks = 3", r'permissions.tasks: it must be a list of texts such as \["train", "forecast"\]'),
        ('tasks = ["trane"]', r"permissions.tasks: there is no task 'trane' \(valid: train, evaluate"),
        ('methods = ["gru-central"]', "permissions.methods: no federation trains with 'gru-central'"),
        ('methods = ["x"]', r"no federation trains with 'x' \(valid: gru-local, "),
        ('runs = [""]', "permissions.runs: a pattern has 1 to 100 characters"),
        ("runs = [1]", "permissions.runs: it must be a list of texts"),
        ('hours = "8-10"', 'permissions.hours: it must be from one time to another, such as "20:00-06:00"'),
        ('hours = "24:00-06:00"', "permissions.hours: it must be"),
        ('hours = "08:00-08:00"', "permissions.hours: it ends when it begins"),
        ("most_rounds = -1", "permissions.most_rounds: it must be a whole number from 0 to 1000000"),
        ("most_rounds = true", "permissions.most_rounds: it must be a whole number"),
        ("most_bytes = 500", 'permissions.most_bytes: it must be an amount such as "500 MB" or "2 GiB"'),
        ('most_bytes = "500 mb"', "permissions.most_bytes: it must be an amount"),
        ('approve = "yes"', "permissions.approve: it must be true or false"),
    ],
)
def test_wrong_settings_are_named_and_refuse_everything(kit: Path, line: str, says: str) -> None:
    permit(kit, line)
    with pytest.raises(ConfigError, match=f"site.toml: .*{says}"):
        read_site(kit)
    found = Permissions(kit).refusal(EVALUATE, HELLO, NOTHING, NOON)
    assert found is not None
    assert not found.for_good
    assert found.reason.startswith("local/site.toml: permissions")
    assert str(kit) not in found.reason


@pytest.mark.parametrize("content", ["permissions = 1", "[permissions\n", '[live]\ntimezone = "Moon"', None])
def test_settings_that_cannot_be_read_refuse_everything(kit: Path, content: str | None) -> None:
    file = kit / "local" / "site.toml"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    assert why(kit, EVALUATE).startswith("local/site.toml")


def test_settings_count_as_soon_as_they_are_changed(kit: Path) -> None:
    permissions = Permissions(kit)
    assert permissions.refusal(TRAIN, HELLO, NOTHING, NOON) is None
    permit(kit, "tasks = []")
    assert permissions.refusal(TRAIN, HELLO, NOTHING, NOON) == Refusal(
        "its owner does not take part in 'train', but in nothing", for_good=True
    )
    permit(kit, 'tasks = ["train"]')
    assert permissions.refusal(TRAIN, HELLO, NOTHING, NOON) is None


# ---- tasks, methods, runs -------------------------------------------------------------------------------


def test_what_is_not_taken_part_in_is_refused_by_name(kit: Path) -> None:
    permit(kit, 'tasks = ["train", "live"]\nmethods = ["cnfgnn-private"]\nruns = ["northtown-*", "first"]')
    assert why(kit, TRAIN) == why(kit, TRAIN, note=None) == ""
    assert why(kit, EVALUATE) == "its owner does not take part in 'evaluate', but in train, live"
    other = SiteTask("1", "train", "southtown", "cnfgnn-private")
    assert why(kit, other) == "its owner does not take part in run 'southtown', but in northtown-*, first"
    method = SiteTask("1", "train", "first", "sl")
    assert why(kit, method) == "its owner does not take part with the method 'sl', but with cnfgnn-private"
    untold = SiteTask("1", "train", "first")
    assert why(kit, untold) == "the server does not say with which method it trains"
    assert why(kit, SiteTask("1", "live", "first")) == ""


@pytest.mark.parametrize(
    "task", [SiteTask("1", "export", "x"), SiteTask("1", "train", "../x"), SiteTask("1", "train", "x" * 99)]
)
def test_a_task_that_cannot_be_meant_is_refused(kit: Path, task: SiteTask) -> None:
    assert why(kit, task) == "the task or the name of its run is not valid"


def test_a_training_beside_a_live_run_belongs_to_that_run(kit: Path) -> None:
    permit(kit, 'runs = ["northtown-a"]')
    assert why(kit, RETRAIN) == ""
    assert why(kit, SiteTask("1", "train", RETRAIN.run, "sl")).startswith(
        "its owner does not take part in run"
    )
    long = "a-long-name-of-a-run-that-has-more-than-thirty-letters"
    permit(kit, f'runs = ["{long}"]')
    beside = f"{long[:30]}-trained-20260301T040000"
    assert why(kit, SiteTask("1", "retrain", beside, "sl")) == ""
    assert line_of(beside) == long[:30]


def test_requests_are_about_the_run_of_their_task(kit: Path) -> None:
    def request(run: Any, kind: str = "run") -> Note:
        return Note(kind, {"run": run})

    assert why(kit, TRAIN, note=request(name_in_requests("northtown-a", "12ab"))) == ""
    for run in ("northtown-b-12ab", "northtown-a", None, 3, "northtown-a-trained-20260301T040000-12ab"):
        for kind in ("run", "piece"):
            problem = "a request is about another run than 'northtown-a'"
            assert why(kit, TRAIN, note=request(run, kind)) == problem
    assert why(kit, RETRAIN, note=request("northtown-a-12ab")) == ""
    assert why(kit, RETRAIN, note=request("northtown-a-trained-20260101T040000-12ab")) == ""
    assert why(kit, RETRAIN, note=request("northtown-b-12ab")) != ""


def test_a_live_task_is_about_all_runs_of_its_line() -> None:
    long = "x" * 35
    assert is_about(f"{long}-12ab", long, beside=True)
    assert is_about(f"{f'{long[:30]}-trained-20260101T040000'[:40]}-12ab", long, beside=True)
    assert not is_about(f"{'x' * 34}y-12ab", long, beside=True)
    assert is_about("x" * 35 + "-12ab", f"{long[:30]}-trained-20260101T040000", beside=True)
    assert RUN_NAME.pattern == TAG.pattern


# ---- hours and amounts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hours", "taken"),
    [("20:00-06:00", [*range(6), *range(20, 24)]), ("06:00-20:00", range(6, 20)), ("22:00-24:00", [22, 23])],
)
def test_hours(kit: Path, hours: str, taken: Any) -> None:
    permit(kit, f'hours = "{hours}"')
    permissions = Permissions(kit)
    times = {hour: NOON + 3600 * (hour - 12) for hour in range(24)}
    found = [hour for hour, now in times.items() if not permissions.refusal(EVALUATE, HELLO, NOTHING, now)]
    assert found == list(taken)


def test_hours_are_those_of_the_sites_zone_and_are_not_for_good(kit: Path) -> None:
    permit(kit, 'hours = "20:00-06:00"', more='[live]\ntimezone = "+09:00"\n')
    assert why(kit, EVALUATE) == ""  # it is 21:00 there
    permit(kit, 'hours = "22:00-06:00"', more='[live]\ntimezone = "+09:00"\n')
    found = Permissions(kit).refusal(EVALUATE, HELLO, NOTHING, NOON)
    assert found == Refusal("its owner takes part from 22:00 to 06:00 only, and it is 21:00 there")
    assert Permissions(kit).day(NOON + 4 * 3600) == "2026-03-03"


def test_the_end_of_a_live_task_is_heard_at_any_time(kit: Path) -> None:
    permit(kit, 'hours = "20:00-06:00"')
    live = SiteTask("1", "live", "x")
    assert why(kit, live, note=Note("due", {"after": 0})) != ""
    assert why(kit, live, note=Note("due", {"after": 0, "ends": True})) == ""


def test_bytes_of_a_day(kit: Path) -> None:
    permit(kit, 'most_bytes = "500 MB"')
    piece = Note("wait", {}, b"x" * 1000)
    assert why(kit, EVALUATE, note=piece, used=Used(0, 499_999_000)) == ""
    problem = "its owner allows 500 MB a day, and they are used up for today"
    assert why(kit, EVALUATE, note=piece, used=Used(0, 499_999_001)) == problem
    assert why(kit, EVALUATE, used=Used(0, 500_000_001)) == problem
    assert [bytes_as_text(n) for n in (1500, 2 * 10**6, 3 * 10**9, 10**12)] == [
        "1.5 kB",
        "2 MB",
        "3 GB",
        "1 TB",
    ]


def test_rounds_of_a_day(kit: Path) -> None:
    permit(kit, "most_rounds = 200")
    problem = "its owner allows 200 rounds of training a day, and they are used up for today"
    permissions = Permissions(kit)
    assert permissions.rounds_left(Used(199)).left == 1
    assert permissions.rounds_left(Used(200)) == (0, problem)
    assert why(kit, TRAIN, used=Used(200)) == ""  # the last one may be under way
    assert why(kit, TRAIN, used=Used(200, 0, True)) == problem
    assert why(kit, TRAIN, note=None, used=Used(200)) == problem
    assert why(kit, EVALUATE, note=None, used=Used(200, 0, True)) == ""


# ---- approvals ------------------------------------------------------------------------------------------


def test_a_training_waits_until_its_owner_approves_it(kit: Path) -> None:
    permit(kit, "approve = true")
    permissions = Permissions(kit)
    waits = Refusal("it waits for its owner: cnfgnn federation approve north northtown-a")
    assert permissions.refusal(TRAIN, None, NOTHING, NOON) == waits
    assert permissions.refusal(TRAIN, HELLO, NOTHING, NOON + 1) == waits
    assert permissions.refusal(EVALUATE, HELLO, NOTHING, NOON) is None
    [waiting] = approvals.waiting_now(kit, NOON)
    assert (waiting.run, waiting.method, waiting.rounds) == ("northtown-a", "cnfgnn-private", 30)
    assert (kit / approvals.WAITING).stat().st_mode & 0o77 == 0

    assert approvals.approve(kit, "northtown-a").method == "cnfgnn-private"
    assert permissions.refusal(TRAIN, HELLO, NOTHING, NOON) is None
    assert permissions.refusal(RETRAIN, HELLO, NOTHING, NOON) is None
    assert not approvals.waiting_now(kit, NOON)
    other = SiteTask("1", "train", "northtown-a", "sl")
    assert permissions.refusal(other, HELLO, NOTHING, NOON) == waits
    assert [one.method for one in approvals.waiting_now(kit, NOON)] == ["sl"]

    assert approvals.revoke(kit, "northtown-a")
    assert not approvals.revoke(kit, "northtown-a")
    assert permissions.refusal(TRAIN, HELLO, NOTHING, NOON) == waits


def test_a_training_beside_a_live_run_waits_under_the_name_of_that_run(kit: Path) -> None:
    permit(kit, "approve = true")
    assert why(kit, RETRAIN) == "it waits for its owner: cnfgnn federation approve north northtown-a"
    later = SiteTask("9", "retrain", "northtown-a-trained-20260401T040000", "cnfgnn-private")
    assert why(kit, later) != ""
    assert [one.run for one in approvals.waiting_now(kit, NOON)] == ["northtown-a"]
    approvals.approve(kit, "northtown-a")
    assert why(kit, RETRAIN) == why(kit, later) == ""


def test_a_run_that_does_not_wait_is_approved_with_any_method(kit: Path) -> None:
    permit(kit, "approve = true")
    assert approvals.approve(kit, "northtown-a").method == ""
    assert why(kit, TRAIN) == why(kit, SiteTask("1", "train", "northtown-a", "sl")) == ""
    with pytest.raises(ConfigError, match=r"RUN: '\.\./x' cannot be the name of a run"):
        approvals.approve(kit, "../x")


def test_a_damaged_file_of_approvals_approves_nothing_and_is_named(kit: Path) -> None:
    permit(kit, "approve = true")
    for text in ("{", '{"northtown-a": 3}', '["northtown-a"]'):
        approvals.approved_file(kit).write_text(text)
        assert why(kit, TRAIN).startswith("it waits for its owner")
        with pytest.raises(RunError, match=r"approved.json: is damaged"):
            approvals.approve(kit, "northtown-a")
    assert [one.run for one in approvals.waiting_now(kit, NOON)] == ["northtown-a"]


def test_a_server_that_makes_up_runs_cannot_fill_the_disk(kit: Path) -> None:
    permit(kit, "approve = true")
    permissions = Permissions(kit)
    for k in range(100):
        task = SiteTask("1", "train", f"run-{k}".ljust(64, "x"), "sl", 10**30)
        permissions.refusal(task, HELLO, NOTHING, NOON + k)
    found = approvals.waiting_now(kit, NOON + 100)
    assert [one.run[:6] for one in found] == [f"run-{k}" for k in range(80, 100)]
    assert {one.rounds for one in found} == {1_000_000}
    assert (kit / approvals.WAITING).stat().st_size < 5000
    assert not approvals.waiting_now(kit, NOON + 30 * 86_400)
    (kit / approvals.WAITING).write_text('{"waiting": [1, {"run": 2}, {"run": "a", "since": "x"}]}')
    assert [(one.run, one.since) for one in approvals.read_waiting(kit)] == [("a", 0.0)]


# ---- what the server hears ------------------------------------------------------------------------------


def test_a_refusal_is_an_answer_to_every_note() -> None:
    hello = unpack(refused(HELLO, "not now"))
    assert (hello.kind, hello.fields["ready"], hello.fields["problem"]) == ("hello", False, "not now")
    assert hello.fields["refused"] is False
    assert unpack(refused(HELLO, "never", True)).fields["refused"] is True
    for kind in ("run", "piece", "wait", "fetch", "due"):
        answer = unpack(refused(Note(kind, {}), "x" * 1000))
        assert (answer.kind, answer.fields) == ("refused", {"reason": "x" * 300})


class RefusingSite:
    """A live site whose owner refuses for the moment."""

    def ask(self, site: str, request: bytes, timeout: float) -> bytes:
        return refused(unpack(request), "its hours are over")


def test_a_live_site_that_refuses_is_left_out_until_its_hellos_say_otherwise() -> None:
    site = Site("north", torch.tensor([0]), Link("north", RefusingSite(), "session"), Sizes(1))
    steps = SiteSteps([site], 12, lambda step: True)
    steps.start()
    wait_for(lambda: not site.reachable, "the site to be left out")
    assert steps.end_services() == []
    assert site.problem == "its hours are over"


def test_what_the_process_that_answers_for_a_site_imports_is_light() -> None:
    modules = "permissions, approvals, sent, sent_entries, task_verbs"
    code = f"import sys; from cnfgnn.federation.site import {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not {"torch", "numpy", "pandas", "nvflare", "starlette"} & loaded


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[PermittedFederation]:
    found = PermittedFederation(tmp_path, network(rows=120), {"south": [0, 1], "west": [2, 3, 4, 5]})
    found.now = NOON
    for name in found.sites:
        file = found.kits[name] / "local" / "site.toml"
        file.write_text(file.read_text() + '[live]\ntimezone = "UTC"\n')
    yield found
    found.close()


def test_the_operator_reads_why_at_once_and_nobody_waits_for_a_site_that_refuses(
    sites: PermittedFederation,
) -> None:
    sites.permit("south", 'methods = ["sl"]')
    status = must_finish(sites.train(small("gru-fedavg", **{"training.rounds": 1})))  # it would wait for 20 s
    reason = "its owner does not take part with the method 'gru-fedavg', but with sl"
    assert status["missing"] == {"south": reason}
    assert status["result"]["absent"] == ["south"]
    for name in sites.sites:
        sites.permit(name, 'tasks = ["live"]')
    status = sites.evaluate()
    assert status["state"] == "failed"
    assert status["exit_code"] == 3
    assert "'evaluate', but in live" in status["problem"]


@pytest.mark.slow
def test_a_training_pauses_outside_of_the_hours_and_goes_on_without_losing_state(
    sites: PermittedFederation,
) -> None:
    """The same result as of a training that nothing interrupts."""
    config = small("gru-fedavg", **{"training.rounds": 3})
    expected = sites.train(config, "two")["result"]["scores"]
    sites.permit("west", 'hours = "08:00-20:00"')
    sites.permit("south", 'hours = "08:00-20:00"')
    paused = list[str]()

    def watch() -> bool:
        """The day ends once all have begun the second round; the next one begins once the server waits."""
        begun = min(end.rounds_begun for end in sites.ends.values())
        if sites.now == NOON and begun == 2:  # by then, the status need not even tell of the first round
            sites.now = NOON + 9 * 3600
        if not paused and sites.status.get("waiting"):
            paused.extend(site["problem"] for site in sites.status["sites"].values())
            sites.now = NOON + 22 * 3600
        return False

    sites.stop = watch
    status = must_finish(sites.train(config))
    assert set(paused) == {"its owner takes part from 08:00 to 20:00 only, and it is 21:00 there"}
    assert status["result"]["scores"] == expected


@pytest.mark.slow
def test_no_round_begins_after_the_last_of_a_day_and_the_next_day_goes_on(sites: PermittedFederation) -> None:
    for name in sites.sites:
        sites.permit(name, "most_rounds = 2")
    told = set[str]()

    def watch() -> bool:
        if sites.status.get("waiting") and not told:
            told.update(site["problem"] for site in sites.status["sites"].values())
            assert {account.used(sites.now).rounds for account in sites.accounts.values()} == {2}
            sites.now += 86_400
        return False

    sites.stop = watch
    must_finish(sites.train(small("gru-fedavg", **{"training.rounds": 3})))
    assert told == {"its owner allows 2 rounds of training a day, and they are used up for today"}
    used = [account.used(sites.now).rounds for account in sites.accounts.values()]
    assert max(used) == 1  # on a busy machine, a site may come back after the last round


def test_a_site_takes_part_once_its_owner_has_approved(sites: PermittedFederation) -> None:
    sites.permit("west", "approve = true")

    def approve_when_it_waits() -> bool:
        if any("waits for its owner" in reason for reason in sites.refused["west"]):
            approvals.approve(sites.kits["west"], "one")
        return False

    sites.stop = approve_when_it_waits
    status = must_finish(sites.train(small("gru-fedavg", **{"training.rounds": 1})))
    assert status["result"]["absent"] == []
    approved = json.loads(approvals.approved_file(sites.kits["west"]).read_text())
    assert approved["one"]["method"] == "gru-fedavg"
    must_finish(sites.resume())  # without a new approval
