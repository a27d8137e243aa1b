"""`farm gate`: holds the TVM port and every session's bytes in a process of its own, which outlives the daemon's."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from farm import __version__
from farm.common.errors import HostError
from farm.common.peers import peer_process
from farm.common.systemd import Notifier, Watchdog
from farm.common.tasks import at_most
from farm.tvm_server.connection import ConnectionLimits
from farm.tvm_server.gate import messages as m
from farm.tvm_server.gate.forwarding import FdHandoff, RemoteRoute
from farm.tvm_server.gate.gate import Gate, GateLimits
from farm.tvm_server.gate.link import GateLink, trusted
from farm.tvm_server.gate.messages import Signal
from farm.tvm_server.listener import Acceptor, Listener, bind

HELLO_S = 5.0  # from the daemon's connection to its first message
MAX_LINKS = 16  # connections that may be a daemon's; more wait in the kernel's queue
ALIVE_EVERY_S = 1.0  # how often the gate reports that it runs, and whether phones answer in sessions
STOP_S = 2.0  # for the daemon to note the ends of a stopping gate's sessions
FIRST_PASSED = 3  # sd_listen_fds(3): passed descriptors begin here
SOCKET_MODE = 0o600  # only this user and root are trusted

log = logging.getLogger("farm.gate")


class GateSocketError(HostError):
    """A socket of the gate cannot be had."""

    code = "gate_socket_unusable"


class GateProcess:
    """Everything of one `farm gate`. Build it on the event loop."""

    def __init__(
        self,
        wait_s: float,
        notifier: Notifier | None = None,
        *,
        clients: ConnectionLimits | None = None,
        sessions: GateLimits | None = None,
    ) -> None:
        """`wait_s`: how long clients wait for a daemon that is away. `notifier`: the way to the service manager."""
        self._notifier = notifier or Notifier()
        self._loop = asyncio.get_running_loop()
        self._route = RemoteRoute(wait_s)
        self._gate = Gate(self._route, sessions or GateLimits())
        self._handoff = FdHandoff(wait_s, self._route.next_number)
        self._listener = Listener(
            clients or ConnectionLimits(),
            tracker=self._handoff.serve,
            session=self._gate.serve,
            on_problem=self._send_problem,
        )
        self._control = Acceptor(self._accepted)
        self._links: set[_DaemonLink] = set()
        self._address = ("", 0)
        self._daemon: _DaemonLink | None = None
        self._farm = ""  # whose sessions these are
        self._last_phone_byte_at = 0.0
        self._parent_gone: Callable[[], None] | None = None  # of a daemon's child

    @property
    def port(self) -> int:
        """The TVM port."""
        return self._listener.port

    @property
    def status(self) -> str:
        """The line for `systemctl status farm-gate`."""
        there = "the daemon is away" if self._daemon is None else f"daemon: pid {self._daemon.pid}"
        waiting = self._handoff.waiting + self._route.waiting
        return f"{self._route.open_sessions} sessions, {waiting} clients wait; {there}"

    async def run(self, tvm: socket.socket, control: socket.socket, stop: asyncio.Event) -> None:
        """Serve until `stop`, then end every session and report the ends.

        `control` listens for daemons, or is connected to the one daemon whose child this gate is: it ends with it.
        """
        address = tvm.getsockname()
        self._address = str(address[0]), int(address[1])
        if control.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._control.take(control)
        else:
            self._parent_gone = stop.set
            self._links.add(_DaemonLink(self, control, os.getppid(), math.inf))  # which may start for long
        self._listener.take(tvm)
        log.info(
            "TVM clients are served on %s port %d; farm gate %s (pid %d)", *self._address, __version__, os.getpid()
        )
        self._notifier.ready(self.status)
        watchdog = Watchdog(self._notifier, (), lambda: self.status)
        parts = [asyncio.create_task(each) for each in (stop.wait(), self._report_activity(), watchdog.run())]
        done, others = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        self._notifier.stopping()
        for task in others:
            task.cancel()
        self._listener.stop()
        self._handoff.close()
        await self._gate.close()
        if self._daemon is not None:
            async with at_most(STOP_S):
                await self._route.all_noted.wait()
        self._control.stop()
        for daemon in tuple(self._links):
            daemon.close()
        for task in done:
            task.result()  # a part that failed: the service manager starts a gate that moves

    # --- the daemon -----------------------------------------------------------------------------------------------

    def _accepted(self, sock: socket.socket) -> None:
        pid, uid, _ = peer_process(sock)
        if not trusted(uid):
            reason = f"it runs as uid {uid}, this gate as uid {os.geteuid()}"
            log.debug("a daemon (pid %d) is refused: %s", pid, reason)  # as often as callers like
            with sock, contextlib.suppress(OSError):
                sock.setblocking(False)
                sock.send(m.encode(m.Rejected(m.VERSION, __version__, reason)))
                sock.recv(m.MAX_MESSAGE_BYTES)  # its first message: unread, it would hide our answer
            return
        self._links.add(_DaemonLink(self, sock, pid, HELLO_S))
        if len(self._links) >= MAX_LINKS:
            self._control.hold()

    def greeted(self, daemon: _DaemonLink, hello: m.DaemonHello) -> str:
        """A daemon has sent its hello; returns why it is refused, "" when it is not."""
        if hello.v != m.VERSION:
            return versions(m.VERSION, __version__, hello.v, hello.farm)
        if self._daemon is not None:
            return f"another daemon (pid {self._daemon.pid}) has this gate"
        sessions = self._route.open_sessions
        if self._farm not in ("", hello.id):
            if sessions:
                return f"it carries {sessions} sessions of another farm (another state folder)"
            self._route.forget_ended()
        self._farm, self._daemon = hello.id, daemon
        self._gate.limits = replace(self._gate.limits, idle_s=hello.idle_s)
        log.info("the daemon is there (farm %s, pid %d); it is sent %d sessions", hello.farm, hello.pid, sessions)
        daemon.link.send(m.Welcome(m.VERSION, __version__, os.getpid(), *self._address))
        self._route.daemon_connected(daemon.link)
        self._send_problem(self._listener.problem)
        return ""

    def on_message(self, daemon: _DaemonLink, message: m.Message, carried: socket.socket | None) -> None:
        """A message of the daemon that has this gate."""
        match message:
            case m.Notice(Signal.DAEMON_READY):
                daemon.ready = True
                self._route.daemon_ready()
                self._handoff.daemon_ready(daemon.link)
            case m.IdleLimit(idle_s=idle_s):
                self._gate.limits = replace(self._gate.limits, idle_s=idle_s)
            case m.ClientElsewhere(peer, first):
                if carried is not None:  # else no descriptor was left for it
                    self._gate.serve(carried, peer, m.unpack(first), _nothing)
            case m.Notice(Signal.CLIENT_TAKEN, n):
                self._handoff.taken(n)
            case m.Notice(Signal.CLIENT_LEFT, n):
                self._handoff.ended(n)
            case _:
                self._route.on_message(message, carried)

    def disconnected(self, daemon: _DaemonLink, reason: str) -> None:
        """A daemon's connection is over."""
        self._links.discard(daemon)
        self._control.release()
        accepted = self._daemon is daemon
        if accepted:
            self._daemon = None
        if self._parent_gone is not None:  # even before its hello
            self._parent_gone()
        elif accepted:
            self._route.daemon_disconnected()
            self._handoff.daemon_disconnected()
            log.log(
                logging.WARNING if daemon.ready else logging.INFO,
                "the daemon is gone (%s): %d sessions continue, new clients wait for it",
                reason,
                self._route.open_sessions,
            )

    def _send_problem(self, problem: str) -> None:
        if self._daemon is not None:
            self._daemon.link.send(m.ConnectionsRefused(m.clip(problem)))

    async def _report_activity(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_EVERY_S)
            if self._daemon is None:
                continue
            self._daemon.link.send(m.Notice(Signal.ALIVE))
            last_phone_byte_at = self._gate.last_phone_byte_at
            if last_phone_byte_at > self._last_phone_byte_at:
                self._last_phone_byte_at = last_phone_byte_at
                self._daemon.link.send(m.PhoneActive(max(0.0, self._loop.time() - last_phone_byte_at)))


