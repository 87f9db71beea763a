"""Part of the server's parent process: who may connect in a site's name, and what the operator is told of it.

The engine lets the latest connection in a name replace the one before. Here a second process with a site's
certificate is refused while the first one answers, revoked certificates are refused and their connections
ended, and a site that asks how it stands is told.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import Prefix

from cnfgnn.errors import CnfgnnError, StorageError
from cnfgnn.federation import certificates
from cnfgnn.federation.flare import handshake
from cnfgnn.federation.kits import read_server
from cnfgnn.federation.process_identity import identity, runs
from cnfgnn.files import write_whole
from cnfgnn.version import __version__

SERVER_STATUS = "server-status.json"
SITE_PROCESS = "cnfgnn_process"  # the property by which a site's process is known in its heartbeats
LOOKS_EVERY = 1.0  # seconds
WRITES_EVERY = 5.0  # at least, so that a reader can tell that this process is alive
ANSWERS_WITHIN = 5.0  # seconds in which a connected site shows that it lives when another takes its name
HANDSHAKE_WITHIN = 10.0
LOGS_AGAIN_AFTER = 600.0
HEARD = (EventType.CLIENT_REGISTER_RECEIVED, EventType.CLIENT_HEARTBEAT_RECEIVED)
COPY = "another process with the same certificate is connected"
IS_REVOKED = "its certificate is revoked"


class AdmissionControl(FLComponent):  # type: ignore[misc]
    """Stands at the server's ports from the moment the engine has started."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()
        self.door: Door | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
            self.door = Door(kit, fl_ctx.get_engine().server, self.logger)
            self.door.guard()
            threading.Thread(target=self._watch, args=[self.door], daemon=True).start()
        elif event_type in HEARD and self.door is not None:
            peer = fl_ctx.get_peer_context()
            if peer is not None:
                self.door.heard_of(peer.get_identity_name(), peer.get_prop(SITE_PROCESS))
        elif event_type == EventType.SYSTEM_END:
            self.ended.set()

    def _watch(self, door: Door) -> None:
        while not self.ended.wait(LOOKS_EVERY):
            try:
                door.look()
            except Exception as error:  # the next look may go well, and without this thread nobody looks
                self.logger.error(f"the doorkeeper cannot look after the sites: {error}")


