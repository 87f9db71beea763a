"""The processes that torchrun has started for one training, and messages between them.

Process 0 leads: it is the server, writes the run and prints. The others follow: they hold a part of the nodes
and answer every message of process 0 with one of their own. A message is any Python object; the tensors in it
travel from memory to memory, over NCCL between GPUs and over gloo otherwise.
"""

from __future__ import annotations

import io
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cnfgnn.errors import CnfgnnError, ConfigError, NodeError
from cnfgnn.process_setup import Launch

JOIN = timedelta(minutes=5)  # until all processes must have started
ANSWER = timedelta(days=365)  # an update may take any time; that a process has ended is noticed at once
LEADER = 0


class OtherProcess(CnfgnnError):
    """A problem that another process has met, with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ProcessLost(NodeError):
    """A process that has ended without an answer."""

    def __init__(self, rank: int) -> None:
        role = "which leads the training" if rank == LEADER else "which holds a part of the sensors"
        problem = f"process {rank}, {role}, has ended: completed rounds are saved and can be resumed"
        CnfgnnError.__init__(self, problem)
        self.site, self.verb, self.reason = f"process-{rank}", "message", "it has ended"


@dataclass(frozen=True)
class Failure:
    """The answer of a process that has met a problem."""

    message: str
    exit_code: int

    @classmethod
    def of(cls, problem: Exception, rank: int) -> Failure:
        if isinstance(problem, CnfgnnError):
            return cls(f"process {rank}: {problem}", problem.exit_code)
        return cls(f"process {rank}: {type(problem).__name__}: {_reason(problem)}", NodeError.exit_code)


@dataclass(frozen=True)
class End:
    """The training has ended: all processes end with this exit code."""

    exit_code: int


class Processes:
    """This process among those of a training."""

    def __init__(self, rank: int, count: int, device: torch.device, group: Any) -> None:
        self.rank, self.count, self.device, self._group = rank, count, device, group
        self._in_step = True  # whether all others wait for a message of process 0

    @classmethod
    def join(cls, launch: Launch) -> Processes:
        """Wait for all processes to start."""
        gpus = torch.cuda.device_count() if dist.is_nccl_available() else 0
        device = torch.device("cpu")
        if launch.local_rank < gpus:
            device = torch.device("cuda", launch.local_rank)
            torch.cuda.set_device(device)  # what compute.device=auto and cuda stand for from now on
        backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
        try:
            dist.init_process_group(backend, timeout=JOIN)
            group = dist.new_group(backend=backend, timeout=ANSWER)
        except (RuntimeError, ValueError) as error:
            problem = f"cannot reach the others ({_reason(error)})"
            raise NodeError(f"process-{launch.rank}", "join", problem) from error
        return cls(launch.rank, launch.processes, device, group)

    @property
    def leads(self) -> bool:
        """Whether this is process 0."""
        return self.rank == LEADER

    def check_device(self, name: str) -> None:
        """Refuse a device that not every process can have for itself."""
        if name.startswith("cuda:"):
            problem = f"{name} is one GPU, and each of {self.count} processes takes its own"
            raise ConfigError("compute.device", problem, ["auto", "cpu", "cuda"])
        on_gpu = name == "cuda" or (name == "auto" and torch.cuda.is_available())
        if on_gpu and self.device.type != "cuda":
            gpus = torch.cuda.device_count()
            problem = f"there are more processes than GPUs ({gpus}): start at most {gpus} on each machine"
            raise ConfigError("compute.device", f"{problem}, or compute on processors", ["cpu"])

    # ---- messages -----------------------------------------------------------------------------------

    def ask(self, messages: Sequence[object], own: Callable[[], Any]) -> list[Any]:
        """In process 0: send each process its message, do one's own part meanwhile, and return the answers of
        all, in order. A problem of any process is raised once all have answered."""
        assert self.leads
        self._in_step = False
        sent = [self._post(rank, messages[rank]) for rank in range(1, self.count)]
        for wait in sent:
            wait()
        answers: list[Any] = []
        problem: Exception | None = None
        try:
            answers.append(own())
        except Exception as found:  # it is raised below, when nobody is left waiting
            problem = found
        answers += [self.receive(rank) for rank in range(1, self.count)]
        self._in_step = True
        if problem is not None:
            raise problem
        for answer in answers:
            if isinstance(answer, Failure):
                raise OtherProcess(answer.message, answer.exit_code)
        return answers

    def send(self, to: int, message: object) -> None:
        self._post(to, message)()

    def receive(self, of: int) -> Any:
        """The next message of another process."""
        length = torch.zeros(1, dtype=torch.int64)
        self._receive(length, of)
        header = torch.empty(int(length), dtype=torch.uint8)
        self._receive(header, of)
        content, kinds = pickle.loads(header.numpy().tobytes())
        tensors = []
        for dtype, shape, on_gpu in kinds:
            tensor = torch.empty(shape, dtype=dtype, device=self.device if on_gpu else "cpu")
            if tensor.numel():
                self._receive(_as_bytes(tensor), of)
            tensors.append(tensor)
        return _Unpacker(io.BytesIO(content), tensors).load()

    def _post(self, to: int, message: object) -> Callable[[], None]:
        """Begin to send a message; returns a function that waits until it has arrived."""
        buffer = io.BytesIO()
        packer = _Packer(buffer)
        packer.dump(message)
        kinds = [(t.dtype, t.shape, t.is_cuda) for t in packer.tensors]
        header = torch.frombuffer(bytearray(pickle.dumps((buffer.getvalue(), kinds))), dtype=torch.uint8)
        parts = [torch.tensor([len(header)]), header]
        parts += [_as_bytes(tensor) for tensor in packer.tensors if tensor.numel()]
        with _lost(to):
            sent: list[tuple[Any, Tensor]] = [
                (dist.isend(part, to, group=self._group), part) for part in parts
            ]

        def wait() -> None:
            with _lost(to):
                for work, _ in sent:  # a tensor must live until it has arrived
                    work.wait()

        return wait

    def _receive(self, into: Tensor, of: int) -> None:
        with _lost(of):
            dist.recv(into, of, group=self._group)

    # ---- beginning and end --------------------------------------------------------------------------

    def agree(self, problem: CnfgnnError | None) -> None:
        """All processes come here after work that each has done by itself; raise what any of them met."""
        mine = None if problem is None else Failure.of(problem, self.rank)
        if self.leads:
            found = [mine, *(self.receive(rank) for rank in range(1, self.count))]
            first = next((one for one in found if one is not None), None)
            for rank in range(1, self.count):
                self.send(rank, first)
        else:
            self.send(LEADER, mine)
            first = self.receive(LEADER)
        if problem is not None:
            raise problem
        if first is not None:
            raise OtherProcess(first.message, first.exit_code)

    def end(self, exit_code: int) -> None:
        """In process 0: have the others end with this exit code, if they wait for a message."""
        # torchrun ends all processes when the first has failed, which would hide their own exit codes
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not self.leads or not self._in_step:
            return
        for rank in range(1, self.count):
            with suppress(ProcessLost):
                self.send(rank, End(exit_code))

    def leave(self) -> None:
        """After the end, give back what the messages needed."""
        dist.destroy_process_group()


# ---- how messages travel --------------------------------------------------------------------------------


class _Packer(pickle.Pickler):
    """Writes a message without its tensors and arrays, which it lists."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []

    def persistent_id(self, obj: Any) -> tuple[int, bool] | None:
        if isinstance(obj, Tensor):
            self.tensors.append(obj.detach().contiguous())
        elif isinstance(obj, np.ndarray) and obj.dtype.kind in "fib":
            self.tensors.append(torch.from_numpy(np.require(obj, requirements=["C", "W"])))
        else:
            return None
        return len(self.tensors) - 1, isinstance(obj, np.ndarray)


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, pid: tuple[int, bool]) -> Any:
        place, is_array = pid
        return self.tensors[place].numpy() if is_array else self.tensors[place]


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _reason(problem: Exception) -> str:
    """What it says first: torch appends a page of C++ frames."""
    return (str(problem).splitlines() or [""])[0][:300]


@contextmanager
def _lost(rank: int) -> Iterator[None]:
    """torch reports a connection that was closed as a RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLost(rank) from error
