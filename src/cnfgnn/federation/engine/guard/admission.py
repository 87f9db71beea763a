"""Part of the server's parent process: which connections are admitted in a site's name.

The engine lets the latest connection in a name replace the one before. Here a second process with a site's
certificate is refused while the first one answers, and connections with revoked certificates are refused and
closed. A site that asks for its connection status gets an answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import Prefix

from cnfgnn.errors import CnfgnnError, StorageError
from cnfgnn.federation.engine.guard import handshake
from cnfgnn.federation.engine.repairs.shared_sockets import share_sockets
from cnfgnn.federation.engine.repairs.tls_handshakes import move_handshakes_to_threads
from cnfgnn.federation.kits import certificates
from cnfgnn.federation.kits.kit import read_server
from cnfgnn.federation.kits.processes import trim_console
from cnfgnn.federation.server.process_status import ServerStatus
from cnfgnn.federation.server.status import objection_to
from cnfgnn.version import __version__

CHECK_INTERVAL = 1.0  # seconds
ANSWERS_WITHIN = 5.0  # seconds for a connected site to answer when another process uses its name
ASKS_WITHIN = 5.0  # seconds for a new connection with a revoked certificate to ask for its status
LOG_AGAIN_AFTER = 600.0  # seconds
HEARTBEATS = (EventType.CLIENT_REGISTER_RECEIVED, EventType.CLIENT_HEARTBEAT_RECEIVED)
COPIED_KIT = "another process with the same certificate is connected"
REVOKED = "its certificate is revoked"
NO_HELLO = "began with an answer"  # a site's own process never does


class AdmissionControl(FLComponent):  # type: ignore[misc]
    """Guards the server's connections from the moment the engine has started."""

    def __init__(self) -> None:
        super().__init__()
        share_sockets()
        self.ended = threading.Event()
        self.connections: SiteConnections | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
            self.connections = SiteConnections(kit, fl_ctx.get_engine().server, self.logger)
            self.connections.guard()
            threading.Thread(target=self._watch, args=[self.connections], daemon=True).start()
        elif event_type in HEARTBEATS and self.connections is not None:
            peer = fl_ctx.get_peer_context()
            if peer is not None:
                self.connections.record_heartbeat(
                    peer.get_identity_name(), peer.get_prop(handshake.SITE_PROCESS)
                )
        elif event_type == EventType.SYSTEM_END:
            self.ended.set()

    def _watch(self, connections: SiteConnections) -> None:
        while not self.ended.wait(CHECK_INTERVAL):
            try:
                connections.check()
                trim_console(connections.kit)
            except Exception as error:  # this thread must go on: the next check may succeed
                self.logger.error(f"checking the sites' connections failed: {error}")


