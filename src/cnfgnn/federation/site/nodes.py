"""A site's nodes for the tasks of the server: its readings, its description, and the nodes of each run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cnfgnn.algorithm.compute.device import Compute
from cnfgnn.algorithm.messages.cost import GIB
from cnfgnn.algorithm.owner import Owner
from cnfgnn.config.settings import ComputeConfig
from cnfgnn.data.files.input_files import COVARIATES, VARIABLES
from cnfgnn.data.refusals import Refusals
from cnfgnn.errors import CnfgnnError, ConfigError, RunError, StorageError
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.site.errors import for_server
from cnfgnn.federation.site.owner import SiteClients, SiteOwner
from cnfgnn.federation.site.readings import SiteData
from cnfgnn.federation.site.run_readings import RunReadings
from cnfgnn.federation.site.settings import private_folder, read_site, settings_file
from cnfgnn.federation.site.status import SiteStatus
from cnfgnn.federation.site.store import SiteStore
from cnfgnn.files import stamp_of
from cnfgnn.privacy.copies import COPIES_FILE, KEY_FILE
from cnfgnn.transports.remote.endpoint import Terms
from cnfgnn.version import __version__

NOT_READ_YET = "it is still reading its data"
UNUSABLE = "its readings cannot be used; run cnfgnn federation check at the site to see why"
NO_COPIES = "its blurred copies cannot be used; run cnfgnn federation check at the site to see why"
LOOKED_EVERY = 1.0  # seconds between looks for copies that are lost
Stamps = list[tuple[int, int, int] | None]
log = logging.getLogger(__name__)


class SiteNodes:
    """What `Endpoint` needs of a site: its description for the server, and its nodes.

    Readings are loaded in the background: a site with a long history must answer hellos meanwhile. With
    `live`, those that its live service has received are used, too.
    """

    def __init__(self, kit: Path, live: bool = False) -> None:
        self.kit, self.with_live, self.status = kit, live, SiteStatus(kit)
        self.plan: SitePlan | None = None
        self.data: SiteData | None = None
        self.joined: RunReadings | None = None  # the run that the site joined last
        self._problem, self._tried = NOT_READ_YET, Stamps()
        self._tried_readings = Stamps()
        self.memory = 0  # bytes that hidden states and embeddings may use
        threading.Thread(target=self._load, daemon=True).start()

    @property
    def problem(self) -> str:
        """Why the site cannot take part, as the server may see it; empty if it can."""
        return self._problem or ("" if self.joined is None else self.joined.problem)

    retried: tuple[str, ...] = (NO_COPIES,)  # problems after which files that have changed are read again

    def _load(self) -> None:
        """Read the data; if copies are lost, again whenever somebody has put them back."""
        self._try_to_load()
        while self._problem in self.retried:
            if self._problem == NO_COPIES:
                self._wait_for_copies()
            while self._problem == UNUSABLE and self._readings() == self._tried_readings:
                time.sleep(LOOKED_EVERY)
            self._try_to_load()

    def _wait_for_copies(self) -> None:
        """Wait until key, copies or settings are others than now, and nobody is writing them any more."""
        last = self._tried
        while (now := self._copies()) == self._tried or now != last:
            last = now
            time.sleep(LOOKED_EVERY)

    def _copies(self) -> Stamps:
        """What tells whether key, copies and settings have changed."""
        assert self.plan is not None
        folder = private_folder(self.plan, self.kit)
        return [*map(stamp_of, (folder / KEY_FILE, folder / COPIES_FILE, settings_file(self.kit)))]

    def _readings(self) -> Stamps:
        """The same for the files of readings and of further inputs, and the settings."""
        assert self.plan is not None
        place = self.kit / (self.plan.readings or "")
        files = [settings_file(self.kit), place]
        beside = [folder / name for folder in (place, place.parent) for name in (VARIABLES, COVARIATES)]
        for folder in (place, *beside):
            with suppress(OSError):  # it is a file or not there, or may not be read
                files += sorted(folder.iterdir())
        return [*map(stamp_of, files)]

    def _try_to_load(self) -> None:
        try:
            self.plan = read_site(self.kit)
            self._tried, self._tried_readings = self._copies(), self._readings()
            compute = Compute.of(ComputeConfig(device=self.plan.device))
            self.memory = self.plan.memory or compute.limit
            self.data = self._read(self.plan)
            for warning in self.data.warnings():
                log.warning("%s", warning)
            self._problem = ""
            self.status.works("settings", "copies", "readings")
        except ConfigError as error:
            self._report("settings", error)
            self._problem = str(for_server(error, self.kit))
        except (RunError, StorageError) as error:
            self._report("copies", error)
            self._problem = NO_COPIES
        except Exception as error:  # it may quote readings, which must not reach the server
            self._report("readings", error)
            self._problem = UNUSABLE
        else:
            self._log_findings(self.data)

    def _read(self, plan: SitePlan) -> SiteData:
        # A training beside the live service takes the same readings; the service names what is refused.
        return SiteData(plan, self.kit, live=self.with_live, refusals=Refusals() if self.with_live else None)

    def _log_findings(self, data: SiteData) -> None:
        """Log what looks wrong with the true readings. The site is ready by now: nobody else may notice."""
        try:
            for finding in data.findings:
                log.warning("%s", finding)
        except Exception as error:
            self._report("readings", error)

    def _report(self, part: str, error: Exception | None) -> None:
        """Tell the site's owner what went wrong, in the log and in `federation status`; or, without an error,
        that it works."""
        if error is None:
            self.status.works(part)
            return
        log.error("%r failed: %s", part, error)
        self.status.record_problem(part, str(error))

    def describe(self) -> Mapping[str, Any]:
        """The answer to a hello of the server."""
        if self.data is None or self.plan is None or self.problem:
            unfit = self._problem != NOT_READ_YET
            return {"ready": False, "problem": self.problem, "unfit": unfit, "version": __version__}
        about = {"ready": True, "sensors": list(self.plan.sensors), "version": __version__}
        about["memory"] = self.memory
        return about | dict(self.data.describe())

    def join(self, terms: Terms) -> Owner:
        """Make the nodes of a run; errors go to the server without local paths."""
        if self.data is None or self.plan is None or self.problem:
            raise ConfigError("readings", self.problem)
        compute = Compute.of(ComputeConfig(device=self.plan.device, precision=terms.precision))  # type: ignore[arg-type]
        compute = replace(compute, gib=self.memory / GIB)
        sensors = (*self.plan.sensors, *terms.added)
        data = self.data.of_sensors(sensors)
        try:
            store = SiteStore(self.kit, terms.run, sensors, len(terms.added))
            current = data.series(terms)
        except CnfgnnError as error:
            self._report("join", error)
            raise for_server(error, self.kit, self.data.source) from None
        self._report("join", None)
        self.joined = RunReadings(current, terms, store, self.data.source, bool(self.data.retired))
        return self._owner(self.plan, data, self.joined, compute)

    def _owner(self, plan: SitePlan, data: SiteData, joined: RunReadings, compute: Compute) -> Owner:
        nodes = SiteClients(joined, compute, joined.store, plan.name, self.memory)
        return SiteOwner(nodes, data, joined.terms, joined, self.kit, plan.tell_errors)