class _DaemonLink:
    """One connection of a daemon, accepted or not yet."""

    def __init__(self, gate: GateProcess, sock: socket.socket, pid: int, hello_s: float) -> None:
        """`hello_s`: how long its first message may take."""
        self._gate = gate
        self.pid = pid
        self._greeted = False
        self.ready = False  # one that starts only asks whether this gate fits
        self.link = GateLink(sock, m.FROM_DAEMON, self._on_message, self._on_lost)
        self._timer = asyncio.get_running_loop().call_later(hello_s, self._refuse, "it sent no hello")

    def close(self) -> None:
        """The gate ends."""
        self._timer.cancel()
        self.link.close(flush=True)

    def _on_message(self, message: m.Message, carried: socket.socket | None) -> None:
        if self._greeted:
            self._gate.on_message(self, message, carried)
            return
        if carried is not None:
            carried.close()
        if not isinstance(message, m.DaemonHello):
            self._refuse("it did not begin with hello")
        else:
            self._timer.cancel()
            self._greeted = True
            refusal = self._gate.greeted(self, message)
            if refusal:
                self._refuse(refusal)

    def _on_lost(self, reason: str) -> None:
        self._timer.cancel()
        version = self.link.version
        if not self._greeted and version is not None:
            if version != m.VERSION:
                reason = versions(m.VERSION, __version__, version, "of another release")
            self._refuse(reason)
        else:
            self._gate.disconnected(self, reason)

    def _refuse(self, reason: str) -> None:
        self._timer.cancel()
        log.error("a daemon (pid %d) is refused: %s", self.pid, reason)
        self.link.send(m.Rejected(m.VERSION, __version__, m.clip(reason)))
        self.link.close(flush=True)
        self._gate.disconnected(self, reason)


