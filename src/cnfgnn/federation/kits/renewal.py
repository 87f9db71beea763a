"""Renewing the certificate of a site, with a new key, while the site runs.

The next key waits in the folder `request` of the kit until its certificate has come. Key and certificate are
two files, and no crash may leave the one without the other. So the certificate, once checked, is first put
beside the key in `request`: from then on the renewal is due, and `finish_renewal` completes it, now or before
the next start. The certificate in `startup` is replaced last: whoever watches it finds its key in place.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cnfgnn.errors import ConfigError, RunError, StorageError
from cnfgnn.federation.kits.certificates import (
    Validity,
    check_signed,
    own_certificate,
    read,
    read_key,
    validity,
)
from cnfgnn.federation.kits.kit import role, site_name
from cnfgnn.federation.kits.requests import KEY, Request, make_request
from cnfgnn.files import write_whole

CERTIFICATE = "client.crt"
REQUEST = "request"  # folder in a kit: the next key, its request and, while it is installed, its certificate
DONE = ".request.done"  # what that folder is called while it is deleted


def request_renewal(kit: Path) -> Request:
    """Make the next key of a site and its request; the present ones stay in use."""
    _check_is_site(kit)
    finish_renewal(kit)
    own_certificate(kit, kit / "startup" / CERTIFICATE)  # of another site, a renewal would be refused
    return make_request(site_name(kit), kit / REQUEST)


def renew(kit: Path, certificate: Path) -> Validity:
    """Replace key and certificate of a site by the key of its request and this certificate.

    Processes that run keep using the old ones until they start again.
    """
    _check_is_site(kit)
    finish_renewal(kit)
    content = _checked(kit, certificate)
    write_whole(kit / REQUEST / CERTIFICATE, content)
    finish_renewal(kit)
    return validity(kit / "startup" / CERTIFICATE)


def finish_renewal(kit: Path) -> None:
    """Complete a renewal that was interrupted; without one, nothing happens."""
    waiting = kit / REQUEST
    shutil.rmtree(kit / DONE, ignore_errors=True)
    if not (waiting / CERTIFICATE).exists():
        return
    content = _checked(kit, waiting / CERTIFICATE)
    try:
        write_whole(kit / "startup" / KEY, (waiting / KEY).read_bytes(), 0o600)
        write_whole(kit / "startup" / CERTIFICATE, content, 0o600)
        waiting.rename(kit / DONE)
    except OSError as error:
        raise StorageError(kit, error) from error
    shutil.rmtree(kit / DONE, ignore_errors=True)


def _check_is_site(kit: Path) -> None:
    if role(kit) != "site":
        problem = (
            "this is the server's kit: its certificates are renewed by a new kit, from `federation init`"
        )
        raise ConfigError(str(kit), problem)


def _checked(kit: Path, file: Path) -> bytes:
    """A certificate that may replace that of the kit: for the key that waits, and otherwise the same."""
    from cryptography.hazmat.primitives.serialization import Encoding

    if not (kit / REQUEST / KEY).exists():
        raise RunError(kit, f"no request is waiting for a certificate: cnfgnn federation request {kit}")
    new, old = read(file), own_certificate(kit, kit / "startup" / CERTIFICATE)
    check_signed(kit, file, new)
    if new.subject != old.subject:
        of, instead = new.subject.rfc4514_string(), old.subject.rfc4514_string()
        raise RunError(file, f"this certificate is of {of!r}, and the kit's is of {instead!r}")
    if new.public_key() != read_key(kit / REQUEST / KEY).public_key():
        problem = f"this certificate is not for the key that waits in {kit / REQUEST}"
        raise RunError(file, f"{problem}: is it the answer to an earlier request?")
    if problem := validity(file).problem():
        raise RunError(file, problem)
    return new.public_bytes(Encoding.PEM)
