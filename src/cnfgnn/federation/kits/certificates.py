"""The certificates in a kit: how long they are valid, and which certificates of sites the server refuses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.kits.kit import ISSUED, read_server, role
from cnfgnn.files import read_json, write_whole

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

REVOKED = "revoked.json"  # in the server's kit: serial numbers of the certificates that it refuses
WARN_WITHIN = timedelta(days=30)
RENEWAL = "see docs/federation.md, Renew certificates or add a site"


@dataclass(frozen=True)
class Validity:
    """From when to when one certificate of a kit is valid."""

    file: Path
    begins: datetime
    ends: datetime

    def problem(self, now: datetime | None = None) -> str:
        """Why the certificate cannot be used now; empty if it can."""
        now = now or datetime.now(UTC)
        if now >= self.ends:
            return f"the certificate {self.file.name} expired on {self.ends:%Y-%m-%d %H:%M} UTC: renew it"
        if now < self.begins:
            begins = f"{self.begins:%Y-%m-%d %H:%M} UTC"
            return (
                f"the certificate {self.file.name} is not valid before {begins}: check this machine's clock"
            )
        return ""

    def warning(self, now: datetime | None = None) -> str:
        """A warning if the certificate expires soon; empty if it does not."""
        now = now or datetime.now(UTC)
        if self.problem(now) or self.ends - now > WARN_WITHIN:
            return ""
        days = (self.ends - now).days
        left = f"in {days} days" if days else "today"
        return f"the certificate {self.file.name} expires {left}, on {self.ends:%Y-%m-%d}: renew it"


def validities(kit: Path) -> list[Validity]:
    """The validity of every certificate that the kit's processes and its operator use."""
    if role(kit) == "server":
        names = ["startup/server.crt", "operator/startup/client.crt"]
    else:
        names = ["startup/client.crt"]
    return [_validity(kit / name) for name in (*names, "startup/rootCA.pem")]


def check_valid(kit: Path) -> list[str]:
    """Refuse a kit with a certificate that is not valid; return warnings about those that expire soon."""
    found = validities(kit)
    for validity in found:
        if problem := validity.problem():
            raise RunError(kit, f"{problem} ({RENEWAL})")
    return [f"{kit}: {warning} ({RENEWAL})" for validity in found if (warning := validity.warning())]


def read(file: Path) -> Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(file, "this certificate cannot be read") from error


def serial_of(certificate: Mapping[str, Any]) -> str:
    """The serial number of a certificate as Python's `ssl` shows it, in the form that our files use."""
    return f"{int(str(certificate['serialNumber']), 16):x}"


def issued(server_kit: Path) -> dict[str, dict[str, Any]]:
    """Serial number and expiry of the certificates that were made together with the server's kit, by site."""
    return read_json(server_kit / "startup" / ISSUED) or {}


def revoked(server_kit: Path) -> dict[str, str]:
    """The sites of revoked certificates, by serial number."""
    recorded = read_json(server_kit / REVOKED) or {}
    return {serial: str(site) for serial, site in recorded.items()}


def revoke(server_kit: Path, site: str, seen: Iterable[str] = ()) -> list[str]:
    """Revoke every known certificate of a site; return the serial numbers that are new on the list.

    Known are the certificate made with the kits and those `seen` at the server. A certificate that is made
    afterwards has another serial number and is accepted.
    """
    names = [plan.name for plan in read_server(server_kit).sites]
    if site not in names:
        raise ConfigError("SITE", f"the project has no site {site!r}", names)
    serials = {*seen}
    if (made := issued(server_kit).get(site)) is not None:
        serials.add(str(made["serial"]))
    before = revoked(server_kit)
    new = sorted(serials - before.keys())
    if not serials:
        problem = f"no certificate of site {site} is known: the kit does not list one, and it never connected"
        raise RunError(server_kit, problem)
    path = server_kit / REVOKED
    write_whole(path, json.dumps({**before, **dict.fromkeys(new, site)}, indent=2).encode())
    path.chmod(0o600)
    return new


def _validity(file: Path) -> Validity:
    found = read(file)
    return Validity(file, found.not_valid_before_utc, found.not_valid_after_utc)
