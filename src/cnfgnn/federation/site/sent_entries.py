"""The entries of `sent.jsonl` in a site's kit: what was asked of the site and sent by it, day by day.

Each line adds to an entry: those of a day and a task, or, for long ago, those of a month and a kind of task.

    {"day": "2026-03-01", "task": ID, "do": "train", "run": NAME, "method": NAME, "rounds": 2, "step": 300,
     "verbs": {"encode": [requests, messages, bytes received, bytes sent]}, "spans": {"": [[FROM, UNTIL]]}}
    {"out": {"": [[FROM, UNTIL]]}, "step": 300, "damaged": 0}

Spans say from which time until before which one copies were used, in seconds since 1970: of the site's own
sensors under the name "", and of each sensor that joined later under its own. The last kind of line sums up
those of all time, and counts the lines that were damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cnfgnn.errors import RunError
from cnfgnn.federation.permission_rules import TASKS
from cnfgnn.federation.site.task_verbs import VERBS

FILE = "sent.jsonl"
HELLO, DUE = "hello", "due"  # messages that are no requests: is the site there, and which step is due
UNANSWERED = "unanswered"  # requests that were refused or lost, or are under way
COUNTED = frozenset({*VERBS, HELLO, DUE, UNANSWERED})
OTHER = "other"  # tasks of a day beyond the most that are told apart, or of an unknown kind
KEPT_DAYS = 366  # older ones are summed up by month
MOST_ENTRIES = 4000  # the oldest days are summed up by month if there are more, then dropped
MOST_SPANS, MOST_SPANS_OUT = 8, 200  # of an entry, and of all: beyond that the smallest gaps are closed
MOST_SENSORS = 1000  # that joined later
LATEST = 1 << 41  # seconds since 1970; no time is later
LONGEST_TEXT, LONGEST_SENSOR = 64, 200
_DAY = re.compile(r"\d{4}-\d\d(-\d\d)?", re.ASCII)

Span = tuple[int, int]
Spans = dict[str, list[Span]]  # by sensor, or of all that are the site's from the beginning


class Key(NamedTuple):
    """Whose entry it is; one of a month has no task."""

    day: str
    task: str
    do: str


@dataclass(slots=True)
class Counts:
    """Requests in which a verb was carried out, and messages and bytes that are counted under it."""

    requests: int = 0
    messages: int = 0
    received: int = 0
    sent: int = 0

    def add(self, other: Counts) -> None:
        self.requests += other.requests
        self.messages += other.messages
        self.received += other.received
        self.sent += other.sent

    def __bool__(self) -> bool:
        return any((self.requests, self.messages, self.received, self.sent))

    def as_list(self) -> list[int]:
        return [self.requests, self.messages, self.received, self.sent]


@dataclass(slots=True)
class Entry:
    """What a task asked for and got on a day."""

    run: str = ""
    method: str = ""
    rounds: int = 0  # of training that it began
    step: int = 0  # seconds between readings
    verbs: dict[str, Counts] = field(default_factory=dict)
    spans: Spans = field(default_factory=dict)

    @property
    def total(self) -> Counts:
        total = Counts()
        for counts in self.verbs.values():
            total.add(counts)
        return total

    def count(self, verb: str, counts: Counts) -> None:
        self.verbs.setdefault(verb if verb in COUNTED else UNANSWERED, Counts()).add(counts)

    def add(self, other: Entry) -> None:
        self.run, self.method = other.run or self.run, other.method or self.method
        self.rounds, self.step = self.rounds + other.rounds, other.step or self.step
        for verb, counts in other.verbs.items():
            self.count(verb, counts)
        unite(self.spans, other.spans, MOST_SPANS)


class Book:
    """All entries, and the spans of all copies that were ever used. `damaged` lines could not be read."""

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.out: Spans = {}
        self.step, self.damaged = 0, 0

    def add(self, key: Key, entry: Entry) -> None:
        self.entries.setdefault(key, Entry()).add(entry)
        unite(self.out, entry.spans, MOST_SPANS_OUT)
        self.step = entry.step or self.step

    @classmethod
    def read(cls, path: Path) -> Book:
        """The book in a file; another process may be writing its last line now."""
        book = cls()
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return book
        except OSError as error:
            raise RunError(path, f"cannot be read ({error.strerror})") from error
        for line in content.split(b"\n")[:-1]:
            try:
                book._take(line)
            except (ValueError, TypeError, RecursionError):
                book.damaged += bool(line.strip())
        return book

    def _take(self, line: bytes) -> None:
        told = json.loads(line)
        if not isinstance(told, dict):
            raise ValueError("not an entry")
        if "out" in told:
            unite(self.out, _spans(told["out"]), MOST_SPANS_OUT)
            self.step = _whole(told.get("step", 0)) or self.step
            self.damaged += _whole(told.get("damaged", 0))
            return
        day = told.get("day")
        if not isinstance(day, str) or not _DAY.fullmatch(day):
            raise ValueError("no day")
        texts = [text_of(told.get(name, "")) for name in ("task", "do", "run", "method")]
        entry = Entry(texts[2], texts[3], _whole(told.get("rounds", 0)), _whole(told.get("step", 0)))
        verbs = told.get("verbs", {})
        for verb, numbers in verbs.items() if isinstance(verbs, dict) else ():
            requests, messages, received, sent = map(_number, numbers)
            entry.count(verb, Counts(requests, messages, received, sent))
        entry.spans = _spans(told.get("spans", {}))
        self.add(Key(day, texts[0], texts[1]), entry)

    @property
    def total(self) -> Counts:
        total = Counts()
        for entry in self.entries.values():
            total.add(entry.total)
        return total

    def sum_up(self, oldest: str) -> None:
        """Sum up days before `oldest` by month, and more of them if there are too many entries."""
        for key in sorted(key for key in self.entries if len(key.day) > 7):
            if key.day >= oldest and len(self.entries) <= MOST_ENTRIES:
                break
            entry = self.entries.pop(key)
            month = Key(key.day[:7], "", key.do)
            self.entries.setdefault(month, Entry()).add(Entry(rounds=entry.rounds, verbs=entry.verbs))
        for key in sorted(self.entries)[: max(0, len(self.entries) - MOST_ENTRIES)]:
            del self.entries[key]

    def written(self) -> bytes:
        """The whole book as a file."""
        out = json.dumps({"out": self.out, "step": self.step, "damaged": self.damaged})
        return b"".join([out.encode(), b"\n", *(line_of(*item) for item in sorted(self.entries.items()))])


def lately(kit: Path, most: int = 20) -> dict[str, Any]:
    """The last tasks day by day, newest first, and what all of them sent together: for the site's page."""
    book = Book.read(kit / FILE)
    newest = sorted(book.entries.items(), reverse=True)[:most]
    tasks = [
        {"day": key.day, "do": key.do, "run": entry.run, "rounds": entry.rounds, **asdict(entry.total)}
        for key, entry in newest
    ]
    return {"tasks": tasks, "total": asdict(book.total)}


