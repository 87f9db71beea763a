"""The blurred copy of a site's readings, and where the site keeps its key and its copies.

They belong to the readings, not to the kit: by default they are in a folder beside the readings, so that a
kit that is issued again finds the copies that the old one made. The kit remembers which key it used. If that
key or its copies are gone, the site stops, because a second copy of a reading would tell more than the blur
allows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cnfgnn.data.readings import Readings
from cnfgnn.data.refusals import KnownSteps
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.site.settings import private_folder, settings_file
from cnfgnn.federation.spans import format_time
from cnfgnn.files import read_json, read_json_or_empty
from cnfgnn.privacy.copies import RETIRED, TWO_COPIES, Copies, CopyStore, write_private
from cnfgnn.privacy.inputs import check_input_blurs
from cnfgnn.privacy.truth_and_copy import READINGS, Blurring

RESTORING = "restoring"  # in the record: until a restore comes to its end, nobody knows what was used
GRID = "grid"  # what copies are settled on: step and phase of their times
STEPS = "steps"  # settled by a restore: the step of the readings, and the time of the first one
RECORD = "copies.json"  # in `local/` of the kit: which copies the site used last


def check_least_blur(plan: SitePlan, kit: Path) -> None:
    """Refuse a blur below the least one of the project."""
    if plan.blur < plan.least_blur:
        problem = (
            f"the blur of site {plan.name} is {plan.blur:g}, and this federation asks for at least"
            f" {plan.least_blur:g}: raise it, or leave it out"
        )
        raise ConfigError(f"{settings_file(kit)}: blur", problem)


def check_older_copies(least: float, plan: SitePlan, kit: Path) -> None:
    """Refuse copies of an earlier time that have a smaller blur than the project's least one."""
    if least < plan.least_blur:
        problem = (
            f"some readings of site {plan.name} have a copy with a blur of {least:g} from an earlier time,"
            f" and this federation asks for at least {plan.least_blur:g}: a copy is final, so leave these"
            " readings out of the file"
        )
        raise ConfigError(f"{settings_file(kit)}: blur", problem)


class SiteCopies:
    """The copies of a site: `Copies` that follow its settings. `sigmas` counts how many of the readings that
    were asked for last were blurred with each sigma; `warnings` are for the owner.

    The key, the copies and how times are counted must be those that the site has used before. The kit
    remembers how many readings have a copy before anybody uses it.
    """

    def __init__(self, readings: Readings, plan: SitePlan, kit: Path) -> None:
        self.folder, self.kit = private_folder(plan, kit), kit
        self.sigmas: Mapping[float, int] = {}
        self._remembered = read_json(kit / "local" / RECORD)
        self.warnings: Sequence[str] = _warnings(self.folder, plan, kit)
        self.store = open_copies(self.folder, self._remembered)
        if retired := self.store.retired:
            self.warnings = [*self.warnings, _retired(retired[READINGS])]
        self.steps = known_steps(plan, kit)
        _check_times(self.store, readings, self.steps, plan, kit)
        series = _series_names(self.store, readings)
        _check_inputs_with_copies(self.store, readings, series, plan, kit)
        self._names = series | {READINGS: series[readings.variable]}

    def blur(self, readings: Readings, sigma: float, name: str = READINGS) -> Readings:
        check_complete(self.store, self._remembered)  # somebody may have put an older backup there since
        copy, sigmas = self.store.blur_with_sigmas(readings, sigma, self._names[name])
        if name == READINGS:
            self.sigmas = sigmas
        record = record_of(self.store)
        if record != self._remembered:
            write_record(self.kit, record)
            self._remembered = record
        return copy


def record_of(store: CopyStore) -> dict[str, Any]:
    """What a kit remembers of the copies that it has used."""
    record: dict[str, Any] = {"key": store.fingerprint, "folder": str(store.folder)}
    record |= {"readings": store.count(), "last": store.last}
    if not (retired := store.retired):
        return record
    return {**record, "retired": retired[READINGS], "marks": dict(retired)}


def write_record(kit: Path, record: Mapping[str, Any]) -> None:
    write_private(kit / "local" / RECORD, json.dumps(record).encode())


def is_unfinished(kit: Path) -> bool:
    """Whether a restore of this site was killed, or refused before it knew the key."""
    return bool(read_json_or_empty(kit / "local" / RECORD).get(RESTORING))


def _check_finished(folder: Path, remembered: Mapping[str, Any]) -> None:
    if remembered.get(RESTORING):
        problem = "the restore of this site has not come to its end: repeat it (cnfgnn federation restore)"
        raise RunError(folder, problem)


