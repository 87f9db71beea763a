"""Whether a site is fit to join, asked at the site: nothing is sent but a handshake with the server."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from cnfgnn.errors import ConfigError, DataError, NodeError
from cnfgnn.federation.kits import kind, read_site
from cnfgnn.federation.own_readings import OwnReadings

FEWEST_ROWS = 100  # time steps, below which no training makes sense
MOST_MISSING = 0.95
REACHED_WITHIN = 5.0  # seconds


def check_site(kit: Path) -> Iterator[str]:
    """What is right, line by line; the first thing that is not ends it with a sentence."""
    if kind(kit) != "site":
        raise ConfigError(str(kit), "this is the server's kit: a site is checked from its own")
    plan = read_site(kit)
    own = OwnReadings(plan, kit)  # refuses sensors that are not there, times out of order
    readings = own.readings
    source = readings.source
    yield f"sensors: all {len(plan.sensors)} of {plan.name} are in {source}"
    if readings.notes:
        yield f"understood: {'; '.join(readings.notes)}"
    if len(readings.times) < FEWEST_ROWS:
        raise DataError(source, f"{len(readings.times)} time steps are too few: at least {FEWEST_ROWS}")
    yield f"step: {own.step} s; from {readings.times[0]} to {readings.times[-1]}, {len(readings.times)} steps"
    share = readings.missing.mean(axis=0)
    worst = int(np.argmax(share))
    if share[worst] > MOST_MISSING:
        raise DataError(source, f"{share[worst]:.0%} of its readings are missing", column=readings.ids[worst])
    yield f"missing: {readings.missing.mean():.1%}, at most {share[worst]:.1%} ({readings.ids[worst]})"
    yield _clock(own)
    yield _reached(kit)


def _clock(own: OwnReadings) -> str:
    """Readings of the future mean that the clock, or the time zone of the file, is wrong."""
    now = datetime.now(UTC)
    local = now if own.readings.utc else datetime.now().astimezone()
    shown = (local.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
    if own.last > shown + own.step:
        problem = f"this reading lies ahead of the clock ({local:%Y-%m-%d %H:%M})"
        raise DataError(own.readings.source, problem, row=str(own.readings.times[-1]))
    return f"clock: {now:%Y-%m-%d %H:%M} UTC, newest reading {(shown - own.last) / 60:.0f} minutes old"


def _reached(kit: Path) -> str:
    """A handshake with the server, certificates checked by both; an expired one shows here."""
    startup = kit / "startup"
    server = json.loads((startup / "fed_client.json").read_text())["servers"][0]
    host, _, port = str(server["service"]["target"]).rpartition(":")
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.check_hostname = False  # the engine knows the server by its certificate's name, below
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    except OSError as error:  # SSLError is one
        raise DataError(startup, f"its certificates cannot be used ({error.strerror or error})") from error
    try:
        with (
            socket.create_connection((host, int(port)), REACHED_WITHIN) as plain,
            context.wrap_socket(plain) as secure,
        ):
            name = _common_name(secure)
            secure.settimeout(0.5)
            with contextlib.suppress(TimeoutError):  # who does not like our certificate says so only now
                secure.recv(1)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise NodeError(host, "handshake", f"certificates do not match ({reason})") from error
    except OSError as error:
        problem = f"port {port} cannot be reached ({error.strerror or error})"
        raise NodeError(host, "handshake", problem) from error
    return f"server: {host}:{port} answers as {name}, certificates match"


def _common_name(secure: ssl.SSLSocket) -> str:
    certificate = secure.getpeercert() or {}
    subject: Any = certificate.get("subject", ())
    return str(dict(part[0] for part in subject).get("commonName", "unknown"))
