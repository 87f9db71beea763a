"""The commands for kits and their processes: make, check, start, stop, revoke and clean them; and for keys
that sites make themselves."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from cnfgnn.cli import progress
from cnfgnn.cli.federation_arguments import KitArgument, ServerArgument
from cnfgnn.cli.privacy import HideOption, check_hide
from cnfgnn.errors import ConfigError, RunError


def init(
    project: Annotated[
        Path, typer.Argument(help="Project file: the server, the sites with their sensors, the graph.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the kits to; it must not exist.")] = Path("kits"),
    authority: Annotated[
        Path | None,
        typer.Option(help="Folder `authority` of earlier kits, to renew certificates or add a site."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Make a kit for this site only, e.g. after `revoke`; needs --authority."),
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(help="Folder with the requests of sites that make their own keys: SITE.csr."),
    ] = None,
) -> None:
    """Make a kit for the server and for each site, with certificates, settings and start scripts."""
    from cnfgnn.federation.kits.requests import read_requests
    from cnfgnn.federation.operator.make_kits import make_kits
    from cnfgnn.federation.project import read_project

    plan = read_project(project)
    requested = {} if requests is None else read_requests(requests, [site.name for site in plan.sites])
    kits = make_kits(plan, out, authority=authority, only=only, requests=requested)
    for name, kit in kits.items():
        print(f"{name}: {kit}")
        if name in requested:
            print(f"  for the key with the fingerprint {requested[name].fingerprint}; the kit has no key")
    if only is not None:
        print(f"next: at site {only}, replace the folder startup/ of the old kit with the new one, then run:")
    else:
        print(f"authority: {out.absolute() / 'authority'} (keep it safe: it can sign further kits)")
        print("next: give each site its folder; there, set `readings` in local/site.toml. Then run:")
    if requested:
        print("  mv client.key KIT/startup/    (at each site that made its key)")
    if only is not None:
        print("  cnfgnn federation up KIT")
        return
    print("  cnfgnn federation up KIT      (first at the server)")
    print("  cnfgnn federation check KIT   (at each site)")
    print("  cnfgnn federation up KIT      (at each site)")


def up(
    kit: KitArgument = Path(),
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground, for systemd or a container.")
    ] = False,
) -> None:
    """Start the server or the site of a kit in the background."""
    from cnfgnn.federation.engine.confine.limits import confinement_lines
    from cnfgnn.federation.kits import processes
    from cnfgnn.federation.kits.certificates import check_valid
    from cnfgnn.federation.kits.kit import record_program, role

    was_running = processes.running(kit) is not None
    record_program(kit)
    if foreground:
        processes.run_in_foreground(kit)
    pid = processes.up(kit)
    processes.wait_until_listening(kit, pid)
    for warning in check_valid(kit):
        print(f"warning: {warning}", file=sys.stderr)
    state = "is already running" if was_running else "is up"
    print(f"the {role(kit)} {state}, process {pid}; log: {kit / 'log.txt'}")
    for line in confinement_lines(processes.supervisor_status(kit).get("confinement") or {}):
        print(f"engine: {line}")


def engine(
    socket: Annotated[Path, typer.Argument(help="The socket of the site: socket/site.sock in its kit.")],
    workspace: Annotated[Path, typer.Argument(help="A folder for the engine's files; it is emptied.")],
) -> None:
    """Run a site's engine by itself, as another user or in a container of its own, in the foreground.

    The site needs `engine.elsewhere = true` and `engine.user` in its local/site.toml.
    """
    from cnfgnn.federation.kits.engine_files import SITE_PROGRAM, engine_environment

    try:
        found = socket.is_socket()
    except OSError as error:  # its folder is closed to this user
        raise RunError(socket, f"cannot be reached ({error.strerror})") from error
    if not found:
        raise RunError(socket, "there is no socket of a site here: start the site first")
    if not workspace.is_dir():
        raise RunError(workspace, "there is no such folder")
    folder = workspace.resolve()
    command = [sys.executable, "-u", "-m", SITE_PROGRAM, str(socket.resolve()), str(folder)]
    os.chdir(folder)
    os.umask(0o077)
    os.execve(sys.executable, command, engine_environment(folder))


def down(kit: KitArgument = Path()) -> None:
    """Stop the server or the site of a kit with all its processes."""
    from cnfgnn.federation.kits.kit import role
    from cnfgnn.federation.kits.processes import down as stop

    print(f"the {role(kit)} {'is stopped' if stop(kit) else 'was not running'}")


def request(
    site: Annotated[
        str, typer.Argument(help="Folder of the site's kit; with --out, the name of a site without a kit.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder to make for the key and its request, before there is a kit.")
    ] = None,
) -> None:
    """At a site: make a key of its own, and a request to sign it. The key stays here."""
    from cnfgnn.federation.kits.renewal import request_renewal
    from cnfgnn.federation.kits.requests import KEY, make_request

    if out is None and not Path(site).is_dir():
        raise ConfigError(site, "there is no such kit: for a site that has none yet, add --out FOLDER")
    made = request_renewal(Path(site)) if out is None else make_request(site, out)
    print(f"key: {made.file.with_name(KEY)} (it stays here: nobody else needs it)")
    print(f"request: {made.file}")
    print(f"fingerprint: {made.fingerprint}")
    print("next: send the request to whoever makes the kits, and compare the fingerprint by telephone. Then:")
    if out is None:
        print(f"  cnfgnn federation renew {site} CERTIFICATE")
    else:
        print(f"  mv {made.file.with_name(KEY)} KIT/startup/   (when you have your kit)")


def sign(
    project: Annotated[Path, typer.Argument(help="Project file, which has the names in the certificate.")],
    request: Annotated[Path, typer.Argument(help="The site's request, SITE.csr.")],
    authority: Annotated[Path, typer.Option(help="Folder `authority` of the kits.")],
    out: Annotated[
        Path | None, typer.Option(help="File for the certificate; by default beside the request.")
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(
            min=1, max=3650, help="Days of validity; by default two years, at most the authority's."
        ),
    ] = None,
) -> None:
    """Where the authority is: sign a site's request, to renew its certificate."""
    from cnfgnn.federation.engine.provisioning import sign as signed
    from cnfgnn.federation.kits.certificates import validity
    from cnfgnn.federation.kits.requests import read_request
    from cnfgnn.federation.project import read_project
    from cnfgnn.files import write_whole

    out = out or request.with_suffix(".crt")
    if out.exists():
        raise RunError(out, "exists already: choose another --out")
    plan = read_project(project)
    found = read_request(request, [site.name for site in plan.sites])
    write_whole(out, signed(plan, found, authority, days))
    print(f"certificate: {out}, of site {found.site}, valid until {validity(out).ends:%Y-%m-%d}")
    print(f"fingerprint: {found.fingerprint} (compare it with the owner's before you send it)")
    print(f"next: send the certificate to {found.site}; there: cnfgnn federation renew KIT {out.name}")