class SiteConnections:
    """Decides about new connections of sites and closes those that were revoked."""

    def __init__(self, kit: Path, server: Any, logger: Any) -> None:
        self.kit, self.server, self.logger = kit, server, logger
        self.connections = server.cell.core_cell.communicator.conn_manager
        self.names = {site.name for site in read_server(kit).sites}
        self.status = ServerStatus(kit, _scheduler_probe())
        self.heartbeats: dict[str, tuple[str, float]] = {}  # by site: its process, and when it was heard
        self.revoked = certificates.revoked(kit)
        self._locks = {name: threading.Lock() for name in self.names}
        self._logged: dict[tuple[str, str], float] = {}
        self._may_ask: dict[str, float] = {}  # by connection, not yet admitted: when it was first checked

    def guard(self) -> None:
        """Check the first frame of every connection before the engine sees it."""
        manager, pass_on = self.connections, self.connections.process_frame_task

        def checked(connection: Any, frame: Any) -> None:
            kind = Prefix.from_bytes(frame).type
            if kind == Types.HELLO:
                self.decide(connection, frame, lambda: pass_on(connection, frame))
            elif kind == Types.READY and connection.conn.connector.mode != Mode.ACTIVE:
                self._refuse_ready(connection)  # READY answers a HELLO, and the server sent none here
            else:
                pass_on(connection, frame)

        manager.process_frame_task = checked
        move_handshakes_to_threads(self.connections, self._refuse_stranger)

    def record_heartbeat(self, site: str, process: object) -> None:
        if site in self.names and isinstance(process, str):
            self.heartbeats[site] = (process, time.monotonic())

    # ---- decisions -----------------------------------------------------------------------------------

    def decide(self, connection: Any, frame: Any, admit: Callable[[], None]) -> None:
        """Admit a new connection, refuse it, or answer its status request.

        `admit` passes the frame on to the engine.
        """
        hello, certificate = handshake.decode_frame(frame), handshake.peer_certificate(connection.conn)
        owner = handshake.common_name(certificate)
        name = str(hello.get(HandshakeKeys.ENDPOINT_NAME))
        asks = handshake.STATUS_REQUEST in hello
        if asks and owner and owner not in self.names:  # such as a site of a newer project file
            _send_ready(connection, {"version": __version__, "unknown": True})
            return
        if owner not in self.names or FQCN.get_root(name) != owner:
            admit()  # the server's own processes and its operator; `message_checks` refuses false names
            return
        if asks:
            self._send_status(connection, owner, certificate, str(hello[handshake.STATUS_REQUEST]))
            return
        with self._locks[owner]:
            if self._is_revoked(owner, certificate):
                self._refuse(connection, owner, REVOKED)
            elif self._is_answering(name, connection):
                self._refuse(connection, owner, COPIED_KIT)
            else:
                if name == owner:  # otherwise it is a job's process, which comes and goes
                    self.status.record_connection(owner, certificate, _address(connection))
                    self.heartbeats.pop(owner, None)  # of another process, perhaps before a restart
                admit()

    def _is_revoked(self, site: str, certificate: Mapping[str, Any]) -> bool:
        serial, begins = certificates.serial_of(certificate), certificates.time_of(certificate, "notBefore")
        return self.revoked.covers(site, serial, begins)

    def _is_answering(self, name: str, newcomer: Any) -> bool:
        """Whether a process that is already connected in this name answers a ping.

        The system closes the connections of a killed process at once. After a power cut or a network failure
        the connection looks open, but nobody answers.
        """
        endpoint = self.connections.sfm_endpoints.get(name)
        others = [other for other in endpoint.connections if other is not newcomer] if endpoint else []
        for other in others:
            before, deadline = other.last_activity, time.monotonic() + ANSWERS_WITHIN
            try:
                other.send_heartbeat(Types.PING)
            except Exception:
                continue
            while time.monotonic() < deadline and other.get_name() in self.connections.sfm_conns:
                if other.last_activity != before:
                    return True
                time.sleep(0.05)
        return False

    def _refuse(self, connection: Any, site: str, reason: str) -> None:
        address = _address(connection)
        self.status.record_refusal(site, address, reason)
        self._warn(site, address, f"refused a connection in the name of site {site} from {address}: {reason}")
        connection.conn.close()

    def _send_status(self, connection: Any, site: str, certificate: Mapping[str, Any], process: str) -> None:
        """Answer a site that asks how the server sees it."""
        endpoint = self.connections.sfm_endpoints.get(site)
        known, connected = self.status.sites.get(site, {}), bool(endpoint and endpoint.connections)
        heard_of, heard_at = self.heartbeats.get(site, (None, 0.0))
        status = {
            "version": __version__,
            "revoked": self._is_revoked(site, certificate),
            "connected": connected,
            "other_process": connected and heard_of not in (None, process),
            "heard": time.monotonic() - heard_at if heard_of == process else None,
            "objection": objection_to(self.kit, site),
            **{key: known.get(key) for key in ("address", "since", "refused")},
        }
        _send_ready(connection, status)

    def _refuse_ready(self, connection: Any) -> None:
        """Refuse who begins with READY: the engine would admit it without any of the decisions above."""
        certificate = handshake.peer_certificate(connection.conn)
        owner = handshake.common_name(certificate)
        if owner in self.names:
            revoked = self._is_revoked(owner, certificate)
            reason = REVOKED if revoked else f"a process with the same certificate {NO_HELLO}"
            self._refuse(connection, owner, reason)
        else:
            self._refuse_stranger(_address(connection), f"it {NO_HELLO}")
            connection.conn.close()

    def _refuse_stranger(self, address: str, reason: str) -> None:
        """Record a refused connection of no known site, such as one with an expired certificate."""
        self.status.record_stranger(address, reason)
        self._warn("", address, f"refused a connection from {address}: {reason}")

    # ---- once a second -------------------------------------------------------------------------------

    def check(self) -> None:
        """Read the list of revoked certificates, close their connections, and write the status."""
        try:
            self.revoked = certificates.revoked(self.kit)
        except CnfgnnError as error:
            self._warn("", "", f"{error}; certificates that were revoked before remain so")
        move_handshakes_to_threads(self.connections, self._refuse_stranger)
        self._close_revoked()
        try:
            self.status.write_if_due()
        except StorageError as error:
            self._warn("", "", f"{error}; `federation status` shows old data")

    def _close_revoked(self) -> None:
        if not self.revoked:
            return
        now, may_ask = time.monotonic(), {}
        for connection in list(self.connections.sfm_conns.values()):
            certificate = handshake.peer_certificate(connection.conn)
            site = handshake.common_name(certificate)
            if site not in self.names or not self._is_revoked(site, certificate):
                continue
            if connection.sfm_endpoint is None:  # its owner may be about to ask why the site is refused
                first_checked = self._may_ask.get(connection.get_name(), now)
                if now - first_checked < ASKS_WITHIN:
                    may_ask[connection.get_name()] = first_checked
                    continue
            self._refuse(connection, site, REVOKED)
        self._may_ask = may_ask
        for token, client in list(self.server.client_manager.get_clients().items()):
            known = self.status.sites.get(client.name, {})
            if self.revoked.covers(client.name, known.get("serial"), known.get("from")):
                self.server.logout_client(token)

    def _warn(self, site: str, address: str, line: str) -> None:
        """Log a warning, but not each time: a refused process tries again every few seconds."""
        now = time.monotonic()
        if now - self._logged.get((site, address), -LOG_AGAIN_AFTER) >= LOG_AGAIN_AFTER:
            self._logged[site, address] = now
            self.logger.warning(line)


def _send_ready(connection: Any, status: Mapping[str, Any]) -> None:
    """Answer a question for the status, and close the connection."""
    ready = {
        HandshakeKeys.ENDPOINT_NAME: FQCN.ROOT_SERVER,
        HandshakeKeys.TIMESTAMP: time.time(),
        handshake.CONNECTION_STATUS: dict(status),
    }
    connection.conn.send_frame(handshake.encode_frame(Types.READY, ready))
    connection.conn.close()


def _scheduler_probe() -> Callable[[], bool | None]:
    """A function that tells whether the engine's scheduler threads are alive; None if there are none."""
    threads = [thread for thread in threading.enumerate() if "_start_job_runner" in thread.name]

    def alive() -> bool | None:
        return all(thread.is_alive() for thread in threads) if threads else None

    return alive


def _address(connection: Any) -> str:
    found = connection.conn.get_conn_properties().get(DriverParams.PEER_ADDR.value, "")
    return str(found).rpartition(":")[0]
