"""The daemon's side of a gate that is a process of its own: serves its tracker clients, and opens phones for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential, wait_fixed

from farm import __version__
from farm.core.errors import HostError, ProtocolError
from farm.core.sessions import Peer, Survivor
from farm.peers import peer_process
from farm.tracker import gate_messages as m
from farm.tracker.door import Door, DoorPolicy
from farm.tracker.gate_link import Link, trusted
from farm.tracker.gate_sessions import STOPPING, AdoptingRoute, GateSessions
from farm.tracker.tracker import TrackerBackend

START_WAIT_S = 20.0  # for a gate that is just being started
REFUSED_WAIT_S = 5.0  # for one that has another daemon, or is of another release
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # between two tries to reach it
HELLO_S = 10.0  # for everything it has to tell
SILENT_S = 10.0  # it says something every second: one that hangs is given up
STOP_S = 2.0  # for the ends of sessions that a stopping daemon cuts
_RESTART = "systemctl restart farm-gate ends its sessions and starts the installed release"

log = logging.getLogger(__name__)


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


class GateDoor(Door):
    """The TVM door through a gate process. Its tracker is here, its port and its sessions' bytes are there."""

    def __init__(
        self,
        path: Path,
        farm: str,
        backend: TrackerBackend,
        route: AdoptingRoute,
        policy: DoorPolicy | None = None,
        lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            path: the gate's socket.
            farm: the same for every daemon of one state folder: another farm's sessions are not taken up.
            backend: the farm's phones, for the tracker.
            route: opens phones, and takes up sessions.
            policy: what an operator may set.
            lost: told why the gate is not there; "" when it is again.

        Raises:
            AdvertiseError: `policy.advertise` cannot be read.
        """
        super().__init__(backend, policy)
        self._path = path
        self._farm = farm
        self._tell_lost = lost
        self._problem = self._crowded = ""
        self._link: Link | None = None
        self._welcome: m.Welcome | None = None
        self._told_all: asyncio.Future[None] | None = None
        self._linked = False  # it has told everything, and works for this daemon
        self._sessions = GateSessions(route, self._send)
        self._keeper: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._heard_at = self._said_at = 0.0
        self.left = 0  # sessions that go on after `stop`

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
        """See `Door.problem`."""
        return self._problem or self._crowded

    @property
    def heard_at(self) -> float:
        """When a phone said something last in a session that is open, in the loop's time; 0 never."""
        return self._heard_at

    @property
    def survivors(self) -> tuple[Survivor, ...]:
        """Sessions that outlived an earlier daemon, until `begin`."""
        return self._sessions.survivors

    async def start(self) -> None:
        """Find the gate and hear what it carries; nobody is let in before `begin`.

        Raises:
            GateUnreachableError: it is not there.
            GateRefusedError: it does not work for this daemon, or is somebody else's.
        """
        self._loop = asyncio.get_running_loop()
        self._make_tracker()
        pauses = wait_fixed(FIRST_PAUSE_S)
        await AsyncRetrying(retry=ABSENT, stop=_waited_long, wait=pauses, reraise=True)(self._connect)
        assert self._welcome is not None
        log.info("the gate (pid %d) serves TVM clients on %s port %d", self._welcome.pid, self._welcome.host, self.port)

    def begin(self) -> None:
        """What the gate carried is taken up, or cut where no lease goes on for it; then everybody is let in."""
        self._let_in()
        self._keeper = self._loop.create_task(self._keep(), name="link to the gate")

    async def stop(self) -> None:
        """Serve nobody any more. Sessions whose lease may go on without this daemon do; the others are cut."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self.tracker.close()
        self.left = await self._sessions.leave(STOP_S if self._linked else 0.0)
        if self._link is not None:
            self._link.close(flush=True)
            self._link, self._linked = None, False
        self._sessions.end_all(STOPPING)

    def use(self, policy: DoorPolicy) -> None:
        """See `Door.use`."""
        super().use(policy)
        self._send(m.Use(policy.gate.idle_s))

    # --- the link -------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            await self._loop.sock_connect(sock, str(self._path))
            pid, uid, _ = peer_process(sock)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            raise GateUnreachableError(
                f"there is no gate at {self._path}: {error.strerror or error}",
                hint='systemctl status farm-gate; or [tvm] gate = "" for a gate inside the daemon',
            ) from error
        if not trusted(uid):
            sock.close()
            raise GateRefusedError(
                f"the gate at {self._path} runs as uid {uid} (pid {pid}), this daemon as uid {os.geteuid()}",
                hint="both must run as the same user",
            )
        self._told_all = told_all = self._loop.create_future()
        self._link = link = Link(sock, m.FROM_GATE, self._said, self._lost)
        link.send(m.Hello(m.VERSION, __version__, self._farm, os.getpid(), self._policy.gate.idle_s))
        try:
            async with asyncio.timeout(HELLO_S):
                await told_all
            if self._link is None:
                raise GateUnreachableError(f"the gate at {self._path} went again at once")
            self._linked = True
        except TimeoutError as error:
            self._drop(link)
            raise GateUnreachableError(f"the gate at {self._path} takes connections and says nothing") from error
        except BaseException:
            self._drop(link)
            raise

    def _drop(self, link: Link) -> None:
        link.close()
        self._link = None
        self._sessions.clear()

    async def _keep(self) -> None:
        """Reach the gate again whenever it has gone."""
        while True:
            self._gone.clear()
            if self._linked:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self._said_at + SILENT_S):
                        await self._gone.wait()
                if self._link is not None and self._loop.time() >= self._said_at + SILENT_S:
                    self._link.close()
                    self._lost(f"it has said nothing for {SILENT_S:g} s")
                continue
            try:
                await self._reach()
                log.warning("the gate is back (port %d)", self.port)
                self._tell("")
                self._let_in()
            except Exception:  # a mistake of ours must not leave the farm without its gate
                log.exception("the gate is not reached")

    async def _reach(self) -> None:
        refused = ""

        def tell(state: RetryCallState) -> None:
            nonlocal refused
            error = state.outcome.exception() if state.outcome else None
            if isinstance(error, GateRefusedError) and str(error) != refused:
                refused = str(error)
                log.warning("%s", refused)
                self._tell(refused)

        await asyncio.sleep(FIRST_PAUSE_S)  # a gate that takes every link and ends it at once
        pauses = wait_exponential(FIRST_PAUSE_S, max=LONGEST_PAUSE_S)
        await AsyncRetrying(retry=ABSENT, wait=pauses, before_sleep=tell)(self._connect)

    def _let_in(self) -> None:
        self._sessions.take_up()
        self._send(m.Ready())

    def _lost(self, reason: str) -> None:
        version = self._link.version if self._link is not None else None
        self._link = None
        if not self._linked:
            self._sessions.clear()
            if version not in (None, m.VERSION):
                said = f"it speaks version {version} of the gate's protocol, this daemon version {m.VERSION}"
                self._refused(said)
            elif self._told_all is not None and not self._told_all.done():
                self._told_all.set_exception(GateUnreachableError(f"the gate at {self._path} has gone: {reason}"))
            return
        self._linked = False
        said = f"the gate is gone ({reason})"
        log.error("%s: its sessions have ended, nobody can connect until it is back", said)
        self._sessions.end_all(said)
        self._gone.set()
        self._tell(said)

    def _tell(self, problem: str) -> None:
        self._problem = problem
        self._tell_lost(problem)

    def _refused(self, reason: str) -> None:
        if self._told_all is not None and not self._told_all.done():
            said = f"the gate at {self._path} does not work for this daemon: {reason}"
            self._told_all.set_exception(GateRefusedError(said, hint=_RESTART))

    def _send(self, message: m.Message, carried: socket.socket | None = None) -> None:
        if self._link is not None:
            self._link.send(message, carried)

    # --- what the gate says ---------------------------------------------------------------------------------------

    def _said(self, message: m.Message, carried: socket.socket | None) -> None:
        self._said_at = self._loop.time()
        match message:
            case m.Welcome():
                self._welcome = message
            case m.Unwelcome(reason=reason):
                self._refused(reason)
            case m.Kept():
                self._sessions.kept(message)
            case m.AllKept():
                if self._told_all is not None and not self._told_all.done():
                    self._told_all.set_result(None)
            case m.Newcomer():
                self._newcomer(message, carried)
            case m.Open():
                self._sessions.open(message)
            case m.Dial():
                self._sessions.dial(message)
            case m.Withdraw(n=n):
                self._sessions.withdrawn(n)
            case m.Opened(n=n):
                self._sessions.opened(n)
            case m.Ended():
                self._sessions.ended(message)
            case m.Crowded(problem=problem):
                self._crowded = problem
            case m.Heard(ago_s=ago_s):
                self._heard_at = self._loop.time() - ago_s

    def _newcomer(self, message: m.Newcomer, carried: socket.socket | None) -> None:
        if carried is None:
            log.error("a tracker client's descriptor was lost on its way: has the daemon too few?")
            self._send(m.Left(message.n))
            return
        self._send(m.Taken(message.n))
        carried.setblocking(False)

        def closed() -> None:
            self._send(m.Left(message.n))

        try:
            peer = Peer(message.address, message.port, message.user)
            self.tracker.serve(carried, peer, m.unpack(message.first), closed)
        except (OSError, ProtocolError) as error:  # it left on its way here
            log.debug("a tracker client cannot be served: %s", error)
            carried.close()
            closed()
