"""Noticing that key, copies or states are gone, or back: a site may go on for weeks without them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cnfgnn.federation.project import SitePlan
from cnfgnn.federation.site.copies import RECORD
from cnfgnn.federation.site.settings import private_folder
from cnfgnn.federation.site.status import MODEL, STATES, SiteStatus, read_site_status
from cnfgnn.files import read_json_or_empty
from cnfgnn.live.options import LIVE
from cnfgnn.privacy.copies import COPIES_FILE, KEY_FILE

PARTS = ("key and copies", "states")


def note_losses(kit: Path, plan: SitePlan) -> None:
    """Record in the site's status what is gone, since when and what to do; or that it is back."""
    status, restore = SiteStatus(kit), f"cnfgnn federation restore {kit} FILE"
    folder = private_folder(plan, kit)
    missing = [name for name in (KEY_FILE, COPIES_FILE) if not (folder / name).exists()]
    if missing and (kit / "local" / RECORD).exists():
        problem = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} gone from {folder}"
        status.record_problem(
            PARTS[0], problem, f"put them back, or stop the site and restore it ({restore})"
        )
    else:
        status.works(PARTS[0])
    if gone := _lost_states(kit):
        problem = (
            f"the states of {', '.join(gone)} are gone from {kit / STATES}: at its next start, the site"
            " forgets what its sensors have learned for themselves"
        )
        status.record_problem(
            PARTS[1], problem, f"stop the site and restore them ({restore}), or train again"
        )
    else:
        status.works(PARTS[1])


def _lost_states(kit: Path) -> list[str]:
    """The runs whose states are gone: if none are left, or if the live service uses one of these runs.

    Owners may remove single runs, and a retraining does.
    """
    found: list[str] = []
    with suppress(OSError):
        found = sorted(path.name for path in (kit / STATES).iterdir() if path.name[0] != ".")
    known = read_site_status(kit).get("states", [])
    gone = [run for run in known if run not in found]
    in_use = str(read_json_or_empty(kit / LIVE / MODEL).get("run"))
    if gone and (not found or in_use in gone):
        return [in_use] if in_use in gone else gone
    if found != known:
        SiteStatus(kit).record_states(found)
    return []
