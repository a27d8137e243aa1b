"""The agent of one device: carries out the instructions of its life cycle and reports the results to it.

`devices.lifecycle` decides, at once and in place; this file holds the tasks. At most one piece of work is under way per
device; following its server and cleanup commands run beside it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from farm.adb.devices import AdbDevice
from farm.bundle.model import Bundle, Platform, platform_of
from farm.common.durations import BackOff
from farm.common.errors import Code, FarmError, Fault, HostError, PhoneError
from farm.common.tasks import end_tasks
from farm.devices import agent_work, quiesce
from farm.devices.agent_work import AgentContext, CleanupTasks
from farm.devices.health.probe.thermal import one_temperature
from farm.devices.identity.identity import identify, read_identity
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.lifecycle import Lifecycle
from farm.devices.lifecycle.recovery import RecoveryAction
from farm.devices.lifecycle.state import LINK_DOWN, SERVED, LifecycleState
from farm.devices.power.power import cycle
from farm.devices.server.provision import drop_bundles, provision, remove_residue, repair_scripts
from farm.devices.server.rpc_server import RpcServer, RunningServer, StuckProcessError
from farm.model.device import Life, UsbPlace
from farm.model.health import DeviceFault, Finding, Health, Quarantine
from farm.model.identity import DeviceIdentity

BACK_OFF = BackOff(0.5, 60.0)
SCATTER_S = 0.5  # of waiting longer, by chance: a hub that came back is not stormed
CHECK_TIMEOUT_S = 60.0  # golden kernels take well below a second; a slow phone's first OpenCL build took 20 s
_OTHER_BUNDLE = "its server is of a bundle that is not its own any more"  # provisioned again before anything else
_REPORT_IT = "please report it with the daemon's log; then farm device release NAME"

log = logging.getLogger(__name__)


def back_off_s(attempt: int) -> float:
    """Seconds to leave a device alone before `attempt` (from 1)."""
    return BACK_OFF.delay_s(attempt) + random.uniform(0.0, SCATTER_S)  # noqa: S311 - nothing secret


class Agent:
    """One device that adb lists or the farm knows. Used from the event loop's thread only."""

    def __init__(self, serial: str, name: str, context: AgentContext, state: LifecycleState | None = None) -> None:
        self.serial = serial
        self.name = name
        self.identity: DeviceIdentity | None = None
        self.device: AdbDevice | None = None  # as adb listed it last
        self.temperature_c: float | None = None
        self.temperature_of = ""
        self.battery_percent: int | None = None
        self.health: Health | None = None  # the latest probe
        self.read_at: datetime | None = None  # when it was read
        self.health_at = 0.0  # the same in monotonic seconds; 0: not since the phone was last plugged in
        self.used_at = 0.0  # when a session last began while the phone was ready, monotonic seconds; 0: never
        self.findings: tuple[Finding, ...] = ()  # what is wrong by the latest probes
        self.checked = ""  # what the latest golden check said
        self.golden_s: Mapping[str, float] = {}  # with its present bundle: CheckResult.fastest_s
        self.place: UsbPlace | None = None  # where it is plugged in, or was last, if known
        self.external_cause = ""  # the failure of its hub or the host that explains its state; "": none is known
        self.boot = ""  # the boot id that it was identified with; "": not since it was last plugged in
        self.other_link = ""  # why this link is not used: the phone's other link is; "": it is used
        self.withheld = ""  # the other host of the lab that has this phone, as a reason; "": none, as far as is known
        self.server: RunningServer | None = None  # kept over a lost link: it may still be alive there
        self.since: datetime = datetime.now(UTC)
        self.installing = ""  # hash of the bundle under way to it, until its state says that it has it
        self.assigned = ""  # hash of its own bundle as of its latest provisioning; "" before that, and for an override
        self.untethered = False  # its port has no power for a while, on purpose (untether.py)
        self.noted = ""  # the hash of what `note_residue` noted before a person got it
        self.orders = asyncio.Lock()  # held by each order of an operator: they are carried out one after another
        self._context = context
        self._lifecycle = Lifecycle(state)
        self._rpc = RpcServer(context.client, serial)
        self._bundle: Bundle | None = None
        self._wanted: Bundle | None = None  # the bundle that overrides its own, while its state names one
        self._others: tuple[str, ...] = ()  # folders of bundles that are no longer wanted
        self._reboot_asked: asyncio.Future[None] | None = None  # by an operator; done when the phone has heard
        self._boot_before = ""  # boot id before a reboot, until the phone is back
        self._outlived = False  # its server was found with a session of the daemon before this one
        self._sessions_left = 0  # processes of orphaned sessions, as the last probe saw them
        self._work: asyncio.Task[None] | None = None
        self._follow: asyncio.Task[None] | None = None
        self._cleanup = CleanupTasks(self)

    @property
    def state(self) -> LifecycleState:
        """The state of its life cycle."""
        return self._lifecycle.state

    @property
    def adb(self) -> str:
        """How a person begins a call of adb for it."""
        return self._context.client.address.command(self.serial)

    @property
    def transitions(self) -> tuple[str, ...]:
        """Its last transitions, one line each."""
        return self._lifecycle.transitions

    def on_event(self, event: m.DeviceEvent) -> None:
        """Decide on an event, publish the new state, act. Never raises: a bug in farm quarantines the device."""
        try:
            self._take(event)
        except Exception as error:  # noqa: BLE001 - logged there, with the last transitions
            self.bug_found(error)

    def bug_found(self, error: Exception) -> None:
        """Farm failed over this device: log its last transitions and quarantine it; other devices continue."""
        log.error(
            "%s: a bug in farm; its last transitions:\n%s", self.name, "\n".join(self.transitions), exc_info=error
        )
        try:
            self._take(m.BugFound(f"a bug in farm: {error!r}", _REPORT_IT))
        except Exception:  # it is quarantined by now; publishing that fails too
            log.exception("%s: its quarantine could not be published", self.name)

    def _take(self, event: m.DeviceEvent) -> None:
        before = self.state
        instructions = self._lifecycle.handle(event, self._context.monotonic(), self._context.recovery.context_of(self))
        after = self.state
        if after.life is not before.life:
            self.since = datetime.now(UTC)
        if after.generation != before.generation:
            _cancel(self._work)
            self._work = None
            asked, self._reboot_asked = self._reboot_asked, None
            if asked is not None and not asked.done():  # its work had not begun
                asked.set_exception(self._overtaken())
        if after.follow != before.follow:
            _cancel(self._follow)
            self._follow = None
        if after != before:
            # Published before anything is done: a device leaves READY at once, and a check needs its lease.
            self._context.fleet.changed(self)
        if (before.progress, before.quarantine, before.proven) != (after.progress, after.quarantine, after.proven):
            self._context.recovery.recovery_changed(self, before)
        if after.life is not Life.PROVISIONING:
            self.installing = ""
        for instruction in instructions:
            self._perform(instruction)

    async def reboot(self, reason: str) -> None:
        """Reboot it by order; returns when the phone has accepted the request.

        Raises:
            AdbError: it did not.
        """
        if self.state.life in LINK_DOWN:
            message = f"{self.name} cannot be rebooted: it is {self.state.life}"
            raise PhoneError(message, hint=self.state.hint or "connect it, or restart it by hand")
        self.on_event(m.ActionOrdered(RecoveryAction.REBOOT, reason))
        if self._work is None:
            raise self._overtaken()
        # after the work that it replaces was cancelled
        self._reboot_asked = asked = asyncio.get_running_loop().create_future()
        await asked

    def _overtaken(self) -> PhoneError:
        message = f"{self.name} was not asked to reboot: it is {self.state.life}"
        if self.state.reason:
            message += f" ({self.state.reason})"
        return PhoneError(message, hint=f"see `farm explain device {self.name}`; then order it again")

    async def find_external_cause(self, since_s: float) -> None:
        """Before a failure since monotonic second `since_s` is decided on: find out whether the hub or the host failed.

        The cause is in the next `RecoveryContext`.
        """
        await self._context.fleet.find_external_cause(self, since_s)

    def inherit(self, former: LifecycleState, name: str) -> None:
        """It is the phone that was in state `former` under another serial; `name` is remembered of it."""
        self.name = name
        self._lifecycle.inherit(former)

    def show_health(self, health: Health, at: datetime | None) -> None:
        """The latest probe, or the remembered probe, read at `at`."""
        self.health, self.read_at = health, at
        shown = one_temperature(health)
        self.temperature_c, self.temperature_of = (shown.celsius, shown.sensor) if shown else (None, "")
        self.battery_percent = health.battery.percent

    def keep_away(self, kept: Quarantine) -> None:
        """It is, or claims to be, a phone in quarantine. Called while it is being identified."""
        self._lifecycle.state = replace(self.state, quarantine=kept)

    def override_bundle(self, bundle: Bundle) -> None:
        """The lease holder wants another bundle on it; one of its ABI and platform."""
        self._wanted = bundle
        self.on_event(m.BundleWanted(bundle.hash))

    @property
    def server_port(self) -> int:
        """The port of the RPC server on the phone's loopback; 0: none runs."""
        return self.server.port if self.server is not None and self._follow is not None else 0

    async def dial(self, timeout_s: float) -> tuple[socket.socket, str]:
        """A stream to the RPC server and its secret.

        Raises:
            PhoneError: there is no server now.
            AdbError: the phone did not connect.
        """
        server = self.server
        if server is None or self.state.life not in SERVED:
            raise PhoneError(f"{self.name} is {self.state.life}: {self.state.reason}", Code.NO_SERVER)
        if self.state.life is Life.READY:
            self.used_at = self._context.monotonic()
        return await self._context.client.open_tcp(self.serial, server.port, timeout_s=timeout_s), server.secret

    async def finish_cleanup(self) -> None:
        """Wait for its cleanup commands (stop, clean); raises the error of a failed command.

        Raises:
            PhoneError: among them, the phone went away and was let go meanwhile, or did not answer.
        """
        await self._cleanup.result()

    async def close(self) -> None:
        """End every task; nothing changes on the phone."""
        await end_tasks(*(task for task in (self._work, self._follow, *self._cleanup.pending) if task))
        self._work = self._follow = None

    def _perform(self, instruction: m.Instruction) -> None:
        """Carry out an instruction, unless a subscriber to the new state has already changed it again."""
        match instruction:
            case m.FollowServer(follow=number):
                if number != self.state.follow:
                    return
                self._follow = self._task(self._follow_server(number), "follow")
            case m.ReportBundle(reason=reason, at_fault=at_fault):
                self._context.rollouts.trial_failed(self, reason, at_fault=at_fault)
            case m.EndServer(clean=clean):
                self._cleanup.add(self._rpc.clean() if clean else self._rpc.stop())
            case m.DropOldBundles():
                if self._others:
                    self._cleanup.add(drop_bundles(self._context.client, self.serial, self._others))
                    self._others = ()
            case _ if instruction.generation == self.state.generation:
                self._work = self._task(self._do_work(instruction), type(instruction).__name__)

    async def _do_work(self, work: m.Work) -> None:
        number = work.generation
        await self._cleanup.wait()  # they use the same files and processes as this work
        began_s = self._context.monotonic()
        try:
            event = await self._answer(work)
        except FarmError as error:
            event = agent_work.failed(work, error)
            if error.fault is Fault.PHONE:
                await self.find_external_cause(began_s)
            if error.fault is Fault.FARM:
                log.exception("%s", self.name)
        except Exception as error:
            # A bug must not leave the device waiting for an answer without end.
            log.exception("%s: %s failed", self.name, type(work).__name__)
            event = agent_work.answer_failed(work, f"a bug in farm: {error!r}", _REPORT_IT, None)
        if number == self.state.generation:
            self._work = None  # this very task: the event must not cancel it
            self.on_event(event)

    async def _answer(self, work: m.Work) -> m.DeviceEvent:
        number = work.generation
        match work:
            case m.Identify():
                raw = await read_identity(self._context.client, self.serial)
                identity = identify(raw)
                same_boot = bool(self._boot_before) and raw.boot == self._boot_before
                self._boot_before = ""
                self.withheld = ""
                boots = {self.serial: raw.boot, **await self._context.fleet.boots_beside(self, identity)}
                if adopted := self._context.fleet.identified(self, identity, boots):
                    await self._check_other_hosts()
                return m.Identified(number, adopted, same_boot, self.other_link)
            case m.Provision(deep=deep):
                return await self._provision(number, deep)
            case m.StartServer():
                await self._check_other_hosts(starting=True)
                if self._bundle is None:
                    return m.WorkFailed(number, _OTHER_BUNDLE)
                self.server = None
                self.server = await self._rpc.start(self._bundle.hash)
                return m.ServerStarted(number)
            case m.AdoptServer():
                outlived, self._outlived = self._outlived, False
                if outlived and self._context.fleet.outlived(self):
                    return m.ServerStarted(number, in_use=True)
                if self._sessions_left and not await self._rpc.reap():
                    self.server = None
                    died = "the RPC server died with its orphaned session"
                    return m.WorkFailed(number, died, fault=DeviceFault.SERVER)
                return m.ServerStarted(number)
            case m.RunCheck():
                return await self._check(number)
            case m.Reap(tidy=tidy, doubted=doubted):
                if doubted:
                    await self.find_external_cause(self._context.monotonic())
                    self.on_event(m.PlainEvent.PHONE_AT_FAULT)
                if tidy:
                    await self._tidy()
                    return m.RecoveryFinished(number, server_alive=False, tidied=True)
                return m.RecoveryFinished(number, await self._rpc.reap())
            case m.RetryLater(attempt=attempt):
                await asyncio.sleep(back_off_s(attempt))
                return m.WaitEnded(number)
            case m.Pause(seconds=seconds):
                await asyncio.sleep(seconds)
                return m.WaitEnded(number)
            case m.TakeAction(action=action):
                if action is RecoveryAction.RECONNECT:
                    await agent_work.reconnect(self._context.client, self.serial)
                elif action is RecoveryAction.REBOOT:
                    await self._reboot()
                else:
                    await self._power_cycle()
                return m.ActionDone(number)

    async def _check_other_hosts(self, *, starting: bool = False) -> None:
        """Before work that would end the server of another host; `starting`: this host has used the phone so far.

        Raises:
            HostError: another host has the phone.
        """
        assert self.identity is not None, "the life cycle identifies first"
        self.withheld = await self._context.fleet.host_with(self.identity, starting)
        if self.withheld:
            raise HostError(self.withheld, hint=f"to have it here: farm device forget {self.name}, at that host")

    async def _tidy(self) -> None:
        """Undo a person's changes after repairing the scripts that do so; end the server whose secret they know."""
        client = self._context.client
        self._repaired(await repair_scripts(client, self.serial))
        await quiesce.restore(client, self.serial)
        await self._rpc.stop()
        self.server = None
        self._context.views.tidied(self, await remove_residue(client, self.serial, self.noted))
        self.noted = ""

    def _repaired(self, files: int) -> None:
        if files:
            log.warning("%s: %d of farm's files on it were not what they were and are pushed again", self.name, files)
            self._context.views.repaired(self, files)

    async def _reboot(self) -> None:
        """Reboot it; an order's future ends as soon as the phone accepted the request, or could not."""
        asked, self._reboot_asked = self._reboot_asked, None
        try:
            self._boot_before = await self._boot_id()
            await agent_work.reboot(self._context.client, self.serial, self._boot_before, lambda: _set_done(asked))
        except FarmError as error:
            if asked is not None and not asked.done():
                asked.set_exception(error)
            raise
        finally:
            _set_done(asked)  # adb's list changed meanwhile: it went down

    async def _boot_id(self) -> str:
        return await agent_work.boot_id(self._context.client, self.serial)

    async def _power_cycle(self) -> None:
        """Runs beside work: the phone leaves adb's list half-way, and its power must come back."""
        switch, place = self._context.power, self.place
        if switch is None or place is None:
            raise HostError("there is no switch for the power of its port")
        taken, neighbours = self.state.progress.under_way, self._context.recovery.context_of(self).neighbours
        if neighbours and taken is not None and taken.fault is not DeviceFault.ORDER:  # leased since it was decided
            raise HostError(f"its power is not cut: it would hurt {neighbours}")
        # No limit: each of its parts is bounded, but any number of phones may wait for the switch before it.
        await asyncio.shield(self._cleanup.add(cycle(switch, place, lambda: self.device is not None), limit_s=None))

    async def _provision(self, number: int, deep: bool) -> m.DeviceEvent:
        if (taken_over := await self._take_over(number)) is not None:
            return taken_over
        bundle = self._wanted if self.state.bundle_override else await self._own_bundle()
        self.assigned = "" if bundle is None or self.state.bundle_override else bundle.hash
        if bundle is None:
            abi, platform = self.runs()
            message = f"there is no runtime bundle for {abi or 'an unknown ABI'} ({platform})"
            return m.WorkFailed(
                number,
                message,
                "farm bundle build NAME, or farm bundle add FOLDER (docs/bundles.md)",
                DeviceFault.BUNDLE,
            )
        self.installing = bundle.hash
        done = await provision(
            self._context.client,
            self.serial,
            bundle,
            server=self.server,
            deep=deep,
            push_slot=self._context.pushes,
            progress=lambda progress: self._context.views.pushing(self, progress),
        )
        if deep and bundle.hash == self.state.bundle:  # else it was to be pushed anyway
            self._repaired(done.pushed_files)
        if bundle.hash != self.state.bundle:
            self.golden_s = {}
        self._bundle, self._others = bundle, done.others
        self._sessions_left = done.server.sessions
        adoptable = done.server.adoptable and self.server is not None and self.server.port == done.server.port
        left_by_person = done.noted and not self._context.fleet.in_hands(self)
        quiet_pending = done.quiet and self.serial not in self._context.quiet
        return m.Provisioned(number, bundle.hash, adoptable, left_by_person or quiet_pending)

    def runs(self) -> tuple[str, Platform]:
        """The ABI and platform of its bundles."""
        assert self.identity is not None, "the life cycle identifies before it provisions"
        return self.identity.abi, platform_of(self.identity)

    async def _own_bundle(self) -> Bundle | None:
        return await self._context.rollouts.bundle_for(self)

    async def _take_over(self, number: int) -> m.DeviceEvent | None:
        """Leave phone and server as they are while a session of the daemon before this one is open; else None."""
        secret = "" if self.server is not None or self.state.suspect else self._context.fleet.outlived(self)
        if not secret:
            return None
        server, self._sessions_left = await self._rpc.find(secret)
        if server is None:
            return None
        bundle = await self._own_bundle()
        self._bundle = bundle if bundle is not None and bundle.hash == server.bundle else None
        self.server, self._outlived = server, True
        return m.Provisioned(number, server.bundle, adoptable=True)

    async def _check(self, number: int) -> m.DeviceEvent:
        if self._bundle is None:
            return m.WorkFailed(number, _OTHER_BUNDLE)
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                found = await self._context.checker.check(self.name, self._bundle)
        except TimeoutError:
            # The checker's own limit for the phone is shorter: this one is for a slow host.
            return m.WorkFailed(number, f"the golden check did not end in {CHECK_TIMEOUT_S:g} s")
        self.checked, self.golden_s = found.detail, found.fastest_s
        if found.ok:
            return m.CheckPassed(number)
        return m.WorkFailed(number, self.checked or "golden kernels gave wrong numbers", fault=DeviceFault.WRONG)

    async def _follow_server(self, number: int) -> None:
        assert self.server is not None, "the life cycle starts before it follows"
        event: m.DeviceEvent
        try:
            event = m.ServerDied(number, await self._rpc.follow(self.server))
        except StuckProcessError as error:
            event = m.ServerDied(number, error.message, stuck=True)
        except FarmError as error:
            event = m.LinkLost(number, error.message)
            if error.fault is Fault.FARM:
                log.exception("%s", self.name)
        except Exception as error:
            # A bug must not leave the device READY with its server unwatched.
            log.exception("%s: following its server failed", self.name)
            event = m.LinkLost(number, f"a bug in farm: {error!r}")
        if number == self.state.follow:
            self._follow = None
            self.on_event(event)

    def _task(self, what: Coroutine[object, object, None], kind: str) -> asyncio.Task[None]:
        return asyncio.create_task(what, name=f"{kind} {self.name}")


def _set_done(request: asyncio.Future[None] | None) -> None:
    """Mark a request as done unless it has ended already."""
    if request is not None and not request.done():
        request.set_result(None)


def _cancel(task: asyncio.Task[None] | None) -> None:
    """Cancel a task that is no longer wanted, unless it is the caller."""
    if task is not None and task is not asyncio.current_task():
        task.cancel()
