"""Accepting connections for as long as the daemon lives, whatever happens to its descriptors."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from farm.core.errors import HostError
from farm.tracker.sockets import DescriptorReserve

ADDRESS_HINT = "[tvm] host must be an address of this host (`ip -br address`); 0.0.0.0 is all of them"
BACKLOG = 4096  # connections the kernel keeps for us; Linux caps it at net.core.somaxconn (4096 by default)
ACCEPTS_PER_WAKE = 64  # so that a flood of clients leaves the loop time for its other work
FIRST_PAUSE_S = 0.05  # without descriptors: look again this soon, then twice as late ...
LONGEST_PAUSE_S = 1.0  # ... up to this
SHED_AFTER_S = 5.0  # clients wait this long for a descriptor before they are turned away

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger(__name__)


class PortTakenError(HostError):
    """The port is taken."""

    code = "port_taken"


def bind(address: str, port: int) -> socket.socket:
    """A socket that listens on a TCP port; 0 lets the kernel choose.

    Raises:
        PortTakenError: somebody else listens there.
        HostError: the address cannot be bound.
    """
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise HostError(f"cannot listen on {address}: {error.strerror or error}", hint=ADDRESS_HINT) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # "::" serves IPv4 clients too
        listener.bind(name)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(
                f"port {port} on {address} is taken",
                hint=f"`ss -ltnp 'sport = :{port}'` names the program; a stock rpc_tracker or a second farm?",
            ) from error
        raise HostError(f"cannot listen on {address} port {port}: {error.strerror}", hint=ADDRESS_HINT) from error
    return listener


class Listener:
    """One listening socket. `accepted` gets each connection, blocking as accept() made it, and owns it."""

    def __init__(self, accepted: Callable[[socket.socket], None]) -> None:
        self._accepted = accepted
        self._socket: socket.socket | None = None
        self._reserve: DescriptorReserve | None = None
        self._resume: asyncio.TimerHandle | None = None
        self._pause_s = FIRST_PAUSE_S
        self._exhausted_since: float | None = None
        self._held = False

    @property
    def port(self) -> int:
        """The bound port; 0 before `take`."""
        return 0 if self._socket is None else int(self._socket.getsockname()[1])

    def take(self, listener: socket.socket) -> None:
        """Accept from a socket that listens already; it is ours from now on. Must be called on the loop."""
        self._loop = asyncio.get_running_loop()
        self._reserve = DescriptorReserve()
        listener.setblocking(False)
        self._socket = listener
        self._loop.add_reader(listener, self._accept)

    def stop(self) -> None:
        """Stop listening. Accepted connections are not touched."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._reserve is not None:
            self._reserve.close()
            self._reserve = None

    def hold(self) -> None:
        """Accept nobody until `release`: newcomers wait in the kernel's queue."""
        if not self._held and self._socket is not None:
            self._held = True
            self._loop.remove_reader(self._socket)

    def release(self) -> None:
        """End `hold`."""
        if self._held and self._socket is not None:
            self._held = False
            if self._resume is None:
                self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKE):
            if self._socket is None or self._held:
                return
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(error)
                    return
                # Lost while it queued (ECONNABORTED and the network errors of accept(2)): the next one.
                log.debug("a queued connection was lost: %s", error)
                continue
            self._recovered()
            self._accepted(connection)

    def _pause(self, error: OSError) -> None:
        """Stop looking for a while: the socket stays readable, and a loop that kept looking would spin."""
        assert self._socket is not None
        assert self._reserve is not None
        now = self._loop.time()
        if self._exhausted_since is None:
            self._exhausted_since = now
            log.error("no connection can be accepted: %s; trying again until one can", error.strerror)
        elif now - self._exhausted_since >= SHED_AFTER_S:
            while self._reserve.shed(self._socket):
                pass
        self._loop.remove_reader(self._socket)
        self._resume = self._loop.call_later(self._pause_s, self._look_again)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _look_again(self) -> None:
        self._resume = None
        if self._socket is not None and not self._held:
            self._loop.add_reader(self._socket, self._accept)

    def _recovered(self) -> None:
        if self._exhausted_since is not None:
            log.warning("connections are accepted again after %.1f s", self._loop.time() - self._exhausted_since)
            self._exhausted_since = None
            self._pause_s = FIRST_PAUSE_S
            assert self._reserve is not None
            self._reserve.restore()
