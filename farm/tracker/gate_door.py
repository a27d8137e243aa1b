"""The daemon's side of a gate that is a process of its own: serves its tracker clients, and opens phones for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from farm import __version__
from farm.core.errors import FarmError, HostError, ProtocolError
from farm.core.sessions import (
    Leg,
    MatchKeyBusyError,
    Peer,
    SessionEnd,
    SessionOutcome,
    Survivor,
    UnknownMatchKeyError,
)
from farm.tracker import gate_messages as m
from farm.tracker.door import Door, DoorPolicy
from farm.tracker.gate import Route
from farm.tracker.gate_link import Link, owner_of_peer, trusted
from farm.tracker.tracker import TrackerBackend

START_WAIT_S = 20.0  # for a gate that is just being started
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # between two tries to reach it
HELLO_S = 10.0  # for everything it has to tell
STOP_S = 2.0  # for the ends of sessions that a stopping daemon cuts
_RESTART = "systemctl restart farm-gate ends its sessions and starts the installed release"

log = logging.getLogger(__name__)


class GateUnreachableError(HostError):
    """The gate does not answer."""

    code = "no_gate"


class GateRefusedError(HostError):
    """The gate does not work for this daemon, or is none that it may work with."""

    code = "gate_refused"


class AdoptingRoute(Route, Protocol):
    """A Route that can take up what was granted before it was there (farm.leasing)."""

    def adopt(self, survivor: Survivor, cut: Callable[[str], None]) -> Leg | None:
        """The leg of a session that goes on; None when no lease goes on for it."""


@dataclass(slots=True, eq=False)
class _Session:
    """What the daemon knows of one connection at the gate."""

    leg: Leg | None = None
    task: asyncio.Task[None] | None = None  # opens or dials
    survivor: Survivor | None = None  # of an earlier daemon, not taken up yet
    told: bool = True  # that it was opened
    end: SessionEnd | None = None  # of one that is not taken up yet


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
        self._route = route
        self._tell_lost = lost
        self._problem = ""
        self._link: Link | None = None
        self._welcome: m.Welcome | None = None
        self._told_all: asyncio.Future[None] | None = None
        self._linked = False  # it has told everything, and works for this daemon
        self._sessions: dict[int, _Session] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._heard_at = 0.0
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
    def sessions(self) -> int:
        """Sessions at the gate."""
        return sum(session.leg is not None for session in self._sessions.values())

    @property
    def problem(self) -> str:
        """Why nobody can connect now; "" when everybody can."""
        return self._problem

    @property
    def heard_at(self) -> float:
        """When a phone said something last in a session that is open, in the loop's time; 0 never."""
        return self._heard_at

    @property
    def survivors(self) -> tuple[Survivor, ...]:
        """Sessions that outlived an earlier daemon, until `begin`."""
        return tuple(
            replace(each.survivor, ended=each.end is not None)
            for each in self._sessions.values()
            if each.survivor is not None
        )

    async def start(self) -> None:
        """Find the gate and hear what it carries; nobody is let in before `begin`.

        Raises:
            GateUnreachableError: it is not there.
            GateRefusedError: it does not work for this daemon, or is somebody else's.
        """
        self._loop = asyncio.get_running_loop()
        self._make_tracker()
        deadline = self._loop.time() + START_WAIT_S
        while True:
            try:
                await self._connect()
                break
            except (GateUnreachableError, GateRefusedError):
                # Refused, too: an earlier daemon of this farm may be ending.
                if self._loop.time() >= deadline:
                    raise
                await asyncio.sleep(FIRST_PAUSE_S)
        assert self._welcome is not None
        log.info("the gate (pid %d) serves TVM clients on %s port %d", self._welcome.pid, self._welcome.host, self.port)

    def begin(self) -> None:
        """What the gate carried is taken up, or cut where no lease goes on for it; then everybody is let in."""
        self._take_up()
        self._keeper = self._loop.create_task(self._keep(), name="link to the gate")

    async def stop(self) -> None:
        """Serve nobody any more. Sessions whose lease may go on without this daemon do; the others are cut."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        tasks = [each.task for each in self._sessions.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.tracker.close()
        for n, session in tuple(self._sessions.items()):
            if session.survivor is not None or (session.leg is not None and session.leg.leave()):
                self.left += 1
                del self._sessions[n]
            elif session.leg is not None:
                self._cut(n, "the farm is stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while self._sessions and self._link is not None:
                    self._gone.clear()
                    await self._gone.wait()
        if self._link is not None:
            self._link.close(flush=True)
            self._link, self._linked = None, False
        self._end_all("the farm is stopping")

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
            pid, uid = owner_of_peer(sock)
        except OSError as error:
            sock.close()
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
                await self._gone.wait()
            else:
                await self._reach()
                log.warning("the gate is back (port %d)", self.port)
                self._tell("")
                self._take_up()

    async def _reach(self) -> None:
        pause_s, refused = FIRST_PAUSE_S, ""
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                await self._connect()
            except GateUnreachableError:
                continue
            except GateRefusedError as error:
                if str(error) != refused:
                    refused = str(error)
                    log.warning("%s", refused)
                    self._tell(refused)
            else:
                return

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
        self._end_all(said)
        self._gone.set()
        self._tell(said)

    def _tell(self, problem: str) -> None:
        self._problem = problem
        self._tell_lost(problem)

    def _refused(self, reason: str) -> None:
        if self._told_all is not None and not self._told_all.done():
            said = f"the gate at {self._path} does not work for this daemon: {reason}"
            self._told_all.set_exception(GateRefusedError(said, hint=_RESTART))

    def _end_all(self, reason: str) -> None:
        for session in tuple(self._sessions.values()):
            if session.task is not None:
                session.task.cancel()
            if session.leg is not None:
                session.leg.ended(SessionEnd(SessionOutcome.CUT, detail=reason))
        self._sessions.clear()

    def _send(self, message: m.Message, carried: socket.socket | None = None) -> None:
        if self._link is not None:
            self._link.send(message, carried)

    def _cut(self, n: int, reason: str) -> None:
        self._send(m.Cut(n, m.clip(reason)))

    # --- what the gate says ---------------------------------------------------------------------------------------

    def _said(self, message: m.Message, carried: socket.socket | None) -> None:
        match message:
            case m.Welcome():
                self._welcome = message
            case m.Unwelcome(reason=reason):
                self._refused(reason)
            case m.Kept():
                peer = Peer(message.address, message.port, message.user)
                survivor = Survivor(
                    message.session, message.fence, message.device, message.key, peer, message.seconds, message.secret
                )
                self._sessions[message.n] = _Session(survivor=survivor, told=message.told)
            case m.AllKept():
                if self._told_all is not None and not self._told_all.done():
                    self._told_all.set_result(None)
            case m.Newcomer():
                self._newcomer(message, carried)
            case m.Open(n=n):
                session = self._sessions[n] = _Session()
                session.task = self._loop.create_task(self._open(message, session), name=f"session {n}")
            case m.Dial(n=n):
                known = self._sessions.get(n)
                if known is not None and known.leg is not None:
                    known.task = self._loop.create_task(self._dial(message, known, known.leg), name=f"dial {n}")
            case m.Withdraw(n=n):
                self._withdrawn(n)
            case m.Opened(n=n):
                if (known := self._sessions.get(n)) is not None:
                    known.told = True
                    if known.leg is not None:
                        known.leg.opened()
                    elif known.survivor is not None:  # told when it is taken up
                        known.told = False
            case m.Ended():
                self._ended(message)
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

    async def _open(self, message: m.Open, session: _Session) -> None:
        n, peer = message.n, Peer(message.address, message.port, message.user)
        try:
            leg = await self._route.open(message.key, peer, message.timeout_s, lambda reason: self._cut(n, reason))
        except UnknownMatchKeyError as error:
            self._refuse(n, "unknown", error)
        except MatchKeyBusyError as error:
            self._refuse(n, "busy", error)
        except (FarmError, OSError) as error:
            self._refuse(n, "failed", error)
        else:
            session.leg = leg
            self._send(m.Granted(n, leg.session, leg.fence, leg.device, leg.key))
        session.task = None

    def _refuse(self, n: int, code: str, error: Exception) -> None:
        self._sessions.pop(n, None)
        self._send(m.Refused(n, code, m.clip(str(error) or "the phone could not be reached in time")))

    async def _dial(self, message: m.Dial, session: _Session, leg: Leg) -> None:
        try:
            stream = await leg.dial(message.timeout_s)
        except (FarmError, OSError) as error:  # the gate ends the session
            said = str(error) or "the phone could not be reached in time"
            self._send(m.Refused(message.n, "failed", m.clip(said)))
        else:
            with stream.sock:
                self._send(m.Stream(message.n, stream.server_secret), stream.sock)
        session.task = None

    def _withdrawn(self, n: int) -> None:
        session = self._sessions.pop(n, None)
        if session is None:
            return
        if session.leg is not None:
            session.leg.ended(SessionEnd(SessionOutcome.ABANDONED, detail="the client left while it was opened"))
        elif session.task is not None:
            session.task.cancel()

    def _ended(self, message: m.Ended) -> None:
        session = self._sessions.get(message.n)
        try:
            outcome = SessionOutcome(message.outcome)
        except ValueError:
            outcome = SessionOutcome.CUT
        end = SessionEnd(outcome, message.up, message.down, message.seconds, message.detail)
        if session is not None and session.survivor is not None:  # told when it is taken up
            session.end = end
            return
        self._over(message.n, end)

    def _over(self, n: int, end: SessionEnd) -> None:
        session = self._sessions.pop(n, None)
        self._send(m.Noted(n))
        if session is not None:
            if session.task is not None:
                session.task.cancel()
            if session.leg is not None:
                session.leg.ended(end)
        self._gone.set()

    def _take_up(self) -> None:
        for n, session in tuple(self._sessions.items()):
            survivor, session.survivor = session.survivor, None
            if survivor is None:
                continue
            session.leg = self._route.adopt(survivor, lambda reason, n=n: self._cut(n, reason))  # type: ignore[misc]
            if session.leg is None and session.end is None:
                log.warning("session %s of %s is cut: no lease goes on for it", survivor.session, survivor.device)
                self._cut(n, "no lease goes on for it")
            elif session.leg is not None and not session.told:
                session.leg.opened()
            if session.end is not None:
                self._over(n, session.end)
        self._send(m.Ready())
