"""Signing requests: a site makes its own key, and whoever has the authority's key sees the request only.

A request names its site and holds the public half of its key. Everything else that a certificate says comes
from the project, so that a request cannot ask for a role, another name or an authority of its own.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from cnfgnn.data.files.text import shown
from cnfgnn.errors import ConfigError, DataError, RunError, StorageError
from cnfgnn.federation.project import SITE_NAME
from cnfgnn.files import write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

KEY = "client.key"
SUFFIX = ".csr"
BITS, EXPONENT = 2048, 65537  # the only size that the engine's encrypted messages have room for
LARGEST = 1 << 16  # bytes of a request's file


@dataclass(frozen=True)
class Request:
    """A request whose signature shows that its sender has the private key."""

    file: Path
    site: str
    public_key: RSAPublicKey

    @property
    def fingerprint(self) -> str:
        """What the owner reads out to whoever signs the request, so that both know it is the same."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        content = self.public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        digits = sha256(content).hexdigest()
        return " ".join(digits[i : i + 8] for i in range(0, len(digits), 8))


def make_request(site: str, folder: Path) -> Request:
    """Make a key and its request in a new folder, which only its owner can read."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import NameOID

    if not SITE_NAME.fullmatch(site):
        raise ConfigError("SITE", f"{shown(site)} is not the name of a site")
    if os.path.lexists(folder):
        problem = "exists already, and a key is never overwritten: send the request in it, or delete it"
        raise RunError(folder, problem)
    key = rsa.generate_private_key(EXPONENT, BITS)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA256())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    with complete_folder(folder.absolute()) as partial:
        write_whole(partial / KEY, secret, 0o600)
        write_whole(partial / f"{site}{SUFFIX}", request.public_bytes(pem), 0o600)
    return Request(folder / f"{site}{SUFFIX}", site, key.public_key())


@contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """A folder, for its owner only, that appears as `folder` if all goes well, and else not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))  # mode 0700
        try:
            yield partial
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise StorageError(folder, error) from error


def read_requests(folder: Path, sites: Collection[str]) -> dict[str, Request]:
    """The requests in a folder, by site; its other files are not looked at."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == SUFFIX)
    except OSError as error:
        raise DataError(folder, f"cannot be read ({error.strerror or error})") from error
    if not files:
        raise DataError(folder, f"there is no request in this folder: they are called SITE{SUFFIX}")
    return {file.stem: read_request(file, sites) for file in files}


def read_request(file: Path, sites: Collection[str]) -> Request:
    """Read and check the request of one of these sites.

    Raises:
        DataError: It is not a request, asks for more than its site's certificate, or has another key than the
            engine can use.
    """
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.x509.oid import NameOID

    try:
        found = x509.load_pem_x509_csr(_content(file))
        signed, names, key = found.is_signature_valid, list(found.subject), found.public_key()
        asks_for_more = bool(list(found.attributes))  # such as a role
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DataError(file, "this is not a signing request that can be read") from error
    if not signed:
        raise DataError(file, "whoever made this request does not have its key: the signature is wrong")
    if [name.oid for name in names] != [NameOID.COMMON_NAME] or asks_for_more:
        problem = "a request must name its site (CN) and ask for nothing else: `cnfgnn federation request`"
        raise DataError(file, f"{problem} makes one")
    if (site := str(names[0].value)) not in sites:
        raise DataError(file, f"the project has no site {shown(site)}, which this request names")
    if file.stem != site:
        problem = f"this request names the site {site}: if that is where it came from, call it {site}{SUFFIX}"
        raise DataError(file, problem)
    if not isinstance(key, RSAPublicKey) or (key.key_size, key.public_numbers().e) != (BITS, EXPONENT):
        raise DataError(file, f"its key must be an RSA key of {BITS} bits with the exponent {EXPONENT}")
    return Request(file, site, key)


def _content(file: Path) -> bytes:
    """The content of a small ordinary file: it was sent by somebody else."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        problem = "this is a link" if file.is_symlink() else f"cannot be read ({error.strerror or error})"
        raise DataError(file, problem) from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise DataError(file, "this is not a file")
        content = os.read(handle, LARGEST + 1)
    finally:
        os.close(handle)
    if len(content) > LARGEST:
        raise DataError(file, "this file is too large for a signing request")
    return content
