"""The start of a task: the server waits for the sites and checks that their readings fit together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from cnfgnn.algorithm.messages.cost import GIB
from cnfgnn.config.declarations import is_number
from cnfgnn.data.files.input_files import LONGEST_NAME
from cnfgnn.data.inputs import MOST_INPUTS, InputNames
from cnfgnn.errors import NodeError
from cnfgnn.federation.objections import Objection, code_of
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.server.status import STARTING
from cnfgnn.federation.spans import Span, covering_span
from cnfgnn.transports.remote.endpoint import MOST_ROWS
from cnfgnn.transports.remote.header import Malformed
from cnfgnn.transports.remote.limits import MOST_CLOCK_DIFFERENCE
from cnfgnn.transports.remote.link import Link
from cnfgnn.transports.remote.messages import Unreachable, legible
from cnfgnn.transports.remote.transport import Stopped
from cnfgnn.version import __version__

HELLO_WITHIN = 5.0  # seconds for a site to answer a hello
RETRY_AFTER = 0.3  # seconds
STARTS_WITHIN = 20.0  # seconds in which a site that does not answer is assumed to be starting


class Refusal(str):
    """Why the owner of a site takes no part in this task: it will not come."""


class Unfit(str):
    """Why a site says that it cannot take part, until its owner mends it."""


# Nobody waits for these if enough others are ready. A site that is mended is taken in whenever it comes.
NOT_SOON = (Refusal, Unfit, Objection)


def wait_for_sites(
    links: Mapping[str, Link],
    plans: Mapping[str, SitePlan],
    min_sites: int,
    wait: float,
    stopped: Callable[[], bool],
    report: Callable[..., None],
) -> dict[str, Span]:
    """Send hellos until all sites are ready that can be, or until time is up, and at least `min_sites` are.
    Nobody waits for a site that runs another version, say, or whose owner refuses the task."""
    ready: dict[str, Span] = {}
    problems: dict[str, str | Unreachable] = {}
    begun = time.monotonic()
    deadline = begun + wait
    with ThreadPoolExecutor(len(links)) as pool:
        while True:
            missing = [name for name in links if name not in ready]
            answers = pool.map(lambda name: _hello(links[name], plans[name]), missing)
            for name, answer in zip(missing, answers, strict=True):
                if isinstance(answer, Span):
                    ready[name] = answer
                else:
                    problems[name] = answer
            may_be_starting = time.monotonic() < min(deadline, begun + STARTS_WITHIN)
            missing = [name for name in links if name not in ready]
            reasons = {name: _reason(problems[name], may_be_starting) for name in missing}
            objections = {name: code for name in missing if (code := code_of(problems[name]))}
            report(ready=sorted(ready), missing=reasons, objections=objections)
            refused = [name for name in missing if isinstance(problems[name], Refusal)]
            over = time.monotonic() > deadline
            none_comes_soon = all(isinstance(problems[name], NOT_SOON) for name in missing)
            if (over or none_comes_soon) and len(ready) >= min_sites:
                break
            if over or len(links) - len(refused) < min_sites:
                failed = (refused or missing)[0]
                raise NodeError(failed, "hello", reasons[failed])
            if stopped():
                raise Stopped
            time.sleep(RETRY_AFTER)
    return ready


def rejoin_problem(hello: Mapping[str, Any], plan: SitePlan, span: Span, needed: int = 0) -> str:
    """Why a site cannot join or rejoin a running task; empty if it can.

    `needed` is how many bytes of hidden states and embeddings the site would have to hold.
    """
    own = _span_from_hello(hello, plan)
    if isinstance(own, str):
        return own
    if own.step != span.step or own.utc != span.utc or (own.first - span.first) % span.step:
        return Objection("readings", "its readings are at other time steps than those of this task")
    if own.inputs != span.inputs:
        problem = f"its further inputs ({own.inputs}) are not those of the other sites ({span.inputs})"
        return Objection("readings", problem)
    if 0 < own.memory < needed:
        problem = f"the hidden states of its sensors need {needed / GIB:.3g} GiB in this run, and it has"
        problem = f"{problem} {own.memory / GIB:.3g} GiB: raise memory in its local/site.toml"
        return Objection("memory", problem)
    return ""


def _hello(link: Link, plan: SitePlan) -> Span | str | Unreachable:
    """A site's time span, or why it cannot take part."""
    try:
        return _span_from_hello(link.hello(HELLO_WITHIN), plan)
    except Unreachable as problem:
        return problem
    except Malformed as problem:
        return Objection("report", str(problem))


def _reason(problem: str | Unreachable, may_be_starting: bool) -> str:
    """Why a site is missing. A job that is still starting cannot be reached, whatever the engine reports."""
    if isinstance(problem, Unreachable):
        return STARTING if may_be_starting else f"it does not answer ({problem})"
    return problem or "it does not answer"


