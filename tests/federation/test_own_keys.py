"""A site makes its own key: what a request may ask for, and how key and certificate are replaced together."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import AttributeOID, NameOID

from cnfgnn.errors import DataError, RunError
from cnfgnn.federation.engine.guard import handshake
from cnfgnn.federation.engine.provisioning import sign
from cnfgnn.federation.kits import certificates, processes, renewal
from cnfgnn.federation.kits.requests import BITS, EXPONENT, Request, make_request, read_requests
from cnfgnn.federation.operator.make_kits import make_kits
from cnfgnn.federation.operator.status import _certificate_problems
from cnfgnn.federation.project import Project, read_project
from cnfgnn.federation.server.process_status import read_server_status
from tests.commands import said
from tests.federation.issued_certificates import issue
from tests.federation.known_keys import known_keys
from tests.federation.reference_training import config
from tests.federation.running_federation import ENGINE_WARNINGS, city_on_disk, running_federation
from tests.federation.two_site_federation import connected, write_project
from tests.waiting import wait_for

pytestmark = ENGINE_WARNINGS

PEM = serialization.Encoding.PEM
MADE = 8  # how many keys the kits of `made` may need
Subject = list[tuple[x509.ObjectIdentifier, str]]
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a project, its kits, and the key of north's own in `keys`."""
    folder = tmp_path_factory.mktemp("own")
    write_project(folder)
    with known_keys():
        said("federation", "request", "north", "--out", folder / "keys")
        kits = ("--out", folder / "kits", "--requests", folder / "keys")
        said("federation", "init", folder / "PROJECT.toml", *kits)
    return folder


@pytest.fixture(autouse=True)
def _other_keys(made: Path) -> Iterator[None]:
    with known_keys(after=MADE):
        yield


@pytest.fixture
def kit(made: Path, tmp_path: Path) -> Path:
    """A copy of north's kit with its key in place."""
    kit = Path(shutil.copytree(made / "kits" / "north", tmp_path / "north"))
    shutil.copy(made / "keys" / "client.key", kit / "startup")
    return kit


def refused(*arguments: object) -> str:
    return said("federation", *arguments, fails=True)


def project(made: Path) -> Project:
    return read_project(made / "PROJECT.toml")


def signed(made: Path, request: Request, days: float | None = None) -> Path:
    """A certificate for a request, beside it."""
    file = request.file.with_suffix(".crt")
    file.write_bytes(sign(project(made), request, made / "kits" / "authority", days))
    return file


def pair(kit: Path) -> tuple[bytes, bytes]:
    return (kit / "startup" / "client.crt").read_bytes(), (kit / "startup" / "client.key").read_bytes()


# ---- requests ----------------------------------------------------------------------------------------------


def test_whoever_makes_the_kits_never_sees_the_key(made: Path, kit: Path) -> None:
    assert {file.name for file in (made / "keys").iterdir()} == {"client.key", "north.csr"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (made / "keys", *(made / "keys").iterdir()))
    startup = made / "kits" / "north" / "startup"
    assert {file.name for file in startup.iterdir()} == {"client.crt", "fed_client.json", "rootCA.pem"}
    assert (made / "kits" / "south" / "startup" / "client.key").exists()
    key = (made / "keys" / "client.key").read_bytes()
    assert not [file for file in (made / "kits").rglob("*") if file.is_file() and key in file.read_bytes()]
    assert certificates.check_valid(kit) == []
    issued = certificates.issued(made / "kits" / "server")["north"]["serial"]
    assert issued == f"{certificates.read(kit / 'startup' / 'client.crt').serial_number:x}"


def test_both_ends_see_the_same_fingerprint(made: Path, tmp_path: Path) -> None:
    told = said("federation", "request", "north", "--out", tmp_path / "keys")
    [line] = [line for line in told.splitlines() if line.startswith("fingerprint: ")]
    arguments = (
        made / "PROJECT.toml",
        tmp_path / "keys" / "north.csr",
        "--authority",
        made / "kits" / "authority",
    )
    told = said("federation", "sign", *arguments)
    assert line in told
    assert "north.crt, of site north, valid until" in told
    assert "exists already" in refused("sign", *arguments)


