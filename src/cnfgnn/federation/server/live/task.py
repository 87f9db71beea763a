"""The live task at the server: a forecast at every step, with the sites that are there.

A thread for each site waits until a step is due there: as soon as all its sensors have sent their readings,
or at the deadline. Then the server asks the sites for the hidden states of that step, mixes them and sends
the embeddings. It learns which steps are due, which sensors have readings, and hidden states of the copies.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cnfgnn.algorithm.experiment import Experiment
from cnfgnn.errors import NoSiteAnswered
from cnfgnn.federation.coverage_sums import coverage_told
from cnfgnn.federation.server.live.models import FederatedModels
from cnfgnn.federation.server.live.newcomers import Newcomers
from cnfgnn.federation.server.task_context import TaskContext, strategy_of
from cnfgnn.federation.site_task import LiveTerms
from cnfgnn.federation.spans import FURTHEST_ZONE, Span, format_time
from cnfgnn.live.forecasting.schedule import SHARE_OF_STEP
from cnfgnn.transports.remote.header import Malformed
from cnfgnn.transports.remote.link import Lost
from cnfgnn.transports.remote.live_transport import LiveTransport
from cnfgnn.transports.remote.messages import NotPermitted, Unreachable
from cnfgnn.transports.remote.transport import Site, Stopped

ANSWER_WITHIN = 5.0  # seconds for a site to say whether a step is due; it does so within two
LATEST = 2**40  # seconds: no time step is later
SLACK = 1.0  # seconds that a deadline at a site may be noticed late
KEPT = 1000  # durations of steps of which the median is shown
PAUSE = 5.0  # seconds after an error in taking in sites before it is tried again
# How a site that is not there took part in the last step. The server cannot know more.
GONE = "absent: if its service still runs, it goes on by itself"
NEVER_THERE = "absent: it has taken no part since this task began"

log = logging.getLogger(__name__)


class SiteSteps:
    """Which step is due at each site: a thread for each site asks for the next one.

    A site that was late, or had no reading, `history` times in a row is not waited for.
    """

    def __init__(self, sites: list[Site], history: int, is_valid: Callable[[int], bool]) -> None:
        self.sites, self.history, self.is_valid = sites, history, is_valid
        self.due = {site.name: 0 for site in sites}
        self.present = {site.name: 0 for site in sites}  # sensors with a reading of that step
        self.coverage: dict[str, dict[str, int] | None] = {site.name: None for site in sites}  # if told
        self.joined = {site.name: False for site in sites}  # whether it takes part in the next step
        self.lost = {site.name: False for site in sites}  # whether its process has lost what it was told
        self.done = 0  # the last step whose embeddings were sent
        self.served: set[str] = set()  # the sites whose service has answered since the task began
        self.missed = {site.name: 0 for site in sites}  # how many steps in a row it was not there for
        self.changed = threading.Condition()
        self._closed = threading.Event()

    def start(self) -> None:
        for site in self.sites:
            threading.Thread(target=self._watch, args=[site], name=f"due {site.name}", daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def end_services(self) -> list[str]:
        """Tell the sites that the task ends for good; those that heard it end their services."""
        self.close()
        heard = []
        for site in self.sites:
            with suppress(Malformed, Lost, NotPermitted, Unreachable):
                if site.reachable:
                    site.link.due(ANSWER_WITHIN, after=0, joined=False, done=self.done, ends=True)
                    heard.append(site.name)
        return heard

    def _watch(self, site: Site) -> None:
        while not self._closed.is_set():
            if not site.reachable:
                self._closed.wait(0.2)
                continue
            joined = self.joined[site.name]
            try:
                answer = site.link.due(
                    ANSWER_WITHIN, after=self.due[site.name], joined=joined, done=self.done
                )
            except (Malformed, Lost):  # it is starting, or it runs another version
                self._closed.wait(0.5)
            except Unreachable as problem:
                site.reachable, site.problem = False, f"cannot be reached ({problem})"
            except NotPermitted as problem:
                site.reachable, site.problem = False, str(problem)
            else:
                self._note(site, answer, joined)

    def _note(self, site: Site, answer: Mapping[str, Any], joined: bool) -> None:
        step, present, ready = answer.get("step"), answer.get("present"), answer.get("ready") is True
        with self.changed:
            self.lost[site.name] = joined and not ready
            self.served |= {site.name} if ready else set()
            if ready and type(step) is int and type(present) is int and self.is_valid(step):
                self.due[site.name] = step  # an earlier one, if its clock was ahead
                self.present[site.name] = min(max(present, 0), len(site.rows))
                self.coverage[site.name] = coverage_told(answer)
            self.changed.notify_all()
        is_believed = not step or step == self.due[site.name]
        if not (ready and is_believed):  # a step from the future would come again at once
            self._closed.wait(0.2)

    def common(self) -> tuple[int, bool]:
        """The newest step that at least half of the sites that take part have reached, and whether all of
        them have. Sites that have been silent count only if there is no other."""
        here = [site.name for site in self.sites if site.reachable and self.joined[site.name]]
        expected = [name for name in here if self.missed[name] < self.history] or here
        due = sorted((self.due[name] for name in expected), reverse=True)
        if not due:
            return 0, False
        step = due[(len(due) + 1) // 2 - 1]
        return step, due[-1] >= step

    def note_made(self, step: int) -> None:
        """The embeddings of a step are being made: whoever is not there missed it."""
        for site in self.sites:
            there = self.due[site.name] >= step and self.present[site.name] > 0
            self.missed[site.name] = 0 if there else self.missed[site.name] + 1

    def quality(self, site: Site, took_part: bool, forecast: int) -> str:
        """How a site took part in the last step, in a few words; `forecast` of its sensors had readings."""
        if not took_part:
            return GONE if site.name in self.served else NEVER_THERE
        if forecast == 0:
            return "no readings"
        if min(forecast, self.present[site.name]) < len(site.rows):
            return "some readings missing"
        return "full"


class LiveLoop:
    """Step after step with one model, until the task is stopped or another model is live.

    before  the loop with the model before this one
    """

    def __init__(
        self,
        context: TaskContext,
        experiment: Experiment,
        span: Span,
        models: FederatedModels,
        model: str,
        before: LiveLoop | None = None,
    ) -> None:
        self.context, self.experiment, self.span = context, experiment, span
        self.models, self.model = models, model
        self.strategy = strategy_of(experiment)
        self.nodes = self.strategy.everyone
        assert isinstance(self.nodes.transport, LiveTransport)
        self.transport = self.nodes.transport
        self.terms = LiveTerms.of(context.task.live)
        deadline = SHARE_OF_STEP * span.step if self.terms.deadline is None else self.terms.deadline
        self.patience = deadline / self.terms.speed + SLACK
        self.newcomers = Newcomers(context, experiment, self.transport)
        self.made, self.count, self.problem = 0, 0, ""
        self.made_at: float | None = None  # when that was
        self.rejoin_at = 0.0  # when to look again for sites that are back, by the monotonic clock
        self.seconds: deque[float] = deque(maxlen=KEPT)
        self.steps = SiteSteps(self.transport.parties, experiment.windows.history, self._is_valid)
        if before is not None:  # the steps go on
            self.made, self.count, self.seconds = before.made, before.count, before.seconds
            self.made_at = before.made_at
            self.steps.done, self.transport.told = before.steps.done, before.transport.told
            self.steps.served = before.steps.served

    def run(self) -> None:
        self._begin()
        try:
            since: tuple[int, float] = (0, 0.0)
            while self.models.live() == self.model:
                if self.transport.stopped():
                    raise Stopped
                if time.monotonic() >= self.rejoin_at:
                    self._rejoin()
                with self.steps.changed:
                    step, all_there = self.steps.common()
                    if step <= self.made:
                        self.steps.changed.wait(0.2)
                        continue
                    if since[0] != step:
                        since = (step, time.monotonic())
                    waited = time.monotonic() - since[1]
                    if not all_there and waited < self.patience:
                        self.steps.changed.wait(min(0.2, self.patience - waited))
                        continue
                self._step(step)
        except Stopped:
            self.context.status.set(services_ended=self.steps.end_services())
            raise
        finally:
            self.steps.close()

    def _begin(self) -> None:
        """Tell the sites that they are ready, by a turn to the step that they were prepared with."""
        self.transport.begin()
        if not self._turn(self.span.last):
            log.warning("no site answered; they will be prepared again")
        self._note_joined()
        self.steps.start()
        self._show()

    def _rejoin(self) -> None:
        """Take in who is back or new; if that fails, the others go on, and it is tried again later."""
        try:
            self._take_in()
        except Stopped:
            raise
        except Exception as error:
            self._note("taking in sites and sensors", error)
            self.rejoin_at = time.monotonic() + PAUSE
            self._note_joined()
            self._show()

    def _take_in(self) -> None:
        """Take sites in that are back, and leave out those that were restarted."""
        self.newcomers.welcome()
        for site in self.transport.parties:
            if self.steps.lost[site.name] or not site.reachable:
                self.nodes.up[site.rows] = False
        came_back = self.nodes.rejoin()
        if came_back:  # they have to know which window they are about, as the others do
            self._turn(self.made or self.span.last)
        self._note_joined()
        if came_back or not bool(self.nodes.up.all()):
            self._show()

    def _note_joined(self) -> None:
        with self.steps.changed:
            for site in self.transport.parties:
                joined = bool(self.nodes.up[site.rows].all())
                self.steps.joined[site.name] = joined
                self.steps.lost[site.name] &= joined

    # ---- one step -----------------------------------------------------------------------------------

    def _step(self, step: int) -> None:
        begun, self.made = time.perf_counter(), step
        self.steps.note_made(step)
        try:
            self._turn(step)
            self.strategy.forecast(tries=1)  # nobody waits for a site that comes back in a step
            self.problem = ""
        except Stopped:
            raise
        except NoSiteAnswered:
            self.problem = "no site took part in the last step"
        except Exception as error:  # the next step is another chance
            self._note("a step", error)
        self.count, self.steps.done, self.made_at = self.count + 1, step, time.time()
        self.seconds.append(time.perf_counter() - begun)
        self._note_joined()
        self._show()

    def _note(self, what: str, error: Exception) -> None:
        """Tell the operator about an error that does not end the service."""
        log.error("%s failed", what, exc_info=error)
        self.problem = f"{what} failed: {type(error).__name__}: {error}"[:300]

    def _turn(self, step: int) -> bool:
        """Have the sites turn to a step, and note which sensors have a reading in its history; False if no
        site answered."""
        try:
            has = self.nodes.turn((step - self.span.first) // self.span.step)
        except NoSiteAnswered:
            return False
        self.nodes.has = {"test": has.to(self.transport.device)}
        return True

    def _is_valid(self, step: int) -> bool:
        """Whether a site may report this step: on the common grid, and not in the future."""
        if not self.span.first <= step < LATEST or (step - self.span.first) % self.span.step:
            return False
        latest = time.time() + self.span.step + (0 if self.span.utc else FURTHEST_ZONE)
        enough = step - self.span.first >= self.experiment.windows.history * self.span.step
        return enough and (self.terms.feed or step <= latest)

    # ---- what the operator sees ---------------------------------------------------------------------

    def _show(self) -> None:
        seconds = sorted(self.seconds)
        has = self.nodes.has.get("test")
        sites = {}
        for site in self.transport.parties:
            name = site.name
            took_part = bool(self.nodes.up[site.rows].all())
            forecast = 0 if has is None or not took_part else int(has[site.rows].sum())
            sites[name] = {
                "step": format_time(self.steps.due[name]) if self.steps.due[name] else None,
                "present": self.steps.present[name],
                "forecast": forecast,
                "quality": self.steps.quality(site, took_part, forecast),
                "coverage": self.steps.coverage[name],
            }
        live = {
            "model": self.model,
            "every": self.span.step / self.terms.speed,
            "step": format_time(self.made) if self.made else None,
            "steps": self.count,
            "made": self.made_at,
            "seconds": round(self.seconds[-1], 4) if seconds else None,
            "median_seconds": round(seconds[len(seconds) // 2], 4) if seconds else None,
            "most_seconds": round(seconds[-1], 4) if seconds else None,
            "problem": self.problem,
            "new_sensors": self.newcomers.joined,
            "sites": sites,
        }
        self.context.status.set(live=live)
