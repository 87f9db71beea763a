"""The certificates in a kit: whose they are, how long they are valid, and which ones the server refuses."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnfgnn.data.files.text import shown
from cnfgnn.errors import ConfigError, RunError
from cnfgnn.federation.kits.kit import ISSUED, read_server, role, site_name
from cnfgnn.files import read_json, write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate, ObjectIdentifier

REVOKED = "revoked.json"  # in the server's kit: which certificates it refuses
TIMES = "revoked as of"  # beside the serial numbers in that file
WARN_WITHIN = timedelta(days=30)
RENEWAL = "see docs/federation-security.md, Renew certificates or add a site"


@dataclass(frozen=True)
class Validity:
    """From when to when one certificate of a kit is valid."""

    file: Path
    begins: datetime
    ends: datetime

    def problem(self, now: datetime | None = None) -> str:
        """Why the certificate cannot be used now; empty if it can."""
        now, name = now or datetime.now(UTC), f"the certificate {self.file.name}"
        if now >= self.ends:
            return f"{name} expired on {self.ends:%Y-%m-%d %H:%M} UTC: renew it"
        if now < self.begins:
            return f"{name} is not valid before {self.begins:%Y-%m-%d %H:%M} UTC: check this machine's clock"
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
    return [validity(file) for file in (*_own_files(kit), kit / "startup" / "rootCA.pem")]


def validity(file: Path) -> Validity:
    found = read(file)
    return Validity(file, found.not_valid_before_utc, found.not_valid_after_utc)


def check_valid(kit: Path) -> list[str]:
    """Refuse a kit with a certificate that cannot be used; return warnings about those that expire soon."""
    check_pairs(kit)
    found = validities(kit)
    for one in found:
        if problem := one.problem():
            raise RunError(kit, f"{problem} ({RENEWAL})")
    return [f"{kit}: {warning} ({RENEWAL})" for one in found if (warning := one.warning())]


def check_pairs(kit: Path) -> None:
    """Refuse a kit with a certificate of another authority or another site, or without the key of one."""
    for file in _own_files(kit):
        certificate, key = own_certificate(kit, file), file.with_suffix(".key")
        if not key.exists():
            raise RunError(key, "is missing: move the key there that `cnfgnn federation request` made")
        if read_key(key).public_key() != certificate.public_key():
            problem = f"is not the key of the certificate {file.name} beside it: put the right one there"
            raise RunError(key, problem)


def own_certificate(kit: Path, file: Path) -> Certificate:
    """A certificate in a kit, if the kit's authority made it, and made a site's out to that site."""
    from cryptography.x509.oid import NameOID

    found = read(file)
    check_signed(kit, file, found)
    name = in_subject(found, NameOID.COMMON_NAME)
    if role(kit) == "site" and name != site_name(kit):
        problem = f"this certificate is of {shown(name)}, and the kit is that of site {site_name(kit)}"
        raise RunError(file, problem)
    return found


def check_signed(kit: Path, file: Path, certificate: Certificate) -> None:
    """Refuse a certificate that the kit's authority did not sign."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(read(kit / "startup" / "rootCA.pem"))
    except (ValueError, TypeError, InvalidSignature) as error:
        problem = "this certificate is not signed by the authority of the kit, startup/rootCA.pem"
        raise RunError(file, problem) from error


def read(file: Path) -> Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(file, "this certificate cannot be read") from error


def read_key(file: Path) -> PrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        # Only its public half is compared: testing that its primes are prime would take longer than all else.
        return load_pem_private_key(file.read_bytes(), None, unsafe_skip_rsa_key_validation=True)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RunError(file, "this key cannot be read") from error


def _own_files(kit: Path) -> list[Path]:
    """The certificates of the kit's party, each of which has its key beside it."""
    if role(kit) == "server":
        return [kit / "startup" / "server.crt", kit / "operator" / "startup" / "client.crt"]
    return [kit / "startup" / "client.crt"]


def in_subject(certificate: Certificate, oid: ObjectIdentifier) -> str:
    """What a certificate says of its owner; empty if it does not."""
    names = certificate.subject.get_attributes_for_oid(oid)
    return str(names[0].value) if names else ""


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
