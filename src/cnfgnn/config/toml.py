"""Settings as TOML: what a person writes, and what a run keeps."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnfgnn.config.settings import Config
from cnfgnn.errors import ConfigError, DataError


def dump(config: Config) -> str:
    """Every setting of a configuration, top level first, then a section each."""
    lines: list[str] = []
    sections: list[str] = []
    for name, value in config.as_dict().items():
        if isinstance(value, dict):
            sections += ["", f"[{name}]", *(f"{key} = {_value(item)}" for key, item in value.items())]
        else:
            lines.append(f"{name} = {_value(value)}")
    return "\n".join([*lines, *sections, ""])


def read_changes(path: Path) -> dict[str, Any]:
    """The settings a TOML file names, by their dotted keys; whether they exist is for Config to say."""
    return flat(read_toml(path))


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file, or one sentence why it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(path, f"it cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise DataError(path, "it is not UTF-8 text") from None
    except ValueError as error:
        raise DataError(path, f"it is not TOML ({error})") from None


def parse_change(text: str) -> tuple[str, Any]:
    """`a.b=c` from the command line; c as TOML where it is that, else as a word."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(text, "a change looks like training.rounds=3")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, KeyError):  # not TOML, or a number longer than Python reads
        value = raw.strip()
    return key.strip(), value


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables by their dotted keys."""
    flattened: dict[str, Any] = {}
    for key, value in table.items():
        is_table = isinstance(value, dict) and value  # an empty one is kept: its name may be wrong
        flattened |= flat(value, f"{prefix}{key}.") if is_table else {f"{prefix}{key}": value}
    return flattened


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