def open_copies(folder: Path, remembered: Mapping[str, Any] | None) -> CopyStore:
    """The copies of a site, which must be all that its kit has used."""
    _check_finished(folder, remembered or {})
    if remembered is not None and not CopyStore.exists(folder):
        raise RunError(folder, _gone(remembered))
    store = CopyStore(folder)
    check_complete(store, remembered)
    return store


def check_complete(store: CopyStore, remembered: Mapping[str, Any] | None) -> None:
    """Refuse copies of another key, older ones than those that were used, and those before a restore."""
    remembered = {"key": store.fingerprint} if remembered is None else remembered
    _check_finished(store.folder, remembered)
    if remembered.get("key") != store.fingerprint:
        raise RunError(store.folder, f"holds the copies of another key; {_gone(remembered)}")
    if (found := store.count()) < (used := remembered.get("readings", 0)):
        raise RunError(store.folder, _older(f"{found} readings, and this site has used copies of {used}"))
    if not store.has_all(remembered.get("last")):
        raise RunError(store.folder, _older(f"{found} readings, but not those that were made last"))
    marks = {READINGS: remembered.get("retired", 0), **remembered.get("marks", {})}
    if any(store.retired.get(name, 0) < mark for name, mark in marks.items()):
        problem = (
            "holds copies from before this site was restored: put back the folder that the restore made, or"
            " restore the site again (cnfgnn federation restore SITE FILE)"
        )
        raise RunError(store.folder, problem)


def site_copies(readings: Readings, plan: SitePlan, kit: Path) -> SiteCopies | None:
    """Where the copies of a site come from; None if a copy is the reading itself.

    A site that has made copies uses them whatever its blur is now: with a blur of 0, only readings without a
    copy are used as they are.
    """
    check_input_blurs(
        readings.others, plan.input_blurs, plan.blur > 0, lambda name: f"{settings_file(kit)}: inputs.{name}"
    )
    blurs_anything = plan.blur > 0 or any(plan.input_blurs.values())
    has_copies = (kit / "local" / RECORD).exists() or CopyStore.exists(private_folder(plan, kit))
    return SiteCopies(readings, plan, kit) if blurs_anything or has_copies else None


def blurring_of(plan: SitePlan, copies: Copies | None) -> Blurring | None:
    """How a site blurs; an input that its owner has declared public is its own copy."""
    if copies is None:
        return None
    inputs = {name: sigma for name, sigma in plan.input_blurs.items() if sigma > 0}
    return Blurring({READINGS: plan.blur, **inputs}, copies)


def changed_since_copied(observed: Readings, plan: SitePlan, kit: Path) -> int:
    """How many readings are not those that their copies were made of; for the owner only."""
    store = CopyStore(private_folder(plan, kit))
    return store.changed(observed, _series_names(store, observed)[observed.variable])


def _series_names(store: CopyStore, observed: Readings) -> dict[str, str]:
    """The name under which the copies of each variable and covariate are kept.

    The variable that was forecast when the first copy was made has none. It keeps its copies when another
    one is forecast, because a second copy of its readings would tell more than the blur allows.
    """
    settled = store.settle("variable", observed.variable)
    variables = [observed.variable, *(one.name for one in observed.others if not one.known_ahead)]
    names = {name: name for name in (*variables, *(one.name for one in observed.others))}
    if settled not in variables:
        if len(variables) > 1:
            raise RunError(store.folder, _other_variables(settled, variables))
        (settled,) = variables  # its column or file was renamed
    return names | {settled: ""}


def _check_inputs_with_copies(
    store: CopyStore, observed: Readings, series: Mapping[str, str], plan: SitePlan, kit: Path
) -> None:
    """Refuse an input that was blurred before and about which nothing is said now: it would be sent as it is,
    although its copies are final."""
    for one in observed.others:
        if one.name not in plan.input_blurs and store.has_copies_of(series[one.name]):
            problem = (
                f"copies of it have been made, and nothing is said about it now: set {one.name} = 5, if that"
                f" is the noise that new values need, and the others keep their copies; or {one.name} ="
                ' "public"'
            )
            raise ConfigError(f"{settings_file(kit)}: inputs.{one.name}", problem)


def _other_variables(settled: str, found: Sequence[str]) -> str:
    return (
        f"the first copies were made of the variable {settled!r}, and the readings have {', '.join(found)}:"
        f" call the same variable {settled!r} again. Copies are found by its name, and a reading under"
        f" another name would get a second copy: {TWO_COPIES}"
    )


