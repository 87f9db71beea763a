"""Arguments and options that several commands of `cnfgnn federation` have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from cnfgnn.errors import ConfigError

KitArgument = Annotated[Path, typer.Argument(help="Folder of a server's or site's kit.")]
ServerArgument = Annotated[Path, typer.Argument(help="Folder of the server's kit.")]
RunName = Annotated[str, typer.Argument(help="Name of the run, a folder in runs/ of the server's kit.")]


def _seconds_to_wait(wait: float) -> float:
    if not 0 <= wait < math.inf:
        raise ConfigError("--wait", f"must be a number of seconds from 0 on, not {wait:g}")
    return wait


WaitOption = Annotated[
    float,
    typer.Option(help="Seconds to wait for sites that are not connected yet.", callback=_seconds_to_wait),
]
