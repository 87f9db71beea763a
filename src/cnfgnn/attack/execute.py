"""Attack a run: record what its server receives, estimate the readings from that, and judge the estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from cnfgnn.algorithm.compute.device import Compute, caller_settings_restored
from cnfgnn.attack.alignment import as_in_run
from cnfgnn.attack.denoising import smoothed_by_network
from cnfgnn.attack.estimates import Estimate
from cnfgnn.attack.from_levels import from_levels
from cnfgnn.attack.gradients import with_gradients
from cnfgnn.attack.judging import AttackReport, Line, guesses, judged, sensor_means
from cnfgnn.attack.observe import observe
from cnfgnn.attack.recording import Recording
from cnfgnn.attack.replica import public_facts
from cnfgnn.attack.smoothing import Colluder, bridged, smoothed_by_noise, smoothed_like
from cnfgnn.attack.whole_series import whole_series
from cnfgnn.config.settings import ComputeConfig
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.quality import clean_dataset
from cnfgnn.data.windows import Split
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.runs.folder import Run

Attack = Literal["levels", "series", "gradients", "smoother"]
ATTACKS: tuple[Attack, ...] = get_args(Attack)
MOST_LISTED = 12  # sensors in a message
NEED_WEIGHTS = ("series", "gradients")
Watch = Callable[[str, float], None]  # the attack, and the share of it that is done

LABELS = {
    "levels": "levels alone, no weights",
    "series": "whole series at once",
    "series-training": "series of training minibatches",
    "gradients": "with gradients and weights",
    "smoother": "series, smoother (colluding)",
    "smoother-noise": "series, smoother (known blur)",
    "smoother-network": "series, smoother (network)",
    "smoother-gradients": "gradients, smoother (network)",
}
COPY = "the copy itself"
COPY_LABELS = {
    "smoother": "the copy, smoother (colluding)",
    "smoother-noise": "the copy, smoother (known blur)",
    "smoother-network": "the copy, smoother (network)",
}
SENSOR_MEAN, OVERALL_MEAN = "guess: each sensor's mean", "guess: the mean of all sensors"


@dataclass(frozen=True)
class Effort:
    """How long the attacks search: minibatches of training, and iterations of an inversion."""

    steps: int = 2000
    iterations: int = 60


@dataclass(frozen=True, eq=False)
class Attacker:
    """Everything that an attacker has: the recording, perhaps a colluding sensor, and a computer."""

    recording: Recording
    rows: Tensor  # (n,): the sensors that are attacked
    colluder: Colluder | None
    device: torch.device
    split: Split = "test"
    seed: int = 0
    effort: Effort = Effort()
    watch: Watch = lambda attack, share: None

    def estimates(self, attacks: Iterable[str] = ATTACKS) -> dict[str, Estimate]:
        """The estimate of each attack, by the keys of `LABELS`. True readings have no way into this."""
        wanted, found = set(attacks), {}
        rows, iterations = self.with_colluder(), self.effort.iterations
        common = (self.recording, self.split)
        if "levels" in wanted or ("smoother" in wanted and not self.knows_weights):
            best = from_levels(*common, rows, self.device, iterations, self._tick("levels"))
            if "levels" in wanted:
                found["levels"] = self.attacked(best)
        if "series" in wanted or ("smoother" in wanted and self.knows_weights):
            best = whole_series(*common, rows, self.device, iterations, self._tick("series"))
            if "series" in wanted:
                found["series"] = self.attacked(best)
        if "smoother" in wanted:
            found |= self.smoothed(best)
        if "gradients" in wanted:
            crossed = with_gradients(self.recording, rows, self.device, iterations, self._tick("gradients"))
            found |= {key: self.attacked(estimate) for key, estimate in crossed.items()}
            if "smoother" in wanted:
                found["smoother-gradients"] = self.smoothed_by_network(crossed["gradients"])
        return found

    @property
    def knows_weights(self) -> bool:
        """Whether the server knows the weights behind the hidden states."""
        return bool(self.recording.states[self.split].theta)

    def smoothed(self, estimate: Estimate) -> dict[str, Estimate]:
        """An estimate of all rows, the colluder's last, smoothed with the help of the colluding sensor
        ("smoother"), by the size of the blur ("smoother-noise"), and by a network ("smoother-network")."""
        public, rows = public_facts(self.recording), estimate.rows
        lines = bridged(estimate.readings, public.observed[rows])
        made = {}
        if self.colluder is not None:
            made["smoother"] = smoothed_like(lines, lines[-1], self.colluder.readings)
        made["smoother-noise"] = smoothed_by_noise(lines, public.blur[rows])
        found = {key: self.attacked(estimate.with_readings(key, made[key])) for key in made}
        return found | {"smoother-network": self.smoothed_by_network(estimate)}

    def smoothed_by_network(self, estimate: Estimate) -> Estimate:
        """An estimate of all rows, smoothed by a network that knows only the size of the blur."""
        public, rows = public_facts(self.recording), estimate.rows
        smooth = smoothed_by_network(
            estimate.readings,
            public.observed[rows],
            public.blur[rows],
            public.time_of_day,
            self.device,
            self.seed,
            self.effort.steps,
            self._tick("smoother"),
        )
        return self.attacked(estimate.with_readings("smoother-network", smooth))

    def with_colluder(self) -> Tensor:
        """The attacked rows, and the colluder's last."""
        if self.colluder is None:
            return self.rows
        return torch.cat([self.rows, torch.tensor([self.colluder.row])])

    def attacked(self, estimate: Estimate) -> Estimate:
        """Without the colluding sensor, of which nothing has to be estimated."""
        return replace(estimate, rows=self.rows, readings=estimate.readings[: len(self.rows)])

    def _tick(self, attack: str) -> Callable[[float], None]:
        return lambda share: self.watch(attack, share)