def settled_phase(plan: SitePlan, kit: Path) -> int | None:
    """How many seconds after a full step the readings with copies were measured; None if there are none.

    A live service counts each reading at the nearest of these times. If it followed the readings instead,
    all of them would get a second copy as soon as most have another phase.
    """
    grid = CopyStore.settled(private_folder(plan, kit), GRID)
    return None if grid is None else int(grid.split()[1])


def settle_steps(store: CopyStore, found: Readings) -> None:
    """Settle the steps of a site that is restored. From now on they must not follow from its readings:
    which of those that are retired are still there is nobody else's business."""
    grid, seconds = CopyStore.settled(store.folder, GRID), found.seconds
    step = found.step_if_sure(None if grid is None else int(grid.split()[0]))  # few rows may have gaps
    store.settle(GRID, f"{step} {int(seconds[0]) % step}")
    first, oldest = int(seconds[0]), store.oldest()
    store.settle(STEPS, f"{step} {first if oldest is None else min(first, oldest)}")


def known_steps(plan: SitePlan, kit: Path) -> KnownSteps | None:
    """The steps of a site that was restored; None if it was not."""
    folder = private_folder(plan, kit)
    if (steps := CopyStore.settled(folder, STEPS)) is None:
        return None
    step, first = map(int, steps.split())
    retired: dict[str, int] = json.loads(CopyStore.settled(folder, RETIRED) or "{}")
    return KnownSteps(step, (settled_phase(plan, kit) or 0) % step, first, retired.get(READINGS, first))


def _check_times(
    store: CopyStore, observed: Readings, known: KnownSteps | None, plan: SitePlan, kit: Path
) -> None:
    """Refuse times that are counted in another way than when the first copy was made.

    Copies are found by sensor and time: they would belong to other readings, and readings would get a second
    copy.
    """
    found = "UTC" if observed.utc else "times without a time zone"
    if (settled := store.settle("times", found)) != found:
        raise RunError(store.folder, _other_times(f"from readings in {settled}", f"they are in {found}"))
    seconds = observed.seconds
    if known is None:
        step, phase = observed.step_seconds, int(seconds[0]) % observed.step_seconds
    else:
        step, phase = known.step, known.phase
    first_step, first_phase = map(int, store.settle(GRID, f"{step} {phase}").split())
    if (phase - first_phase) % min(step, first_step):
        before = f"from readings {first_phase} s after a full step of {first_step} s"
        raise RunError(store.folder, _other_times(before, f"they are {phase} s after one of {step} s"))
    zone = plan.reading.timezone
    if (settled := store.settle("timezone", zone)) != zone:
        now = f"it is {zone!r} in {settings_file(kit)}"
        raise RunError(store.folder, _other_times(f"with the setting reading.timezone = {settled!r}", now))


def _other_times(before: str, now: str) -> str:
    return (
        f"the copies were made {before}, and now {now}: go back to how it was. Copies are found by sensor and"
        f" time, and a reading at another time would get a second copy: {TWO_COPIES}"
    )


def _warnings(folder: Path, plan: SitePlan, kit: Path) -> list[str]:
    """What the owner should know about this folder before anything is made in it."""
    warnings = []
    if not CopyStore.exists(folder):
        warnings.append(
            f"a NEW key was made, in {folder}. If these readings have taken part in a federation before, stop"
            f" this site now, delete this folder and {kit / 'local' / RECORD}, and set `private` in"
            f" {settings_file(kit)} to the folder of the old key: {TWO_COPIES}"
        )
    if folder.is_relative_to(os.path.abspath(kit)):
        warnings.append(
            f"the folder of the key and the copies is inside the kit ({folder}): whoever gets a copy of the"
            f" kit gets the key, too; move the folder, and set `private` in {settings_file(kit)} to its new"
            " place"
        )
    return warnings


def _older(found: str) -> str:
    return (
        f"holds copies of {found}: the newer ones are lost."
        " Restore the site from its newest backup (cnfgnn federation restore SITE FILE), which retires the"
        f" readings that have no copy in it. Copies must not be made again: {TWO_COPIES}"
    )


def _retired(until: int) -> str:
    return (
        f"the site was restored from a backup: readings up to {format_time(until)} that have no copy in it"
        " are retired. They are yours to use, and missing for the federation"
    )


def _gone(remembered: Mapping[str, object]) -> str:
    return (
        f"the key and the blurred copies that this site has used are not here; they were in"
        f" {remembered.get('folder')}: move that folder here, set `private` in local/site.toml to where it"
        " is, or restore the site from a backup, the newest one (cnfgnn federation restore SITE FILE). Copies"
        f" must not be made again: {TWO_COPIES}"
    )
