"""Every error that a user can cause and correct; each message is one sentence.

CnfgnnError
├── ConfigError    2  an unknown or invalid setting; names the key and the valid values
├── DataError      2  unusable input; names the file and, where known, the line or row and the column
├── NodeError      3  a site that failed or gave an invalid answer, or no site at all; names site and verb
├── RunError       4  an unusable run: damaged, in use, or of a newer version; names the folder
├── StorageError   5  a file that cannot be written: no space, no permission; names the file
├── DivergedError  6  training whose loss is not a number any more; names the round
└── MachineError   7  a machine that has too little memory, or whose GPU failed

The number is the exit code of the command line, which also ends with 130 after Ctrl-C, and with 141 if nobody
reads its output to the end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


class CnfgnnError(Exception):
    """A problem that the user can understand and correct; its message is one sentence."""

    exit_code = 1


class ConfigError(CnfgnnError):
    """A setting that is unknown or out of range."""

    exit_code = 2

    def __init__(self, key: str, problem: str, valid: Iterable[object] = ()) -> None:
        choices = ", ".join(str(choice) for choice in valid)
        self.key = key
        self.problem = f"{problem} (valid: {choices})" if choices else problem
        super().__init__(f"{key}: {self.problem}")


class DataError(CnfgnnError):
    """Input data that cannot be used."""

    exit_code = 2

    def __init__(
        self,
        source: str | Path,
        problem: str,
        *,
        line: int | None = None,
        row: int | str | None = None,
        column: str | None = None,
    ) -> None:
        where = printable(source)
        if line is not None:
            where += f", line {line}"  # of a text file, as an editor counts them
        if row is not None:
            where += f", row {row}"
        if column is not None:
            where += f", column {column!r}"
        super().__init__(f"{where}: {problem}")
        self.source, self.line = source, line


class NodeError(CnfgnnError):
    """A site that failed while it carried out a verb."""

    exit_code = 3

    def __init__(self, site: str, verb: str, reason: str) -> None:
        super().__init__(f"site {site!r} failed at {verb!r}: {reason}")
        self.site = site
        self.verb = verb
        self.reason = reason


class NoSiteAnswered(NodeError):
    """A verb that not a single site answered."""

    def __init__(self, verb: str) -> None:
        CnfgnnError.__init__(self, f"no site answered {verb!r}: every site is absent or failed")
        self.site, self.verb, self.reason = "", verb, "no site answered"


class RunError(CnfgnnError):
    """A run folder that cannot be used."""

    exit_code = 4

    def __init__(self, run: str | Path, problem: str) -> None:
        super().__init__(f"{printable(run)}: {problem}")
        self.run, self.problem = run, problem


class StorageError(CnfgnnError):
    """A file that cannot be written; its previous content, if any, is unchanged."""

    exit_code = 5

    def __init__(self, path: str | Path, error: OSError | str) -> None:
        reason = error if isinstance(error, str) else (error.strerror or str(error))
        super().__init__(f"{printable(path)}: cannot be written ({reason})")


class DivergedError(CnfgnnError):
    """Training whose validation loss is not a number any more; earlier rounds are kept."""

    exit_code = 6

    def __init__(self, r_g: int) -> None:
        kept = "; the rounds before it are kept, but" if r_g > 1 else ":"
        super().__init__(
            f"the validation loss of round {r_g} is not a number{kept} begin a new run with a smaller"
            " training.client_lr or training.server_lr"
        )
        self.round = r_g


class MachineError(CnfgnnError):
    """A machine that ran out of memory, or whose GPU failed; a run keeps its completed rounds."""

    exit_code = 7

    @classmethod
    def of(cls, problem: Exception) -> MachineError | None:
        """What Python, NumPy or PyTorch raised, as one sentence; None if the machine was not the cause."""
        torch = sys.modules.get("torch")  # an error of PyTorch's cannot have come from elsewhere
        first = (str(problem) or "no memory left").partition("\n")[0].rstrip(".")
        if torch is not None and isinstance(problem, torch.OutOfMemoryError):
            return cls(
                f"the GPU has too little memory: set compute.memory to less than it has free ({first})"
            )
        if isinstance(problem, MemoryError) or "DefaultCPUAllocator" in first:
            return cls(f"the machine has too little memory: free some, or set compute.memory lower ({first})")
        if "CUDA error" in first:
            return cls(f"the GPU failed: a run keeps its completed rounds, see --resume ({first})")
        return None


def printable(path: str | Path) -> str:
    """A path as text that can be printed, with a ? for every byte of its name that is not UTF-8."""
    return str(path).encode(errors="replace").decode()
