"""Whether a site is fit to join, asked at the site: nothing is sent but a question to the server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from cnfgnn.config.settings import DataConfig
from cnfgnn.data.windows import fewest_rows
from cnfgnn.errors import ConfigError, DataError, RunError
from cnfgnn.federation.certificates import check_valid
from cnfgnn.federation.flare.handshake import ask
from cnfgnn.federation.kits import kind, read_site
from cnfgnn.federation.processes import running
from cnfgnn.federation.site_data import SiteData
from cnfgnn.federation.site_status import copy_problem, noted_process, standing_problem
from cnfgnn.federation.spans import lasting, shown_time
from cnfgnn.transports.remote.limits import MOST_CLOCK_DIFFERENCE

FEWEST_ROWS = fewest_rows(DataConfig.history, DataConfig.horizon)  # time steps, by default settings
MOST_MISSING = 0.95


def check_site(kit: Path) -> Iterator[str]:
    """What is right, line by line; the first thing that is not ends it with a sentence."""
    if kind(kit) != "site":
        raise ConfigError(str(kit), "this is the server's kit: a site is checked from its own")
    plan = read_site(kit)
    own = SiteData(plan, kit)  # refuses sensors that are not there, times out of order
    readings = own.readings
    source = readings.source
    yield f"sensors: all {len(plan.sensors)} of {plan.name} are in {source}"
    if readings.notes:
        yield f"understood: {'; '.join(readings.notes)}"
    missing = readings.missing[(own.seconds >= own.first) & (own.seconds <= own.last)]
    if len(missing) < FEWEST_ROWS:
        raise DataError(source, f"{len(missing)} time steps are too few: at least {FEWEST_ROWS}")
    yield f"step: {own.step} s; from {shown_time(own.first)} to {shown_time(own.last)}, {len(missing)} steps"
    for warning in own.warnings():
        yield f"warning: {warning}"
    share = missing.mean(axis=0)
    worst = int(np.argmax(share))
    if share[worst] > MOST_MISSING:
        raise DataError(source, f"{share[worst]:.0%} of its readings are missing", column=readings.ids[worst])
    yield f"missing: {missing.mean():.1%}, at most {share[worst]:.1%} ({readings.ids[worst]})"
    for finding in own.findings:
        yield f"note: {finding}"
    if own.findings:
        yield f"note: missing_value and outliers are set in {kit / 'local' / 'site.toml'}"
    yield _clock(own)
    for warning in check_valid(kit):
        yield f"warning: {warning}"
    yield from _reached(kit)


def _clock(own: SiteData) -> str:
    """Readings of the future mean that the clock, or the time zone of the file, is wrong."""
    now = datetime.now(UTC)
    local = now if own.readings.utc else datetime.now().astimezone()
    shown = (local.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
    newest = int(own.measured[-1])
    if newest > shown + own.step:
        problem = f"this reading lies ahead of the clock ({local:%Y-%m-%d %H:%M})"
        raise DataError(own.readings.source, problem, row=shown_time(newest))
    return f"clock: {now:%Y-%m-%d %H:%M} UTC, newest reading {lasting(max(0, shown - newest))} old"


def _reached(kit: Path) -> Iterator[str]:
    """A question to the server: certificates are checked by both, clocks compared, and nothing is joined."""
    answer = ask(kit, noted_process(kit) if running(kit) else "")
    yield f"server: {answer.address} answers as {answer.server}, certificates match"
    if problem := standing_problem(answer):
        raise RunError(kit, problem)
    if warning := copy_problem(answer.standing):
        yield f"warning: {warning}"
    allowed = f"at most {MOST_CLOCK_DIFFERENCE:.0f} s are allowed"
    yield f"clock: {abs(answer.ahead):.0f} s off the server's, {allowed}"