def test_a_certificate_says_what_the_project_says_and_nothing_else(made: Path, tmp_path: Path) -> None:
    request = make_request("north", tmp_path / "keys")
    found = certificates.read(signed(made, request, days=30))
    by_init = certificates.read(made / "kits" / "south" / "startup" / "client.crt")
    named = [x509.NameAttribute(oid, "north") for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)]
    assert found.subject == x509.Name(named)
    assert found.public_key() == request.public_key
    assert [each.oid for each in found.extensions] == [each.oid for each in by_init.extensions]
    assert found.not_valid_after_utc - found.not_valid_before_utc == timedelta(days=30)
    root = certificates.read(made / "kits" / "north" / "startup" / "rootCA.pem")
    assert (
        certificates.read(signed(made, request, days=10_000)).not_valid_after_utc == root.not_valid_after_utc
    )


def test_a_site_with_the_name_of_the_project_does_not_become_its_authority(tmp_path: Path) -> None:
    plan = replace(read_project(write_project(tmp_path)), name="north")
    request = make_request("north", tmp_path / "keys")
    kit = make_kits(plan, tmp_path / "kits", requests={"north": request})["north"]
    shutil.copy(tmp_path / "keys" / "client.key", kit / "startup")
    assert certificates.check_valid(kit) == []
    assert certificates.read(kit / "startup" / "rootCA.pem").public_key() != request.public_key


@pytest.mark.slow
def test_a_request_of_openssl_is_as_good(made: Path, tmp_path: Path) -> None:
    command = ["openssl", "req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=south"]
    files = ["-keyout", str(tmp_path / "south.key"), "-out", str(tmp_path / "south.csr")]
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    subprocess.run([*command, *files], check=True, capture_output=True)
    [request] = read_requests(tmp_path, ["north", "south"]).values()
    key = certificates.read_key(tmp_path / "south.key")
    assert certificates.read(signed(made, request)).public_key() == key.public_key()


def csr(
    subject: Subject, *extensions: x509.ExtensionType, key: Key | None = None, role: bytes = b""
) -> bytes:
    """A request that is signed by its key, whatever it asks for."""
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in subject])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    if role:
        builder = builder.add_attribute(AttributeOID.UNSTRUCTURED_NAME, role)
    return builder.sign(key or rsa.generate_private_key(EXPONENT, BITS), SHA256()).public_bytes(PEM)


def forged() -> bytes:
    """A request for a key that its sender does not have."""
    content = x509.load_pem_x509_csr(csr(NORTH)).public_bytes(serialization.Encoding.DER)
    return x509.load_der_x509_csr(content[:-1] + bytes([content[-1] ^ 1])).public_bytes(PEM)


NORTH: Subject = [(NameOID.COMMON_NAME, "north")]
MORE = "must name its site .CN. and ask for nothing else"
NONE = "not a signing request"
NOISE = b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"
OPERATOR = "operator@federation.cnfgnn"
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "another site": (lambda: csr([(NameOID.COMMON_NAME, "south")]), "names the site south: if that is where"),
    "no site": (lambda: csr([(NameOID.COMMON_NAME, "east")]), "the project has no site 'east'"),
    "the operator": (lambda: csr([(NameOID.COMMON_NAME, OPERATOR)]), f"the project has no site '{OPERATOR}'"),
    "a role": (lambda: csr([*NORTH, (NameOID.UNSTRUCTURED_NAME, "project_admin")]), MORE),
    "a role alone": (lambda: csr([(NameOID.UNSTRUCTURED_NAME, "super")]), MORE),
    "a role as an attribute": (lambda: csr(NORTH, role=b"super"), MORE),
    "an organisation": (lambda: csr([*NORTH, (NameOID.ORGANIZATION_NAME, "south")]), MORE),
    "two names": (lambda: csr([*NORTH, (NameOID.COMMON_NAME, "south")]), MORE),
    "an authority": (lambda: csr(NORTH, x509.BasicConstraints(ca=True, path_length=None)), MORE),
    "other hosts": (lambda: csr(NORTH, x509.SubjectAlternativeName([x509.DNSName("server")])), MORE),
    "a small key": (lambda: csr(NORTH, key=rsa.generate_private_key(EXPONENT, 1024)), "of 2048 bits"),
    "another kind of key": (lambda: csr(NORTH, key=ec.generate_private_key(ec.SECP256R1())), "an RSA key"),
    "a weak exponent": (lambda: csr(NORTH, key=rsa.generate_private_key(3, BITS)), "with the exponent 65537"),
    "somebody else's key": (forged, "does not have its key"),
    "nothing": (lambda: b"", NONE),
    "noise": (lambda: NOISE, NONE),
    "too much": (lambda: csr(NORTH) + b" " * (1 << 16), "too large"),
}


