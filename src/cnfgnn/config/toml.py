"""Settings as TOML: reading what a person writes, and the one TOML writer of this package.

Reading is the standard library's. Writing takes the few lines below: this package only writes tables of text,
numbers, true or false, and lists of those. The library tomlkit writes more kinds of values and preserves the
layout of a file that it edits; nothing here needs that, and every installation would depend on it.
"""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cnfgnn.config.declarations import Setting
from cnfgnn.config.settings import Config, declarations
from cnfgnn.errors import ConfigError, DataError

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")  # a key that needs no quotes
COMMENT_WIDTH = 100


def toml_value(value: str | bool | int | float | list[Any] | tuple[Any, ...]) -> str:
    """One value as TOML writes it; a tuple becomes a list."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A TOML string allows what a JSON string allows, except for the character DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def dump_table(table: Mapping[str, Any]) -> str:
    """A table as TOML: first its values, then each table within it below a header such as [sites.north]."""
    return "\n".join([*_table_lines(table, ()), ""])


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = []
    for key, value in table.items():
        if not isinstance(value, Mapping):
            lines.append(f"{_toml_key(key)} = {toml_value(value)}")
    if path and (lines or not table):
        lines = ["", f"[{'.'.join(map(_toml_key, path))}]", *lines]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _table_lines(value, (*path, key))
    return lines


def _toml_key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else toml_value(key)


def dump(config: Config) -> str:
    """All settings of a configuration, as a run folder keeps them."""
    return dump_table(config.as_dict())


def dump_explained(config: Config, include_hidden: bool = False) -> str:
    """The settings of a configuration as a file for a person to edit: a comment explains each of them.

    Hidden settings are left out while they have their default values, unless `include_hidden` asks for them.
    """
    lines: list[str] = []
    section = ""
    for key, setting in declarations(config).items():
        value = config.setting(key)
        if setting.hidden and not include_hidden and value == setting.default:
            continue
        section_of_key = key.rpartition(".")[0]
        if section_of_key != section:
            section = section_of_key
            lines += ["", f"[{section}]"]
        lines += [*_comment(setting), f"{setting.name} = {toml_value(value)}"]
    return "\n".join([*lines, ""])


def _comment(setting: Setting) -> list[str]:
    """A setting's help and valid values, as comment lines."""
    text = setting.help
    if setting.choices:
        text += f" One of: {setting.range}."
    elif setting.range:
        text += f" Range: {setting.range}."
    return textwrap.wrap(text, COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ")


def read_changes(path: Path) -> dict[str, Any]:
    """The settings that a TOML file names, by dotted key; whether they exist is checked by Config."""
    return flat(read_toml(path))


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        DataError: The file cannot be read, is not UTF-8 or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(path, f"cannot read this file ({error.strerror})") from error
    except UnicodeDecodeError:
        raise DataError(path, "this file is not UTF-8 text") from None
    except ValueError as error:
        raise DataError(path, f"this file is not TOML ({error})") from None


def parse_change(text: str) -> tuple[str, Any]:
    """Key and value of `key=value` from the command line; a value that is not TOML is taken as text."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(text, "a setting looks like training.rounds=3")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, KeyError):  # not TOML, or a number with more digits than Python reads
        value = raw.strip()
    return key.strip(), value


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by dotted key.

    An empty table is kept as a value, so that a section with a misspelt name is noticed.
    """
    flattened: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value:
            flattened |= flat(value, f"{prefix}{key}.")
        else:
            flattened[f"{prefix}{key}"] = value
    return flattened
