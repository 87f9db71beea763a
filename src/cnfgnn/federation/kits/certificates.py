"""The certificates in a kit: how long they are valid, and which certificates of sites the server refuses."""

from __future__ import annotations

import json
import ssl
import time
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

REVOKED = "revoked.json"  # in the server's kit: which certificates it refuses
TIMES = "revoked as of"  # beside the serial numbers in that file
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


def time_of(certificate: Mapping[str, Any], key: str) -> str:
    """One of the times of a certificate as Python's `ssl` shows it, in the form that our files use."""
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate[key])), UTC).isoformat()


def issued(server_kit: Path) -> dict[str, dict[str, Any]]:
    """Serial number and expiry of the certificates that were made together with the server's kit, by site."""
    return read_json(server_kit / "startup" / ISSUED) or {}


@dataclass(frozen=True)
class Revoked:
    """Which certificates of sites the server refuses.

    The server has not seen every certificate that the authority signed, so that their serial numbers are not
    enough: whoever took a kit may be the first to use its newest certificate. A site is therefore revoked as
    of a time, too.
    """

    serials: Mapping[str, str]  # by serial number: the site
    times: Mapping[str, datetime]  # by site: its certificates that are valid from then on or earlier

    def __bool__(self) -> bool:
        return bool(self.serials or self.times)

    def covers(self, site: str, serial: str | None, begins: str | None) -> bool:
        """Whether a certificate is refused, by its serial number or the time from which it is valid."""
        if serial in self.serials:
            return True
        when = self.times.get(site)
        return when is not None and begins is not None and datetime.fromisoformat(begins) <= when


def revoked(server_kit: Path) -> Revoked:
    """What was revoked at this server."""
    recorded = read_json(server_kit / REVOKED) or {}
    try:
        times = {site: datetime.fromisoformat(when) for site, when in recorded.pop(TIMES, {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise RunError(server_kit / REVOKED, "is damaged and cannot be read") from error
    return Revoked({serial: str(site) for serial, site in recorded.items()}, times)


def revoke(server_kit: Path, site: str, seen: Iterable[str] = ()) -> list[str]:
    """Revoke every certificate that a site has had; return the serial numbers that are new on the list.

    Known by their numbers are the certificate made with the kits and those `seen` at the server; others by
    the time from which they are valid. A certificate that is made afterwards is accepted.
    """
    names = [plan.name for plan in read_server(server_kit).sites]
    if site not in names:
        raise ConfigError("SITE", f"the project has no site {site!r}", names)
    serials = {*seen}
    if (made := issued(server_kit).get(site)) is not None:
        serials.add(str(made["serial"]))
    before, now = revoked(server_kit), datetime.now(UTC)
    new = sorted(serials - before.serials.keys())
    times = {name: when.isoformat(timespec="seconds") for name, when in {**before.times, site: now}.items()}
    content = {**before.serials, **dict.fromkeys(new, site), TIMES: times}
    write_whole(server_kit / REVOKED, json.dumps(content, indent=2).encode(), 0o600)
    time.sleep(1 - now.microsecond / 1e6)  # certificates count in seconds: the next one begins in a later one
    return new


def _validity(file: Path) -> Validity:
    found = read(file)
    return Validity(file, found.not_valid_before_utc, found.not_valid_after_utc)
