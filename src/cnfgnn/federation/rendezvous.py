"""Who is there before a task begins, and the stretch of time that their readings cover."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cnfgnn.algorithm.cost import GIB
from cnfgnn.errors import NodeError
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.spans import Span, span_of
from cnfgnn.federation.status import STARTING
from cnfgnn.transports.remote.endpoint import MOST_ROWS
from cnfgnn.transports.remote.header import Malformed
from cnfgnn.transports.remote.limits import MOST_CLOCK_DIFFERENCE
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.messages import Unreachable, legible
from cnfgnn.transports.remote.transport import Stopped
from cnfgnn.version import __version__

HELLO_WITHIN = 5.0
AGAIN_AFTER = 0.3
STARTS_WITHIN = 20.0  # seconds in which a site that does not answer is thought to be starting


def gather(
    links: Mapping[str, Link],
    plans: Mapping[str, SitePlan],
    min_sites: int,
    wait: float,
    stopped: Callable[[], bool],
    say: Callable[..., None],
) -> dict[str, Span]:
    """Ask all sites how they are until all are ready, or until time is up and enough of them are."""
    ready: dict[str, Span] = {}
    problems: dict[str, str | Unreachable] = {}
    begun = time.monotonic()
    until = begun + wait
    with ThreadPoolExecutor(len(links)) as pool:
        while True:
            missing = [name for name in links if name not in ready]
            found = pool.map(lambda name: _asked(links[name], plans[name]), missing)
            for name, said in zip(missing, found, strict=True):
                if isinstance(said, Span):
                    ready[name] = said
                else:
                    problems[name] = said
            starting = time.monotonic() < min(until, begun + STARTS_WITHIN)
            missing = [name for name in links if name not in ready]
            reasons = {name: _reason(problems[name], starting) for name in missing}
            say(gathered=sorted(ready), missing=reasons)
            if not missing or (time.monotonic() > until and len(ready) >= min_sites):
                break
            if time.monotonic() > until:
                raise NodeError(missing[0], "hello", reasons[missing[0]])
            if stopped():
                raise Stopped
            time.sleep(AGAIN_AFTER)
    return ready


def objection(said: Mapping[str, Any], plan: SitePlan, span: Span, takes: int = 0) -> str:
    """Why a site that comes, or comes back, in the middle of a task cannot take part; nothing if it can.

    `takes` is what it would have to hold of hidden states and embeddings, in bytes.
    """
    its = _understood(said, plan)
    if isinstance(its, str):
        return its
    if its.step != span.step or its.utc != span.utc or (its.first - span.first) % span.step:
        return "its readings come at other times than the others'"
    if 0 < its.room < takes:
        needed = f"hidden states of its sensors take {takes / GIB:.3g} GiB in this run"
        return f"{needed}, and it can hold {its.room / GIB:.3g} GiB: memory in its local/site.toml"
    return ""


def _asked(link: Link, plan: SitePlan) -> Span | str | Unreachable:
    """A site's span, or why it cannot take part."""
    try:
        said = link.hello(HELLO_WITHIN)
        return _understood(said, plan)
    except Unreachable as problem:
        return problem
    except Malformed as problem:
        return str(problem)


def _reason(problem: str | Unreachable, starting: bool) -> str:
    """Its job answers nothing until it has started, whatever the engine calls that."""
    if isinstance(problem, Unreachable):
        return STARTING if starting else f"it does not answer ({problem})"
    return problem or "it does not answer"


def _understood(said: Mapping[str, Any], plan: SitePlan) -> Span | str:
    if said.get("version") != __version__:
        return f"it runs version {legible(said.get('version'), 20)}, and the server {__version__}"
    clock: Any = said.get("clock")
    if type(clock) not in (int, float) or not abs(clock) < 2**40:
        return "its clock shows no time"
    if abs(clock - time.time()) > MOST_CLOCK_DIFFERENCE:
        return f"its clock is {abs(clock - time.time()):.0f} s off the server's"
    if said.get("ready") is not True:
        return legible(said.get("problem"))
    if said.get("sensors") != list(plan.sensors):
        return "its kit names other sensors than the server's"
    numbers = [said.get(name) for name in ("first", "last", "step")]
    if any(type(number) is not int for number in numbers):
        return "it does not say when its readings begin and end"
    first, last, step = numbers
    assert isinstance(first, int)
    assert isinstance(last, int)
    assert isinstance(step, int)
    if not (0 <= first <= last < 2**40 and 0 < step <= 2**31):
        return "the times of its readings cannot be meant"
    if (last - first) // step >= MOST_ROWS:
        return f"its readings span more than {MOST_ROWS} steps"
    room = said.get("memory")
    newest, measured, left_out = (said.get(name) for name in ("newest", "measured", "left_out"))
    if type(newest) is not int or not first <= newest < 2**40:
        return "it does not say when its newest reading is from"
    if type(measured) is not int or type(left_out) is not int or min(measured, left_out) < 0:
        return "it does not say how many readings it has"
    room = room if type(room) is int and room > 0 else 0
    return Span(first, last, step, bool(said.get("utc")), newest, measured, left_out, room)


def unlike(spans: Mapping[str, Span]) -> dict[str, str]:
    """The sites whose readings do not fit most sites', and why: all must read at the same steps and by the
    same kind of clock."""
    found: dict[str, str] = {}
    usual = _most_frequent(span.step for span in spans.values())
    utc = _most_frequent(span.utc for span in spans.values())
    kinds = ["as a clock showed them", "in UTC"]
    alike = [span for span in spans.values() if (span.step, span.utc) == (usual, utc)]
    begin = _most_frequent(span.first % usual for span in alike or spans.values())
    for name, span in spans.items():
        if span.step != usual:
            found[name] = f"readings come every {span.step} s, and the others' every {usual} s"
        elif span.utc != utc:
            found[name] = f"its times are {kinds[span.utc]}, and the others' {kinds[utc]}"
        elif span.first % usual != begin:
            found[name] = f"its times do not fall on the others' steps of {usual} s"
    fit = {name: span for name, span in spans.items() if name not in found}
    if fit and span_of(fit).rows > MOST_ROWS:
        early = min(fit, key=lambda name: fit[name].first)
        found[early] = f"its readings and the others' span more than {MOST_ROWS} steps"
    return found


def _most_frequent(values: Iterable[Any]) -> Any:
    known = list(values)
    return max(known, key=known.count)
