"""dask's settings for both sides: TLS 1.3 with the certificates of the lab's members, and no page that listens.

The host's port counts connections from their first moment (`GuardedBackend`). dask itself keeps silent ones forever. A
machine that shows the certificate of a token speaks with farm (`farm.builders.membership`), and never with dask.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import dask
from distributed.comm.tcp import TLSBackend, TLSListener
from distributed.security import Security
from tornado.iostream import IOStream, StreamClosedError, UnsatisfiableReadError

from farm import RELEASE
from farm.common.errors import FarmError, UserError
from farm.common.frames import MAX_LINE_BYTES, FrameReader, frame
from farm.common.limiter import ClientLimiter, ClientPlace, Limiter
from farm.lab.identity import LabIdentity
from farm.lab.tls import client_context, is_certificate, server_context

# No dashboard and no HTTP routes; one death is enough, since the farm decides itself who tries next.
SETTINGS = {
    "distributed.comm.require-encryption": True,
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.admin.event-loop-monitor-interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.worker.profile.enabled": False,
}
HANDSHAKE_S = 10.0  # of a connection to the host, and of an exchange with it
MAX_CONNECTIONS = 2048  # of the host's port: a process of a builder has a few
MAX_OF_ADDRESS = 1024
NO_DASHBOARD = "127.0.0.1:0"  # an HTTP server without a page, which dask does not start without


def use_settings() -> None:
    """For this process."""
    dask.config.set(SETTINGS)
    for name in ("distributed", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters of it is said in our own words


class LabSecurity(Security):  # type: ignore[misc]
    """TLS with exactly the certificates of some members of the lab."""

    # Security looks up its own __slots__ through self: a subclass with slots of its own would hide them.
    def __init__(self, identity: LabIdentity, certificates: Iterable[str]) -> None:
        """`certificates`: of the other members, PEM."""
        super().__init__(require_encryption=True)
        self.server = server_context(identity, certificates)
        self._client = client_context(identity, certificates)

    def get_connection_args(self, role: str) -> dict[str, Any]:  # noqa: ARG002
        """Of a connection to another member."""
        return {"ssl_context": self._client, "require_encryption": True, "extra_conn_args": {}}

    def get_listen_args(self, role: str) -> dict[str, Any]:  # noqa: ARG002
        """Of a port for other members."""
        return {"ssl_context": self.server, "require_encryption": True}


class HostSecurity(LabSecurity):
    """Of the host: the builders that it lets in change, and tokens are exchanged for memberships."""

    def __init__(self, identity: LabIdentity, join: Callable[[str, str, str], Awaitable[Mapping[str, Any]]]) -> None:
        """`join`: called with a token's name and certificate and the builder's own one; returns the answer for it."""
        super().__init__(identity, [identity.certificate])
        self.names: dict[str, str] = {}  # of the builders, by certificate
        self.members: frozenset[bytes] = frozenset()  # DER, with the host's own
        self.tokens: dict[bytes, tuple[str, str]] = {}  # name and certificate, by the certificate's DER
        self.join = join
        self._identity = identity
        self._listeners: list[_GuardedListener] = []
        self.use({}, {})

    def get_listen_args(self, role: str) -> dict[str, Any]:
        """Of a port that lets in the members of the moment."""
        return {**super().get_listen_args(role), "security": self}

    def use(self, members: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        """Let in the builders and the tokens with these certificates (PEM, by name) from now on."""
        usable = [pem for pem in (*members.values(), *tokens.values()) if is_certificate(pem)]
        self.names = {pem: name for name, pem in members.items() if pem in usable}
        self.members = frozenset(map(ssl.PEM_cert_to_DER_cert, (self._identity.certificate, *self.names)))
        self.tokens = {ssl.PEM_cert_to_DER_cert(pem): (name, pem) for name, pem in tokens.items() if pem in usable}
        self.server = server_context(self._identity, [self._identity.certificate, *usable])
        if self.names:
            self._client.load_verify_locations(cadata="\n".join(self.names))
        for each in self._listeners:
            each.tcp_server.ssl_options = self.server

    def follow(self, listener: _GuardedListener) -> None:
        """Tell a port about every change."""
        self._listeners.append(listener)

    def close_others(self) -> None:
        """End the connections of machines that are let in no more."""
        for each in self._listeners:
            each.close_others()


class _GuardedListener(TLSListener):  # type: ignore[misc]
    """dask's listener, with a place and a time limit for each TLS handshake."""

    def __init__(self, *args: Any, security: HostSecurity, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._security = security
        self._admission: ClientLimiter[str] = ClientLimiter(Limiter(MAX_CONNECTIONS, MAX_OF_ADDRESS))
        self._places: dict[IOStream, ClientPlace[str]] = {}
        self._shown: dict[IOStream, bytes] = {}  # certificates (DER), after the handshake

    async def start(self) -> None:
        await super().start()
        self._security.follow(self)

    async def _handle_stream(self, stream: IOStream, address: tuple[str, int]) -> None:
        place = self._admission.enter(address[0], stream.close)
        if place is None:
            stream.close()
            return
        self._places[stream] = place
        try:
            await super()._handle_stream(stream, address)
        finally:
            self._admission.leave(self._places.pop(stream))
            self._shown.pop(stream, None)

    def close_others(self) -> None:
        """End the connections of machines that are let in no more."""
        for stream in [stream for stream, shown in self._shown.items() if shown not in self._security.members]:
            stream.close()

    async def _prepare_stream(self, stream: IOStream, address: str) -> IOStream | None:
        """The stream of a member; None for any other machine, whose connection is closed."""
        with contextlib.suppress(TimeoutError, StreamClosedError):
            async with asyncio.timeout(HANDSHAKE_S):
                if await super()._prepare_stream(stream, address) is not None:
                    shown = _certificate_of(stream)
                    if shown in self._security.members:
                        self._admission.mark_active(self._places[stream])
                        self._shown[stream] = shown
                        return stream
                    if (token := self._security.tokens.get(shown)) is not None:
                        await self._join(stream, *token)
        stream.close()
        return None

    async def _join(self, stream: IOStream, name: str, token: str) -> None:
        """The exchange with a machine that has a token (`farm.builders.membership`)."""
        await stream.write(frame({"farm": RELEASE}))
        try:
            [(fields, _)] = FrameReader().feed(await stream.read_until(b"\n", MAX_LINE_BYTES))
            certificate = str(fields.get("certificate", ""))
            if not is_certificate(certificate):
                raise UserError("the builder's certificate cannot be read")
            answer = await self._security.join(name, token, certificate)
        except (UnsatisfiableReadError, ValueError, FarmError) as error:
            answer = {"error": str(error)}
        await stream.write(frame(answer))


class GuardedBackend(TLSBackend):  # type: ignore[misc]
    """dask's TLS for a host."""

    _listener_class = _GuardedListener


def _certificate_of(stream: IOStream) -> bytes:
    """The certificate (DER) that the other side has shown."""
    link = stream.socket
    assert isinstance(link, ssl.SSLSocket)
    return link.getpeercert(binary_form=True) or b""
