"""Sessions of TVM clients at one host with phones of another: the service `session` of the link.

The host where the client connected names the client. The client's hello, with its match key, goes unchanged to the gate
of the phone's host, which checks the key and serves the client as one of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from farm.common.errors import ProtocolError
from farm.common.peers import name_at
from farm.lab.link import HostLink, LinkCall
from farm.model.sessions import Peer

SERVICE = "session"

# Serves a client of another host, with its connection and the bytes that were read from it.
ServeClient = Callable[[socket.socket, Peer, bytes], None]

_PEER = TypeAdapter(Peer)


class LabSessions:
    """Both sides of the service at this host."""

    def __init__(self, link: HostLink, serve: ServeClient) -> None:
        """`serve`: by the gate of this host."""
        self._link = link
        self._serve_client = serve
        link.serve(SERVICE, self._serve)

    async def dial(self, host: str, peer: Peer, limit_s: float) -> socket.socket:
        """A connection to the gate of another host for this client; the client's hello is its first message.

        Raises:
            FarmError: that host cannot be reached, or refuses.
        """
        connection = await self._link.dial(host, SERVICE, {"peer": asdict(peer)}, limit_s=limit_s)
        sock, _ = connection.take()
        return sock

    async def _serve(self, call: LinkCall) -> None:
        peer = _peer_of(call.fields)
        peer = replace(peer, user=name_at(peer.user, call.host))
        await call.accept()
        sock, first = call.take()
        self._serve_client(sock, peer, first)


def _peer_of(fields: Mapping[str, Any]) -> Peer:
    try:
        return _PEER.validate_python(fields.get("peer"))
    except ValidationError as error:
        raise ProtocolError("a session without the address of its client") from error
