"""Two sets of true readings with one blurred copy, and everything that a server sees of each.

The copy comes from a `CopyStore`, whose first copy of a reading is final: other readings of the same sensors
at the same times have the same copy. If what the server sees differs in a single bit, something of the truth
has left its owner.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from cnfgnn.algorithm.messages.calls import Call, Payload
from cnfgnn.algorithm.store import MemoryStore, SiteMemoryStore, Store
from cnfgnn.config.settings import Config
from cnfgnn.data.dataset import Dataset
from cnfgnn.data.readings import Readings
from cnfgnn.errors import CnfgnnError
from cnfgnn.privacy.copies import Copies, CopyStore
from cnfgnn.privacy.inputs import read_input_blurs
from cnfgnn.runs.simulation import simulate
from cnfgnn.runs.training_loop import Progress, evaluate_best, train
from cnfgnn.testing.small_networks import network, small
from cnfgnn.transports.in_process import InProcess
from cnfgnn.transports.remote.codec import Answer, encode_answers, encoded
from cnfgnn.transports.remote.header import CALLS

HISTORY, HORIZON = 4, 3
CODE = -999.0  # stands for a missing reading where `data.missing_value` says so
Values = np.ndarray[Any, np.dtype[np.float32]]


# ---- truths ---------------------------------------------------------------------------------------------


def _peaks(values: Values, rng: np.random.Generator) -> Values:
    """Outliers: the owner's filter finds them in the true readings, and there are none in the copy."""
    values = values.copy()
    for column in range(values.shape[1]):
        rows = rng.choice(len(values), 2, replace=False)
        values[rows, column] = rng.choice([-1, 1], 2) * np.float32(1e9)
    return values


TRUTHS: Mapping[str, Callable[[Values, np.random.Generator], Values]] = {
    "plain": lambda values, rng: values,
    "noisy": lambda values, rng: values + rng.normal(0, 20, values.shape),
    "zeros": lambda values, rng: np.zeros_like(values),
    "constant": lambda values, rng: np.full_like(values, 61.5),
    "negative": lambda values, rng: -values,
    "one negative": lambda values, rng: values * np.where(np.arange(values.shape[1]) == 0, -1, 1),
    "huge": lambda values, rng: rng.choice([-1, 1], values.shape) * 1e12,
    "tiny": lambda values, rng: 1e-38 * values,
    "peaks": _peaks,
    "shuffled": lambda values, rng: rng.permuted(values, axis=0),
}


def another_truth(data: Dataset, kind: str, seed: int = 0) -> Dataset:
    """The data with other true readings. Which of them are missing, and which are a code for it, is public
    and stays; the number that stands where a reading is missing is not, and changes."""
    rng = np.random.default_rng(seed)
    readings = _another_truth(data.readings, kind, rng)
    others = [replace(one, readings=_another_truth(one.readings, kind, rng)) for one in readings.others]
    return replace(data, readings=replace(readings, others=tuple(others)))


def _another_truth(readings: Readings, kind: str, rng: np.random.Generator) -> Readings:
    public = np.isnan(readings.values) | (readings.values == CODE)
    values = TRUTHS[kind](np.where(public, 0, readings.values), rng)
    values = np.where(readings.missing, rng.normal(0, 9, values.shape), values)
    return replace(readings, values=np.where(public, readings.values, values).astype(np.float32))


def few_sensors(seed: int = 0, n: int = 4, rows: int = 80) -> Dataset:
    """A few sensors by the hour, so that a week has something usual."""
    return network(n=n, rows=rows, seed=seed, seconds=3600)


def brief(method: str, **changes: Any) -> Config:
    """A method with a blur, and with minibatches so large that a round takes a moment."""
    return small(
        method,
        **{
            "privacy.blur": 5.0,
            "data.history": HISTORY,
            "data.horizon": HORIZON,
            "training.client_rounds": 1,
            "training.server_rounds": 1,
            "training.client_batch": 30,
            "training.server_batch": 30,
            **changes,
        },
    )


def _with_public_inputs(truth: Dataset, data: Dataset, config: Config) -> Dataset:
    """Inputs that their owner declares public are the same in both truths."""
    blurs = read_input_blurs(config.privacy.inputs)
    pairs = zip(truth.readings.others, data.readings.others, strict=True)
    others = tuple(true if blurs.get(true.name) else public for true, public in pairs)
    return replace(truth, readings=replace(truth.readings, others=others))


@dataclass(frozen=True)
class TwoTruths:
    """Two data sets that have one blurred copy."""

    one: Dataset
    other: Dataset
    copies: Copies
    config: Config

    @classmethod
    def of(
        cls, folder: Path, config: Config, data: Dataset, kinds: tuple[str, str], seed: int = 0
    ) -> TwoTruths:
        one, other = (another_truth(data, kind, seed + k) for k, kind in enumerate(kinds))
        copies = CopyStore(folder)
        copies.blur(data.readings, config.privacy.blur)  # from now on these copies are final
        for name, sigma in read_input_blurs(config.privacy.inputs).items():
            (blurred,) = [each for each in data.readings.others if each.name == name]
            if sigma:
                copies.blur(blurred.readings, sigma, name)
        one, other = (_with_public_inputs(truth, data, config) for truth in (one, other))
        return cls(one, other, copies, config)

    def __iter__(self) -> Iterator[Dataset]:
        return iter((self.one, self.other))


