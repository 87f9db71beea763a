"""What a site has sent is counted once, by task, day and verb; in bounded space, and also after a kill."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cnfgnn.errors import RunError, StorageError
from cnfgnn.federation.site import sent
from cnfgnn.federation.site.permissions import Used
from cnfgnn.federation.site.sent import Account
from cnfgnn.federation.site.sent_entries import (
    FILE,
    MOST_ENTRIES,
    OTHER,
    UNANSWERED,
    Book,
    Counts,
    Entry,
    Key,
    line_of,
    united,
)
from cnfgnn.federation.site_task import SiteTask
from cnfgnn.transports.remote.messages import Note
from tests.waiting import wait_for

TASK = SiteTask("task-1", "train", "first", "sl", 2)
TERMS = {"first": 1000, "step": 300, "rows": 10, "run": "first-12ab", "precision": "fp32"}
DAY = 86_400.0


def utc_day(now: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(now))


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    found = Account(tmp_path, utc_day)
    yield found
    found.close()


def request(number: int, kind: str = "run", session: str = "s", **more: Any) -> Note:
    terms = TERMS if kind in ("run", "piece") else {}
    return Note(kind, {"session": session, "number": number, **terms, **more})


def done(*verbs: str, **more: Any) -> Note:
    return Note("done", {"verbs": dict.fromkeys(verbs, 0.1), "size": 1, **more})


def ask(
    account: Account,
    asked: Note,
    answer: Note,
    received: int = 100,
    sent: int = 10,
    now: float = 0.0,
    task: SiteTask = TASK,
    rounds: int = 0,
) -> None:
    account.count(task, asked, received, answer, sent, now, rounds)


def verbs_of(account: Account, day: str = "1970-01-01", task: SiteTask = TASK) -> Mapping[str, list[int]]:
    """What was written: requests, messages, bytes received and sent of each verb."""
    account.flush()
    entry = Book.read(account.file).entries[Key(day, task.id, task.do)]
    return {verb: counts.as_list() for verb, counts in entry.verbs.items() if counts}


# ---- what is counted ------------------------------------------------------------------------------------


def test_a_request_is_counted_under_its_last_verb_and_once(account: Account) -> None:
    ask(account, request(1), done("prepare", "census"))
    ask(account, request(2), done("update", "weights"), 50, 5)
    ask(account, request(3), done("update", "weights"), 50, 5)
    assert verbs_of(account) == {
        "census": [1, 1, 100, 10],
        "prepare": [1, 0, 0, 0],
        "weights": [2, 2, 100, 10],
        "update": [2, 0, 0, 0],
    }


def test_pieces_waiting_and_fetching_belong_to_their_request(account: Account) -> None:
    for _ in range(3):
        ask(account, request(1, "piece"), Note("noted", {}), 1000, 1)
    ask(account, request(1), Note("working", {}), 1000, 1)
    assert verbs_of(account) == {UNANSWERED: [0, 4, 4000, 4]}  # a kill now would lose nothing
    ask(account, request(1, "wait"), done("encode"), 10, 500)
    ask(account, request(1, "fetch"), done("encode"), 10, 500)
    ask(account, request(1), done("encode"), 10, 500)  # the answer was lost, and it is asked for again
    assert verbs_of(account) == {"encode": [1, 7, 4030, 1504]}


def test_what_is_refused_or_lost_is_counted_too(account: Account) -> None:
    ask(account, request(1), Note("lost", {"reason": "x"}))
    ask(account, request(2), Note("refused", {"reason": "x"}))
    ask(account, request(3), done())  # it could not join
    ask(account, Note("hello", {}), Note("hello", {"ready": False}))
    ask(account, Note("due", {"after": 0}), Note("due", {"step": 0}))
    assert verbs_of(account) == {
        UNANSWERED: [0, 3, 300, 30],
        "hello": [1, 1, 100, 10],
        "due": [1, 1, 100, 10],
    }


def test_days_and_tasks_are_apart(account: Account) -> None:
    other = SiteTask("task-2", "evaluate", "first")
    ask(account, request(1), done("encode"))
    ask(account, request(1, session="t"), done("score"), task=other)
    ask(account, request(2), done("encode"), now=DAY)
    assert verbs_of(account, "1970-01-02") == {"encode": [1, 1, 100, 10]}
    assert verbs_of(account, task=other) == {"score": [1, 1, 100, 10]}


def test_a_request_that_ends_on_the_next_day_leaves_its_first_messages_where_they_are(
    account: Account,
) -> None:
    ask(account, request(1), Note("working", {}), now=DAY - 1)
    ask(account, request(1, "wait"), Note("working", {}), now=DAY + 1)
    ask(account, request(1, "wait"), done("update"), now=DAY + 2)
    assert verbs_of(account) == {UNANSWERED: [0, 1, 100, 10]}
    assert verbs_of(account, "1970-01-02") == {"update": [1, 2, 200, 20]}


def test_rounds_and_bytes_of_a_day(account: Account) -> None:
    assert account.used(0.0) == Used()
    ask(account, request(1), done("update"), rounds=1)
    ask(account, request(1, "fetch"), done("update"))
    ask(account, request(2), done("encode"))
    assert account.used(0.0) == Used(1, 330)
    ask(account, request(3), Note("refused", {"reason": "enough", "rounds": 1}))
    assert account.used(0.0) == Used(1, 440, turned_away=True)
    ask(account, request(4), Note("refused", {"reason": "hours"}), now=DAY)
    assert account.used(DAY) == Used(0, 110)
    assert account.used(0.0) == Used(1, 440, turned_away=True)  # the clock was set back


def test_rounds_of_a_server_that_never_fetches_an_answer_are_counted(account: Account) -> None:
    ask(account, request(1), Note("working", {}), rounds=1)
    ask(account, Note("hello", {}), Note("hello", {}), rounds=2)
    assert account.used(0.0).rounds == 3


# ---- which copies are out -------------------------------------------------------------------------------


def test_the_times_of_requests_that_were_answered_are_kept(account: Account) -> None:
    ask(account, request(1), done("prepare"))  # nothing is sent of it
    ask(account, request(2), Note("working", {}))
    account.flush()
    assert Book.read(account.file).out == {}
    ask(account, request(2, "wait"), done("prepare", "census"))
    ask(account, request(3, first=20_000, rows=2), done("encode"))
    account.flush()
    book = Book.read(account.file)
    assert book.out == {"": [(1000, 4000), (20_000, 20_600)]}
    assert book.step == 300


def test_times_after_the_newest_reading_do_not_count_unless_a_live_site_got_there(account: Account) -> None:
    hello = {"ready": True, "newest": 2500, "ignored": 0}
    ask(account, Note("hello", {}), Note("hello", hello))
    ask(account, request(1), done("encode"))
    account.flush()
    assert Book.read(account.file).out == {"": [(1000, 2501)]}
    ask(account, Note("due", {}), Note("due", {"step": 4600}))
    ask(account, request(2), done("encode"))
    account.flush()
    assert Book.read(account.file).out == {"": [(1000, 4601)]}
    ask(account, Note("hello", {}), Note("hello", {**hello, "ignored": 1}), task=SiteTask("b", "train", "x"))
    ask(account, request(1), done("encode"), task=SiteTask("b", "train", "x"))
    account.flush()
    assert Book.read(account.file).out == {"": [(1000, 4601)]}


def test_sensors_that_joined_later_have_times_of_their_own(account: Account) -> None:
    ask(account, request(1), done("encode"))
    ask(account, request(2, first=9000, rows=1, added=["new"]), done("encode"))
    account.flush()
    assert Book.read(account.file).out == {"": [(1000, 4000), (9000, 9300)], "new": [(9000, 9300)]}


@pytest.mark.parametrize(
    "terms", [{"first": -1}, {"rows": 1 << 40}, {"step": 0}, {"first": "x"}, {"rows": True}, {"rows": 0}]
)
def test_times_that_cannot_be_meant_are_ignored(account: Account, terms: dict[str, Any]) -> None:
    ask(account, request(1, **terms), done("encode"))
    assert verbs_of(account) == {"encode": [1, 1, 100, 10]}
    assert Book.read(account.file).out == {}


def test_many_spans_become_few_that_cover_them() -> None:
    assert united([(5, 6), (0, 2), (1, 3), (3, 4)], 8) == [(0, 4), (5, 6)]
    assert united([(0, 1), (10, 11), (12, 13), (30, 31)], 2) == [(0, 13), (30, 31)]


# ---- the file -------------------------------------------------------------------------------------------


def test_counts_are_written_every_few_seconds_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent, "WRITTEN_EVERY", 0.05)
    account = Account(tmp_path, utc_day)
    ask(account, request(1), done("encode"))
    wait_for(account.file.exists, "the file")
    before = account.file.stat().st_mtime_ns
    for number in range(2, 100):
        ask(account, request(number), done("encode"))
    wait_for(lambda: len(account.file.read_bytes().splitlines()) > 1, "more lines")
    account.close()
    assert account.file.stat().st_mtime_ns > before
    assert account.file.stat().st_mode & 0o77 == 0
    assert len(account.file.read_bytes().splitlines()) < 20
    assert verbs_of(account) == {"encode": [99, 99, 9900, 990]}


def test_after_a_kill_the_counts_go_on(tmp_path: Path) -> None:
    killed = Account(tmp_path, utc_day)
    ask(killed, request(1), done("update"), rounds=1)
    killed.flush()
    ask(killed, request(2), done("update"), rounds=1)  # lost
    again = Account(tmp_path, utc_day)
    assert again.used(0.0) == Used(1, 110)
    ask(again, request(1, session="t"), done("update"), rounds=1)
    again.close()
    assert verbs_of(again) == {"update": [2, 2, 200, 20]}
    killed.close()


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"3",
        b"\xff",
        b"[" * 9999,
        b'{"day": 3}',
        b'{"day": "x"}',
        b'{"out": {"": [[1]]}}',
        b'{"day": "1970-01-01", "verbs": {"encode": [1, 2]}}',
        b'{"day": "1970-01-01", "verbs": {"encode": 1}}',
        b'{"day": "1970-01-01", "spans": {"": 1}}',
        b'{"day": "1970-01-01", "rounds": -1}',
    ],
)
def test_a_damaged_line_is_skipped_and_counted(tmp_path: Path, line: bytes) -> None:
    key, entry = Key("1970-01-01", "task-1", "train"), Entry(verbs={"encode": Counts(1, 1, 100, 10)})
    (tmp_path / FILE).write_bytes(line_of(key, entry) + line + b"\n" + line_of(key, entry) + line[:1])
    assert Book.read(tmp_path / FILE).damaged == 1
    account = Account(tmp_path, utc_day)
    ask(account, request(1), done("encode"))
    account.close()
    book = Book.read(tmp_path / FILE)
    assert book.damaged == 1  # also once the file has been written anew
    assert verbs_of(account) == {"encode": [3, 3, 300, 30]}


def test_a_line_that_was_cut_off_does_not_spoil_the_next(account: Account) -> None:
    ask(account, request(1), done("encode"))
    account.flush()
    with account.file.open("ab") as file:
        file.write(b'{"day": "1970-01-0')
    ask(account, request(2), done("encode"))
    assert verbs_of(account) == {"encode": [2, 2, 200, 20]}
    assert Book.read(account.file).damaged == 1


def test_a_full_disk_loses_nothing_and_is_told_once(
    account: Account, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object) -> None:
        raise StorageError(account.file, "no space left")

    for write in ("write_whole", "os.ftruncate"):
        with monkeypatch.context() as broken, caplog.at_level(logging.ERROR):
            broken.setattr(sent, "write_whole", full)
            broken.setattr(Account, "_append", full)
            ask(account, request(1, session=write), done("encode"))
            account.flush()
            ask(account, request(2, session=write), done("encode"))
            account.flush()
        account.flush()
    assert verbs_of(account) == {"encode": [4, 4, 400, 40]}
    assert caplog.text.count("cannot be written (no space left)") == 2


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(RunError, match=r"sent\.jsonl: cannot be read"):
        Account(tmp_path)


def test_the_file_is_written_anew_with_the_same_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "MOST_LINES", 10)
    account = Account(tmp_path, utc_day)
    longest = 0
    for number in range(100):
        ask(account, request(number), done("encode"))
        account.flush()
        longest = max(longest, len(account.file.read_bytes().splitlines()))
    account.close()
    assert longest <= 13
    assert verbs_of(account) == {"encode": [100, 100, 10_000, 1000]}
    assert Book.read(account.file).out == {"": [(1000, 4000)]}


def test_a_hostile_server_cannot_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "MOST_TASKS", 20)
    account = Account(tmp_path, utc_day)
    for k in range(300):
        task = SiteTask(f"{k:03}" * 1000, "x" * 10_000, "y\n" * 10_000, "\x00z" * 10_000)
        terms: dict[str, Any] = {"first": k * 10**7, "added": [f"{k}-{n}" * 999 for n in range(3)]}
        fields = {"verbs": {f"verb-{k}": 1.0, "encode": 1.0}}
        ask(account, request(1, session=f"{k}", **terms), Note("done", fields), task=task)
    account.flush()
    book = Book.read(account.file)
    assert len(book.entries) == 21
    [others] = [entry for key, entry in book.entries.items() if key.task == OTHER]
    assert others.verbs["encode"].requests == 280
    assert {key.do for key in book.entries} == {OTHER}
    assert not any("\n" in entry.run or "\0" in entry.method for entry in book.entries.values())
    assert len(book.out) <= 1001
    assert account.file.stat().st_size < 1_000_000
    account.close()


def test_old_days_are_summed_up_by_month_and_their_times_stay_out() -> None:
    book = Book()
    for day in ("2024-01-05", "2024-01-20", "2024-02-01", "2026-01-01"):
        for task in ("a", "b"):
            spans = {"": [(int(day[5:7]) * 100, int(day[5:7]) * 100 + 50)]}
            entry = Entry("run", "sl", 2, 300, {"encode": Counts(1, 1, 5, 7)}, spans)
            book.add(Key(day, task, "train"), entry)
    book.sum_up("2025-06-01")
    found = {key: (entry.rounds, entry.total.as_list()) for key, entry in book.entries.items()}
    assert found == {
        Key("2024-01", "", "train"): (8, [4, 4, 20, 28]),
        Key("2024-02", "", "train"): (4, [2, 2, 10, 14]),
        Key("2026-01-01", "a", "train"): (2, [1, 1, 5, 7]),
        Key("2026-01-01", "b", "train"): (2, [1, 1, 5, 7]),
    }
    assert book.out == {"": [(100, 150), (200, 250)]}


def test_too_many_entries_are_summed_up_sooner() -> None:
    book = Book()
    for day in range(1, 29):
        for task in range(200):
            book.add(
                Key(f"2026-02-{day:02}", str(task), "train"), Entry(verbs={"encode": Counts(1, 1, 1, 1)})
            )
    book.sum_up("2020-01-01")
    assert len(book.entries) == MOST_ENTRIES
    assert sum(entry.total.requests for entry in book.entries.values()) == 28 * 200
    for month in range(1, 6000):
        book.add(Key(f"{month // 12:04}-{month % 12 + 1:02}", "", "train"), Entry(rounds=1))
    book.sum_up("2020-01-01")
    assert len(book.entries) == MOST_ENTRIES


def test_many_threads_may_count_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "WRITTEN_EVERY", 0.001)
    monkeypatch.setattr(sent, "MOST_LINES", 5)
    account = Account(tmp_path, utc_day)

    def count(k: int) -> None:
        task = SiteTask(f"task-{k}", "train", "first", "sl")
        for number in range(300):
            ask(account, request(number), done("encode"), task=task)

    threads = [threading.Thread(target=count, args=[k]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    account.close()
    book = Book.read(account.file)
    assert {key.task: entry.total.as_list() for key, entry in book.entries.items()} == {
        f"task-{k}": [300, 300, 30_000, 3000] for k in range(4)
    }
    assert all(json.loads(line) for line in account.file.read_bytes().splitlines())