class Door:
    """What is known of the sites' connections, and the decisions about new ones."""

    def __init__(self, kit: Path, server: Any, logger: Any) -> None:
        self.kit, self.server, self.logger = kit, server, logger
        self.connections = server.cell.core_cell.communicator.conn_manager
        self.names = {site.name for site in read_server(kit).sites}
        self.scheduler = [thread for thread in threading.enumerate() if "_start_job_runner" in thread.name]
        self.sites: dict[str, dict[str, Any]] = _earlier(kit).get("sites", {})
        self.strangers: dict[str, Any] = {}
        self.heard: dict[str, tuple[str, float]] = {}
        self.revoked = certificates.revoked(kit)
        self._locks = {name: threading.Lock() for name in self.names}
        self._state = threading.Lock()
        self._written, self._changed = 0.0, True
        self._logged: dict[tuple[str, str], float] = {}

    def guard(self) -> None:
        """Have every first frame of a connection judged before the engine sees it."""
        manager, engine_does = self.connections, self.connections.process_frame_task

        def judged(connection: Any, frame: Any) -> None:
            if Prefix.from_bytes(frame).type == Types.HELLO:
                self.judge(connection, frame, lambda: engine_does(connection, frame))
            else:
                engine_does(connection, frame)

        manager.process_frame_task = judged
        self._shake_hands_aside()

    def heard_of(self, site: str, process: object) -> None:
        if site in self.names and isinstance(process, str):
            self.heard[site] = (process, time.monotonic())

    # ---- decisions -----------------------------------------------------------------------------------

    def judge(self, connection: Any, frame: Any, let_in: Callable[[], None]) -> None:
        """One who says who it is; `let_in` passes the frame on to the engine."""
        said, certificate = handshake.content(frame), _certificate(connection)
        owner = _common_name(certificate)
        name = str(said.get(HandshakeKeys.ENDPOINT_NAME))
        if owner not in self.names or FQCN.get_root(name) != owner:
            let_in()  # the server's own processes, its operator, and false names: the engine judges those
            return
        serial = certificates.serial_of(certificate)
        if handshake.ASKS in said:
            self._answer(connection, owner, serial, str(said[handshake.ASKS]))
            return
        with self._locks[owner]:
            if serial in self.revoked:
                self._refuse(connection, owner, IS_REVOKED)
            elif self._answers(name, connection):
                self._refuse(connection, owner, COPY)
            else:
                self._note(owner, name, connection, certificate, serial)
                let_in()

    def _answers(self, name: str, newcomer: Any) -> bool:
        """Whether a process that is connected in this name lives: it answers a question on its connection.

        A killed process's connection is closed by its system at once. After a power cut or in a cut network
        the connection looks open, but nobody answers.
        """
        endpoint = self.connections.sfm_endpoints.get(name)
        others = [other for other in endpoint.connections if other is not newcomer] if endpoint else []
        for other in others:
            before, until = other.last_activity, time.monotonic() + ANSWERS_WITHIN
            try:
                other.send_heartbeat(Types.PING)
            except Exception:
                continue
            while time.monotonic() < until and other.get_name() in self.connections.sfm_conns:
                if other.last_activity != before:
                    return True
                time.sleep(0.05)
        return False

    def _refuse(self, connection: Any, site: str, reason: str) -> None:
        address = _address(connection)
        with self._state:
            known = self.sites.setdefault(site, {})
            count = int((known.get("refused") or {}).get("count", 0)) + 1
            known["refused"] = {"reason": reason, "address": address, "count": count, "last": time.time()}
            self._changed = True
        self._warn(site, address, f"refused a connection as site {site} from {address}: {reason}")
        connection.conn.close()

    def _note(self, site: str, name: str, connection: Any, certificate: Any, serial: str) -> None:
        if name != site:
            return  # a job's process, which comes and goes
        ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
        with self._state:
            known = self.sites.setdefault(site, {})
            known["serials"] = sorted({*known.get("serials", []), serial})
            known |= {"serial": serial, "until": ends.isoformat(), "address": _address(connection)}
            known["since"] = time.time()
            self._changed = True
            self.heard.pop(site, None)  # it was another process, perhaps of the same kit before a restart

    def _answer(self, connection: Any, site: str, serial: str, process: str) -> None:
        endpoint = self.connections.sfm_endpoints.get(site)
        known, heard = self.sites.get(site, {}), self.heard.get(site)
        connected, its_own = bool(endpoint and endpoint.connections), bool(heard and heard[0] == process)
        standing = {
            "version": __version__,
            "revoked": serial in self.revoked,
            "connected": connected,
            "other": connected and heard is not None and not its_own,
            "address": known.get("address"),
            "since": known.get("since"),
            "heard": time.monotonic() - heard[1] if heard and its_own else None,
            "refused": known.get("refused"),
        }
        said = {HandshakeKeys.ENDPOINT_NAME: FQCN.ROOT_SERVER, HandshakeKeys.TIMESTAMP: time.time()}
        connection.conn.send_frame(handshake.frame(Types.READY, {**said, handshake.STANDING: standing}))
        connection.conn.close()

    # ---- once a second -------------------------------------------------------------------------------

    def look(self) -> None:
        try:
            self.revoked = certificates.revoked(self.kit)
        except CnfgnnError as problem:
            self._warn("", "", f"{problem}; the certificates revoked before stay so")
        self._shake_hands_aside()
        self._drop_revoked()
        if self._changed or time.monotonic() - self._written > WRITES_EVERY:
            try:
                self.write()
            except StorageError as problem:
                self._warn("", "", f"{problem}; what `federation status` shows is old")

    def write(self) -> None:
        with self._state:
            self._changed, self._written = False, time.monotonic()
            said = {
                "time": time.time(),
                "process": identity(os.getpid()),
                "scheduler": all(thread.is_alive() for thread in self.scheduler) if self.scheduler else None,
                "sites": self.sites,
                "strangers": self.strangers,
            }
            text = json.dumps(said)
        write_whole(self.kit / SERVER_STATUS, text.encode())

    def _drop_revoked(self) -> None:
        if not self.revoked:
            return
        for connection in list(self.connections.sfm_conns.values()):
            certificate = _certificate(connection)
            site = _common_name(certificate)
            if site in self.names and certificates.serial_of(certificate) in self.revoked:
                self._refuse(connection, site, IS_REVOKED)
        for token, client in list(self.server.client_manager.get_clients().items()):
            if self.sites.get(client.name, {}).get("serial") in self.revoked:
                self.server.logout_client(token)

    def _shake_hands_aside(self) -> None:
        """Let each connection shake hands in its own thread, and within a time.

        The engine does it where it accepts connections: one that stays silent would keep out all others, and
        nobody is told of one that fails.
        """
        for connector in list(self.connections.connectors.values()):
            listener: Any = getattr(connector.driver, "server", None)
            accepting: Any = getattr(listener, "socket", None)
            if isinstance(accepting, ssl.SSLSocket) and getattr(accepting, "do_handshake_on_connect", False):
                setattr(accepting, "do_handshake_on_connect", False)  # noqa: B010 unknown to the type's stub
                listener.finish_request = self._after_handshake(listener.finish_request)

    def _after_handshake(self, go_on: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def shake(request: ssl.SSLSocket, address: Any) -> None:
            request.settimeout(HANDSHAKE_WITHIN)
            try:
                request.do_handshake()
            except ssl.SSLCertVerificationError as error:
                self._refuse_stranger(str(address[0]), error.verify_message)
                return
            except OSError:  # it went away, stayed silent or does not speak TLS: anybody on the network may
                return
            request.settimeout(None)
            go_on(request, address)

        return shake

    def _refuse_stranger(self, address: str, reason: str) -> None:
        with self._state:
            count = int(self.strangers.get("count", 0)) + 1
            self.strangers = {"reason": reason, "address": address, "count": count, "last": time.time()}
            self._changed = True
        self._warn("", address, f"refused a connection from {address}: {reason}")

    def _warn(self, site: str, address: str, line: str) -> None:
        """A refused process tries again every few seconds: it is not logged each time."""
        now = time.monotonic()
        if now - self._logged.get((site, address), -LOGS_AGAIN_AFTER) >= LOGS_AGAIN_AFTER:
            self._logged[site, address] = now
            self.logger.warning(line)


def read_server_status(kit: Path) -> dict[str, Any]:
    """What the server's process last wrote about itself; nothing if it never did."""
    return _earlier(kit)


def scheduler_ended(kit: Path) -> bool:
    """Whether the running server has said that it starts no more tasks."""
    noted = read_server_status(kit)
    process = noted.get("process")
    return noted.get("scheduler") is False and isinstance(process, dict) and runs(process)


def _earlier(kit: Path) -> dict[str, Any]:
    try:
        content = json.loads((kit / SERVER_STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _certificate(connection: Any) -> dict[str, Any]:
    """The peer's, as Python shows it; nothing of a connection that has none or is closed."""
    try:
        return dict(connection.conn.sock.getpeercert() or {})
    except (AttributeError, OSError, ValueError):
        return {}


def _common_name(certificate: dict[str, Any]) -> str:
    return str(dict(part[0] for part in certificate.get("subject", ())).get("commonName", ""))


def _address(connection: Any) -> str:
    found = connection.conn.get_conn_properties().get(DriverParams.PEER_ADDR.value, "")
    return str(found).rpartition(":")[0]
