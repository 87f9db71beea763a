"""A site's own settings: `local/site.toml` in its kit, which the site's owner may edit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cnfgnn.config.declarations import read_table
from cnfgnn.config.toml import read_toml
from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import ConfigError
from cnfgnn.federation.newcomers import new_sensors
from cnfgnn.federation.project import SitePlan

PRIVATE = "cnfgnn-private"  # a folder beside the readings


def private_folder(plan: SitePlan, kit: Path) -> Path:
    """The folder of the site's key and copies."""
    readings = kit / (plan.readings or "")
    beside = (readings if readings.is_dir() else readings.parent) / PRIVATE
    return Path(os.path.abspath(beside if plan.private is None else kit / plan.private))


def private_places(plan: SitePlan, kit: Path) -> list[Path]:
    """What the engine must not be able to open."""
    return [kit, private_folder(plan, kit), *([kit / plan.readings] if plan.readings else [])]


def settings_file(kit: Path) -> Path:
    return kit / "local" / "site.toml"


def read_site(kit: str | Path) -> SitePlan:
    """Read the settings of a site's kit; an error names the file and the key."""
    file = settings_file(Path(kit))
    content = read_toml(file)
    try:
        return _site_plan(content, file)
    except ConfigError as error:
        if error.key.startswith(str(file)):  # ReadingOptions names the file itself
            raise
        raise ConfigError(f"{file}: {error.key}", error.problem) from None


def _site_plan(content: Mapping[str, Any], file: Path) -> SitePlan:
    given = {"place": str(file), "refusals": None, "known": None}
    reading = read_table(ReadingOptions, content.get("reading", {}), "reading", **given)
    plan = read_table(SitePlan, {**content, "reading": reading, "new_sensors": ()}, organisation="")
    plan.live.check_options(lambda name: f"live.{name}")
    return replace(
        plan,
        readings=plan.readings or None,
        blur=plan.blur if "blur" in content else plan.least_blur,
        new_sensors=new_sensors(content.get("new_sensors", {}), plan.sensors),
    )
