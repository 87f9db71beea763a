"""The blurred copy of a site's readings, and where the site keeps its key and its copies.

They belong to the readings, not to the kit: by default they are in a folder beside the readings, so that a
kit that is issued again finds the copies that the old one made. The kit remembers which key it used. If that
key or its copies are gone, the site stops, because a second copy of a reading would reveal it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cnfgnn.data.readings import Readings
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.site.settings import settings_file
from cnfgnn.files import read_json
from cnfgnn.privacy.copies import CopyStore, write_private
from cnfgnn.privacy.inputs import check_input_blurs

FOLDER = "cnfgnn-private"
RECORD = "copies.json"  # in `local/` of the kit: which copies the site used last


class BlurredCopy(NamedTuple):
    """The copy of a site's readings and further inputs; the readings themselves if nothing is blurred."""

    readings: Readings
    sigmas: Mapping[float, int]  # how many readings were blurred with each sigma; empty without a store
    warnings: Sequence[str] = ()  # for the owner


def private_folder(plan: SitePlan, kit: Path) -> Path:
    """The folder of the site's key and copies."""
    readings = kit / (plan.readings or "")
    beside = (readings if readings.is_dir() else readings.parent) / FOLDER
    return Path(os.path.abspath(beside if plan.private is None else kit / plan.private))


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


def blurred_copy(observed: Readings, plan: SitePlan, kit: Path) -> BlurredCopy:
    """The copy from which everything that the site sends is computed.

    A site that has made copies uses them whatever its blur is now: with a blur of 0, only readings without a
    copy are used as they are.
    """
    check_input_blurs(
        observed.others, plan.input_blurs, plan.blur > 0, lambda name: f"{settings_file(kit)}: inputs.{name}"
    )
    folder, remembered = private_folder(plan, kit), read_json(kit / "local" / RECORD)
    blurs_anything = plan.blur > 0 or any(plan.input_blurs.values())
    if remembered is None and not blurs_anything and not CopyStore.exists(folder):
        return BlurredCopy(observed, {})
    if remembered is not None and not CopyStore.exists(folder):
        raise RunError(folder, _gone(remembered))
    warnings = _warnings(folder, plan, kit)
    store = CopyStore(folder)
    if remembered is not None and remembered.get("key") != store.fingerprint:
        raise RunError(folder, f"holds the copies of another key; {_gone(remembered)}")
    used, found = 0 if remembered is None else remembered.get("readings", 0), store.count()
    if found < used:
        raise RunError(folder, _older(found, used))
    _check_times(store, observed, plan, kit)
    series = _series_names(store, observed)
    _check_inputs_with_copies(store, observed, series, plan, kit)
    readings, sigmas = store.blur_with_sigmas(observed, plan.blur, series[observed.variable])
    copied = [
        replace(one, readings=store.blur(one.readings, sigma, series[one.name])) if sigma else one
        for one in observed.others
        for sigma in [plan.input_blurs.get(one.name, 0.0)]
    ]
    copy = BlurredCopy(replace(readings, others=tuple(copied)), sigmas, warnings)
    record = {"key": store.fingerprint, "folder": str(folder), "readings": store.count()}
    if remembered != record:  # it is on disk before anybody uses the copy
        write_private(kit / "local" / RECORD, json.dumps(record).encode())
    return copy


