"""Which part of the copy a run uses: the readings with which the site joined it."""

from __future__ import annotations

import logging

from cnfgnn.data.series import Series
from cnfgnn.errors import CnfgnnError
from cnfgnn.federation.site.readings import digest, first_rows, rows_with_readings
from cnfgnn.federation.site.store import JoinRecord, SiteStore
from cnfgnn.transports.remote.endpoint import Terms

CHANGED = (
    "its readings have changed since it joined this run: restore them at the site and restart it, or start a"
    " new run"
)
CHANGED_OR_RETIRED = (
    "its readings have changed since it joined this run, or a restore from a backup has retired some: start a"
    " new run or, if it was not restored since, put them back at the site and restart it"
)
log = logging.getLogger(__name__)


class RunReadings:
    """The copy as it is now, and the part of it that belongs to a run.

    The nodes hold this object, so it has the copy and nothing that leads to the true readings. `restored`
    is whether the site was ever restored from a backup.
    """

    def __init__(
        self, current: Series, terms: Terms, store: SiteStore, source: str, restored: bool = False
    ) -> None:
        self.current, self.terms, self.store, self.source = current, terms, store, source
        self.changed = CHANGED_OR_RETIRED if restored else CHANGED
        self.problem = ""  # why the site cannot take part any more, as the server may see it

    def of_run(self) -> Series:
        """The copy with which this site joined the run; newer readings do not belong to it.

        If it has changed, the site refuses to take part until it is restarted: training that continues on
        other readings, or on another scale, would match neither run.
        """
        if self.problem:
            raise CnfgnnError(self.problem)
        record = self.store.read_join_record()
        rows = rows_with_readings(self.current) if record is None else record.rows
        series = first_rows(self.current, rows)
        if record is None:
            self.store.write_join_record(
                JoinRecord(rows, digest(series, self.terms), tuple(self.store.sensors))
            )
        elif record.sha256 != digest(series, self.terms):
            problem = "the readings in %s have changed since this site joined run %s"
            if self.changed != CHANGED:
                problem += ", or a restore has retired some"
            log.error(problem, self.source, self.terms.run)
            self.problem = self.changed
            raise CnfgnnError(self.changed)
        return series

    def rows(self) -> int | None:
        """How many time steps of the run the readings reach; None if the site has not joined it yet."""
        record = self.store.read_join_record()
        return None if record is None else record.rows
