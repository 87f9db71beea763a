"""What only the owner of a group of nodes has: true readings, forecasts and true errors.

An owner follows its nodes: after they have answered a verb from the blurred copy, it does its own part with
the true readings. It forecasts with the nodes' weights, evaluates its forecasts, learns from their errors how
wide intervals must be, and saves what it learned. No verb reaches it, and its nodes do not know it. So
nothing that leaves depends on more than the copy, except the sums of true errors if the owner tells them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.clients import Clients
from cnfgnn.algorithm.messages import verbs
from cnfgnn.algorithm.messages.verb import Verb
from cnfgnn.algorithm.node_state import TRUST
from cnfgnn.algorithm.store import Store
from cnfgnn.data.prepared_series import PreparedSeries
from cnfgnn.data.series import Series
from cnfgnn.data.windows import Split
from cnfgnn.errors import StorageError
from cnfgnn.forecasters.intervals import Errors, Floats, Intervals, Ints, interval_sums
from cnfgnn.models.params import Params, part

TOLD = "told"  # the array of true errors in an answer
INTERVALS = "intervals."  # before the names of their tensors in checkpoints
CALIBRATING = 1500  # windows at most: neighbouring ones tell almost the same
MOST_ERRORS = 5 * 10**7  # in memory at once, to calibrate: some thousand sensors use fewer windows


def may_be_told(request: Verb, error: Exception) -> bool:
    """Whether the server may notice that the owner failed.

    The size of a saved state does not depend on readings. Whether a forecast or an evaluation is written, and
    how long the file is, does.
    """
    return isinstance(request, verbs.Save) and isinstance(error, StorageError)


class Owner:
    """The owner of the nodes of a group; with `tells`, it adds the sums of true errors to their scores."""

    def __init__(self, nodes: Clients, truth: Series, store: Store, tells: bool = False) -> None:
        self.nodes, self.truth, self.store, self.tells = nodes, truth, store, tells
        self.trust: Tensor | None = None  # (n,): the share of what the network adds to linear forecasts
        self.h_G: Tensor | None = None  # of the split that is evaluated next
        self.errors: Tensor | None = None  # (n t 8): of the split that was evaluated last
        self.forecasts: Tensor | None = None  # (n t): of the window ahead, in the readings' unit
        self.intervals: Intervals | None = None  # from the errors of the validation split on
        self.interval_sums: Floats | None = None  # (n t r 4): of the test split, if it was evaluated last
        self.bounds: Floats | None = None  # (2 l n t): of the forecasts, if there are intervals
        self._lowest: tuple[Series | None, int, float] = None, 0, np.inf

    def follow(self, request: Verb, arrays: Params, answer: Params) -> Params:
        """Do the owner's part of a verb that the nodes have answered; returns what it adds to the answer."""
        match request:
            case verbs.Prepare():
                self.prepare()
            case verbs.Embed(for_evaluation=True):
                self.h_G = arrays["h_G"]
            case verbs.Inform():
                self.data.inform(arrays["means"])
            case verbs.Score():
                self.evaluate(request.split, answer["sums"])
                # An answer with other numbers would be refused as a whole, the nodes' own sums included.
                if self.tells and self.errors is not None and bool(self.errors.isfinite().all()):
                    return {TOLD: self.errors}
            case verbs.Forecast():
                self.forecast(() if request.ranges is None else request.ranges.as_numbers)
            case verbs.Save():
                self._save(request)
            case verbs.Restore():
                self._restore(request)
        return {}

    def prepare(self) -> None:
        """Scale the true readings as the nodes scale their copy."""
        nodes = self.nodes
        s = nodes.settings
        if self.truth is nodes.series:
            self.data = nodes.data
        else:  # if it fails, the nodes' series must not be in its place: owners add to what is theirs
            self.data = PreparedSeries(
                self.truth,
                nodes.data.scaler,
                s.missing,
                nodes.windows,
                nodes.compute.dtype,
                nodes.compute.device,
                s.model,
                s.inputs,
                None if nodes.data.others is None else nodes.data.others.scales,
            )
        self.trust, self.h_G, self.errors, self.forecasts = None, None, None, None
        self.intervals, self.interval_sums, self.bounds = None, None, None

    def _scale_inputs(self) -> None:
        """Scale further inputs as the nodes scale their copy."""
        if self.data.others is not None and self.nodes.data.others is not None:
            self.data.others.use(self.nodes.data.others.scales)

    # ---- forecasts and errors -----------------------------------------------------------------------

    def forecasts_of(self, split: Split, windows: slice) -> Tensor:
        """y_hat of some windows, scaled: (n b t)."""
        nodes = self.nodes
        return nodes.forecaster.forecasts(nodes.theta, self.data, self.h_G, split, windows, self.trust)

    def evaluate(self, split: Split, of_copy: Tensor) -> None:
        """Evaluate on true readings. Without blur and linear forecasts these are the nodes' own errors.

        Validation errors also decide how far forecasts trust the network.
        """
        if self.data is self.nodes.data and not self.data.linear:
            self.errors = of_copy
        else:
            self.data.fit()
            forecaster, evaluated = self.nodes.forecaster, (self.nodes.theta, self.data, self.h_G)
            if self.data.linear and split == "validation":
                self.trust = forecaster.trust(*evaluated)
            self.errors = forecaster.summed_errors(*evaluated, split, self.trust)
        self.evaluate_intervals(split)
        self.h_G = None  # it was sent for this evaluation; the next one has its own

    def forecast(self, levels: Sequence[int] = ()) -> None:
        """Forecast the window ahead; NaN for a node of which nothing is known. The bounds of every level are
        at hand; `levels` says which of them are wanted."""
        y_hat = self.data.unscaled(self.forecasts_of("test", slice(0, 1)))[:, 0]
        self.forecasts = y_hat.masked_fill(self.data.unknown[:, None], torch.nan)
        self.bounds = None
        if self.intervals is not None:
            self.bounds = self.intervals.ranges(self.forecasts.cpu().numpy())

    # ---- intervals ----------------------------------------------------------------------------------

    def evaluate_intervals(self, split: Split) -> None:
        """Calibrate intervals on the validation split; on the test split, adapt them as readings arrive and
        sum up how good they are. They cannot be judged by readings that the model was trained on."""
        self.interval_sums = None
        if split == "validation":
            self.intervals = self._calibrated()
        elif split == "test" and self.intervals is not None:
            self.interval_sums = self.follow_test_split()

    def _calibrated(self) -> Intervals | None:
        """Intervals from the errors of the validation split, and of training windows where it is short; None
        if it has no windows."""
        count = len(self.data.starts["validation"])
        most = min(CALIBRATING, MOST_ERRORS // (self.data.nodes * self.data.horizon))
        stride = max(1, count // max(1, most))
        past = []
        for chunk in self.data.chunks("validation"):
            first = -(-chunk.start // stride) * stride
            if first < chunk.stop:
                past.append(self._past("validation", slice(first, chunk.stop, stride)))
        if not past:
            return None
        past += self._past_of_training(most - count)
        joined = Errors(*(torch.cat(parts, dim=1) for parts in zip(*past, strict=True)))
        lowest = self._lowest_before(int(self.data.starts["validation"][0]))
        # If no reading was negative until then, no bound is.
        never_negative = np.isfinite(lowest) and lowest >= 0
        return Intervals.calibrate(joined, stride, 0.0 if never_negative else -np.inf)

    def _past_of_training(self, most: int) -> list[Errors]:
        """The errors of linear forecasts of the latest training windows, at most so many. Their weights were
        fitted without the window; the network has seen it, and would err less than on new ones."""
        if most <= 0 or not self.data.linear:
            return []
        first, found = len(self.data.starts["train"]) - most, []
        for chunk in self.data.chunks("train"):
            if chunk.stop > first:
                windows = slice(max(first, chunk.start), chunk.stop)
                linear = self.data.batch("train", windows).linear_forecast
                assert linear is not None
                found.append(self._errors(self.data.at_least_floor(linear), "train", windows))
        return found

    def _lowest_before(self, row: int) -> float:
        """The lowest reading before a row; looked up once, because a GPU would wait for it in every round."""
        truth, before, lowest = self._lowest
        if truth is not self.truth or before != row:
            observed = ~self.truth.missing[:, :row]
            lowest = float(self.truth.values[:, :row].min(where=observed, initial=np.inf))
            self._lowest = self.truth, row, lowest
        return lowest

    def follow_test_split(self) -> Floats | None:
        """(n t r 4): adapt the intervals to the errors of the test split, in time order, and sum up how good
        they are (see `INTERVAL_SUMS`); None without intervals or test windows."""
        sums: Floats | None = None
        for chunk in self.data.chunks("test"):
            forecasts, _, known = (part.cpu().numpy() for part in self._past("test", chunk))
            bounds = self.bounds_of(chunk, forecasts)
            if bounds is not None:
                # The readings themselves: a zero that was scaled and back may lie below a bound of zero.
                ahead = self._rows_before(chunk)[:, None] + 1 + np.arange(self.data.horizon)
                found = interval_sums(bounds, self.truth.values[:, ahead], known)
                sums = found if sums is None else sums + found
        return sums

    def bounds_of(self, windows: slice, forecasts: Floats) -> Floats | None:
        """(2 l n b t): the bounds of forecasts (n b t) of some test windows; ask for them in time order."""
        if self.intervals is None:
            return None
        rows = self._rows_before(windows)
        return self.intervals.follow(rows, forecasts, self.truth.values, ~self.truth.missing)

    def _rows_before(self, windows: slice) -> Ints:
        """(b,): the rows after which the forecasts of some test windows are made."""
        rows: Ints = self.data.starts["test"][windows].cpu().numpy() + self.data.history - 1
        return rows

    def _past(self, split: Split, windows: slice) -> Errors:
        """Forecasts of some windows and their errors, in the readings' unit."""
        return self._errors(self.forecasts_of(split, windows), split, windows)

    def _errors(self, y_hat: Tensor, split: Split, windows: slice) -> Errors:
        """Scaled forecasts of some windows in the readings' unit, with their errors."""
        return Errors.of(self.data.unscaled(y_hat), *self.data.truth(split, windows))

    # ---- checkpoints --------------------------------------------------------------------------------

    @property
    def _keeps_state(self) -> bool:
        return bool(self.data.state()) or self.intervals is not None

    def _save(self, request: verbs.Save) -> None:
        if not self._keeps_state:
            return
        self.store.write(request.tag, self.state(), request.keep.split())

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the true readings, of trust in the network and of intervals."""
        self.data.fit()
        state = {} if self.trust is None else {TRUST: self.trust}
        intervals = {} if self.intervals is None else self.intervals.state()
        return state | self.data.state() | {INTERVALS + name: tensor for name, tensor in intervals.items()}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Go back to the state of a checkpoint."""
        self.load_intervals(saved)
        self.trust = saved[TRUST].to(self.nodes.compute.device) if TRUST in saved else None
        self.data.restore(saved)

    def load_intervals(self, state: Mapping[str, Tensor]) -> None:
        """Go on with the intervals of a checkpoint; with none if it has none."""
        kept = part(state, INTERVALS)
        self.intervals = Intervals.of(kept) if kept else None

    def _restore(self, request: verbs.Restore) -> None:
        """Go back to a saved state; without one, an owner goes on with what it has."""
        self._scale_inputs()
        # A run that was interrupted early has kept nothing.
        keeps = self._keeps_state or self.store.has(request.tag)
        if saved := self.store.read(request.tag) if keeps else {}:
            self.load(saved)