@pytest.mark.parametrize("asked", HOSTILE)
def test_a_request_for_anything_else_is_refused_by_the_name_of_its_file(
    asked: str, made: Path, tmp_path: Path
) -> None:
    content, problem = HOSTILE[asked]
    file = tmp_path / "requests" / "north.csr"
    file.parent.mkdir()
    file.write_bytes(content())
    before = set(tmp_path.iterdir())
    init = ("init", made / "PROJECT.toml", "--out", tmp_path / "kits", "--requests", file.parent)
    by_sign = refused("sign", made / "PROJECT.toml", file, "--authority", made / "kits" / "authority")
    for told in (refused(*init), by_sign):
        assert told.startswith(f"{file}: ")
        assert re.search(problem, told)
    assert set(tmp_path.iterdir()) == before
    assert list(file.parent.iterdir()) == [file]


def test_links_pipes_and_folders_are_no_requests(made: Path, tmp_path: Path) -> None:
    file = tmp_path / "north.csr"
    file.symlink_to(made / "keys" / "north.csr")
    with pytest.raises(DataError, match=r"north\.csr: this is a link"):
        read_requests(tmp_path, ["north"])
    file.unlink()
    for make in (os.mkfifo, os.mkdir):
        make(file)
        with pytest.raises(DataError, match=r"north\.csr: this is not a file"):
            read_requests(tmp_path, ["north"])
        file.rename(tmp_path / make.__name__)
    (tmp_path / "north.pem").write_bytes(csr(NORTH))
    with pytest.raises(DataError, match=r"there is no request in this folder: they are called SITE\.csr"):
        read_requests(tmp_path, ["north"])
    with pytest.raises(DataError, match="No such file"):
        read_requests(tmp_path / "nowhere", ["north"])