# ---- what a server sees ---------------------------------------------------------------------------------


@dataclass
class Seen:
    """Everything that one server saw; `of_owner` is what it did not see, to show that the truths matter.

    messages  every call and every answer, in order, as bytes
    files     every file that the server wrote, or every state in its store; and what its nodes saved
    left_out  the arrays in answers that `messages` lack, if some are left out
    """

    messages: list[bytes] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    verbs: set[str] = field(default_factory=set)
    of_owner: dict[str, bytes] = field(default_factory=dict)
    left_out: list[bytes] = field(default_factory=list)


def differences(one: Seen, other: Seen) -> list[str]:
    """Where two servers saw something different: empty if they cannot tell the truths apart."""
    pairs = enumerate(itertools.zip_longest(one.messages, other.messages))
    names = sorted(one.files.keys() | other.files.keys())
    messages = [f"message {number}" for number, (sent, same) in pairs if sent != same]
    return messages + [f"file {name}" for name in names if one.files.get(name) != other.files.get(name)]


def as_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Names, types, shapes and every bit of the values."""
    parts = []
    for name, tensor in tensors.items():
        whole = tensor.detach().cpu().contiguous()
        parts.append(f"{name} {whole.dtype} {tuple(whole.shape)};".encode())
        parts.append(whole.reshape(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b"")
    return b"".join(parts)


class Killed(BaseException):
    """The server's process ends here."""


@dataclass(frozen=True)
class Faults:
    """away    the groups that do not answer, by the number of the exchange
    killed  the exchanges before which the server is killed
    """

    away: Mapping[int, frozenset[str]] = field(default_factory=dict)
    killed: frozenset[int] = frozenset()


@contextmanager
def recorded(seen: Seen, faults: Faults | None = None, left_out: str = "") -> Iterator[None]:
    """Inside, the simulator's transport records every message, but for arrays of the name `left_out`, and
    meets with these faults."""
    met, numbers = faults or Faults(), itertools.count()

    class Recorded(InProcess):
        def exchange(self, calls: Sequence[Call], rows: Tensor) -> Payload:
            number = next(numbers)
            if number in met.killed:
                raise Killed
            self.away = set(met.away.get(number, ()))
            seen.messages.append(rows.numpy().tobytes() + encoded(CALLS, calls))
            try:
                payload = super().exchange(calls, rows)
            except Exception as problem:
                seen.messages.append(f"{type(problem).__name__}: {problem}".encode())
                raise
            if payload.present.any():
                seen.verbs |= {call.verb for call in calls}
            seen.left_out += [as_bytes({left_out: of[left_out]}) for of in payload.replies if left_out in of]
            answers = [
                Answer(call.verb, None, {name: x for name, x in reply.items() if name != left_out})
                for call, reply in zip(calls, payload.replies, strict=True)
            ]
            seen.messages.append(payload.present.numpy().tobytes() + encode_answers(answers))
            return payload

    with mock.patch("cnfgnn.runs.simulation.InProcess", Recorded):
        yield


def train_with_faults(
    truths: TwoTruths,
    data: Dataset,
    groups: Sequence[Sequence[int]] | None = None,
    faults: Faults | None = None,
    tells: bool = False,
    left_out: str = "",
) -> Seen:
    """Train on one of the truths in memory, through absences and restarts of the server, and evaluate."""
    seen, stores, saved = Seen(), dict[str, MemoryStore](), Progress()

    def store(name: str) -> Store:
        return stores.setdefault(name, MemoryStore() if name == "server" else SiteMemoryStore())

    def save(progress: Progress) -> None:
        nonlocal saved
        saved = progress.snapshot()

    def train_to_the_end() -> None:
        experiment = simulate(data, truths.config, groups, store, copies=truths.copies, tells=tells)
        result = evaluate_best(experiment, train(experiment, saved.snapshot(), save, on_phase=save))
        seen.files["result"] = repr(result.summary()).encode() + result.test.sums.numpy().tobytes()

    with recorded(seen, faults, left_out):
        while "result" not in seen.files:
            try:
                train_to_the_end()
            except Killed:
                continue
            except CnfgnnError as problem:
                seen.files["result"] = f"the training ended: {problem}".encode()
    seen.files["progress"] = repr(saved).encode()
    for name, kept in stores.items():
        for tag, state in kept.states.items():
            where = seen.of_owner if name.startswith("owner-") else seen.files
            where[f"{name}/{tag}"] = as_bytes(state)
    return seen