@caller_settings_restored()
def attack_run(
    run: Run,
    data: Dataset,
    split: Split = "test",
    attacks: Sequence[str] | None = None,
    sensors: int = 0,
    windows: int = 0,
    colluding: str | None = None,
    seed: int = 0,
    device: str = "auto",
    effort: Effort | None = None,
    watch: Watch = lambda attack, share: None,
) -> AttackReport:
    """How near a curious server can come to the readings, with the best round of a run.

    Args:
        run: A run of the simulator, or the run folder of a federation's server that has a recording.
        data: The true readings. Nothing but the mask of missing ones, the colluding sensor's own readings
            and, in a simulator's run, what its nodes send, reaches an attack; the rest judges the estimates.
        split: The windows to attack: "train", "validation" or "test".
        attacks: Which of `ATTACKS`; by default all that make sense for the run.
        sensors: How many sensors to attack; 0 for all.
        windows: How many windows to attack; 0 for all, and for the newest 2,016 of training.
        colluding: The sensor that helps the attacker; by default the one with the most readings.
        seed: Of the network that smooths.
        device: Where to compute: auto, cpu, cuda, cuda:1 and so on.
        effort: How long to search.
        watch: Called with the name of an attack and the share of it that is done.

    Returns:
        The errors of every attack, beside those of guesses.

    Raises:
        RunError: The run has no finished round, or its server receives nothing to attack.
        ConfigError: There is no such attack or sensor.
    """
    chosen, data = _checked(attacks, colluding, data.readings.ids), as_in_run(run, data)
    compute = Compute.of(ComputeConfig(device=device))  # in full float32
    training = attacks is None or "gradients" in chosen
    observed = observe(run, data, split, windows, training, lambda share: watch("recording", share))
    truth = true_readings(run, data)
    torch.set_float32_matmul_precision("highest")  # the run may have been trained in tf32
    recording, public = observed.recording, public_facts(observed.recording)
    rows, colluder = _rows(recording, split, colluding, truth, sensors)
    if attacks is None:
        chosen = _sensible(chosen, recording, split, colluder)
    else:
        for attack in chosen:
            if problem := _impossible(attack, recording, split, colluder):
                raise ConfigError("--attacks", f"{attack} {problem}")
    attacker = Attacker(recording, rows, colluder, compute.device, split, seed, effort or Effort(), watch)
    return AttackReport(
        run=str(run.folder),
        method=run.config.method,
        split=split,
        blur=float(public.blur.max()),
        sensors=[public.ids[row] for row in rows.tolist()],
        colluding=None if colluder is None else public.ids[colluder.row],
        lines=judge(attacker, chosen, truth, observed.copy),
    )


def true_readings(run: Run, data: Dataset) -> Tensor:
    """(N T) float64, NaN where a reading is missing: only to judge by."""
    readings = clean_dataset(data, run.config.data).readings
    values = torch.from_numpy(readings.values.T).double()
    return values.masked_fill(torch.from_numpy(readings.missing.T.copy()), torch.nan)


