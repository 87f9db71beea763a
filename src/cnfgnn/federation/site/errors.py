"""Errors of a site as the server may see them: without the site's local paths.

The site's own log and status keep the full text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

from cnfgnn.errors import CnfgnnError

ABSOLUTE_PATH = re.compile(r"(?<![\w/])/[^\s:,;'\"()]+")
AnyError = TypeVar("AnyError", bound=CnfgnnError)


def without_paths(text: str, kit: Path, readings: str = "") -> str:
    """Replace the path of the site's readings, make paths inside of the kit relative, and drop all others."""
    if readings:
        text = text.replace(readings, "its readings")
    for folder in (str(kit), str(kit.absolute()), str(kit.resolve())):
        text = text.replace(folder + os.sep, "")
    return ABSOLUTE_PATH.sub("(a local path)", text)


def for_server(error: AnyError, kit: Path, readings: str = "") -> AnyError:
    """The same error with local paths removed from its message."""
    error.args = (without_paths(str(error), kit, readings),)
    return error