def _nothing() -> None:
    """The host that the client is at counts it."""


def versions(gate: int, gate_farm: str, daemon: int | None, daemon_farm: str) -> str:
    """Why a gate and a daemon of two releases do not work together."""
    return (
        f"the gate (farm {gate_farm}) speaks version {gate} of the gate's protocol, the daemon (farm {daemon_farm}) "
        f"version {daemon}"
    )


def passed_sockets() -> list[socket.socket]:
    """Sockets that a service manager passed to this process (LISTEN_PID, LISTEN_FDS); ours from now on.

    Raises:
        GateSocketError: what was passed is no socket that listens, or no such number was.
    """
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "0")
    if pid != str(os.getpid()):
        return []
    found = []
    try:
        for descriptor in range(FIRST_PASSED, FIRST_PASSED + int(count)):
            os.set_inheritable(descriptor, False)
            sock = socket.socket(fileno=descriptor)
            if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise GateSocketError(f"descriptor {descriptor} that was passed (LISTEN_FDS) does not listen")
            found.append(sock)
    except (OSError, ValueError) as error:
        raise GateSocketError(f"LISTEN_FDS={count} cannot be used: {error}", hint="see farm-gate.socket") from error
    return found


def sockets_of(host: str, port: int, path: Path) -> tuple[socket.socket, socket.socket]:
    """The gate's two listening sockets, passed or bound: the TVM port's and the daemon's.

    Raises:
        HostError: one of them cannot be had.
    """
    tvm = control = None
    for sock in passed_sockets():
        if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM and tvm is None:
            tvm = sock
        elif sock.family == socket.AF_UNIX and sock.type == socket.SOCK_SEQPACKET and control is None:
            control = sock
        else:
            raise GateSocketError(
                f"a passed socket is of no use: {sock}",
                hint="farm-gate.socket has one ListenStream=ADDRESS:PORT and one ListenSequentialPacket=/PATH",
            )
    if control is None:
        control = _bind_control(path)
    return (bind(host, port) if tvm is None else tvm), control


def _bind_control(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                probe.setblocking(False)
                found = probe.connect_ex(str(path))
            if found != errno.ECONNREFUSED:
                by = "gate" if found in (0, errno.EAGAIN) else f"program ({os.strerror(found)})"
                raise GateSocketError(f"another {by} listens on {path}", hint="stop it, or choose another --socket")
            path.unlink()
        umask = os.umask(0o777 & ~SOCKET_MODE)
        try:
            sock.bind(str(path))
        finally:
            os.umask(umask)
        sock.listen()
    except OSError as error:
        sock.close()
        raise GateSocketError(
            f"cannot listen on {path}: {error.strerror or error}",
            hint="the folder must be there, and this user's to write; or choose another --socket",
        ) from error
    except GateSocketError:
        sock.close()
        raise
    return sock
