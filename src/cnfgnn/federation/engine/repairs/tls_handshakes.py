"""TLS handshakes in a thread per connection, with a time limit.

The engine performs the handshake where it accepts connections: a client that stays silent would keep out all
others, and a failed handshake would go unnoticed.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

HANDSHAKE_WITHIN = 10.0  # seconds

Refused = Callable[[str, str], None]  # called with the address and the reason


def move_handshakes_to_threads(connections: Any, on_refused: Refused) -> None:
    """Change every listener of the engine that still performs handshakes while it accepts."""
    for connector in list(connections.connectors.values()):
        listener: Any = getattr(connector.driver, "server", None)
        accepting: Any = getattr(listener, "socket", None)
        if isinstance(accepting, ssl.SSLSocket) and getattr(accepting, "do_handshake_on_connect", False):
            setattr(accepting, "do_handshake_on_connect", False)  # noqa: B010 unknown to the type's stub
            listener.finish_request = _with_handshake(listener.finish_request, on_refused)


def _with_handshake(
    finish_request: Callable[[Any, Any], None], on_refused: Refused
) -> Callable[[Any, Any], None]:
    def finish_after_handshake(request: ssl.SSLSocket, address: Any) -> None:
        request.settimeout(HANDSHAKE_WITHIN)
        try:
            request.do_handshake()
        except ssl.SSLCertVerificationError as error:
            on_refused(str(address[0]), error.verify_message)
            return
        except OSError:  # it disconnected, stayed silent or does not speak TLS: anybody on the network may
            return
        request.settimeout(None)
        finish_request(request, address)

    return finish_after_handshake
