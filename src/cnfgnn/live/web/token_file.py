"""The token of a service: whoever sends it may ask. It is kept in a file that other users cannot read."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from cnfgnn.errors import ConfigError
from cnfgnn.privacy.copies import write_private

TOKEN = "token"  # the file's name in the folder of a service
LEAST_LENGTH = 16
OTHERS = 0o007  # the permissions of users who are neither the owner nor in the file's group

log = logging.getLogger(__name__)


def open_token(chosen: str, default: Path) -> Path:
    """The file with the token of a service: the chosen one, or else the default, which is made if there is
    none, and made again if it is damaged or others may have read it: a service must not fail to start
    because of a file that is its own."""
    if chosen:
        return Path(chosen)
    if default.exists():
        try:
            read_token(default)
            return default
        except ConfigError as error:
            log.warning("%s; a new token is made", error)
    write_private(default, f"{secrets.token_urlsafe(32)}\n".encode())
    return default


def read_token(file: Path) -> str:
    """The token in a file.

    Raises:
        ConfigError: There is no token in the file, or every user of the machine may read it.
    """
    try:
        token, mode = file.read_text(encoding="utf-8").strip(), file.stat().st_mode
    except (OSError, ValueError) as error:
        raise ConfigError(str(file), f"the token cannot be read ({error})") from None
    if mode & OTHERS:
        raise ConfigError(str(file), "every user of this machine may read the token: chmod 600 this file")
    if len(token) < LEAST_LENGTH or not token.isascii() or not token.isprintable():
        raise ConfigError(str(file), f"must hold a token of at least {LEAST_LENGTH} letters and digits")
    return token
