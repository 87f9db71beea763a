"""The nodes' model as the server can run it: any readings, public facts and the weights that nodes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cnfgnn.algorithm.messages.quantize import STEPS
from cnfgnn.attack.recording import PublicFacts, Recording
from cnfgnn.data.batch import Batch
from cnfgnn.data.prepared_series import age_input
from cnfgnn.data.series import ages_of
from cnfgnn.data.windows import Split
from cnfgnn.errors import RunError
from cnfgnn.models.params import Params
from cnfgnn.models.plus import node_model

DTYPE = torch.float32


class Replica:
    """The model of some nodes (`rows`), on the device that the attacker computes on."""

    def __init__(self, recording: Recording, rows: Tensor, device: torch.device) -> None:
        told, public = recording.set_up, public_facts(recording)
        self.recording, self.rows, self.device = recording, rows, device
        self.settings, self.scaler, self.windows = told.settings, told.scaler, told.windows
        self.history, self.horizon = told.windows.history, told.windows.horizon
        self.model = node_model(told.settings.model, self.history, self.horizon)
        model = told.settings.model
        self.sent, self.uses_profile, self.uses_linear = model.sent_width, model.profile, model.linear
        self.clock = public.time_of_day.to(device, DTYPE)
        self.moments = public.moments.to(device)
        self.absent, self.observed = public.absent[rows].to(device), public.observed[rows].to(device)
        ages = age_input(ages_of(public.absent[rows].cpu().numpy()), self.history)
        self.ages = ages.to(device, DTYPE)
        known = public.profile_known
        self.profile_known = None if known is None else known[rows].to(device)

    @property
    def nodes(self) -> int:
        return len(self.rows)

    def starts(self, split: Split, places: Tensor) -> Tensor:
        """The first row of some windows of a split."""
        return torch.from_numpy(self.windows.starts[split]).to(self.device)[places.to(self.device)]

    def theta(self, shared: Mapping[str, Tensor]) -> Params:
        """The weights of the model, as the attacker computes with them; none if nothing was shared."""
        return {name: w.to(self.device, DTYPE) for name, w in shared.items()}

    def batch(
        self, starts: Tensor, readings: Tensor, profile: Tensor | None = None, weight: Tensor | None = None
    ) -> Batch:
        """The windows that start at these rows (b,), with these scaled readings.

        readings  (n b t)  of the inputs, or of inputs and targets
        profile   (n b t)  the profile at the targets, if the model uses one
        weight    (n b t)  1 where a target counts
        """
        history, horizon = self.history, self.horizon
        steps = torch.arange(history + horizon, device=self.device)
        clock = self.clock[starts[:, None] + steps]  # (b t)
        inputs = starts[:, None] + steps[:history]
        ahead = starts[:, None] + steps[history:]
        x = torch.stack([readings[..., :history], clock[:, :history].expand(len(readings), -1, -1)], dim=-1)
        y = (
            readings[..., history:]
            if readings.shape[-1] > history
            else readings.new_zeros(*ahead.shape)[None]
        )
        change = None
        if self.uses_profile:
            assert profile is not None
            assert self.profile_known is not None
            known = self.profile_known[:, ahead]
            change = torch.where(known, profile - readings[..., history - 1 : history], 0.0)
            # What earlier days and weeks add is not known; the encoder does not use that of the last step.
            change = torch.cat([torch.zeros_like(change[..., :1]), change], dim=-1)
        return Batch(
            x=x,
            y=y.expand(len(readings), -1, -1),
            clock=clock[:, history:],
            weight=weight,
            moment=self.moments[starts + history - 1],
            gaps=self.ages[:, inputs] if self.settings.model.gaps else None,
            usual_change=change,
            # The weights of a node's linear forecaster are not sent, so its forecast is not known.
            linear_change=torch.zeros_like(x[..., :1, 0]).expand(-1, -1, horizon)
            if self.uses_linear
            else None,
        )

    def layout(self, readings: int) -> tuple[Tensor, Tensor]:
        """Rows and kinds of a window's unknown numbers (see `Target`): so many readings, and the profile at
        its targets."""
        rows = torch.arange(readings, device=self.device)
        kinds = torch.zeros_like(rows)
        if self.uses_profile:
            ahead = self.history + torch.arange(self.horizon, device=self.device)
            rows, kinds = torch.cat([rows, ahead]), torch.cat([kinds, torch.ones_like(ahead)])
        return rows, kinds

    def encode(self, theta: Params, batch: Batch) -> Tensor:
        """What the nodes would send of these windows: (n b s)."""
        return self.model.encode(theta, batch)[..., : self.sent]

    def scaled(self, readings: Tensor) -> Tensor:
        return ((readings.double() - self.scaler.mean) / self.scaler.std).to(self.device, DTYPE)

    def unscaled(self, values: Tensor) -> Tensor:
        """In the readings' unit, as float64."""
        return values.double() * self.scaler.std + self.scaler.mean

    def of_windows(self, starts: Tensor, series: Tensor) -> Tensor:
        """(n T) in the readings' unit, given scaled readings (n r) from the first of these windows on; NaN at
        rows that are in none of the windows."""
        steps = torch.arange(self.history, device=starts.device)
        covered = (starts[:, None] + steps).flatten().unique().cpu()
        readings = torch.full((self.nodes, len(self.clock)), torch.nan, dtype=torch.float64)
        readings[:, covered] = self.unscaled(series).cpu()[:, covered - int(starts.min())]
        return readings


