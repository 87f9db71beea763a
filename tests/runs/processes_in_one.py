"""The processes of a training as objects in one process: only the sockets between them are missing."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cnfgnn.data.dataset import Dataset
from cnfgnn.errors import CnfgnnError
from cnfgnn.runs.followers import Follower
from cnfgnn.transports.processes import Failure, OtherProcess, Processes, _Packer, _Unpacker


def passed_on(message: object) -> Any:
    """The message as it arrives in another process."""
    buffer = io.BytesIO()
    packer = _Packer(buffer)
    packer.dump(message)
    tensors = [torch.clone(tensor) for tensor in packer.tensors]
    return _Unpacker(io.BytesIO(pickle.loads(pickle.dumps(buffer.getvalue()))), tensors).load()


class Together(Processes):
    """All processes in one: the first, and the followers that it asks."""

    def __init__(self, count: int, data: Dataset) -> None:
        super().__init__(0, count, torch.device("cpu"), None)
        ranks = range(1, count)
        self.followers = [Follower(Processes(r, count, self.device, None), data) for r in ranks]

    def ask(self, messages: Sequence[object], own: Callable[[], Any]) -> list[Any]:
        answers = [own()]
        for follower, message in zip(self.followers, messages[1:], strict=True):
            try:
                answers.append(passed_on(follower.answer(passed_on(message))))
            except CnfgnnError as problem:
                failure = Failure.of(problem, follower.processes.rank)
                raise OtherProcess(failure.message, failure.exit_code) from problem
        return answers
