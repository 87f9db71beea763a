"""What a site has sent: counted for its owner by the process that answers for it, in `sent.jsonl` of its kit.

A request is counted under the last verb that it asked for, which is the one that is answered; the other verbs
that travelled with it are counted as requests alone, so that messages and bytes add up. Counts are written
every few seconds: whoever kills the process loses those since then. The file only grows, by lines that add to
what is there, until it is written anew with the same sums.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.site.permissions import Used
from cnfgnn.federation.site.sent_entries import (
    DUE,
    FILE,
    HELLO,
    KEPT_DAYS,
    LATEST,
    LONGEST_SENSOR,
    MOST_SENSORS,
    MOST_SPANS,
    OTHER,
    UNANSWERED,
    Book,
    Counts,
    Entry,
    Key,
    Span,
    kind_of,
    line_of,
    text_of,
    unite,
)
from cnfgnn.federation.site.task_verbs import ASKS
from cnfgnn.federation.site_task import SiteTask
from cnfgnn.files import write_whole

if TYPE_CHECKING:
    from cnfgnn.transports.remote.messages import Note

WRITTEN_EVERY = 3.0  # seconds
MOST_LINES = 2000  # that were added since the file was written anew
MOST_TASKS = 200  # of a day that are told apart
MOST_UNDER_WAY = 64  # tasks whose last request is remembered
MOST_ROWS, LONGEST_STEP = 1 << 28, 1 << 31  # that a request can be about
log = logging.getLogger(__name__)


def machine_day(now: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(now))


class Account:
    """Counts every exchange of a site, from any thread; `day` names the day of a time."""

    def __init__(self, kit: Path, day: Callable[[float], str] = machine_day) -> None:
        self.file, self._day = kit / FILE, day
        self._book = Book.read(self.file)  # what has been written
        self._new: dict[Key, Entry] = {}  # what was counted since then
        self._progress: OrderedDict[str, _Progress] = OrderedDict()
        self._minute, self._today = -1, ""
        self._tasks: set[Key] = set()  # of today
        self._rounds, self._bytes, self._turned_away = 0, 0, ""
        self._lines = MOST_LINES  # what an earlier process has left is summed up first
        self._counting, self._writing = threading.Lock(), threading.Lock()
        self._closed, self._failed = threading.Event(), False
        self._thread = threading.Thread(target=self._keep_writing, name="account", daemon=True)
        self._thread.start()

    def count(
        self,
        task: SiteTask,
        request: Note,
        asked_bytes: int,
        answer: Note,
        answered_bytes: int,
        now: float,
        rounds: int = 0,
    ) -> None:
        """Count an exchange: what was asked and answered, with the bytes of both messages, and the rounds of
        training that the task has begun since the one before."""
        counts = Counts(0, 1, asked_bytes, answered_bytes)
        with self._counting:
            day = self._turn_to(now)
            if answer.kind == "refused" and answer.fields.get("rounds"):
                self._turned_away = day
            progress = self._progress_of(task)
            entry = self._entry(progress, task)
            if request.kind in (HELLO, DUE):
                progress.hear(request.kind, answer.fields)
                counts.requests = 1
                entry.count(request.kind, counts)
            else:
                progress.follow(request, answer, counts, entry)
            entry.rounds += rounds
            self._rounds += rounds
            self._bytes += asked_bytes + answered_bytes

    def used(self, now: float) -> Used:
        """What this day has used, by all tasks together."""
        with self._counting:
            day = self._turn_to(now)
            return Used(self._rounds, self._bytes, self._turned_away == day)

    def flush(self) -> None:
        """Write what was counted since the last time; a disk that is full is tried again later."""
        with self._writing:
            anew = self._lines >= MOST_LINES
            with self._counting:
                new, self._new = self._new, {}
                for key, entry in new.items():
                    self._book.add(key, entry)
                if not new and not (anew and self._book.entries):
                    return
                content = self._summed_up() if anew else b"".join(line_of(*one) for one in new.items())
            try:
                if anew:
                    write_whole(self.file, content, 0o600)
                else:
                    self._append(content)
            except (CnfgnnError, OSError) as error:
                if not self._failed:
                    log.error("what was sent cannot be written: %s", error)
                self._lines, self._failed = MOST_LINES, True  # all of it is written anew next time
            else:
                self._lines, self._failed = 0 if anew else self._lines + len(new), False

    def close(self) -> None:
        """Write everything, and end."""
        self._closed.set()
        self._thread.join()
        self.flush()

    # ---- counting -----------------------------------------------------------------------------------

    def _turn_to(self, now: float) -> str:
        """The day; what was used is that of this day from now on, also if the clock was set back."""
        if (minute := int(now // 60)) == self._minute:
            return self._today
        self._minute, day = minute, self._day(now)
        if day != self._today:
            found = [*self._book.entries.items(), *self._new.items()]
            entries = [entry for key, entry in found if key.day == day]
            self._tasks = {key for key, _ in found if key.day == day}
            self._rounds = sum(entry.rounds for entry in entries)
            self._bytes = sum(entry.total.received + entry.total.sent for entry in entries)
            self._today = day
        return day

    def _progress_of(self, task: SiteTask) -> _Progress:
        found = self._progress.pop(task.id, None) or _Progress()
        self._progress[task.id] = found
        if len(self._progress) > MOST_UNDER_WAY:
            self._progress.popitem(last=False)
        return found

    def _entry(self, progress: _Progress, task: SiteTask) -> Entry:
        key = progress.key
        if key is None or key.day != self._today:
            key = Key(self._today, text_of(task.id), kind_of(task.do))
            if key not in self._tasks and len(self._tasks) >= MOST_TASKS:
                key = Key(self._today, OTHER, OTHER)
            self._tasks.add(key)
            progress.turn_to(key)
        if (entry := self._new.get(key)) is None:
            named = ("", "") if key.task == OTHER else (text_of(task.run), text_of(task.method))
            entry = self._new[key] = Entry(*named)
        return entry

    def _summed_up(self) -> bytes:
        oldest = date.fromisoformat(self._today or machine_day(time.time())) - timedelta(KEPT_DAYS)
        self._book.sum_up(oldest.isoformat())
        return self._book.written()

    # ---- writing ------------------------------------------------------------------------------------

    def _keep_writing(self) -> None:
        while not self._closed.wait(WRITTEN_EVERY):
            self.flush()

    def _append(self, content: bytes) -> None:
        handle = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(handle).st_size
            whole = size == 0 or os.pread(handle, 1, size - 1) == b"\n"
            try:
                with os.fdopen(os.dup(handle), "ab") as file:
                    file.write(content if whole else b"\n" + content)
            except OSError:
                os.ftruncate(handle, size)  # a part of it would be counted twice
                raise
        finally:
            os.close(handle)


class _Progress:
    """Where a task is: its last request, and which times it is about.

    key     of its entry of today
    verb    under which the request is counted; "" while it is not known
    before  what was counted of it until then, today
    """

    def __init__(self) -> None:
        self.key: Key | None = None
        self.request: tuple[object, object] | None = None
        self.verb, self.before = "", Counts()
        self.newest: int | None = None  # the time of the site's newest reading when the task began
        self.due = 0  # the newest step that the site has told is due
        self.span: Span | None = None
        self.step, self.added = 0, tuple[str, ...]()

    def turn_to(self, key: Key) -> None:
        """Another day has begun: what was counted before stays where it is."""
        self.key, self.before = key, Counts()

    def hear(self, kind: str, fields: Mapping[str, Any]) -> None:
        """What a site tells in a hello, and while it is live."""
        newest, step = fields.get("newest"), fields.get("step")
        if kind == HELLO and type(newest) is int and fields.get("ignored") == 0:
            self.newest = newest
        if kind == DUE and type(step) is int and 0 <= step < LATEST:
            self.due = max(self.due, step)

    def follow(self, request: Note, answer: Note, counts: Counts, entry: Entry) -> None:
        """Count a message of a request."""
        which = (request.fields.get("session"), request.fields.get("number"))
        if which != self.request:
            self.request, self.verb, self.before = which, "", Counts()
        if request.kind in ("run", "piece"):
            self._note_terms(request.fields)
        verbs = answer.fields.get("verbs") if answer.kind == "done" else None
        if not self.verb and isinstance(verbs, dict) and verbs:
            self._carried_out(list(verbs), entry)
        entry.count(self.verb or UNANSWERED, counts)
        if not self.verb:
            self.before.add(counts)

    def _carried_out(self, verbs: list[str], entry: Entry) -> None:
        """The request has been carried out: what was counted before this message belongs to its last verb."""
        self.verb, before = verbs[-1], self.before
        if before:
            entry.count(self.verb, before)
            entry.count(UNANSWERED, Counts(0, -before.messages, -before.received, -before.sent))
        for verb in verbs:
            entry.count(verb, Counts(requests=1))
        if self.span is not None and any(verb in ASKS for verb in verbs):
            span, entry.step = self._used_span(self.span), self.step
            unite(entry.spans, {name: [span] for name in ("", *self.added)}, MOST_SPANS)

    def _used_span(self, span: Span) -> Span:
        """Of the times that a request is about, those that there can be readings of."""
        first, until = span
        if self.newest is not None:
            until = min(until, self.newest + 1)
        return first, max(until, self.due + 1, first + 1)

    def _note_terms(self, fields: Mapping[str, Any]) -> None:
        first, step, rows = (fields.get(name) for name in ("first", "step", "rows"))
        if type(first) is not int or type(step) is not int or type(rows) is not int:
            return
        if 0 <= first < LATEST and 0 < step <= LONGEST_STEP and 0 < rows <= MOST_ROWS:
            self.span, self.step = (first, min(first + rows * step, LATEST)), step
        added = fields.get("added", [])
        if isinstance(added, list):
            self.added = tuple(str(name)[:LONGEST_SENSOR] for name in added[:MOST_SENSORS])
