"""The TVM server in the daemon: serves tracker clients, and opens phones for the gate, which has port and sessions."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential, wait_fixed

from farm import __version__
from farm.common.advertised import address_for, parse_advertised
from farm.common.errors import HostError, ProtocolError
from farm.common.peers import peer_process
from farm.common.tasks import at_most, end_tasks
from farm.config import ExternalConfig
from farm.model.sessions import STOPPING, OrphanedSession, Peer
from farm.tvm_server.connection import ConnectionLimits
from farm.tvm_server.external_rules import Admission
from farm.tvm_server.gate import messages as m
from farm.tvm_server.gate.child import GateChild
from farm.tvm_server.gate.gate import GateLimits
from farm.tvm_server.gate.link import GateLink, trusted
from farm.tvm_server.gate.messages import Signal
from farm.tvm_server.gate.sessions import AdoptingRoute, GateSessions
from farm.tvm_server.tracker import Tracker, TrackerBackend

START_WAIT_S = 20.0  # for a gate that is just being started
REFUSED_WAIT_S = 5.0  # for one that has another daemon, or is of another release
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 2.0  # between two tries to reach it
HELLO_S = 10.0  # for all kept sessions
SILENT_S = 10.0  # it sends something every second: a silence is reported from then on
GIVEN_UP_S = 30.0  # and from then on its sessions have ended, as WatchdogSec= of farm-gate.service has it
POLL_S = 1.0  # between two checks; a standstill of this process or of the host is one check, however long it was
STOP_S = 2.0  # for the ends of sessions that a stopping daemon cuts
_RESTART = "systemctl restart farm-gate ends its sessions and starts the installed release"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TvmServerPolicy:
    """Everything about the TVM server that an operator may set."""

    advertise: Mapping[str, str] = field(default_factory=dict)  # client's CIDR -> "address" or "address:port"
    external: ExternalConfig = field(default_factory=ExternalConfig)
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)  # of the tracker's clients
    idle_s: float = GateLimits().idle_s  # a session without a byte


class GateUnreachableError(HostError):
    """The gate does not answer."""

    code = "no_gate"


class GateRefusedError(HostError):
    """The gate does not work for this daemon, or is none that it may work with."""

    code = "gate_refused"


ABSENT = retry_if_exception_type((GateUnreachableError, GateRefusedError))


def _waited_long(state: RetryCallState) -> bool:
    """Whether a starting daemon gives up: a gate may still begin, an earlier daemon of this farm may still end."""
    error = state.outcome.exception() if state.outcome else None
    limit_s = REFUSED_WAIT_S if isinstance(error, GateRefusedError) else START_WAIT_S
    return (state.seconds_since_start or 0.0) >= limit_s


async def check_gate(path: Path, farm: str, idle_s: float) -> None:
    """Wait for the gate and check that it works for this daemon, without changing it.

    Args:
        path: of the gate's socket.
        farm: see `TvmServer`.
        idle_s: after how long a session without a byte ends.

    Raises:
        GateUnreachableError: it is not there.
        GateRefusedError: it does not work for this daemon, or is another user's.
    """
    pauses = wait_fixed(FIRST_PAUSE_S)
    await AsyncRetrying(retry=ABSENT, stop=_waited_long, wait=pauses, reraise=True)(_greet, path, farm, idle_s)


async def _greet(path: Path, farm: str, idle_s: float) -> None:
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(error: HostError) -> None:
        if not answered.done():
            answered.set_exception(error)

    def received(message: m.Message, carried: socket.socket | None) -> None:
        if carried is not None:
            carried.close()
        if isinstance(message, m.Rejected):
            fail(_refusal(path, message.reason))
        elif isinstance(message, m.Welcome) and not answered.done():
            answered.set_result(None)

    def lost(reason: str) -> None:
        fail(_other_version(path, link.version) or GateUnreachableError(f"the gate at {path} has gone: {reason}"))

    link = GateLink(await _connected(path), m.FROM_GATE, received, lost)
    try:
        link.send(m.DaemonHello(m.VERSION, __version__, farm, os.getpid(), idle_s))
        async with asyncio.timeout(HELLO_S):
            await answered
    except TimeoutError as error:
        raise GateUnreachableError(f"the gate at {path} takes connections and sends nothing") from error
    finally:
        link.close()


async def _connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, str(path))
        pid, uid, _ = peer_process(sock)
    except BaseException as error:
        sock.close()
        if not isinstance(error, OSError):
            raise
        raise GateUnreachableError(
            f"there is no gate at {path}: {error.strerror or error}",
            hint='systemctl status farm-gate; or [tvm] gate = "" for a gate that the daemon starts',
        ) from error
    if not trusted(uid):
        sock.close()
        raise GateRefusedError(
            f"the gate at {path} runs as uid {uid} (pid {pid}), this daemon as uid {os.geteuid()}",
            hint="both must run as the same user",
        )
    return sock


def _other_version(gate: object, version: int | None) -> GateRefusedError | None:
    """The error for a gate of another release; None: it is of this one, or has sent nothing."""
    if version in (None, m.VERSION):
        return None
    return _refusal(gate, f"it speaks version {version} of the gate's protocol, this daemon version {m.VERSION}")


def _refusal(gate: object, reason: str) -> GateRefusedError:
    return GateRefusedError(f"the gate at {gate} does not work for this daemon: {reason}", hint=_RESTART)


class TvmServer:
    """The tracker, over a gate process that has the port and the bytes of sessions."""

    def __init__(
        self,
        gate: Path | GateChild,
        farm: str,
        backend: TrackerBackend,
        route: AdoptingRoute,
        policy: TvmServerPolicy | None = None,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            gate: its socket, or the daemon's own child, whose sessions end with this server.
            farm: the same for every daemon of one state folder: another farm's sessions are not taken up.
            backend: the farm's phones, for the tracker.
            route: opens phones, and takes up sessions.
            policy: what an operator may set.
            on_lost: gets the reason why the gate is not there; "" when it is again.

        Raises:
            UserError: `policy.advertise` cannot be read.
        """
        self._backend = backend
        self._policy = policy or TvmServerPolicy()
        self._advertise = parse_advertised(self._policy.advertise, "[tvm] advertise")
        self._gate = gate
        self._farm = farm
        self._on_gate_lost = on_lost
        self._problem = self._refused_users = ""
        self._link: GateLink | None = None
        self._welcome: m.Welcome | None = None
        self._all_kept: asyncio.Future[None] | None = None
        self._linked = False  # it has sent all kept sessions, and works for this daemon
        self._sessions = GateSessions(route, self._send)
        self._keeper: asyncio.Task[None] | None = None
        self._disconnected = asyncio.Event()
        self.last_phone_byte_at = 0.0  # a phone's, in an open session, in the loop's time; 0: never
        self._gone_at = -math.inf
        self._checks_since_message = 0
        self._silent = False  # for so long that it is reported
        self.detached = 0  # sessions that continue after `stop`

    @property
    def host(self) -> str:
        """The address that the gate's port is bound to; "" before the gate was ever there."""
        return self._welcome.host if self._welcome is not None else ""

    @property
    def port(self) -> int:
        """The port clients connect to; 0 before the gate was ever there."""
        return self._welcome.port if self._welcome is not None else 0

    @property
    def pid(self) -> int:
        """The gate's; 0 while it is not there."""
        return self._welcome.pid if self._welcome is not None and self._linked else 0

    @property
    def sessions(self) -> int:
        """Sessions at the gate."""
        return len(self._sessions)

    @property
    def problem(self) -> str:
        """Why no client, or no client of some user, can connect now; "" when all can."""
        return self._problem or self._refused_users

    @property
    def gone_at(self) -> float:
        """When no process held the port last, in the loop's time; -inf: it was always held."""
        return self._gone_at if self._linked else self._loop.time()

    @property
    def orphans(self) -> tuple[OrphanedSession, ...]:
        """Sessions that outlived an earlier daemon, until `begin`."""
        return self._sessions.orphans

    async def start(self) -> None:
        """Find the gate and receive its kept sessions; no client is accepted before `begin`.

        Raises:
            GateUnreachableError: it is not there.
            GateRefusedError: it does not work for this daemon, or is another user's.
        """
        self._loop = asyncio.get_running_loop()
        self.tracker = Tracker(
            self._backend, advertised=self.advertised, policy=self._policy.external, limits=self._policy.limits
        )
        pauses = wait_fixed(FIRST_PAUSE_S)
        await AsyncRetrying(retry=ABSENT, stop=_waited_long, wait=pauses, reraise=True)(self._connect)
        assert self._welcome is not None
        log.info("the gate (pid %d) serves TVM clients on %s port %d", self._welcome.pid, self._welcome.host, self.port)

    def begin(self) -> None:
        """Adopt the kept sessions, or cut those without a lease; then accept clients."""
        self._accept_clients()
        self._keeper = self._loop.create_task(self._keep(), name="link to the gate")

    async def stop(self) -> None:
        """Serve no client any more. Sessions whose lease may continue without this daemon do; the others are cut."""
        if self._keeper is not None:
            await end_tasks(self._keeper)
        await self.tracker.close()
        own = isinstance(self._gate, GateChild)
        self.detached = await self._sessions.detach(STOP_S if self._linked else 0.0, may_go_on=not own)
        if self._link is not None:
            self._link.close(flush=True)
            self._link, self._linked = None, False
        self._sessions.end_all(STOPPING)
        if isinstance(self._gate, GateChild):
            await asyncio.to_thread(self._gate.stop)

    def use(self, policy: TvmServerPolicy) -> None:
        """Apply this policy from now on; open sessions keep the one that they began with.

        Raises:
            UserError: `policy.advertise` cannot be read; nothing has changed.
        """
        self._advertise = parse_advertised(policy.advertise, "[tvm] advertise")
        self._policy = policy
        self.tracker.admission = Admission(policy.external)
        self._send(m.IdleLimit(policy.idle_s))

    def advertised(self, peer: str, address: str, port: int) -> tuple[str, int]:
        """Where a client at `peer`, which reached us at `address` and `port`, finds the gate."""
        target, target_port = address_for(peer, self._advertise) or (address, port)
        return target, target_port or port

    def summary(self) -> dict[str, Any]:
        """A stock client's answer to SUMMARY, on this host: {"queue_info": ..., "server_info": ...}."""
        return self.tracker.summary("127.0.0.1", self.port)

    # --- the link -------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        if isinstance(self._gate, Path):
            sock = await _connected(self._gate)
        else:
            try:
                sock = self._gate.connect()
            except OSError as error:
                raise GateUnreachableError(f"{self._gate} cannot be started: {error.strerror or error}") from error
        self._all_kept = all_kept = self._loop.create_future()
        self._link = link = GateLink(sock, m.FROM_GATE, self._on_message, self._on_lost)
        link.send(m.DaemonHello(m.VERSION, __version__, self._farm, os.getpid(), self._policy.idle_s))
        try:
            async with asyncio.timeout(HELLO_S):
                await all_kept
            if self._link is None:
                raise GateUnreachableError(f"the gate at {self._gate} went again at once")
            self._linked = True
        except TimeoutError as error:
            self._drop(link)
            raise GateUnreachableError(f"the gate at {self._gate} takes connections and sends nothing") from error
        except BaseException:
            self._drop(link)
            raise

    def _drop(self, link: GateLink) -> None:
        link.close()
        self._link = None
        self._sessions.clear()

    async def _keep(self) -> None:
        """Reach the gate again when it has gone."""
        while True:
            self._disconnected.clear()
            if self._linked:
                async with at_most(POLL_S):
                    await self._disconnected.wait()
                self._checks_since_message += 1
                self._look_at_silence(self._checks_since_message * POLL_S)
                continue
            try:
                await self._reach()
                self._gone_at = self._loop.time()
                log.warning("the gate is back (port %d)", self.port)
                self._set_problem("")
                self._accept_clients()
            except Exception:  # a mistake of ours must not leave the farm without its gate
                log.exception("the gate is not reached")

    def _look_at_silence(self, silent_s: float) -> None:
        """Report a silent gate, which keeps its sessions and phones for now; give up one that is silent for long."""
        if self._link is None:
            return
        if silent_s >= GIVEN_UP_S:
            self._link.close()
            self._on_lost(f"it has sent nothing for {GIVEN_UP_S:g} s")
        elif silent_s >= SILENT_S and not self._silent:
            self._silent = True
            self._problem = f"the gate has sent nothing for {SILENT_S:g} s: its sessions wait for it"
            log.warning("%s", self._problem)

    async def _reach(self) -> None:
        refused = ""

        def note_refusal(state: RetryCallState) -> None:
            nonlocal refused
            error = state.outcome.exception() if state.outcome else None
            if isinstance(error, GateRefusedError) and str(error) != refused:
                refused = str(error)
                log.warning("%s", refused)
                self._set_problem(refused)

        await asyncio.sleep(FIRST_PAUSE_S)  # a gate that takes every link and ends it at once
        pauses = wait_exponential(FIRST_PAUSE_S, max=MAX_PAUSE_S)
        await AsyncRetrying(retry=ABSENT, wait=pauses, before_sleep=note_refusal)(self._connect)

    def _accept_clients(self) -> None:
        self._sessions.adopt_all()
        self._send(m.Notice(Signal.DAEMON_READY))

    def _on_lost(self, reason: str) -> None:
        version = self._link.version if self._link is not None else None
        self._link = None
        if not self._linked:
            self._sessions.clear()
            gone = GateUnreachableError(f"the gate at {self._gate} has gone: {reason}")
            self._fail(_other_version(self._gate, version) or gone)
            return
        self._linked = self._silent = False
        problem = f"the gate is gone ({reason})"
        log.error("%s: its sessions have ended, no client can connect until it is back", problem)
        self._sessions.end_all(problem)
        self._disconnected.set()
        self._set_problem(problem)

    def _set_problem(self, problem: str) -> None:
        self._problem = problem
        self._on_gate_lost(problem)

    def _fail(self, error: HostError) -> None:
        if self._all_kept is not None and not self._all_kept.done():
            self._all_kept.set_exception(error)

    def _send(self, message: m.Message, carried: socket.socket | None = None) -> None:
        if self._link is not None:
            self._link.send(message, carried)

    # --- messages of the gate -------------------------------------------------------------------------------------

    def _on_message(self, message: m.Message, carried: socket.socket | None) -> None:
        self._checks_since_message = 0
        if self._silent:
            self._silent = False
            self._problem = ""
            log.warning("the gate sends again")
        match message:
            case m.Welcome():
                self._welcome = message
            case m.Rejected(reason=reason):
                self._fail(_refusal(self._gate, reason))
            case m.KeptSession():
                self._sessions.kept(message)
            case m.Notice(Signal.ALL_KEPT):
                if self._all_kept is not None and not self._all_kept.done():
                    self._all_kept.set_result(None)
            case m.ClientHandoff():
                self._serve_handed_over(message, carried)
            case m.OpenSession():
                self._sessions.open(message)
            case m.DialPhone():
                self._sessions.dial(message)
            case m.Notice(Signal.SESSION_OPENED, n):
                self._sessions.opened(n)
            case m.SessionEnded():
                self._sessions.ended(message)
            case m.ConnectionsRefused(problem=problem):
                self._refused_users = problem
            case m.PhoneActive(ago_s=ago_s):
                self.last_phone_byte_at = self._loop.time() - ago_s

    def serve_elsewhere(self, sock: socket.socket, peer: Peer, first: bytes) -> None:
        """Serve a client of another host over a connection that leads there; `first` was read already.

        Raises:
            GateUnreachableError: the gate is not there; the connection is closed.
            OSError: no descriptor is left for it.
        """
        with sock:
            if self._link is None or not self._linked:
                raise GateUnreachableError(self._problem or "the gate is not there")
            self._link.send(m.ClientElsewhere(peer, m.pack(first)), sock)

    def _serve_handed_over(self, message: m.ClientHandoff, carried: socket.socket | None) -> None:
        if carried is None:
            log.error("a tracker client's descriptor was lost on its way: has the daemon too few?")
            self._send(m.Notice(Signal.CLIENT_LEFT, message.n))
            return
        self._send(m.Notice(Signal.CLIENT_TAKEN, message.n))
        carried.setblocking(False)

        def closed() -> None:
            self._send(m.Notice(Signal.CLIENT_LEFT, message.n))

        try:
            self.tracker.serve(carried, message.peer, m.unpack(message.first), closed)
        except (OSError, ProtocolError) as error:  # it left on its way here
            log.debug("a tracker client cannot be served: %s", error)
            carried.close()
            closed()