def line_of(key: Key, entry: Entry) -> bytes:
    """A line that adds this to an entry."""
    told: dict[str, Any] = {**key._asdict(), "run": entry.run, "method": entry.method}
    told |= {"rounds": entry.rounds, "step": entry.step, "spans": entry.spans}
    told["verbs"] = {verb: counts.as_list() for verb, counts in entry.verbs.items() if counts}
    return json.dumps({name: value for name, value in told.items() if value}).encode() + b"\n"


# ---- spans of time ---------------------------------------------------------------------------------------


def unite(into: Spans, more: Mapping[str, Sequence[Span]], most: int) -> None:
    """Add spans of each sensor; of too many sensors that joined later, the first ones are kept apart."""
    for sensor, spans in more.items():
        name = sensor if sensor in into or len(into) <= MOST_SENSORS else ""
        before = into.get(name, [])
        if not _covers(before, spans):
            into[name] = united([*before, *spans], most)


def united(spans: Iterable[Span], most: int) -> list[Span]:
    """The same times in at most so many spans: if that takes more, the smallest gaps count as used."""
    found: list[Span] = []
    for first, until in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], until))
        else:
            found.append((first, until))
    while len(found) > most:
        at = min(range(1, len(found)), key=lambda k: found[k][0] - found[k - 1][1])
        found[at - 1 : at + 1] = [(found[at - 1][0], found[at][1])]
    return found


def _covers(spans: Sequence[Span], more: Sequence[Span]) -> bool:
    return all(any(a <= first and until <= b for a, b in spans) for first, until in more)


def _spans(told: Any) -> Spans:
    if not isinstance(told, dict):
        raise ValueError("no spans")
    found: Spans = {}
    for sensor, spans in told.items():
        pairs = [(_whole(first), _whole(until)) for first, until in spans]
        found[sensor[:LONGEST_SENSOR]] = [span for span in pairs if span[0] < span[1] <= LATEST]
    return found


# ---- what a file holds -----------------------------------------------------------------------------------


def text_of(value: object, most: int = LONGEST_TEXT) -> str:
    """A short text on one line, whatever it was."""
    return "".join(c for c in str(value)[:most] if c.isprintable())


def kind_of(do: str) -> str:
    return do if do in TASKS else OTHER


def _number(value: Any) -> int:
    if type(value) is not int or abs(value) > 1 << 62:
        raise ValueError("not a whole number")
    return value


def _whole(value: Any) -> int:
    if _number(value) < 0:
        raise ValueError("a negative number")
    return int(value)
