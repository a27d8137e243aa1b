"""The agent of one device: performs what its life cycle asks for and tells it what came of it.

Deciding is `farm.core.lifecycle`, at once and in place; this file holds the tasks. At most one piece of work is under
way per device; following its server and saying farewell go on beside it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime

from farm.adb.devices import AdbDevice
from farm.bundle.abi import Platform
from farm.bundle.manifest import Bundle
from farm.core import lifecycle_messages as m
from farm.core.attribution import UsbPlace
from farm.core.back_off import BackOff
from farm.core.device import Life
from farm.core.errors import FarmError, Fault, HostError, PhoneError
from farm.core.health import Health
from farm.core.health_rules import Finding
from farm.core.identity import DeviceIdentity
from farm.core.lifecycle import Lifecycle
from farm.core.lifecycle_state import LINK_DOWN, SERVED, DeviceState
from farm.core.recovery import Ailment, Quarantine, Rung
from farm.fleet import quiesce, rungs, traces
from farm.fleet.farewells import Farewells
from farm.fleet.identity import identify, read_identity
from farm.fleet.means import Means
from farm.fleet.power import cycle
from farm.fleet.provision import drop_bundles, provision, repair_scripts
from farm.fleet.rpc_server import RpcServer, RunningServer, StuckProcessError
from farm.fleet.tasks import let_go, told

BACK_OFF = BackOff(0.5, 60.0)
SCATTER_S = 0.5  # of waiting longer, by chance: a hub that came back is not stormed
CHECK_TIMEOUT_S = 60.0  # golden kernels take well below a second; a slow phone's first OpenCL build took 20 s
_OTHER_BUNDLE = "its server is of a bundle that is not its own any more"  # provisioned anew before anything else
_REPORT_IT = "please report it with the daemon's log; then farm device release NAME"

log = logging.getLogger(__name__)


def back_off_s(attempt: int) -> float:
    """Seconds to leave a device alone before `attempt` (from 1)."""
    return BACK_OFF.delay_s(attempt) + random.uniform(0.0, SCATTER_S)  # noqa: S311 - nothing secret


class ServerGoneError(PhoneError):
    """The device has no running RPC server."""

    code = "no_server"


class Agent:
    """One device that adb lists or the farm knows. Used from the event loop's thread only."""

    def __init__(self, serial: str, name: str, means: Means, state: DeviceState | None = None) -> None:
        self.serial = serial
        self.name = name
        self.identity: DeviceIdentity | None = None
        self.device: AdbDevice | None = None  # as adb listed it last
        self.temperature_c: float | None = None
        self.temperature_of = ""
        self.battery_percent: int | None = None
        self.health: Health | None = None  # the latest probe
        self.health_at = 0.0  # when it was read, monotonic seconds
        self.used_at = 0.0  # when a session was last opened on it while it was ready, monotonic seconds
        self.findings: tuple[Finding, ...] = ()  # what is wrong by the latest probes
        self.checked = ""  # what the latest golden check said
        self.place: UsbPlace | None = None  # where it is plugged in, or was last, if anybody knows
        self.elsewhere = ""  # why its trouble is its hub's or the host's; "" it is not
        self.server: RunningServer | None = None  # kept over a lost link: it may still be alive there
        self.since: datetime = datetime.now(UTC)
        self.installing = ""  # hash of the bundle under way to it, until its state says that it has it
        self.noted = ""  # the hash of what `traces.note` noted before a person got it
        self.orders = asyncio.Lock()  # held by each order of an operator: they are carried out one after another
        self._means = means
        self._lifecycle = Lifecycle(state)
        self._rpc = RpcServer(means.client, serial)
        self._bundle: Bundle | None = None
        self._wanted: Bundle | None = None  # by whoever has it; meant while its state says that it is lent
        self._others: tuple[str, ...] = ()  # folders of bundles that are no longer wanted
        self._reboot_asked: asyncio.Future[None] | None = None  # by an operator; done when the phone has heard
        self._boot_before = ""  # boot id before a reboot, until the phone is back
        self._outlived = False  # its server was found with a session of the daemon before this one
        self._sessions_left = 0  # processes of orphaned sessions, as the last probe saw them
        self._work: asyncio.Task[None] | None = None
        self._follow: asyncio.Task[None] | None = None
        self._farewells = Farewells(self)

    @property
    def state(self) -> DeviceState:
        """Where the device is in its life."""
        return self._lifecycle.state

    @property
    def story(self) -> tuple[str, ...]:
        """Its last steps, for people who wonder."""
        return self._lifecycle.story

    def tell(self, event: m.Event) -> None:
        """Something happened: decide, show it, act. Never raises: what fails in farm itself quarantines the device."""
        try:
            self._take(event)
        except Exception as error:  # noqa: BLE001 - logged there, with the story
            self.bug_found(error)

    def bug_found(self, error: Exception) -> None:
        """Farm failed over this device: log its story and leave it to a person; other devices go on."""
        log.error("%s: a bug in farm; its story:\n%s", self.name, "\n".join(self.story), exc_info=error)
        try:
            self._take(m.BugFound(f"a bug in farm: {error!r}", _REPORT_IT))
        except Exception:  # it is quarantined by now; whoever was to be told of it fails too
            log.exception("%s: nobody could be told that it is quarantined", self.name)

    def _take(self, event: m.Event) -> None:
        before = self.state
        instructions = self._lifecycle.handle(event, self._means.monotonic(), self._means.recovery.around(self))
        after = self.state
        if after.life is not before.life:
            self.since = datetime.now(UTC)
        if after.generation != before.generation:
            let_go(self._work)
            self._work = None
            asked, self._reboot_asked = self._reboot_asked, None
            if asked is not None and not asked.done():  # its work had not begun
                asked.set_exception(self._overtaken())
        if after.follow != before.follow:
            let_go(self._follow)
            self._follow = None
        if after != before:
            # Everybody must know before anything is done: a device leaves READY at once, and a check needs its lease.
            self._means.owner.changed(self)
        if (before.climb, before.quarantine, before.proven) != (after.climb, after.quarantine, after.proven):
            self._means.recovery.climbed(self, before)
        if after.life is not Life.PROVISIONING:
            self.installing = ""
        for instruction in instructions:
            self._perform(instruction)

    async def reboot(self, reason: str) -> None:
        """Reboot it by order; returns when the phone has taken the request.

        Raises:
            AdbError: it did not.
        """
        if self.state.life in LINK_DOWN:
            said = f"{self.name} cannot be rebooted: it is {self.state.life}"
            raise PhoneError(said, hint=self.state.hint or "connect it, or restart it by hand")
        self.tell(m.Ordered(Rung.REBOOT, reason))
        if self._work is None:
            raise self._overtaken()
        self._reboot_asked = asked = asyncio.get_running_loop().create_future()  # after what it overtook was let go
        await asked

    def _overtaken(self) -> PhoneError:
        said = f"{self.name} was not asked to reboot: it is {self.state.life}"
        if self.state.reason:
            said += f" ({self.state.reason})"
        return PhoneError(said, hint=f"see `farm explain device {self.name}`; then order it again")

    def inherit(self, former: DeviceState, name: str) -> None:
        """It is the phone that was in state `former` under another serial; `name` is remembered of it."""
        self.name = name
        self._lifecycle.inherit(former)

    def keep_away(self, kept: Quarantine) -> None:
        """It is, or says that it is, a phone that is in quarantine: meant while it is being identified."""
        self._lifecycle.state = replace(self.state, quarantine=kept)

    def lend(self, bundle: Bundle) -> None:
        """Whoever has the device wants another bundle on it; one of its ABI and platform."""
        self._wanted = bundle
        self.tell(m.BundleWanted(bundle.hash))

    async def dial(self, timeout_s: float) -> tuple[socket.socket, str]:
        """A stream to the RPC server and its secret.

        Raises:
            ServerGoneError: there is no server now.
            AdbError: the phone did not connect.
        """
        server = self.server
        if server is None or self.state.life not in SERVED:
            raise ServerGoneError(f"{self.name} is {self.state.life}: {self.state.reason}")
        if self.state.life is Life.READY:
            self.used_at = self._means.monotonic()
        return await self._means.client.open_tcp(self.serial, server.port, timeout_s=timeout_s), server.secret

    async def farewell(self) -> None:
        """Wait for what was asked of the phone beside work (stop, clean); raises what failed there.

        Raises:
            PhoneError: among them, the phone went away and was let go meanwhile, or did not answer.
        """
        await self._farewells.heard()

    async def close(self) -> None:
        """End every task; the phone keeps what it has."""
        tasks = [task for task in (self._work, self._follow, *self._farewells.pending) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._work = self._follow = None

    def _perform(self, instruction: m.Instruction) -> None:
        """Start what is asked for, unless whoever heard of the new state has already changed it again."""
        match instruction:
            case m.FollowServer(follow=number):
                if number != self.state.follow:
                    return
                self._follow = self._task(self._follow_server(number), "follow")
            case m.StopServer():
                self._farewells.say(self._rpc.stop())
            case m.Clean():
                self._farewells.say(self._rpc.clean())
            case m.DropOldBundles():
                if self._others:
                    self._farewells.say(drop_bundles(self._means.client, self.serial, self._others))
                    self._others = ()
            case _ if instruction.generation == self.state.generation:
                self._work = self._task(self._do_work(instruction), type(instruction).__name__)

    async def _do_work(self, work: m.Work) -> None:
        number = work.generation
        await self._farewells.said()  # they touch what this work will touch
        try:
            event = await self._answer(work)
        except FarmError as error:
            event = rungs.failed(work, error)
            if error.fault is Fault.FARM:
                log.exception("%s", self.name)
        except Exception as error:
            # A bug must not leave the device waiting for an answer for ever.
            log.exception("%s: %s failed", self.name, type(work).__name__)
            event = rungs.answer_failed(work, f"a bug in farm: {error!r}", _REPORT_IT, None)
        if number == self.state.generation:
            self._work = None  # this very task: telling must not cancel it
            self.tell(event)

    async def _answer(self, work: m.Work) -> m.Event:
        number = work.generation
        match work:
            case m.Identify():
                identity = identify(await read_identity(self._means.client, self.serial))
                same_boot = self._boot_before and await self._boot_id() == self._boot_before
                self._boot_before = ""
                return m.Identified(number, self._means.owner.identified(self, identity), bool(same_boot))
            case m.Provision(deep=deep):
                return await self._provision(number, deep)
            case m.StartServer():
                if self._bundle is None:
                    return m.StartFailed(number, _OTHER_BUNDLE, ailment=None)
                self.server = None
                self.server = await self._rpc.start(self._bundle.hash)
                return m.ServerStarted(number)
            case m.AdoptServer():
                outlived, self._outlived = self._outlived, False
                if outlived and self._means.owner.outlived(self):
                    return m.ServerStarted(number, in_use=True)
                if self._sessions_left and not await self._rpc.reap():
                    self.server = None
                    died = "the RPC server died with its orphaned session"
                    return m.StartFailed(number, died, ailment=Ailment.SERVER)
                return m.ServerStarted(number)
            case m.Check():
                return await self._check(number)
            case m.Reap(tidy=tidy):
                if tidy:
                    await self._tidy()
                    return m.RecoveryFinished(number, server_alive=False, tidied=True)
                return m.RecoveryFinished(number, await self._rpc.reap())
            case m.BackOff(attempt=attempt):
                await asyncio.sleep(back_off_s(attempt))
                return m.BackedOff(number)
            case m.Pause(seconds=seconds):
                await asyncio.sleep(seconds)
                return m.Paused(number)
            case m.Reconnect():
                await rungs.reconnect(self._means.client, self.serial)
                return m.RungDone(number)
            case m.Reboot():
                await self._reboot()
                return m.RungDone(number)
            case m.PowerCycle():
                await self._power_cycle()
                return m.RungDone(number)

    async def _tidy(self) -> None:
        """Undo what a person did, who may have changed what undoes it, and end the server whose secret they know."""
        client = self._means.client
        self._repaired(await repair_scripts(client, self.serial))
        await quiesce.restore(client, self.serial)
        await self._rpc.stop()
        self.server = None
        self._means.news.tidied(self, await traces.tidy(client, self.serial, self.noted))
        self.noted = ""

    def _repaired(self, files: int) -> None:
        if files:
            log.warning("%s: %d of farm's files on it were not what they were and are pushed again", self.name, files)
            self._means.news.repaired(self, files)

    async def _reboot(self) -> None:
        """Reboot it; whoever ordered it hears as soon as the phone has taken the request, or could not."""
        asked, self._reboot_asked = self._reboot_asked, None
        try:
            self._boot_before = await self._boot_id()
            await rungs.reboot(self._means.client, self.serial, self._boot_before, lambda: told(asked))
        except FarmError as error:
            if asked is not None and not asked.done():
                asked.set_exception(error)
            raise
        finally:
            told(asked)  # adb's list changed meanwhile: it went down

    async def _boot_id(self) -> str:
        return await rungs.boot_id(self._means.client, self.serial)

    async def _power_cycle(self) -> None:
        """Beside work, like a farewell: the phone leaves adb's list half-way, and its power must come back."""
        switch, place = self._means.power, self.place
        if switch is None or place is None:
            raise HostError("there is no switch for the power of its port")
        taken, hurt = self.state.climb.under_way, self._means.recovery.around(self).neighbours
        if hurt and taken is not None and taken.ailment is not Ailment.ORDER:  # leased since it was decided
            raise HostError(f"its power is not cut: it would hurt {hurt}")
        # Each of its parts is bounded; how many phones wait for the switch's turn before it, nobody knows.
        await asyncio.shield(self._farewells.say(cycle(switch, place, lambda: self.device is not None), limit_s=None))

    async def _provision(self, number: int, deep: bool) -> m.Event:
        if (taken_over := await self._take_over(number)) is not None:
            return taken_over
        bundle = self._wanted if self.state.lent else await self._own_bundle()
        if bundle is None:
            abi, platform = self._runs()
            said = f"there is no runtime bundle for {abi or 'an unknown ABI'} ({platform})"
            return m.ProvisionFailed(number, said, "farm bundle add FOLDER --name NAME (docs/bundles.md)", person=True)
        self.installing = bundle.hash
        done = await provision(
            self._means.client,
            self.serial,
            bundle,
            server=self.server,
            deep=deep,
            turn=self._means.pushes,
            progress=lambda progress: self._means.news.pushing(self, progress),
        )
        if deep and bundle.hash == self.state.bundle:  # else it was to be pushed anyway
            self._repaired(done.pushed_files)
        self._bundle, self._others = bundle, done.others
        self._sessions_left = done.server.sessions
        adoptable = done.server.adoptable and self.server is not None and self.server.port == done.server.port
        left_by_person = done.noted and not self._means.owner.in_hands(self)
        left_quiet = done.quiet and self.serial not in self._means.quiet
        return m.Provisioned(number, bundle.hash, adoptable, left_by_person or left_quiet)

    def _runs(self) -> tuple[str, Platform]:
        """What a bundle for it must be for."""
        assert self.identity is not None, "the life cycle identifies before it provisions"
        return self.identity.abi, Platform.LINUX if self.identity.virtual else Platform.ANDROID

    async def _own_bundle(self) -> Bundle | None:
        return await asyncio.to_thread(self._means.bundles.for_abi, *self._runs())

    async def _take_over(self, number: int) -> m.Event | None:
        """Leave phone and server as they are while a session of the daemon before this one is open; else None."""
        secret = "" if self.server is not None or self.state.suspect else self._means.owner.outlived(self)
        if not secret:
            return None
        server, self._sessions_left = await self._rpc.find(secret)
        if server is None:
            return None
        bundle = await self._own_bundle()
        self._bundle = bundle if bundle is not None and bundle.hash == server.bundle else None
        self.server, self._outlived = server, True
        return m.Provisioned(number, server.bundle, adoptable=True)

    async def _check(self, number: int) -> m.Event:
        if self._bundle is None:
            return m.CheckFailed(number, _OTHER_BUNDLE, ailment=None)
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                report = await self._means.checker.check(self.name, self._bundle)
        except TimeoutError:
            # The checker has a shorter patience with the phone: this one is the host's.
            return m.CheckFailed(number, f"the golden check did not end in {CHECK_TIMEOUT_S:g} s", ailment=None)
        self.checked = report.detail
        if report.ok:
            return m.CheckPassed(number)
        return m.CheckFailed(number, report.detail or "golden kernels gave wrong numbers", wrong=True)

    async def _follow_server(self, number: int) -> None:
        assert self.server is not None, "the life cycle starts before it follows"
        event: m.Event
        try:
            event = m.ServerDied(number, await self._rpc.follow(self.server))
        except StuckProcessError as error:
            event = m.ServerDied(number, error.message, stuck=True)
        except FarmError as error:
            event = m.LinkLost(number, error.message)
            if error.fault is Fault.FARM:
                log.exception("%s", self.name)
        except Exception as error:
            # A bug must not leave the device READY with nobody watching its server.
            log.exception("%s: following its server failed", self.name)
            event = m.LinkLost(number, f"a bug in farm: {error!r}")
        if number == self.state.follow:
            self._follow = None
            self.tell(event)

    def _task(self, what: Coroutine[object, object, None], kind: str) -> asyncio.Task[None]:
        return asyncio.create_task(what, name=f"{kind} {self.name}")
