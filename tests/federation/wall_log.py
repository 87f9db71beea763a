"""Notes what crosses the wall of a site towards its engine, to compare what the engines of two trainings saw.

The code runs in the engine's job, which passes it on to the server, and keeps to the engine's folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cnfgnn.federation.frames import Frames
from cnfgnn.federation.kits.engine_files import ENGINE_FOLDER
from cnfgnn.transports.remote.messages import unpack
from tests.federation.message_log import described

PROGRAM = """import sys
if "nvflare.private.fed.app.client.worker_process" in sys.orig_argv:
    from tests.federation import wall_log
    wall_log.install()
"""
FILE = "log.txt.crossed"  # the engine's folder is emptied at each start, except for its logs


def install() -> None:
    file, receive = Path.cwd() / FILE, Frames.receive

    def noted(frames: Frames, *args: int) -> tuple[int, bytearray]:
        number, answer = receive(frames, *args)
        with file.open("a") as lines:
            lines.write(json.dumps(described(unpack(answer)), sort_keys=True) + "\n")
        return number, answer

    Frames.receive = noted  # type: ignore[method-assign]


def crossed(kit: Path) -> list[dict[str, Any]]:
    """What has crossed the wall of a site since the file was removed."""
    return [json.loads(line) for line in (kit / ENGINE_FOLDER / FILE).read_text().splitlines()]
