"""Where a live service is, and how it is asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from cnfgnn.live.web.token_file import TOKEN, read_token


class Place(NamedTuple):
    """The host and port of a service, and the headers of requests to it."""

    host: str
    headers: dict[str, str]

    @classmethod
    def of(cls, line: str, state: Path) -> Place:
        """From a line with its address, and the folder of its state."""
        token = read_token(state / TOKEN)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        return cls(re.findall(r"http://([\d.:]+)", line)[0], headers)
