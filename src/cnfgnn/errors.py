"""Everything that can go wrong because of what a person gave us, each said in one sentence.

CnfgnnError
├── ConfigError   a setting that does not exist or cannot be; names the key and the valid ones
├── DataError     a file we cannot use; names file, row and column where they are known
└── NodeError     a site that failed or answered what the verb does not allow; names site and verb

Every class carries the exit code that the command line ends with.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class CnfgnnError(Exception):
    """A problem that the user can understand and mend; its message is one sentence."""

    exit_code = 1


class ConfigError(CnfgnnError):
    """A setting that is unknown or out of range."""

    exit_code = 2

    def __init__(self, key: str, problem: str, valid: Iterable[object] = ()) -> None:
        choices = ", ".join(str(choice) for choice in valid)
        super().__init__(f"{key}: {problem}" + (f" (valid: {choices})" if choices else ""))
        self.key = key


class DataError(CnfgnnError):
    """Input data that cannot be used."""

    exit_code = 2

    def __init__(
        self,
        source: str | Path,
        problem: str,
        *,
        row: int | str | None = None,
        column: str | None = None,
    ) -> None:
        where = str(source)
        if row is not None:
            where += f", row {row}"
        if column is not None:
            where += f", column {column!r}"
        super().__init__(f"{where}: {problem}")
        self.source = source


class NodeError(CnfgnnError):
    """A site that failed while it carried out a verb."""

    exit_code = 3

    def __init__(self, site: str, verb: str, reason: str) -> None:
        super().__init__(f"site {site!r} failed at {verb!r}: {reason}")
        self.site = site
        self.verb = verb
        self.reason = reason
