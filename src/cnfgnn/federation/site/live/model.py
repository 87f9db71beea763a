"""Which model a live site forecasts with: the one that the server's operator has put live.

The server prepares a site with a run, and later perhaps with another one. The site's service follows, with
the ranges that its owner keeps of that run, and tells on its own page which model it is and since when.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from pathlib import Path
from typing import Any

from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.site.live.predictor import SitePredictor
from cnfgnn.federation.site.sent_entries import lately
from cnfgnn.federation.site.status import MODEL
from cnfgnn.files import read_json_or_empty, write_whole
from cnfgnn.live.forecasting.service import LiveService
from cnfgnn.live.learning.live_model import FOLLOWED_EVERY, ServedModel
from cnfgnn.live.learning.models import REMEMBERED, Switch

WHY = "the server has put it live"
SENT_EVERY = 10.0  # seconds between looks at what was sent


class SiteModel(ServedModel):
    """The model of the service of a site, and the file in its folder that remembers it."""

    def __init__(self, service: LiveService, predictor: SitePredictor, site: str, folder: Path) -> None:
        super().__init__(service)
        self.predictor, self.site, self.file = predictor, site, folder / MODEL
        stored = read_json_or_empty(self.file)
        self.name = str(stored.get("model") or "")
        self.kit, self.sent = folder.parent, dict[str, Any]()  # what the site has sent, for its owner
        self.switches: list[dict[str, Any]] = list(stored.get("switches") or [])
        self._begin()

    async def run(self) -> None:
        """Follow the server until cancelled."""
        looked = -math.inf
        while True:
            if time.monotonic() - looked > SENT_EVERY:
                looked = time.monotonic()
                try:
                    self.sent = await asyncio.to_thread(lately, self.kit)
                except CnfgnnError as error:  # the page does without
                    self.service.failed("files", error)
            await asyncio.sleep(FOLLOWED_EVERY)
            if self.predictor.key != self.key:
                with self.service.surviving("watch"):
                    await self._switch()

    async def _switch(self) -> None:
        """Go on with the ranges of the model that the server has prepared in the meantime."""
        intervals = await asyncio.to_thread(self.predictor.intervals)
        await self.service.use(self.predictor, intervals)
        before = self.name
        self._begin()
        if before and before != self.name:
            self.service.tell_switch(self.switches[-1])

    def _begin(self) -> None:
        """Note the model that is in use from now on, and the switch, if it is another one than before."""
        ready, before = self.predictor.ready, self.name
        self.begins(ready.trained())
        found = re.match(r"round-(\d+)", ready.tag)
        self.key, self.round = self.predictor.key, None if found is None else int(found[1])
        self.model = ready.run.rpartition("-")[0] or ready.run
        self.name = self.model if self.round is None else f"{self.model}, round {self.round}"
        if before and before != self.name:
            switch = Switch(self.loaded, before, self.name, WHY)
            self.switches = [*self.switches, switch.json()][-REMEMBERED:]
        try:
            content = {"model": self.name, "run": ready.run, "switches": self.switches}
            write_whole(self.file, json.dumps(content).encode())
        except CnfgnnError as error:  # a full disk does not end the service
            self.service.failed("files", error)

    def about(self) -> dict[str, Any]:
        """A site does not know the name of the method."""
        return {
            "site": self.site,
            "run": self.model,
            "round": self.round,
            "switches": self.switches,
            "sent": self.sent,
        }
