"""uvicorn inside the daemon's own event loop: it takes no signals, logs no requests, and ends with the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from farm.common.errors import HostError
from farm.common.limiter import ClientLimiter, ClientPlace, Limiter
from farm.common.tasks import BackgroundTasks, log_failure
from farm.tvm_server.listener import Acceptor
from farm.web.guard import network_of

# A further one replaces the longest idle one, or is answered 503.
MAX_CONNECTIONS = 256
MAX_OF_ADDRESS = 192  # of those; a proxy, or ssh -L, has all its users at one address
MAX_REFUSED = 32  # connections that stay to be answered 503
REQUEST_PATIENCE_S = 10.0  # for a whole request, head and body, from its first byte
READER_PATIENCE_S = 10.0  # for a client that does not read
KEEP_ALIVE_S = 30.0
STOP_S = 1.0
BACKLOG = 128
MAX_HEAD_BYTES = 16 * 1024

# A client's side of a connection while a request is awaited or comes in.
_UNFINISHED = (h11.IDLE, h11.SEND_BODY)

log = logging.getLogger(__name__)


class WebPortError(HostError):
    """The web page's port cannot be opened."""

    code = "web_port_unusable"


class _RequestTimer:
    """A timer that runs once at a time."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float, cut: Callable[[], None]) -> None:
        """Call `cut` in so many seconds; nothing while it runs: a client that sends slowly would never be late."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, cut)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Connections:
    """The connections of one server, by address, and those beyond the bounds."""

    def __init__(self) -> None:
        self.served: ClientLimiter[str] = ClientLimiter(Limiter(MAX_CONNECTIONS, MAX_OF_ADDRESS))
        self.refused: ClientLimiter[str] = ClientLimiter(Limiter(MAX_REFUSED))


class _Protocol(H11Protocol):
    """One connection. A client that neither asks nor reads is cut: a connection costs a descriptor and memory."""

    def __init__(self, connections: _Connections, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._admission = connections.served
        self._refused = connections.refused
        self._place: ClientPlace[str] | None = None
        self._request = _RequestTimer()  # while one is awaited or incomplete
        self._reader = _RequestTimer()  # while the client does not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = network_of(self.client[0]) if self.client else ""
        self._place = self._admission.enter(address, self._cut)
        if self._place is None:
            self.limit_concurrency = 0  # uvicorn answers 503
            self._admission = self._refused
            self._place = self._admission.enter(address, self._cut)
        self._request.begin(REQUEST_PATIENCE_S, transport.abort)

    def _cut(self) -> None:
        self.transport.abort()
        self.connections.discard(self)  # now, not when the loop reports its end

    def on_response_complete(self) -> None:
        if self._place is not None:
            self._admission.mark_silent(self._place)
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        self._request.begin(REQUEST_PATIENCE_S, self.transport.abort)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state not in _UNFINISHED:
            self._request.end()
            under_way = self.cycle is not None and not self.cycle.response_complete
            if under_way and self._place is not None and self._admission is not self._refused:
                self._admission.mark_active(self._place)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader.begin(READER_PATIENCE_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request.end()
        self._reader.end()
        if self._place is not None:
            self._admission.leave(self._place)
        super().connection_lost(exc)


class _UvicornServer(uvicorn.Server):
    """The daemon has signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


class WebServer:
    """Listens from `open` to `stop`."""

    def __init__(self, host: str, port: int, setting: str = "port") -> None:
        """`setting`: the key of `[web]` that has the port."""
        self._host = host
        self._socket = _listen(host, port, setting)
        self._port = int(self._socket.getsockname()[1])
        self._acceptor = Acceptor(self._accepted)
        self._connections = _Connections()
        self._tasks = BackgroundTasks()
        self._server: _UvicornServer | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where to dial it from this host."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host), self._port

    @property
    def url(self) -> str:
        """The page's address for a browser on this host."""
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def start(self, app: ASGIApp) -> None:
        """Begin to serve."""
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        settings: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
        config = uvicorn.Config(
            app,
            http=_Protocol,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(KEEP_ALIVE_S),
            timeout_graceful_shutdown=int(STOP_S),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            **settings,
        )
        self._server = _UvicornServer(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[]), name="web")
        self._serving.add_done_callback(log_failure)
        self._acceptor.take(self._socket)  # a few at a time: asyncio would take all that wait at once

    def _accepted(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._tasks.spawn(self._connect(sock), "a connection to the page")

    async def _connect(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has left
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, sock)

    def _protocol(self) -> _Protocol:
        assert self._server is not None
        return _Protocol(
            self._connections, config=self._server.config, server_state=self._server.server_state, app_state={}
        )

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """The tasks that run while it listens."""
        return () if self._serving is None else (self._serving,)

    async def stop(self) -> None:
        """Take no more requests; running ones have a second."""
        if self._server is None or self._serving is None:
            self._socket.close()
            return
        self._acceptor.stop()
        await self._tasks.end(STOP_S)
        self._server.should_exit = True
        await asyncio.gather(self._serving, return_exceptions=True)


def _listen(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket.

    Raises:
        WebPortError: the port is taken, or the address is not this host's.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        # With its protocol named: else asyncio leaves Nagle on, and a page in two writes waits 40 ms for an ACK.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "another program has it" if taken else (error.strerror or str(error))
        raise WebPortError(
            f"the web page's address {host}:{port} cannot be opened: {why}",
            hint=f"choose another port ([web] {setting} = ...; 0: the kernel chooses), or enabled = false",
        ) from error
    return listener
