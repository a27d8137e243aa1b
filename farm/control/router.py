"""The base of all control sockets: a ZeroMQ ROUTER that calls one coroutine per request.

Limits: one JSON frame and one raw frame of 1 MiB (messages.py); calls at once, their memory, and unread answers by
connection, by user and in all (limits.py). A peer that sends anything else gets an error when its request's id
can be read, and nothing otherwise; the socket stays open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq
import zmq.asyncio

from farm.common.errors import FarmError, ProtocolError, stopping_error
from farm.common.tasks import end_tasks, log_failure
from farm.control.callers import KeyPeer, LocalPeer
from farm.control.limits import BusyError, CallLimiter, CallQuota, ConnectionLimiter, UnreadLimiter, in_memory_bytes
from farm.control.listeners import ControlListener, ControlSocketError
from farm.control.messages import (
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    Reply,
    Request,
    decode_request,
    encode_reply,
    request_id,
)

# a call that takes longer is answered "still at work"; the client gives up after 2 s of silence
STILL_AT_WORK_AFTER_S = 0.5
SIGN_INTERVAL_S = 2.0  # ... and then again: also how a caller that went away is noticed
PATIENCE_S = 5.0  # with a caller that reads slower than it is sent to; ZeroMQ keeps 1,000 messages for it meanwhile
READ_AFTER_S = 5.0  # by then most answers are read, and libzmq has dropped those of ended connections
ROOM_POLL_S = 0.02  # ZeroMQ does not report when a ROUTER has room for one of its peers again
STOPPING_HINT = "try again when it is back: farm status"
HANDSHAKE_MS = 5_000  # a connection that is not through by then is closed
LINGER_MS = 200  # how long the last replies may take when the socket closes
GARBAGE_LOGGED = 10  # the first, the tenth, the hundredth ... message of one sender that is none gets a line in the log
MAX_SENDERS = 1024

logger = logging.getLogger(__name__)


class CallerGoneError(FarmError):
    """The caller went away before its answer."""

    code = "caller_gone"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with raw frames; a handler without frames may return just the fields."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    frames: tuple[bytes, ...] = ()


Sender = Callable[[Reply], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way through a handler."""

    request: Request
    peer: LocalPeer | KeyPeer | None
    send: Sender
    caller_gone: asyncio.Event = field(default_factory=asyncio.Event)  # set ahead of its end when that is the caller's

    async def progress(self, *frames: bytes, **fields: Any) -> None:
        """Send something ahead of the answer: fields, and at most one raw frame with them.

        Raises:
            CallerGoneError: the caller left.
        """
        await self.send(Reply(self.request.id, fields, frames, more=True))


