"""What a curious server keeps of the messages that it receives anyway, in memory and as one file.

`Recorder` stands between the server and any transport. It changes nothing: it notes what was sent and what
was answered, as it arrives at the server. An attack is given the `Recording` and nothing else, so that it
cannot use what did not cross.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call, MemoryLimit, Payload, Transport
from cnfgnn.algorithm.messages.number_rules import read_numbers, write_numbers
from cnfgnn.algorithm.messages.quantize import dequantised
from cnfgnn.algorithm.messages.randomness import SERVER_BATCHES, Batches, Draw
from cnfgnn.algorithm.messages.settings import NodeSettings
from cnfgnn.algorithm.messages.verbs import (
    Backward,
    Census,
    Encode,
    Inform,
    Levels,
    Load,
    Prepare,
    Step,
    Weights,
)
from cnfgnn.algorithm.messages.window_plan import windows_of
from cnfgnn.data.series import Scaler
from cnfgnn.data.windows import SPLITS, Split, Windows
from cnfgnn.errors import RunError
from cnfgnn.files import write_whole
from cnfgnn.models.params import Params, part

RECORDING_FILE = "recording.safetensors"  # in the run folder of a server that records
FORMAT = 1
HEADER = "recording"  # the name of the JSON text in the file's metadata


@dataclass(frozen=True)
class SetUp:
    """What the server told all nodes before the first round."""

    settings: NodeSettings
    scaler: Scaler
    windows: Windows


@dataclass(frozen=True, eq=False)
class PublicFacts:
    """What is no secret of n nodes and T rows (docs/federation-security.md, threat model).

    ids            n      names of the sensors
    time_of_day    (T,)   share of the day that has passed
    moments        (T 2)  slot of the day and day of the week
    absent         (n T)  inputs that are filled, because there is no reading
    observed       (n T)  readings that count
    profile_known  (n T)  where a node has a weekly profile; None if the model does not use one
    blur           (n,)   standard deviation of the noise on each node's copy, in the readings' unit
    """

    ids: tuple[str, ...]
    time_of_day: Tensor
    moments: Tensor
    absent: Tensor
    observed: Tensor
    profile_known: Tensor | None
    blur: Tensor


@dataclass(frozen=True, eq=False)
class States:
    """Hidden states of a split: h_c (n w s), NaN for nodes that did not answer; the places (w,) of their
    windows in the split; and the weights (1, ...) that all nodes had, empty if each has its own."""

    h_c: Tensor
    places: Tensor
    theta: Params


@dataclass(frozen=True, eq=False)
class Minibatch:
    """What crossed for one minibatch of training: h_c came, h_G went, and its gradient came.

    places      (b,)     places in the training split of those windows that are kept
    h_c         (n b s)  None if nodes had sent h_c of all training windows before
    interval    the number of the interval between two averagings of weights
    steps       optimiser steps that the nodes had taken in this interval
    """

    draw: Draw
    step: int
    places: Tensor
    h_c: Tensor | None
    h_G: Tensor
    grad_h_G: Tensor
    interval: int
    steps: int


@dataclass(frozen=True, eq=False)
class Interval:
    """From one averaging to the next: the weights (1, ...) that all nodes began with, the weights (n, ...)
    that they answered at its end (empty if it has not ended), and the optimiser steps between."""

    before: Params
    after: Params = field(default_factory=dict)
    steps: int = 0


@dataclass(frozen=True, eq=False)
class Recording:
    """Everything that an attack may use. `moments` (n 3) are the census's count, sum and sum of squares.

    blur    (n,)     what the sites of a federation told the server about their copies; None in the simulator
    levels  (n w k)  of all training windows, as nodes send them before the first round; None if they do not
    means   (n w 2k) of these levels, as the server answered
    """

    set_up: SetUp
    moments: Tensor
    has: Mapping[Split, Tensor]
    states: Mapping[Split, States]
    minibatches: Sequence[Minibatch] = ()
    intervals: Sequence[Interval] = ()
    public: PublicFacts | None = None
    blur: Tensor | None = None
    levels: Tensor | None = None
    means: Tensor | None = None

    @property
    def nodes(self) -> int:
        return len(self.moments)

    def save(self, path: Path) -> None:
        """Write the recording as one file, for nobody else to read. It has no public facts: a server is not
        told all of them."""
        numbers, arrays = _flat(self)
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in arrays.items()}
        write_whole(path, save(plain, {HEADER: json.dumps(numbers, allow_nan=False)}), 0o600)

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a recording.

        Raises:
            RunError: The file is missing, damaged, or was written by a newer version.
        """
        if not path.is_file():
            raise RunError(path, "there is no such recording")
        try:
            with safe_open(path, "pt") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a dict
                numbers = json.loads((file.metadata() or {})[HEADER])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise RunError(path, "is damaged, or no recording of a server") from error
        if numbers.get("format") != FORMAT:
            raise RunError(
                path, f"is a recording of format {numbers.get('format')}, and this version reads 1"
            )
        try:
            return _read(numbers, arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(path, "is damaged: a part of the recording is missing") from error


class Recorder:
    """A transport that notes what crosses another one.

    keep    for each split, the windows whose hidden states are kept; a split that is not named is not kept
    set_up  what nodes were told before the recorder came; later `prepare` calls replace it

    Of training, the first epoch of the newest round is kept. That bounds the memory, whatever is trained.
    """

    def __init__(
        self, transport: Transport, keep: Mapping[Split, slice], set_up: SetUp | None = None
    ) -> None:
        self.transport, self.keep = transport, keep
        self.nodes = sum(len(site) for site in transport.sites)
        self.moments = torch.zeros(self.nodes, 3, dtype=torch.float64)
        self.has: dict[Split, Tensor] = {}
        self.states: dict[Split, States] = {}
        self.minibatches: list[Minibatch] = []
        self.intervals: list[Interval] = []
        self.levels: Tensor | None = None
        self.means: Tensor | None = None
        self._round = 0
        self._counted: Windows | None = None  # what `has` is about
        self._encoded: tuple[Draw, Tensor] | None = None
        self._stepped: Draw | None = None
        self._use(set_up)

    # ---- as a transport -----------------------------------------------------------------------------

    @property
    def sites(self) -> Sequence[Tensor]:
        return self.transport.sites

    @property
    def memory_limits(self) -> Sequence[MemoryLimit]:
        return self.transport.memory_limits

    def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
        payload = self.transport.exchange(calls, rows)
        answered = rows[payload.present]
        if not len(answered):
            return payload
        for call, reply in zip(calls, payload.replies, strict=True):
            arrived = {name: x[payload.present.to(x.device)] for name, x in dequantised(reply).items()}
            self._note(call, arrived, rows, answered)
        return payload

    def wait(self, answered: Tensor) -> bool:
        return self.transport.wait(answered)

    # ---- as a notebook ------------------------------------------------------------------------------

    def recording(self, blur: Tensor | None = None) -> Recording:
        """What has been noted so far, and the blur of each node as far as the server was told."""
        if self.set_up is None:
            raise RunError("recording", "nothing was recorded: the nodes were not prepared")
        return Recording(
            self.set_up,
            self.moments,
            dict(self.has),
            dict(self.states),
            tuple(self.minibatches),
            tuple(self.intervals),
            blur=blur,
            levels=self.levels,
            means=self.means,
        )

    def _use(self, set_up: SetUp | None) -> None:
        self.set_up = set_up
        if set_up is not None:
            settings, count = set_up.settings, set_up.windows.count("train")
            device = torch.device("cpu")
            self._batches = Batches(settings.seed, SERVER_BATCHES, count, settings.server_batch, device)

    def _note(self, call: Call, reply: Mapping[str, Tensor], rows: Tensor, answered: Tensor) -> None:
        if call.verb == Prepare.name:
            told = Prepare.read(call.numbers)
            windows = windows_of(told.plan, dict(call.tensors))
            self._use(SetUp(told.settings, Scaler(told.mean, told.std), windows))
            self._keep_windows(windows)
        elif call.verb == Census.name:
            asked = windows_of(Census.read(call.numbers).plan, dict(call.tensors))
            self._note_census(asked, reply, answered)
        elif call.verb == Load.name:
            self._note_load(_kept(call.tensors), only_some=len(rows) < self.nodes)
        elif call.verb == Weights.name and self.minibatches:
            before = self.intervals[-1].after
            after = {
                name: _filled(self._all_nodes(w, answered), before.get(name)) for name, w in reply.items()
            }
            self.intervals[-1] = replace(self.intervals[-1], after=after)
        elif call.verb == Step.name and self.intervals:
            draw = Step.read(call.numbers).draw
            if draw != self._stepped:  # otherwise a site that rejoined takes the step after the others
                self.intervals[-1] = replace(self.intervals[-1], steps=self.intervals[-1].steps + 1)
            self._stepped = draw
        elif call.verb == Levels.name:
            self.levels = _filled(self._all_nodes(reply["levels"], answered), self.levels)
        elif call.verb == Inform.name:
            self.means = _filled(self._all_nodes(dequantised(call.tensors)["means"], rows), self.means)
        elif call.verb == Encode.name:
            self._note_encode(Encode.read(call.numbers), reply["h_c"], answered)
        elif call.verb == Backward.name:
            h_G = dequantised(call.tensors)["h_G"]
            self._note_backward(Backward.read(call.numbers), h_G, reply["grad_h_G"], rows, answered)

    def _note_load(self, theta: Params, only_some: bool) -> None:
        if any(len(w) != 1 for w in theta.values()):
            return  # every node has weights of its own
        if only_some and self.intervals and _equal(theta, self.intervals[-1].before):
            return  # sites that rejoined catch up with the others
        if not self.minibatches:  # earlier intervals are about nothing that is kept
            self.intervals.clear()
        self.intervals.append(Interval(theta))

    def _note_census(self, asked: Windows, reply: Mapping[str, Tensor], answered: Tensor) -> None:
        """Note who has which windows; nodes that are counted later, on rejoining, are added to the others."""
        self.moments[answered] = reply["moments"].cpu()
        if self._counted is None or not _same(self._counted, asked):
            self._counted, self.has = asked, {}
        for split in SPLITS:
            has = self._all_nodes(reply[f"has.{split}"].bool(), answered, missing=False)
            self.has[split] = has | self.has.get(split, torch.zeros_like(has))

    def _keep_windows(self, windows: Windows) -> None:
        """The census asks about all windows; nodes are prepared for those that at least one of them has."""
        if self._counted is None or _same(self._counted, windows):
            return
        for split, has in self.has.items():
            kept = torch.from_numpy(np.isin(self._counted.starts[split], windows.starts[split]))
            self.has[split] = has[:, kept]
        self._counted = windows

    @property
    def _sends_levels(self) -> bool:
        """Whether hidden states begin with levels, which do not depend on any weights."""
        return self.set_up is not None and self.set_up.settings.model.levels

    def _note_encode(self, request: Encode, h_c: Tensor, answered: Tensor) -> None:
        if not self.intervals and not self._sends_levels:
            return  # nobody but the nodes knows their weights
        if request.draw is not None:
            earlier = self._encoded[1] if self._encoded and self._encoded[0] == request.draw else None
            self._encoded = request.draw, _filled(self._all_nodes(h_c, answered), earlier)
            return
        if request.split not in self.keep:
            return
        kept = self.keep[request.split]
        all_h_c = self._all_nodes(h_c[:, kept], answered)
        theta = self.intervals[-1].before if self.intervals else {}
        before = self.states.get(request.split)
        if before is not None and before.theta is theta:
            all_h_c = _filled(all_h_c, before.h_c)
        places = torch.arange(h_c.shape[1])[kept]
        self.states[request.split] = States(all_h_c, places, theta)

    def _note_backward(
        self, request: Backward, h_G: Tensor, grad_h_G: Tensor, rows: Tensor, answered: Tensor
    ) -> None:
        draw = request.draw
        if "train" not in self.keep or not self.intervals or draw.epoch > 0:
            return
        if draw.r_g != self._round:
            self._round = draw.r_g
            self.minibatches.clear()
            del self.intervals[:-1]
        places = self._batches[draw]
        first, until, _ = self.keep["train"].indices(self._batches.windows)
        kept = ((places >= first) & (places < until)).nonzero().flatten()
        h_c = None
        if self._encoded is not None and self._encoded[0] == draw:
            h_c = self._encoded[1][:, kept]
        sent = self._all_nodes(h_G[:, kept.to(h_G.device)], rows)
        came = self._all_nodes(grad_h_G[:, kept.to(grad_h_G.device)], answered)
        if self.minibatches and self.minibatches[-1].draw == draw:
            others = self.minibatches.pop()
            sent, came = _filled(sent, others.h_G), _filled(came, others.grad_h_G)
        interval = len(self.intervals) - 1
        self.minibatches.append(
            Minibatch(draw, request.step, places[kept], h_c, sent, came, interval, self.intervals[-1].steps)
        )

    def _all_nodes(self, x: Tensor, rows: Tensor, missing: float = torch.nan) -> Tensor:
        """A row for every node, on the CPU: those of other nodes are missing."""
        x = x.detach().cpu()
        x = x.float() if x.dtype == torch.bfloat16 else x
        all_rows = torch.full((self.nodes, *x.shape[1:]), missing, dtype=x.dtype)
        all_rows[rows] = x
        return all_rows


def _same(one: Windows, other: Windows) -> bool:
    return all(np.array_equal(one.starts[split], other.starts[split]) for split in SPLITS)


def _equal(one: Params, other: Params) -> bool:
    return one.keys() == other.keys() and all(torch.equal(w, other[name]) for name, w in one.items())


def _filled(arrived: Tensor, earlier: Tensor | None) -> Tensor:
    """What arrived, and what other nodes answered to the same a moment earlier."""
    if earlier is None or earlier.shape != arrived.shape:
        return arrived
    return torch.where(arrived.isnan(), earlier, arrived)


def _kept(tensors: Mapping[str, Tensor]) -> Params:
    """Copies on the CPU, in float32 or better."""
    copies = {name: x.detach().cpu().clone() for name, x in dequantised(tensors).items()}
    return {name: x.float() if x.dtype == torch.bfloat16 else x for name, x in copies.items()}


# ---- as a file ------------------------------------------------------------------------------------------


def _flat(recording: Recording) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The numbers of a recording, ready for JSON, and its arrays by name."""
    told, windows = recording.set_up, recording.set_up.windows
    numbers: dict[str, Any] = {
        "format": FORMAT,
        "settings": write_numbers(told.settings),
        "scaler": vars(told.scaler),
        "plan": [windows.history, windows.horizon, windows.ahead],
        "states": list(recording.states),
        "minibatches": [[*b.draw, b.step, b.interval, b.steps] for b in recording.minibatches],
        "intervals": [interval.steps for interval in recording.intervals],
    }
    arrays = {"moments": recording.moments}
    arrays |= {f"starts.{split}": torch.from_numpy(windows.starts[split]) for split in SPLITS}
    arrays |= {f"has.{split}": has for split, has in recording.has.items()}
    if recording.blur is not None:
        arrays["blur"] = recording.blur
    if recording.levels is not None:
        arrays["levels"] = recording.levels
    if recording.means is not None:
        arrays["means"] = recording.means
    for split, states in recording.states.items():
        arrays |= {f"states.{split}.h_c": states.h_c, f"states.{split}.places": states.places}
        arrays |= _named(f"states.{split}.theta.", states.theta)
    for k, minibatch in enumerate(recording.minibatches):
        for name in ("places", "h_c", "h_G", "grad_h_G"):
            if (array := getattr(minibatch, name)) is not None:
                arrays[f"minibatch.{k}.{name}"] = array
    for k, interval in enumerate(recording.intervals):
        arrays |= _named(f"interval.{k}.before.", interval.before)
        arrays |= _named(f"interval.{k}.after.", interval.after)
    return numbers, arrays


def _named(prefix: str, theta: Params) -> Params:
    return {prefix + name: w for name, w in theta.items()}


def _read(numbers: Mapping[str, Any], arrays: Params) -> Recording:
    history, horizon, ahead = numbers["plan"]
    starts: dict[Split, np.ndarray] = {split: arrays[f"starts.{split}"].numpy() for split in SPLITS}
    set_up = SetUp(
        read_numbers(NodeSettings, numbers["settings"]),
        Scaler(**numbers["scaler"]),
        Windows(starts, history, horizon, ahead),
    )
    states = {}
    for split in numbers["states"]:
        h_c, places = arrays[f"states.{split}.h_c"], arrays[f"states.{split}.places"]
        states[split] = States(h_c, places, part(arrays, f"states.{split}.theta."))
    minibatches = []
    for k, (r_g, epoch, number, step, interval, steps) in enumerate(numbers["minibatches"]):
        own = part(arrays, f"minibatch.{k}.")
        crossed = (own["places"], own.get("h_c"), own["h_G"], own["grad_h_G"])
        minibatches.append(Minibatch(Draw(r_g, epoch, number), step, *crossed, interval, steps))
    intervals = [
        Interval(part(arrays, f"interval.{k}.before."), part(arrays, f"interval.{k}.after."), steps)
        for k, steps in enumerate(numbers["intervals"])
    ]
    has = {split: arrays[f"has.{split}"] for split in SPLITS if f"has.{split}" in arrays}
    told = (arrays.get("blur"), arrays.get("levels"), arrays.get("means"))
    return Recording(set_up, arrays["moments"], has, states, minibatches, intervals, None, *told)