def renew(
    kit: Annotated[Path, typer.Argument(help="Folder of the site's kit, in which `request` made a key.")],
    certificate: Annotated[Path, typer.Argument(help="The certificate for that key.")],
) -> None:
    """At a site, which may be running: replace its key and certificate by those of its request."""
    from cnfgnn.federation.kits.processes import running
    from cnfgnn.federation.kits.renewal import renew as install

    ends = install(kit, certificate).ends
    print(f"the certificate is renewed; it is valid until {ends:%Y-%m-%d}")
    if running(kit) is not None:
        print("the engine of the running site starts again with it; its tasks go on")


def revoke(
    kit: ServerArgument, site: Annotated[str, typer.Argument(help="The site whose kit was copied or stolen.")]
) -> None:
    """At the server: revoke all certificates of a site and close its connections."""
    from cnfgnn.federation.kits.certificates import revoke as revoke_certificates
    from cnfgnn.federation.operator.tasks import check_server_kit
    from cnfgnn.federation.server.process_status import read_server_status

    check_server_kit(kit)
    seen = read_server_status(kit).get("sites", {}).get(site, {}).get("serials", [])
    new = revoke_certificates(kit, site, tuple(map(str, seen)))
    certificates = f"{len(new)} certificate{'s' if len(new) != 1 else ''}"
    print(f"{site}: {certificates} revoked, and all others made before now; its connections close in seconds")
    print(f"next: cnfgnn federation init PROJECT.toml --authority AUTHORITY --only {site} --out FOLDER")
    print("  or, if the site makes its own key, there: cnfgnn federation request KIT")


def clean(
    kit: KitArgument = Path(),
    keep: Annotated[
        int | None,
        typer.Option(min=0, help="How many finished tasks to keep; by default the kit's `keep_tasks`."),
    ] = None,
) -> None:
    """Remove the logs and settings of old tasks from a kit. Its process may keep running."""
    from cnfgnn.federation.kits.kit import read_server, role
    from cnfgnn.federation.kits.retention import remove_old_tasks
    from cnfgnn.federation.site.settings import read_site

    if keep is None:
        keep = read_server(kit).keep_tasks if role(kit) == "server" else read_site(kit).keep_tasks
    removed = remove_old_tasks(kit, keep)
    print(f"removed the files of {removed.tasks} tasks, {progress.size(removed.bytes)}")


def check(kit: KitArgument = Path(), hide: HideOption = None) -> None:
    """At a site, before it joins: check its readings, clock, certificate and connection to the server.

    It also says, to the owner alone, by how much a smoother of the site's copies would miss its readings.
    """
    from cnfgnn.federation.kits.kit import check_is_site, record_program
    from cnfgnn.federation.operator.check import check_site

    check_is_site(kit)
    check_hide(hide)
    record_program(kit)
    for line in check_site(kit, hide):
        print(line)
    print("this site can join; whether its readings fit those of the others shows when a task begins")