def _span_from_hello(hello: Mapping[str, Any], plan: SitePlan) -> Span | str:
    """Validate what a site reports about itself: its time span, or what is wrong."""
    if hello.get("version") != __version__:
        version = legible(hello.get("version"), 20)
        problem = (
            f"it runs cnfgnn {version}, and the server {__version__}: install the same version everywhere"
        )
        return Objection("version", problem)
    clock: Any = hello.get("clock")
    if type(clock) not in (int, float) or not abs(clock) < 2**40:
        return Objection("report", "it reports an invalid clock")
    if abs(clock - time.time()) > MOST_CLOCK_DIFFERENCE:
        difference = f"{abs(clock - time.time()):.0f} s"
        return Objection("clock", f"its clock differs from the server's by {difference}: set the clock (NTP)")
    if hello.get("ready") is not True:
        problem = legible(hello.get("problem"))
        if hello.get("refused") is True:
            return Refusal(problem)
        return Unfit(problem) if hello.get("unfit") is True else problem
    if hello.get("sensors") != list(plan.sensors):
        problem = "its kit lists other sensors than the server's kit: use kits of the same project file"
        return Objection("sensors", problem)
    blur: Any = hello.get("blur")
    if not is_number(blur) or blur < 0:
        return Objection("report", "it does not report its blur")
    if blur < plan.least_blur:
        problem = f"the blur of site {plan.name} is {blur:g}, and this federation asks for at least"
        problem = f"{problem} {plan.least_blur:g}: its owner sets it in local/site.toml"
        return Objection("blur", problem)
    span = _reported_span(hello)
    return span if isinstance(span, str) else replace(span, blur=float(blur))


def _reported_span(hello: Mapping[str, Any]) -> Span | str:
    first, last, step = hello.get("first"), hello.get("last"), hello.get("step")
    if type(first) is not int or type(last) is not int or type(step) is not int:
        return Objection("report", "it does not report when its readings begin and end")
    if not (0 <= first <= last < 2**40 and 0 < step <= 2**31):
        return Objection("report", "it reports invalid times of its readings")
    if (last - first) // step >= MOST_ROWS:
        return Objection("report", f"its readings span more than {MOST_ROWS} steps")
    newest, measured, ignored = (hello.get(name) for name in ("newest", "measured", "ignored"))
    if type(newest) is not int or not first <= newest < 2**40:
        return Objection("report", "it does not report when its newest reading was taken")
    if type(measured) is not int or type(ignored) is not int or min(measured, ignored) < 0:
        return Objection("report", "it does not report how many readings it has")
    memory = hello.get("memory")
    memory = memory if type(memory) is int and memory > 0 else 0
    inputs = _reported_inputs(hello)
    if inputs is None:
        return Objection("report", "it reports invalid names of further inputs")
    return Span(first, last, step, bool(hello.get("utc")), newest, measured, ignored, memory, inputs=inputs)


def _reported_inputs(hello: Mapping[str, Any]) -> InputNames | None:
    """The names of a site's variables and covariates; None if it reports something else."""
    kinds: list[Any] = [hello.get(kind, []) for kind in InputNames._fields]
    for names in kinds:
        if not isinstance(names, list) or len(names) > MOST_INPUTS:
            return None
        if not all(isinstance(n, str) and n.isprintable() and len(n) <= LONGEST_NAME for n in names):
            return None
    return InputNames(*map(tuple, kinds))


def incompatible_sites(spans: Mapping[str, Span], trained: tuple[int, bool] | None = None) -> dict[str, str]:
    """The sites whose readings do not fit those of most sites, and why.

    All sites must use the same step, timestamps on the same steps, either UTC or no time zone, and the same
    further inputs. `trained` is the step of the run that forecasts, and whether its times are in UTC: sites
    that still have both are right, however many they are.
    """
    found: dict[str, str] = {}
    step = _most_frequent(span.step for span in spans.values())
    utc = _most_frequent(span.utc for span in spans.values())
    if trained is not None and any((span.step, span.utc) == trained for span in spans.values()):
        step, utc = trained
    alike = [span for span in spans.values() if (span.step, span.utc) == (step, utc)]
    offset = _most_frequent(span.first % step for span in alike or spans.values())
    inputs = _most_frequent(span.inputs for span in spans.values())
    for name, span in spans.items():
        if span.step != step:
            found[name] = f"its readings are {span.step} s apart, and those of the other sites {step} s"
        elif span.utc != utc:
            own, others = ("are in UTC", "have no time zone")[:: 1 if span.utc else -1]
            found[name] = f"its timestamps {own}, and those of the other sites {others}"
        elif span.first % step != offset:
            found[name] = f"its timestamps are shifted against the other sites' steps of {step} s"
        elif span.inputs != inputs:
            found[name] = f"its further inputs ({span.inputs}) are not those of the other sites ({inputs})"
    compatible = {name: span for name, span in spans.items() if name not in found}
    if compatible and covering_span(compatible).rows > MOST_ROWS:
        earliest = min(compatible, key=lambda name: compatible[name].first)
        found[earliest] = f"its readings and the other sites' together span more than {MOST_ROWS} steps"
    return found


def _most_frequent(values: Iterable[Any]) -> Any:
    known = list(values)
    return max(known, key=known.count)