def judge(attacker: Attacker, chosen: Sequence[str], truth: Tensor, copy: Tensor | None) -> list[Line]:
    """The guesses, the attacks, and what the same attacker makes of the copy."""
    recording, found = attacker.recording, attacker.estimates(chosen)
    overall = recording.set_up.scaler.mean
    means = sensor_means(recording.moments, overall)[attacker.rows]
    first = {estimate.split: estimate for estimate in reversed(found.values())}  # of each split
    lines = []
    for like in reversed(first.values()):
        lines += guesses(like, {OVERALL_MEAN: torch.full_like(means, overall), SENSOR_MEAN: means}, truth)
    lines += [judged(estimate, LABELS[key], truth, key.split("-")[0]) for key, estimate in found.items()]
    if copy is not None and bool(public_facts(recording).blur.any()):
        for like in reversed(first.values()):
            lines += _given_the_copy(attacker, like, copy, truth, "smoother" in chosen)
    return lines


def _given_the_copy(
    attacker: Attacker, like: Estimate, copy: Tensor, truth: Tensor, smoothed: bool
) -> list[Line]:
    """What the same attacker makes of the copy itself, from which everything that crosses is computed."""
    rows = attacker.with_colluder()
    beyond = torch.ones(copy.shape[1], dtype=torch.bool)
    beyond[like.inputs.flatten()] = False
    readings = torch.nan_to_num(copy[rows]).masked_fill(beyond, torch.nan)  # smoothers bridge the gaps
    given = replace(like, rows=rows, readings=readings)
    lines = [judged(attacker.attacked(given), COPY, truth, "copy")]
    for key, smooth in (attacker.smoothed(given) if smoothed else {}).items():
        lines.append(judged(smooth, COPY_LABELS[key], truth, "copy"))
    return lines


def _checked(attacks: Sequence[str] | None, colluding: str | None, ids: Sequence[str]) -> Sequence[str]:
    """The attacks to carry out; unknown names are refused before anything is computed."""
    if colluding is not None and colluding not in ids:
        shown = ids if len(ids) <= MOST_LISTED else ()
        raise ConfigError("--colluding", f"there is no sensor {colluding!r}", shown)
    for attack in attacks or ():
        if attack not in ATTACKS:
            raise ConfigError("--attacks", f"there is no attack {attack!r}", ATTACKS)
    return tuple(attacks or ATTACKS)


def _impossible(attack: str, recording: Recording, split: Split, colluder: Colluder | None) -> str:
    """Why an attack cannot be carried out; empty if it can."""
    if attack == "smoother" and colluder is None:
        return "needs a second sensor, which colludes"
    if attack == "levels" and not recording.set_up.settings.model.levels:
        return "needs levels, and the nodes of this run send none (model.levels)"
    if attack in NEED_WEIGHTS and not recording.states[split].theta:
        return "needs weights that all nodes share, and in this run every node keeps its own"
    if attack == "gradients" and not recording.minibatches:
        return "needs a recording of a training: cnfgnn federation train KIT --record makes one"
    return ""


def _sensible(
    chosen: Sequence[str], recording: Recording, split: Split, colluder: Colluder | None
) -> list[str]:
    """Those that are possible. Without blur there is nothing to smooth."""
    left_out = {attack for attack in chosen if _impossible(attack, recording, split, colluder)}
    if not bool(public_facts(recording).blur.any()):
        left_out.add("smoother")
    return [attack for attack in chosen if attack not in left_out]


def _rows(
    recording: Recording, split: Split, colluding: str | None, truth: Tensor, sensors: int
) -> tuple[Tensor, Colluder | None]:
    """The sensors to attack, and the one that colludes, of which nothing has to be estimated."""
    answered = _answered(recording, split)
    colluder = _colluder(recording, answered, colluding, truth)
    others = [row for row in answered if colluder is None or row != colluder.row]
    return torch.tensor(others[:sensors] if sensors else others), colluder


def _answered(recording: Recording, split: Split) -> list[int]:
    """The rows of the sensors that sent hidden states of the split."""
    states = recording.states.get(split)
    if states is None:
        raise RunError("recording", f"it has no hidden states of the {split} split")
    rows: list[int] = (~states.h_c.isnan().any(dim=2).any(dim=1)).nonzero().flatten().tolist()
    if not rows:
        raise RunError("recording", f"no sensor has sent hidden states of the {split} split")
    return rows


def _colluder(
    recording: Recording, answered: Sequence[int], name: str | None, truth: Tensor
) -> Colluder | None:
    """The sensor with this name, or the one with the most readings; None if there is no second sensor."""
    public = public_facts(recording)
    if name is not None and public.ids.index(name) not in answered:
        raise ConfigError("--colluding", f"the sensor {name!r} has sent nothing")
    if len(answered) < 2:
        return None
    counts = public.observed.sum(dim=1)
    row = max(answered, key=lambda row: int(counts[row])) if name is None else public.ids.index(name)
    return Colluder(row, truth[row])
