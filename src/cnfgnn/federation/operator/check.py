"""The checks of `federation check`, at a site before it joins. The server is only asked for its status."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from cnfgnn.attack.smoothed_copies import TOO_FEW, SmoothedCopies
from cnfgnn.config.settings import DataConfig
from cnfgnn.data.windows import fewest_rows
from cnfgnn.errors import DataError, RunError
from cnfgnn.federation.engine.confine import (
    WRITABLE_DEVICES,
    Limits,
    available,
    python_paths,
    usable_by,
)
from cnfgnn.federation.engine.guard.handshake import ask_server, connection_problem, copied_kit_warning
from cnfgnn.federation.kits.certificates import check_valid
from cnfgnn.federation.kits.engine_files import ENGINE_FOLDER, open_to_engine
from cnfgnn.federation.kits.processes import running
from cnfgnn.federation.kits.renewal import finish_renewal
from cnfgnn.federation.operator.status import engine_process
from cnfgnn.federation.project import REQUIRED, SitePlan
from cnfgnn.federation.site.copies import changed_since_copied
from cnfgnn.federation.site.readings import SiteData
from cnfgnn.federation.site.settings import private_folder, private_places, read_site, settings_file
from cnfgnn.federation.spans import format_duration, format_time
from cnfgnn.transports.remote.limits import MOST_CLOCK_DIFFERENCE

FEWEST_ROWS = fewest_rows(DataConfig.history, DataConfig.horizon)  # time steps that the default settings need
MOST_MISSING = 0.95  # share of a sensor's readings
FEW_CORRECTIONS = 10  # readings that may have changed since they were copied, without a warning


def check_site(kit: Path, hide: float | None = None) -> Iterator[str]:
    """Yield a line for each check that passes or warns; raise an error at the first one that fails.

    `hide` is by how much a smoother should miss the readings.
    """
    plan = read_site(kit)
    data = SiteData(plan, kit)  # refuses missing sensors and timestamps that are out of order
    readings, source = data.truth, data.source
    yield f"sensors: all {len(plan.sensors)} of site {plan.name} are in {source}"
    if readings.notes:
        yield f"format: {'; '.join(readings.notes)}"
    within = (data.seconds >= data.first) & (data.seconds <= data.last)
    missing = readings.missing[within]
    if len(missing) < FEWEST_ROWS:
        raise DataError(source, f"{len(missing)} time steps are too few: at least {FEWEST_ROWS} are needed")
    span = f"from {format_time(data.first)} to {format_time(data.last)}"
    yield f"step: {data.step} s; {span}, {len(missing)} steps"
    for warning in data.warnings():
        yield f"warning: {warning}"
    share = missing.mean(axis=0)
    worst = int(np.argmax(share))
    if share[worst] > MOST_MISSING:
        raise DataError(source, f"{share[worst]:.0%} of its readings are missing", column=readings.ids[worst])
    most = f"at most {share[worst]:.1%} (sensor {readings.ids[worst]})"
    yield f"missing: {missing.mean():.1%} of all readings, {most}; the server sees which"
    yield from _blur(data, plan, kit)
    yield from _smoothing(SmoothedCopies.of(readings.values[within], missing), plan.blur, hide)
    yield from _inputs(data, plan)
    for finding in data.findings:
        yield f"note: {finding}"
    if data.findings:
        yield f"note: change missing_value and outliers in {settings_file(kit)}"
    yield _clock(data)
    finish_renewal(kit)
    for warning in check_valid(kit):
        yield f"warning: {warning}"
    yield from _engine(plan, kit)
    yield from _server(kit)


def _blur(data: SiteData, plan: SitePlan, kit: Path) -> Iterator[str]:
    """What the server can learn of the readings, and where the key and the copies are."""
    if not data.sigmas:
        yield (
            "warning: blur is 0: the server can estimate each reading of this site, nearly exactly; set blur"
            f" in {settings_file(kit)}"
        )
        return
    made = ", ".join(f"{count} with a blur of {sigma:g}" for sigma, count in sorted(data.sigmas.items()))
    yield f"blur: {plan.blur:g}; readings that have a copy: {made}"
    if other := sum(count for sigma, count in data.sigmas.items() if sigma != plan.blur):
        yield f"note: {other} readings had a copy before; it is final, whatever the blur is now"
    if data.blur < plan.blur:
        yield (
            f"warning: the server is told a blur of {data.blur:g}, the smallest of these copies; it is told"
            f" {plan.blur:g} once the readings with a smaller one are no longer in the file"
        )
    if (changed := changed_since_copied(data.observed, plan, kit)) > FEW_CORRECTIONS:
        yield (
            f"warning: {changed} readings are not those that their copies were made of. The copies stay as"
            " they are, which is right for corrections. If you have not corrected that many: were sensors"
            " renamed, was a clock or a time zone changed, or does the file hold another quantity?"
        )
    yield f"key and copies: {private_folder(plan, kit)} (cnfgnn federation backup: they cannot be made again)"
    if plan.tell_errors:
        yield "note: tell_errors is true: the server also gets the sums of this site's true errors"
    if plan.live.tell_coverage:
        yield (
            "note: live.tell_coverage is true: while the federation is live, the server also gets how many of"
            " this site's true readings lay within their ranges"
        )


def _smoothing(smoothing: SmoothedCopies | None, blur: float, hide: float | None) -> Iterator[str]:
    """What a smoother would make of the site's copies; for its owner alone."""
    if smoothing is None:
        yield f"smoothing: {TOO_FEW}"
        return
    rows = smoothing.for_blurs(blur)
    if not rows:
        yield "smoothing: these readings never change, so that their mean tells all of them"
        return
    found = ", ".join(f"{row.together:.3g} at a blur of {row.blur:g}" for row in rows)
    yield (
        f"smoothing: a smoother of the copies misses these readings by {found} (RMSE); guessing each"
        f" sensor's mean misses by {smoothing.guess:.3g}"
    )
    if hide is not None:
        yield f"smoothing: {smoothing.hiding(hide)}"


