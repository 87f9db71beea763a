"""What makes a live site's forecasts: its own readings, and what the Graph Network adds to them.

At each step the site makes the blurred copy of its new readings, hands it to its nodes and says that the
step is due. The server then asks the nodes for their hidden states, mixes them and sends embeddings. With
these the owner forecasts from the true readings. If no embedding comes, the site goes on by itself: with its
last embedding for some steps, and then without one.

Two threads meet here. The service's model thread calls `forecast`; the thread that carries out the server's
requests calls the rest.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.forecaster import Forecaster
from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.config.settings import DataConfig
from cnfgnn.data.prepared_series import PreparedSeries
from cnfgnn.data.readings import Readings, columns_of
from cnfgnn.federation.site.newcomer_fits import NewcomerFits, State, use
from cnfgnn.federation.site.ranges import live_key
from cnfgnn.forecasters.intervals import Intervals
from cnfgnn.live.forecasting.forecasts import QUALITIES, Quality, quality_of
from cnfgnn.live.forecasting.predictor import Floats, Ints, Predictor, window_of
from cnfgnn.models.params import Params
from cnfgnn.privacy.truth_and_copy import Blurring

ANSWERS_WITHIN = 2.0  # seconds after which the server is told that no step is due yet
SOON = 0.2  # the same while the server does not count on this site: it should hear soon when it does
TOLD_WITHIN = 1.0  # seconds within which a site hears that the server counts on it
GRACE = 6.0  # seconds after a step's deadline in which its embedding may still come: the server may wait
# half of that for a site that does not answer
SILENT_AFTER = 4.0  # seconds without a sign of the server after which it counts as unreachable
OLDEST_EMBEDDING = 3  # steps: an older one makes forecasts worse than none (benchmarks/embedding_age.py)


class Ready(NamedTuple):
    """A trained run at this site: what a forecast needs besides readings and an embedding.

    run        its name and id, as the server told them
    ids        the sensors of its nodes; the last `added` of them joined after the training
    tag        the name of the state that was restored
    intervals  finds the ranges as training, evaluations and forecasts have left them; None if there are none
    trained    finds when that state was saved here, in seconds since 1970; None if it was not
    """

    forecaster: Forecaster
    theta: Params
    data: PreparedSeries
    trust: Tensor | None
    run: str
    ids: tuple[str, ...]
    added: int
    settings: NodeSettings
    tag: str
    intervals: Callable[[], Intervals | None]
    trained: Callable[[], float | None]


class Embedding(NamedTuple):
    """What the server sent for one step: (n 1 e)."""

    step: int
    h_G: Tensor | None


class SitePredictor(Predictor):
    """The `Predictor` of a site.

    ids      the sensors that the service serves; the server may not know all of them yet
    show     hands the copy to the nodes, and what is computed from it for new sensors
    folder   where what is computed for new sensors is kept
    patience seconds that a step's embedding may still take, given the time of the step
    furthest the latest step that the server can be at by the site's clock; later embeddings are not used
    """

    def __init__(
        self,
        ids: Sequence[str],
        ready: Ready,
        cleaning: DataConfig,
        blurring: Blurring | None,
        show: Callable[[Readings, Sequence[State]], None],
        report: Callable[[str, Exception | None], None],
        folder: Path,
    ) -> None:
        self.ready, self.cleaning, self.blurring, self.show = ready, cleaning, blurring, show
        self.ids, self.report, self.folder = tuple(ids), report, folder
        self._fits: dict[str, NewcomerFits] = {}  # what was computed for new sensors, of nodes and owner
        self._completed: PreparedSeries | None = None  # whose new sensors have what was computed for them
        self.patience: Callable[[int], float] = lambda step: 0.0
        self.furthest: Callable[[], float] = lambda: math.inf
        self.history, self.horizon = ready.data.history, ready.data.horizon
        self.has_network = ready.forecaster.model.embedding > 0
        self.closed = False
        self._changed = threading.Condition()
        self._due, self._present = 0, 0  # the newest step that is due, and how many sensors have a reading
        self._embedding: Embedding | None = None
        self._heard = -math.inf  # when the server last asked something
        self.joined = False  # whether the server counts on this site for the next step
        self._done = 0  # the last step whose embeddings the server has sent
        self._kind: Quality = "full"  # of the last forecast

    def suits(self, ready: Ready) -> bool:
        """Whether forecasts of this run are as long, and need as many readings and the same inputs."""
        lengths = (ready.data.history, ready.data.horizon)
        takes_inputs = ready.data.others is not None
        return lengths == (self.history, self.horizon) and takes_inputs == self.takes_inputs

    @property
    def takes_inputs(self) -> bool:
        """Whether forecasts use the site's other variables and covariates."""
        return self.ready.data.others is not None

    # ---- for the service ----------------------------------------------------------------------------

    @property
    def key(self) -> str:
        return live_key(self.ids, self.ready.run, self.ready.tag)

    @property
    def weekly_profiles(self) -> Floats | None:
        profiles, ids = self.ready.data.weekly_profiles, self.ready.ids
        if profiles is None or self.ids == ids:
            return profiles
        by_id, unknown = dict(zip(ids, profiles, strict=True)), np.full(profiles.shape[1:], np.nan)
        return np.stack([by_id.get(sensor, unknown) for sensor in self.ids])

    def intervals(self) -> Intervals | None:
        """The ranges that the owner has of the run; a sensor that it does not know has the mean of all."""
        found, place = self.ready.intervals(), {sensor: row for row, sensor in enumerate(self.ready.ids)}
        if found is None or self.ready.ids == self.ids:
            return found
        return found.select(np.array([place.get(sensor, -1) for sensor in self.ids]))

    @property
    def about(self) -> Mapping[str, Any]:
        return {"run": self.ready.run, "server": "present" if self._server_is_there() else "unreachable"}

    def quality(self, readings: Readings) -> Ints:
        found = quality_of(readings, None, self.history)
        return np.where(found == QUALITIES.index("full"), QUALITIES.index(self._kind), found)

    def forecast(self, readings: Readings) -> Floats:
        """What the server can notice comes first, from the copy alone; then the true readings are used."""
        step = int(readings.seconds[-1])
        copy = self._show_copy(readings)
        asks = copy is not None
        if copy is not None:
            self._announce(step, int((~copy.missing[-1]).sum()))
        truth = self.cleaned(readings)
        self._complete_owner(truth)
        h_G = self._embedding_for(step, readings.step_seconds, asks)
        return self._forecast(truth, h_G)

    def _show_copy(self, readings: Readings) -> Readings | None:
        """Give the nodes the copy of the newest readings, and return it; None if it cannot be made."""
        try:
            copy = self._truth_and_copy(readings).copy
            states = self._computed_for_nodes(copy)
        except Exception as error:  # a full disk, a key that is gone: forecasts go on without the server
            self.report("copies", error)
            return None
        self.report("copies", None)
        self.show(copy, states)
        return copy

    @torch.no_grad()
    def _forecast(self, truth: Readings, h_G: Tensor | None) -> Floats:
        ready = self.ready
        window = window_of(columns_of(truth, ready.ids), ready.data)
        if h_G is not None:
            h_G = _with_rows(h_G, len(ready.ids))
        y_hat = ready.forecaster.forecasts(ready.theta, window, h_G, "test", slice(0, 1), ready.trust)
        values = window.unscaled(y_hat)[:, 0].masked_fill(window.unknown[:, None], torch.nan)
        by_id = dict(zip(ready.ids, values.cpu().numpy(), strict=True))
        unknown = np.full(self.horizon, np.nan)
        for sensor in self._new:
            if not self._fits_of("owner", ready.run).is_known(sensor):
                by_id[sensor] = unknown
        return np.stack([by_id.get(sensor, unknown) for sensor in truth.ids])

    # ---- new sensors --------------------------------------------------------------------------------

    @property
    def _new(self) -> tuple[str, ...]:
        """The sensors that the server knows and no training does."""
        return self.ready.ids[len(self.ready.ids) - self.ready.added :]

    def _fits_of(self, who: Literal["nodes", "owner"], run: str) -> NewcomerFits:
        """What was computed for new sensors in a run, from the copy or from the true readings."""
        found = self._fits.get(who)
        if found is None or found.run != run:
            found = self._fits[who] = NewcomerFits(self.folder, run, who, self.history + self.horizon)
        return found

    def _computed_for_nodes(self, copy: Readings) -> Sequence[State]:
        """What the nodes need for new sensors, from the copy that there is."""
        ready, new = self.ready, self._new
        if not new:
            return ()
        fits = self._fits_of("nodes", ready.run)
        fits.update(new, copy, ready.data, ready.settings)
        return fits.of(new)

    def _complete_owner(self, truth: Readings) -> None:
        """Have the owner use what it needs for new sensors, from the true readings that there are. The server
        must not notice if that fails."""
        ready, new = self.ready, self._new
        if not new:
            return
        try:
            fits = self._fits_of("owner", ready.run)
            if fits.update(new, truth, ready.data, ready.settings) or self._completed is not ready.data:
                use(ready.data, fits.of(new))
                self._completed = ready.data
            self.report("new sensors", None)
        except Exception as error:  # the forecasts of these sensors are fallbacks for now
            self.report("new sensors", error)

    # ---- embeddings ---------------------------------------------------------------------------------

    def _announce(self, step: int, present: int) -> None:
        """This step is due, also if the site's clock was ahead and another one was before."""
        with self._changed:
            self._due, self._present = step, present
            self._changed.notify_all()

    def _embedding_for(self, step: int, step_seconds: int, asks: bool) -> Tensor | None:
        """The embedding of this step, or the newest one if none comes; None if that is too old."""
        self._kind = "full"
        if not self.has_network:
            return None
        with self._changed:
            if asks:
                self._wait_for(step)
            newest = self._newest_embedding()
        if newest is not None and newest.step >= step:
            return newest.h_G
        if newest is None or step - newest.step > OLDEST_EMBEDDING * step_seconds:
            self._kind = "no embedding"
            return None
        self._kind = "last embedding"
        return newest.h_G

    def _wait_for(self, step: int) -> None:
        """Wait for the embedding of a step while the server may still send it."""
        begun = time.monotonic()
        until = begun + self.patience(step) + GRACE
        while not self.closed and ((newest := self._newest_embedding()) is None or newest.step < step):
            now = time.monotonic()
            left = until - now
            counted_on = self.joined or now < begun + TOLD_WITHIN
            comes = self._server_is_there() and counted_on and self._done < step
            if left <= 0 or not comes:
                return
            self._changed.wait(min(left, 0.25))

    def _newest_embedding(self) -> Embedding | None:
        """What the server sent last; None if it named a step that cannot be yet."""
        newest = self._embedding
        return None if newest is None or newest.step > self.furthest() else newest

    def _server_is_there(self) -> bool:
        return time.monotonic() - self._heard < SILENT_AFTER

    # ---- for the server's requests ------------------------------------------------------------------

    def use(self, ready: Ready, show: Callable[[Readings, Sequence[State]], None]) -> None:
        """Forecast with another state of the nodes and their owner from now on, or with another run: then
        embeddings of the run before are of no use."""
        with self._changed:
            if ready.run != self.ready.run:
                self._embedding = None
            self.ready, self.show = ready, show

    def hear(self, joined: bool, done: int = 0) -> None:
        """The server has asked something.

        joined  whether it counts on this site for the next step
        done    the last step whose embeddings it has sent
        """
        with self._changed:
            self._heard, self.joined, self._done = time.monotonic(), joined, done
            self._changed.notify_all()

    def wait_until_due(self, after: int) -> tuple[int, int]:
        """The newest step that is due, and how many sensors have a reading, once it is a later one than
        `after`; or after a moment."""
        until = time.monotonic() + (ANSWERS_WITHIN if self.joined else SOON)
        with self._changed:
            while self._due <= after and not self.closed and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._due, self._present

    def embed(self, step: int, h_G: Tensor | None) -> None:
        """The server has sent the embeddings of a step."""
        with self._changed:
            newest = self._newest_embedding()
            if newest is None or step >= newest.step:
                self._embedding = Embedding(step, h_G)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


def _with_rows(h_G: Tensor, n: int) -> Tensor:
    """Embeddings for n nodes: zeros for those that joined since they were sent."""
    more = n - len(h_G)
    return h_G[:n] if more <= 0 else torch.cat([h_G, h_G.new_zeros(more, *h_G.shape[1:])])