class LiveCopies:
    """Copies of readings as they arrive: `Copies` of a site whose other copies have been checked.

    The store stays open in this process. The kit remembers how many readings have a copy before it is used.
    `observed` are the site's readings, whose variables tell under which names copies are kept.
    """

    def __init__(self, plan: SitePlan, kit: Path, observed: Readings) -> None:
        self.folder, self.record = private_folder(plan, kit), kit / "local" / RECORD
        self.store = CopyStore(self.folder)
        series = _series_names(self.store, observed)
        self._names = {
            "": series[observed.variable],
            **{one.name: series[one.name] for one in observed.others},
        }
        self._before, self._recorded = self.store.count(), -1

    @staticmethod
    def needed(plan: SitePlan, kit: Path) -> bool:
        """Whether the copy of a reading is not the reading itself."""
        remembered = read_json(kit / "local" / RECORD)
        blurs_anything = plan.blur > 0 or any(plan.input_blurs.values())
        return remembered is not None or blurs_anything or CopyStore.exists(private_folder(plan, kit))

    def blur(self, readings: Readings, sigma: float, name: str = "") -> Readings:
        copy = self.store.blur(readings, sigma, self._names[name])
        # Counting all copies takes longer the more there are; this is how many there are at least.
        if (count := self._before + self.store.drawn) != self._recorded:
            record = {"key": self.store.fingerprint, "folder": str(self.folder), "readings": count}
            write_private(self.record, json.dumps(record).encode())
            self._recorded = count
        return copy


def changed_since_copied(observed: Readings, plan: SitePlan, kit: Path) -> int:
    """How many readings are not those that their copies were made of; for the owner only."""
    store = CopyStore(private_folder(plan, kit))
    return store.changed(observed, _series_names(store, observed)[observed.variable])


def _series_names(store: CopyStore, observed: Readings) -> dict[str, str]:
    """The name under which the copies of each variable and covariate are kept.

    The variable that was forecast when the first copy was made has none. It keeps its copies when another
    one is forecast, because a second copy of its readings would reveal them.
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
        " another name would get a second copy, which reveals it"
    )


def _check_times(store: CopyStore, observed: Readings, plan: SitePlan, kit: Path) -> None:
    """Refuse times that are counted in another way than when the first copy was made.

    Copies are found by sensor and time: they would belong to other readings, and readings would get a second
    copy.
    """
    found = "UTC" if observed.utc else "times without a time zone"
    if (settled := store.settle("times", found)) != found:
        raise RunError(store.folder, _other_times(f"from readings in {settled}", f"they are in {found}"))
    zone = plan.reading.timezone
    if (settled := store.settle("timezone", zone)) != zone:
        now = f"it is {zone!r} in {settings_file(kit)}"
        raise RunError(store.folder, _other_times(f"with the setting reading.timezone = {settled!r}", now))


def _other_times(before: str, now: str) -> str:
    return (
        f"the copies were made {before}, and now {now}: go back to how it was. Copies are found by sensor and"
        " time, and a reading at another time would get a second copy, which reveals it"
    )


def _warnings(folder: Path, plan: SitePlan, kit: Path) -> list[str]:
    """What the owner should know about this folder before anything is made in it."""
    warnings = []
    if not CopyStore.exists(folder):
        warnings.append(
            f"a NEW key was made, in {folder}. If these readings have taken part in a federation before, stop"
            f" this site now, delete this folder and {kit / 'local' / RECORD}, and set `private` in"
            f" {settings_file(kit)} to the folder of the old key: two copies of a reading reveal it"
        )
    if folder.is_relative_to(os.path.abspath(kit)):
        warnings.append(
            f"the folder of the key and the copies is inside the kit ({folder}): whoever gets a copy of the"
            f" kit gets the key, too; move the folder, and set `private` in {settings_file(kit)} to its new"
            " place"
        )
    return warnings


def _older(found: int, used: int) -> str:
    return (
        f"holds copies of {found} readings, and this site has used copies of {used}: it is from an older"
        " backup, and the newer copies are lost. Restore a newer backup. Copies must not be made again: two"
        " copies of a reading reveal it"
    )


def _gone(remembered: Mapping[str, object]) -> str:
    return (
        f"the key and the blurred copies that this site has used are not here; they were in"
        f" {remembered.get('folder')}: move that folder here, restore it from a backup, or set `private` in"
        " local/site.toml to where it is. Copies must not be made again: two copies of a reading reveal it"
    )
