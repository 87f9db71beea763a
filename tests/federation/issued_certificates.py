"""Certificates that whoever holds the key of a federation's authority can issue, for tests."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.x509.oid import NameOID
from nvflare.lighter.utils import (
    Identity,
    generate_cert,
    generate_keys,
    load_crt_bytes,
    load_private_key,
    serialize_cert,
    serialize_pri_key,
)


def issue(authority: Path, folder: Path, name: str, role: str | None) -> tuple[Path, Path]:
    """The files of a new certificate in that name and role, and of its key."""
    kept = json.loads((authority / "cert.json").read_text())
    [issuer] = load_crt_bytes(kept["root_cert"].encode()).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    key, public = generate_keys()
    certificate = generate_cert(
        subject=Identity(name, "org", role),
        issuer=Identity(str(issuer.value)),
        signing_pri_key=load_private_key(kept["root_pri_key"]),
        subject_pub_key=public,
    )
    files = folder / f"{role}.crt", folder / f"{role}.key"
    files[0].write_bytes(serialize_cert(certificate))
    files[1].write_bytes(serialize_pri_key(key))
    return files