class Router:
    """Receives requests, runs `answer` for each in a task of its own, sends its answer or its error."""

    def __init__(
        self,
        listener: ControlListener,
        answer: Callable[[Call], Awaitable[Answer]],
        *,
        quota: CallQuota | None = None,
    ) -> None:
        """Prepare a control socket.

        Args:
            listener: where callers come in.
            answer: called for each request.
            quota: how many calls a user may have; None where all callers are farm's own.
        """
        self._listener = listener
        self._answer = answer
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._calls: dict[asyncio.Task[None], LocalPeer | KeyPeer] = {}
        self._ended_early: dict[asyncio.Task[None], FarmError] = {}  # why a call is ended before its time
        self._garbage: dict[str, int] = {}  # messages that are none, by sender
        self._connections: ConnectionLimiter | None = None
        self._call_limiter = CallLimiter(quota)
        self._unread = UnreadLimiter()

    @property
    def endpoint(self) -> str:
        """The ZeroMQ address clients connect to."""
        return self._listener.endpoint

    @property
    def problem(self) -> str:
        """Which owner opened too many connections in the last minute; "": none did."""
        return "" if self._connections is None else self._connections.problem

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """Tasks that run while the socket is open. When one ends the socket is dead, which nothing else reports."""
        return (*(() if self._receiver is None else (self._receiver,)), *self._listener.tasks)

    async def start(self) -> None:
        """Open the socket.

        Raises:
            ControlSocketError: it cannot be opened.
        """
        self._context = zmq.asyncio.Context()
        try:
            self._socket = self._context.socket(zmq.ROUTER)
            self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a send to a caller that went away fails
            self._socket.setsockopt(zmq.MAXMSGSIZE, max(MAX_FRAME_BYTES, MAX_HEADER_BYTES))
            self._socket.setsockopt(zmq.LINGER, LINGER_MS)
            self._socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
            self._connections = ConnectionLimiter(self._listener.name, self._listener.owner)
            self._connections.watch(zmq.Context.shadow(self._context), zmq.Socket.shadow(self._socket))
            self._listener.open(self._context, self._socket)
        except (ControlSocketError, zmq.ZMQError):  # ZMQError: no descriptors
            self._close()
            raise
        self._receiver = asyncio.create_task(self._receive(), name=f"control socket {self._listener.name}")
        self._receiver.add_done_callback(log_failure)

    async def stop(self) -> None:
        """Take no more calls, end the running ones with an answer, and close the socket."""
        if self._receiver is not None:
            await end_tasks(self._receiver)
            self._receiver = None
        await end_tasks(*self._calls)
        self._listener.close()
        self._close()

    def end_calls_of(self, quota_key: int | str, error: FarmError) -> Hashable:
        """End every call of a caller whose account ended, with `error` as the answer; returns the argument of `cut`."""
        for task, peer in tuple(self._calls.items()):
            if peer.quota_key == quota_key:
                self._ended_early[task] = error
                task.cancel()
        return None if self._connections is None else self._connections.mark_leaving(quota_key)

    def cut(self, leaving: Hashable) -> int:
        """End the connections of a caller whose calls were ended so; returns how many."""
        return 0 if self._connections is None else self._connections.cut_connections(leaving)

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._context is not None:
            self._context.term()
            self._context = None
        if self._connections is not None:
            self._connections.ended()

    async def _receive(self) -> None:
        assert self._socket is not None
        while True:
            frames = await self._socket.recv_multipart(copy=False)
            await asyncio.sleep(0)  # a flood is there at once, without a wait: others get their turn
            try:
                await self._take(frames)
            except Exception:  # a mistake of ours, or a broken database: one message is lost, the socket stays open
                logger.exception("control socket %s: a message was lost", self._listener.name)

    async def _take(self, frames: Sequence[zmq.Frame]) -> None:
        """Begin the call of one message, or say why not."""
        peer = self._listener.sender(frames[0])
        route, body = frames[0].bytes, [frame.bytes for frame in frames[1:]]
        if peer is None or not body:
            self._log_garbage("an unknown sender" if peer is None else peer.origin, "no sender, or no body")
            return
        descriptor = int(frames[0].get(zmq.SRCFD))
        if self._connections is not None:
            self._connections.note_sender(descriptor, peer.quota_key, route)
        try:
            request = decode_request(body)
        except ProtocolError as error:
            self._log_garbage(peer.origin, error)
            identifier = request_id(body)
            if identifier:
                with contextlib.suppress(CallerGoneError):
                    await self._send(route, peer, Reply(identifier, error=error), patience_s=0.0)
            return
        try:
            if self._connections is not None:
                self._connections.check(descriptor)
            if not self._unread.fits(route, peer.quota_key, MAX_FRAME_BYTES):
                raise BusyError("your programs do not read their answers", hint="end those that hang")
            self._begin(route, request, peer, in_memory_bytes(body))
        except BusyError as error:
            with contextlib.suppress(CallerGoneError):
                await self._send(route, peer, Reply(request.id, error=error), patience_s=0.0)

    def _log_garbage(self, sender: str, what: object) -> None:
        """Log malformed messages, each ten times as many as before: a flood must not fill the log."""
        if len(self._garbage) >= MAX_SENDERS and sender not in self._garbage:
            self._garbage.clear()
        count = self._garbage[sender] = self._garbage.get(sender, 0) + 1
        if count == GARBAGE_LOGGED ** (len(str(count)) - 1):
            logger.warning("%s sent garbage, %d so far: %s", sender, count, what)

    def _begin(self, route: bytes, request: Request, peer: LocalPeer | KeyPeer, size_bytes: int) -> None:
        """Serve a request.

        Raises:
            BusyError: there are too many.
        """
        end = self._call_limiter.begin(route, peer.quota_key, request.kind, size_bytes)
        task = asyncio.create_task(self._serve(route, request, peer), name=f"call {request.kind} {request.id}")
        self._calls[task] = peer

        def ended(task: asyncio.Task[None]) -> None:
            self._calls.pop(task, None)
            self._ended_early.pop(task, None)
            end()
            # A caller that has gone reads no more and asks no more: nothing else would look at its answers again.
            task.get_loop().call_later(READ_AFTER_S, self._unread.forget_read, (route,))

        task.add_done_callback(ended)

    async def _serve(self, route: bytes, request: Request, peer: LocalPeer | KeyPeer) -> None:
        """Run one call and answer it; sends "still at work" meanwhile, and ends the call when the caller left."""

        async def send(reply: Reply) -> None:
            await self._send(route, peer, reply, PATIENCE_S)

        call = Call(request, peer, send)
        work = asyncio.ensure_future(self._answer(call))
        try:
            wait_s = STILL_AT_WORK_AFTER_S
            while not (await asyncio.wait((work,), timeout=wait_s))[0]:
                await send(Reply(request.id, more=True))
                wait_s = SIGN_INTERVAL_S
            await send(_outcome(request, work))
        except CallerGoneError:
            call.caller_gone.set()
            logger.info("the caller of %s went away", request.kind)
        except asyncio.CancelledError:  # only `stop` and `end_calls_of` cancel calls
            why = self._ended_early.get(task) if (task := asyncio.current_task()) is not None else None
            reply = Reply(request.id, error=why or stopping_error(hint=STOPPING_HINT))
            with contextlib.suppress(CallerGoneError):
                await self._send(route, peer, reply, patience_s=0.0)
            raise
        finally:
            await end_tasks(work)

    async def _send(self, route: bytes, peer: LocalPeer | KeyPeer, reply: Reply, patience_s: float) -> None:
        """Send to one caller; only this call waits while too much is unread. Without patience it is sent anyway."""
        try:
            frames = encode_reply(reply)
        except ProtocolError as error:
            logger.exception("an answer cannot be sent")
            frames = encode_reply(Reply(reply.id, error=error))
        loop = asyncio.get_running_loop()
        size_bytes = sum(map(len, frames))
        given_up_at = loop.time() + patience_s
        while self._socket is not None:
            if not patience_s or self._unread.fits(route, peer.quota_key, size_bytes):
                last = zmq.Frame(frames[-1], track=True, copy=False)  # a message's last part is let go of last
                try:
                    # NOBLOCK: a caller that does not read must not hold the others up.
                    await self._socket.send_multipart([route, *frames[:-1], last], flags=zmq.NOBLOCK)
                except zmq.Again:
                    pass
                except zmq.ZMQError as error:
                    raise CallerGoneError(evidence=str(error)) from error
                else:
                    assert isinstance(last.tracker, zmq.MessageTracker)
                    self._unread.sent(route, peer.quota_key, size_bytes, last.tracker)
                    return
            if loop.time() >= given_up_at:
                raise CallerGoneError("the caller does not read its answers")
            await asyncio.sleep(ROOM_POLL_S)
        raise CallerGoneError("the control socket is closed")


def _outcome(request: Request, work: asyncio.Future[Answer]) -> Reply:
    if work.cancelled():
        return Reply(request.id, error=stopping_error(hint=STOPPING_HINT))
    error = work.exception()
    if error is None:
        answer = work.result()
        return Reply(request.id, dict(answer.fields), answer.frames)
    if not isinstance(error, FarmError):
        logger.error("%s failed", request.kind, exc_info=error)
        error = FarmError(
            f"{request.kind} failed inside farm: {type(error).__name__}: {error}",
            hint="this is a bug; the daemon's log has the trace",
        )
    return Reply(request.id, error=error)