def test_a_key_is_never_overwritten(made: Path, kit: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in (made / "keys", tmp_path / "link"):
        assert "a key is never overwritten" in refused("request", "north", "--out", place)
    assert "is not the name of a site" in refused("request", "../north", "--out", tmp_path / "keys")
    assert "add --out FOLDER" in refused("request", "north")
    assert "this is the server's kit" in refused("request", made / "kits" / "server")
    said("federation", "request", kit)
    before = (kit / "request" / "client.key").read_bytes()
    assert "a key is never overwritten" in refused("request", kit)
    assert (kit / "request" / "client.key").read_bytes() == before


def test_a_new_kit_for_one_site_needs_its_request(made: Path, tmp_path: Path) -> None:
    authority = made / "kits" / "authority"
    options = ("--authority", authority, "--requests", made / "keys", "--out", tmp_path / "new")
    assert "there is no request of site south" in refused(
        "init", made / "PROJECT.toml", "--only", "south", *options
    )
    told = said("federation", "init", made / "PROJECT.toml", "--only", "north", *options)
    assert "mv client.key KIT/startup/" in told
    kit = tmp_path / "new" / "north"
    assert "startup/client.key: is missing: move the key there" in refused("up", kit)
    [problem] = _certificate_problems(kit)
    assert "is missing" in str(problem)
    shutil.copy(made / "keys" / "client.key", kit / "startup")  # the same key as in the old kit
    assert certificates.check_valid(kit) == []


# ---- what is in a kit --------------------------------------------------------------------------------------


def test_a_certificate_or_a_key_that_is_not_the_kits_is_named(made: Path, kit: Path, tmp_path: Path) -> None:
    south, startup = made / "kits" / "south" / "startup", kit / "startup"
    own = pair(kit)
    shutil.copy(south / "client.key", startup)
    assert "client.key: is not the key of the certificate client.crt" in refused("up", kit)
    shutil.copy(south / "client.crt", startup)  # the whole of another site's
    for command in ("up", "request"):
        assert "client.crt: this certificate is of 'south', and the kit is that of site north" in refused(
            command, kit
        )
    foreign = make_kits(replace(project(made), name="other"), tmp_path / "other")["north"]
    for name in ("client.crt", "client.key"):
        shutil.copy(foreign / "startup" / name, startup)
    assert "not signed by the authority of the kit" in refused("up", kit)
    for name, content in zip(("client.crt", "client.key"), own, strict=True):
        (startup / name).write_bytes(content)
    assert certificates.check_valid(kit) == []
    (startup / "client.key").write_text("-----BEGIN PRIVATE KEY-----\n")
    assert "client.key: this key cannot be read" in refused("up", kit)
    assert processes.running(kit) is None


# ---- renewal -----------------------------------------------------------------------------------------------


def test_a_renewal_replaces_key_and_certificate_and_leaves_nothing_else(made: Path, kit: Path) -> None:
    before = {file.relative_to(kit) for file in kit.rglob("*")}
    old = pair(kit)
    said("federation", "request", kit)
    assert pair(kit) == old
    certificate = signed(made, read_requests(kit / "request", ["north"])["north"])
    key = (kit / "request" / "client.key").read_bytes()
    assert "is renewed; it is valid until" in said("federation", "renew", kit, certificate)
    assert pair(kit)[1] == key
    assert certificates.check_valid(kit) == []
    assert {file.relative_to(kit) for file in kit.rglob("*")} == before
    assert all(file.stat().st_mode & 0o077 == 0 for file in kit.rglob("*"))
    assert "no request is waiting" in refused("renew", kit, made / "keys" / "north.csr")


@pytest.mark.parametrize("step", range(4))
def test_a_crash_leaves_the_old_pair_or_the_new_one(
    step: int, made: Path, kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written last before the crash: the next start completes what was begun."""
    request, old = renewal.request_renewal(kit), pair(kit)
    certificate, key = signed(made, request), (kit / "request" / "client.key").read_bytes()
    new = certificate.read_bytes(), key
    shutil.move(certificate, kit / "received.crt")
    done = 0

    class Crash(BaseException): ...

    def crashing(write: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object) -> object:
            nonlocal done
            if done == step:
                raise Crash
            done += 1
            return write(*args)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(renewal, "write_whole", crashing(renewal.write_whole))
        patch.setattr(Path, "rename", crashing(Path.rename))
        with pytest.raises(Crash):
            renewal.renew(kit, kit / "received.crt")
    assert pair(kit)[0] == (new if step == 3 else old)[0]  # whoever watches it finds the key in place
    renewal.finish_renewal(kit)
    assert pair(kit) == (new if step else old)
    assert certificates.check_valid(kit) == []
    assert (kit / "request").exists() == (step == 0)  # nothing was changed: it can be tried again
    if step == 0:
        renewal.renew(kit, kit / "received.crt")
        assert pair(kit) == new
    assert not list(kit.glob("*/.*")) + list(kit.glob(".request*"))


def test_a_certificate_that_is_not_the_answer_to_the_request_changes_nothing(
    made: Path, kit: Path, tmp_path: Path
) -> None:
    request, authority = renewal.request_renewal(kit), made / "kits" / "authority"
    before = {file: file.read_bytes() for file in kit.rglob("*") if file.is_file()}
    plan = project(made)
    elsewhere = replace(plan, sites=tuple(replace(site, organisation="elsewhere") for site in plan.sites))
    make_kits(plan, tmp_path / "other")  # of another authority with the same name
    admin, _ = issue(authority, tmp_path, "north", "project_admin")
    attempts = {
        "not signed by the authority": sign(plan, request, tmp_path / "other" / "authority"),
        "of 'O=south,CN=south', and the kit's": sign(plan, replace(request, site="south"), authority),
        "of 'O=elsewhere,CN=north', and": sign(elsewhere, request, authority),
        "project_admin.* and the kit's is of 'O=north,CN=north'": admin.read_bytes(),
        "not for the key that waits": pair(kit)[0],
        "expired on": sign(plan, request, authority, days=1e-9),
        "cannot be read": b"nonsense",
    }
    for problem, content in attempts.items():
        (tmp_path / "received.crt").write_bytes(content)
        with pytest.raises(RunError, match=problem):
            renewal.renew(kit, tmp_path / "received.crt")
        assert {file: file.read_bytes() for file in kit.rglob("*") if file.is_file()} == before
    renewal.renew(kit, signed(made, request))


# ---- revocation --------------------------------------------------------------------------------------------


def test_revoking_a_site_covers_certificates_that_the_server_has_never_seen(
    made: Path, tmp_path: Path
) -> None:
    server = Path(shutil.copytree(made / "kits" / "server", tmp_path / "server"))
    request = make_request("north", tmp_path / "keys")

    def is_revoked(file: Path, site: str = "north") -> bool:
        found = certificates.read(file)
        serial, begins = f"{found.serial_number:x}", found.not_valid_before_utc.isoformat()
        return certificates.revoked(server).covers(site, serial, begins)

    unseen, first = signed(made, request), made / "kits" / "north" / "startup" / "client.crt"
    assert not certificates.revoked(server)
    assert not is_revoked(first)
    assert "1 certificate revoked, and all others made before now" in said(
        "federation", "revoke", server, "north"
    )
    assert is_revoked(first)
    assert is_revoked(unseen)
    assert not is_revoked(made / "kits" / "south" / "startup" / "client.crt", "south")
    assert not is_revoked(signed(made, request))  # made afterwards, at once

    record = server / "revoked.json"
    assert record.stat().st_mode & 0o077 == 0
    serials = {key: site for key, site in json.loads(record.read_text()).items() if site == "north"}
    record.write_text(json.dumps(serials))  # as earlier versions wrote it
    assert is_revoked(first)
    assert not is_revoked(unseen)
    record.write_text(json.dumps({certificates.TIMES: {"north": "yesterday"}}))
    with pytest.raises(RunError, match="damaged"):
        certificates.revoked(server)


# ---- real processes ----------------------------------------------------------------------------------------


def serial(kit: Path) -> str:
    return f"{certificates.read(kit / 'startup' / 'client.crt').serial_number:x}"


def sees(kit: Path, revoked: bool) -> bool:
    """Whether the server tells this kit that its certificate is revoked, or that it is not."""
    try:
        return handshake.ask_server(kit).connection["revoked"] is revoked
    except RunError:  # a busy server may take too long for one answer; callers ask again
        return False


@pytest.mark.chaos
def test_a_site_with_its_own_key_trains_is_renewed_and_revoked(tmp_path: Path) -> None:
    data, sites = city_on_disk(tmp_path / "city", sensors=4, days=2), {"north": [0, 1], "south": [2, 3]}
    with running_federation(tmp_path, data, sites, min_sites=2, own_keys=["north"]) as running:
        north, server = running.kits["north"], running.server
        signing = ("--authority", server.parent / "authority")

        def renew(kit: Path) -> str:
            said("federation", "request", kit)
            request = kit / "request" / "north.csr"
            said("federation", "sign", tmp_path / "example" / "project.toml", request, *signing)
            return said("federation", "renew", kit, request.with_suffix(".crt"))

        def admitted() -> bool:
            known = read_server_status(server).get("sites", {}).get("north", {})
            return known.get("serial") == serial(north) and connected(server) == {"north", "south"}

        first = serial(north)
        running.begin_training(config(3, "gru-fedavg"))
        running.during(2)
        assert "its tasks go on" in renew(north)  # while the site takes part
        running.end()
        second = serial(north)
        assert second != first
        wait_for(admitted, "north registers with its new certificate, without a restart of its own")
        running.train(config(1, "gru-fedavg"), "two")

        stolen = Path(shutil.copytree(north, tmp_path / "stolen", ignore=shutil.ignore_patterns("socket")))
        renew(stolen)  # the server will not have seen this certificate
        assert "2 certificates revoked" in said("federation", "revoke", server, "north")
        assert certificates.revoked(server).serials == {first: "north", second: "north"}
        wait_for(lambda: connected(server) == {"south"}, "north's connection ends")
        for kit in (north, stolen):
            wait_for(lambda kit=kit: sees(kit, revoked=True), f"the certificate of {kit} is revoked")
        renew(north)
        wait_for(admitted, "north registers with its new certificate")
        wait_for(lambda: sees(north, revoked=False), "the certificate that was made afterwards is not")
        running.train(config(1, "gru-fedavg"), "three")
        assert running.site("north")["refused"] == running.site("south")["refused"] == 0