def _inputs(data: SiteData, plan: SitePlan) -> Iterator[str]:
    """Other variables and covariates, and what the server can learn of them."""
    for one in data.truth.others:
        sigma = plan.input_blurs.get(one.name, 0.0)
        kind = "covariate" if one.known_ahead else "variable"
        what = f"blur {sigma:g}" if sigma else "public: the server can estimate it, nearly exactly"
        yield f"{kind} {one.name}: {what}"


def _clock(data: SiteData) -> str:
    """Refuse readings from the future: the clock, or the time zone of the file, is wrong."""
    now = datetime.now(UTC)
    local = now if data.truth.utc else datetime.now().astimezone()
    shown = (local.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
    newest = int(data.measured[-1])
    if newest > shown + data.step:
        problem = (
            f"this reading is in the future: the clock shows {local:%Y-%m-%d %H:%M}; check this machine's"
            " clock and the file's time zone"
        )
        raise DataError(data.source, problem, row=format_time(newest))
    return f"clock: {now:%Y-%m-%d %H:%M} UTC, newest reading {format_duration(max(0, shown - newest))} old"


def _engine(plan: SitePlan, kit: Path) -> Iterator[str]:
    """What would confine the engine on this machine, and whether it could open the readings all the same."""
    readable = python_paths()
    user: str | None = plan.engine.user if os.geteuid() == 0 else None
    if user is not None and (problem := usable_by(user, readable)):
        yield f"engine: {problem}"
        user = None
    limits = Limits(readable, (str(kit.resolve() / ENGINE_FOLDER), *WRITABLE_DEVICES), user=user)
    found = available(limits)
    yield f"engine: {found.summary()}"
    for gap in found.gaps():
        yield f"engine: {gap}"
    if not found.closed and plan.engine.confined == REQUIRED:
        raise RunError(kit, f"this machine cannot confine the engine, and engine.confined is {REQUIRED!r}")
    for problem in open_to_engine([*limits.readable, *limits.writable], private_places(plan, kit)):
        yield f"warning: {problem}"


def _server(kit: Path) -> Iterator[str]:
    """Connect to the server without joining: both sides check certificates, and the clocks are compared."""
    answer = ask_server(kit, engine_process(kit) if running(kit) else "")
    yield f"server: {answer.address} answers as {answer.server}, certificates match"
    if problem := connection_problem(answer):
        raise RunError(kit, problem)
    if answer.connection:
        yield "server: it knows this site, and runs the same version"
    else:
        yield "warning: the server does not say whether it knows this site; is it still starting? Check again"
    if warning := copied_kit_warning(answer.connection):
        yield f"warning: {warning}"
    allowed = f"at most {MOST_CLOCK_DIFFERENCE:.0f} s are allowed"
    yield f"clock: differs from the server's by {abs(answer.clock_ahead):.0f} s, {allowed}"
