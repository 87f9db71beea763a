"""A site's own settings: `local/site.toml` in its kit, which the site's owner may edit."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from cnfgnn.config.settings import Config, DataConfig
from cnfgnn.config.toml import read_toml
from cnfgnn.data.options import ReadingOptions
from cnfgnn.errors import ConfigError
from cnfgnn.federation.newcomers import new_sensors
from cnfgnn.federation.permission_rules import permission_rules
from cnfgnn.federation.project import (
    CLEANING_KEYS,
    KEEP_TASKS,
    MOST_TASKS,
    SiteEngine,
    SiteLive,
    SitePlan,
    amount_of_blur,
)
from cnfgnn.privacy.inputs import input_blur

SITE_KEYS = (
    "name",
    "sensors",
    "readings",
    "least_blur",
    "blur",
    "private",
    "tell_errors",
    "device",
    "memory",
    "keep_tasks",
    "reading",
    "inputs",
    "live",
    "engine",
    "new_sensors",
    "permissions",
    *CLEANING_KEYS,
)
PRIVATE = "cnfgnn-private"  # a folder beside the readings
REQUIRED = "required"
CONFINED = ("if possible", REQUIRED)
MEMORY = re.compile(r"(\d+(?:\.\d+)?) *(MiB|GiB)")
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}


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
    for key in content:
        if key not in SITE_KEYS:
            raise ConfigError(key, "unknown key", SITE_KEYS)
    name, sensors, readings = content.get("name"), content.get("sensors"), content.get("readings")
    if not isinstance(name, str):
        raise ConfigError("name", "it is missing")
    if not isinstance(sensors, list):
        raise ConfigError("sensors", "it is missing")
    if readings is not None and not isinstance(readings, str):
        raise ConfigError("readings", "it must be the path of a file or folder")
    keep_tasks = content.get("keep_tasks", KEEP_TASKS)
    if type(keep_tasks) is not int or not 1 <= keep_tasks <= MOST_TASKS:
        raise ConfigError("keep_tasks", f"it must be a whole number from 1 to {MOST_TASKS}")
    least_blur = _blur(content, "least_blur", 0.0)
    tell_errors = content.get("tell_errors", False)
    if not isinstance(tell_errors, bool):
        raise ConfigError("tell_errors", "it must be true or false")
    private = content.get("private")
    if private is not None and (not isinstance(private, str) or not private):
        raise ConfigError("private", "it must be the path of a folder")
    return SitePlan(
        name,
        tuple(map(str, sensors)),
        readings or None,
        device=str(content.get("device", "auto")),
        memory=_memory(content.get("memory")),
        keep_tasks=keep_tasks,
        least_blur=least_blur,
        blur=_blur(content, "blur", least_blur),
        private=private,
        tell_errors=tell_errors,
        cleaning=_cleaning(content),
        reading=_reading(content.get("reading", {}), file),
        input_blurs=_input_blurs(content.get("inputs", {})),
        live=_live(content.get("live", {})),
        engine=_engine(content.get("engine", {})),
        new_sensors=new_sensors(content.get("new_sensors", {}), tuple(map(str, sensors))),
        permissions=permission_rules(content.get("permissions", {})),
    )


def _cleaning(content: Mapping[str, Any]) -> DataConfig:
    changes = {f"data.{key}": content[key] for key in CLEANING_KEYS if key in content}
    try:
        return Config().with_changes(changes).data
    except ConfigError as error:
        raise ConfigError(error.key.removeprefix("data."), error.problem) from None


def _blur(content: Mapping[str, Any], key: str, default: float) -> float:
    try:
        return amount_of_blur(content.get(key, default))
    except ConfigError as error:
        raise ConfigError(key, error.problem) from None


def _input_blurs(table: Any) -> dict[str, float]:
    """The settings under [inputs]: the blur of each variable and covariate, or "public"."""
    if not isinstance(table, dict):
        raise ConfigError(
            "inputs", 'it must be a table, [inputs], with lines like flow = 200 or rain = "public"'
        )
    return {name: input_blur(f"inputs.{name}", value) for name, value in table.items()}


def _memory(text: object) -> int:
    """The bytes of a text such as "2 GiB"; 0 if the setting is absent."""
    if text is None:
        return 0
    match = MEMORY.fullmatch(text) if isinstance(text, str) else None
    size = float(match[1]) * UNITS[match[2]] if match else 0
    if size < 1:
        raise ConfigError("memory", 'it must be an amount such as "512 MiB" or "2 GiB"')
    return int(size)


def _reading(table: Any, file: Path) -> ReadingOptions:
    """The settings under [reading]: dates, decimal, timezone, target and inputs, as under data.* of a run."""
    valid = [field.name for field in fields(ReadingOptions) if field.name != "place"]
    if not isinstance(table, dict):
        raise ConfigError("reading", "it must be a table, [reading]", valid)
    for key in table:
        if key not in valid:
            raise ConfigError("reading", f"unknown setting {key!r}", valid)
    return ReadingOptions(**table, place=str(file))


def _live(table: Any) -> SiteLive:
    """The settings under [live]: its clock, where it serves its forecasts, and what it tells the server."""
    found = SiteLive(**_typed("live", table, SiteLive))
    found.check_options(lambda name: f"live.{name}")
    return found


def _engine(table: Any) -> SiteEngine:
    """The settings under [engine]: how the engine is confined."""
    found = SiteEngine(**_typed("engine", table, SiteEngine))
    if found.confined not in CONFINED:
        raise ConfigError("engine.confined", f"it cannot be {found.confined!r}", CONFINED)
    return found


def _typed(name: str, table: Any, kind: type[SiteLive | SiteEngine]) -> dict[str, Any]:
    """A table whose keys are the fields of a class, with values of their kinds."""
    kinds = {field.name: type(field.default) for field in fields(kind)}
    if not isinstance(table, dict):
        raise ConfigError(name, f"it must be a table, [{name}]", list(kinds))
    for key, value in table.items():
        if key not in kinds:
            raise ConfigError(name, f"unknown setting {key!r}", list(kinds))
        wanted = (int, float) if kinds[key] is float else (kinds[key],)
        if type(value) not in wanted:
            raise ConfigError(f"{name}.{key}", f"it must be {_KINDS[kinds[key]]}")
    return table


_KINDS: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
