"""dask's settings for both sides: TLS 1.3 with certificates of the farm's authority, and no page that listens.

The host's port counts connections from their first moment (`GuardedBackend`). dask itself keeps silent ones forever.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask
from distributed.comm.tcp import TLSBackend, TLSListener
from distributed.security import Security
from tornado.iostream import IOStream

from farm.common.limiter import ClientLimiter, ClientPlace, Limiter

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
LIMIT_S = 5.0  # for the answer of a farm to a certificate
HANDSHAKE_S = 10.0  # of a connection to the host
MAX_CONNECTIONS = 2048  # of the host's port: a process of a builder has a few
MAX_OF_ADDRESS = 1024
# OpenSSL's names of the alerts (RFC 8446, 6.2) by which a farm refuses a certificate for good
REFUSALS = {"CERTIFICATE_REVOKED": "was taken back", "CERTIFICATE_EXPIRED": "has expired"}
NO_DASHBOARD = "127.0.0.1:0"  # an HTTP server without a page, which dask does not start without


def use_settings() -> None:
    """For this process."""
    dask.config.set(SETTINGS)
    for name in ("distributed", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters of it is said in our own words


def builder_security(authority: Path, certificate: Path, key: Path) -> Security:
    """Of a builder."""
    return Security(**_files("worker", authority, certificate, key))


def refusal(scheduler: str, authority: Path, certificate: Path, key: Path) -> str:
    """The farm's reason to refuse this certificate for good; "" while it takes it, or is away. Blocks up to LIMIT_S.

    dask's errors do not name it. In TLS 1.3 the alert comes after the client's handshake, with the first read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version, context.check_hostname = ssl.TLSVersion.TLSv1_3, False
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key)
    place = urlsplit(scheduler)
    try:
        with (
            socket.create_connection((place.hostname or "", place.port or 0), LIMIT_S) as plain,
            context.wrap_socket(plain) as link,
        ):
            link.recv(1)  # dask speaks first
    except ssl.SSLError as error:
        return next((why for alert, why in REFUSALS.items() if (error.reason or "").endswith(alert)), "")
    except OSError:
        pass
    return ""


class HostSecurity(Security):  # type: ignore[misc]
    """Of the host: it refuses certificates that were taken back."""

    # Security looks up its own __slots__ through self: a subclass with slots of its own would hide them.
    def __init__(self, folder: Path) -> None:
        """`folder`: an Authority's."""
        own = (folder / "ca.pem", folder / "host.pem", folder / "host.key")
        super().__init__(**{**_files("scheduler", *own), **_files("client", *own)})
        self._crl = folder / "crl.pem"
        self._context: ssl.SSLContext | None = None

    def get_listen_args(self, role: str) -> dict[str, Any]:
        """As dask's, with the list of certificates that were taken back."""
        arguments: dict[str, Any] = super().get_listen_args(role)
        self._context = arguments["ssl_context"]
        self._context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        self.read_crl()
        return arguments

    def read_crl(self) -> None:
        """From now on the list is as it stands in the file."""
        if self._context is not None:
            self._context.load_verify_locations(self._crl)


class _GuardedListener(TLSListener):  # type: ignore[misc]
    """dask's listener, with a place and a time limit for each TLS handshake."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._admission: ClientLimiter[str] = ClientLimiter(Limiter(MAX_CONNECTIONS, MAX_OF_ADDRESS))
        self._places: dict[IOStream, ClientPlace[str]] = {}

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

    async def _prepare_stream(self, stream: IOStream, address: str) -> IOStream | None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                prepared: IOStream | None = await super()._prepare_stream(stream, address)
        except TimeoutError:
            prepared = None
        if prepared is None:
            stream.close()
        else:
            self._admission.mark_active(self._places[stream])
        return prepared


class GuardedBackend(TLSBackend):  # type: ignore[misc]
    """dask's TLS for a host."""

    _listener_class = _GuardedListener


def _files(role: str, authority: Path, certificate: Path, key: Path) -> dict[str, Any]:
    return {
        "tls_ca_file": str(authority),
        f"tls_{role}_cert": str(certificate),
        f"tls_{role}_key": str(key),
        "tls_min_version": ssl.TLSVersion.TLSv1_3,
        "require_encryption": True,
    }