@dataclass(frozen=True, eq=False)
class Received:
    """The hidden states (n w s) that some nodes sent of a split, the windows' starts (w,), the weights."""

    replica: Replica
    h_c: Tensor
    starts: Tensor
    theta: Params

    @classmethod
    def of(cls, recording: Recording, split: Split, rows: Tensor, device: torch.device) -> Received:
        states = recording.states.get(split)
        if states is None:
            raise RunError("recording", f"it has no hidden states of the {split} split")
        replica = Replica(recording, rows, device)
        h_c = states.h_c[rows].to(device, DTYPE)
        return cls(replica, h_c, replica.starts(split, states.places), replica.theta(states.theta))

    def among(self, nodes: Tensor) -> Received:
        """The same of some of the nodes."""
        replica = Replica(self.replica.recording, self.replica.rows[nodes.cpu()], self.replica.device)
        return Received(replica, self.h_c[nodes], self.starts, self.theta)


def public_facts(recording: Recording) -> PublicFacts:
    """The public facts of a recording."""
    if recording.public is None:
        raise RunError("recording", "it does not say which readings are missing: add the public facts to it")
    return recording.public


def rounding(h_c: Tensor, wire: str) -> Tensor:
    """(n s): the standard deviation that the encoding on the wire leaves open in each number of (n w s)."""
    computed = 2e-4 * h_c.square().mean(dim=(1, 2)).sqrt()[:, None]  # products in tf32 err by a few 1e-4
    if wire == "int8":  # uniform within a step
        on_wire = _steps(h_c) / 12**0.5
    elif wire == "bf16":
        on_wire = h_c.square().mean(dim=1).sqrt() * 2.0**-9 / 3**0.5
    else:
        on_wire = torch.zeros_like(h_c[:, 0])
    return torch.maximum(on_wire, computed).clamp(min=torch.finfo(h_c.dtype).tiny)


def _steps(h_c: Tensor) -> Tensor:
    """(n s): the steps of numbers (n w s) that were sent in int8: each node and number has its own.

    The largest number of a message is 127 steps, but it may be in a window that is not kept. Then the
    smallest difference between two numbers says how large a step is. A number that is always the same says
    nothing, and is taken to be as coarse as the coarsest.
    """
    largest = h_c.abs().amax(dim=1)  # (n s)
    gaps = h_c.sort(dim=1).values.diff(dim=1)
    gaps = torch.where(gaps > largest[:, None] / (2 * STEPS), gaps, torch.inf)
    smallest = gaps.amin(dim=1) if gaps.shape[1] else torch.full_like(largest, torch.inf)
    seen = smallest.isfinite()
    steps = torch.where(seen, torch.maximum(smallest, largest / STEPS), largest / STEPS)
    return torch.where(seen, steps, steps.amax(dim=1, keepdim=True))
