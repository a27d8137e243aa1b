"""The tools of a phone's agent: the context of all agents, cleanup commands, and the harder recovery actions.

`lifecycle.recovery` decides whether and when to reconnect or reboot (power: `power.py`). Each of them changes adb's
list as a rule: the waiting task is then cancelled, and the life cycle continues by the list.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from farm.adb.client import AdbClient
from farm.adb.errors import AdbError, AdbTimeout
from farm.bundle.model import Bundle, CheckResult
from farm.common.errors import Code, FarmError, Fault, PhoneError
from farm.common.phone_text import REASON, plain
from farm.devices.identity.identity import BOOT_ID
from farm.devices.lifecycle import messages as m
from farm.devices.power.power import PowerSwitch
from farm.devices.server.rpc_server import StuckProcessError
from farm.model.health import DeviceFault

if TYPE_CHECKING:
    from farm.devices.agent import Agent
    from farm.devices.fleet import Fleet
    from farm.devices.recovery_control import RecoveryController
    from farm.devices.rollouts import Rollouts
    from farm.devices.views import DeviceViews

# A hub of phones comes at once and shares one cable anyway. A push holds 2 MiB in buffers: a hundred at a time took
# 170 MB that the allocator never gave back, and not one phone was ready earlier.
PUSHES_AT_ONCE = 8


class Checker(Protocol):
    """Runs a bundle's golden kernels on a phone."""

    async def check(self, device: str, bundle: Bundle) -> CheckResult:
        """Whether the numbers are right; several at once are fine. Never waits forever.

        Raises:
            FarmError: the check could not be made; `fault` says whether the phone or the host caused it.
        """


@dataclass(frozen=True, slots=True)
class AgentContext:
    """One per fleet."""

    client: AdbClient
    rollouts: Rollouts
    checker: Checker
    fleet: Fleet
    views: DeviceViews
    recovery: RecoveryController
    quiet: Container[str] = frozenset()  # serials of phones that this daemon quiesced and will restore
    power: PowerSwitch | None = None  # None: recovery skips power cycles and says so
    pushes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PUSHES_AT_ONCE))
    monotonic: Callable[[], float] = time.monotonic


CLEANUP_TIMEOUT_S = 20.0

log = logging.getLogger(__name__)


class CleanupTasks:
    """Unfinished cleanup commands of one phone."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.pending: set[asyncio.Task[None]] = set()

    async def wait(self) -> tuple[asyncio.Task[None], ...]:
        """Wait until all have ended, well or not. Cancelling the wait does not end them."""
        pending = tuple(self.pending)
        if pending:
            await asyncio.wait(pending)
        return pending

    async def result(self) -> None:
        """Wait until all have ended; raises the error of a failed task.

        Raises:
            PhoneError: among them, the phone went away and was let go meanwhile, or did not answer.
        """
        name = self._agent.name
        for task in await self.wait():
            if task.cancelled():
                raise PhoneError(f"{name} went away meanwhile", hint="connect it and try again")
            try:
                task.result()
            except TimeoutError as error:
                raise PhoneError(f"{name} did not answer while it was given back", hint="try again") from error

    def add(
        self, command: Coroutine[object, object, None], limit_s: float | None = CLEANUP_TIMEOUT_S
    ) -> asyncio.Task[None]:
        """Begin one; it is cancelled after `limit_s`."""

        async def bounded() -> None:
            async with asyncio.timeout(limit_s):
                await command

        task = asyncio.create_task(bounded(), name=f"cleanup {self._agent.name}")
        self.pending.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.pending.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning("%s: %s", self._agent.name, error)


BOOT_ID_TIMEOUT_S = 5.0
DROPPED_S = 1.0  # adb's list changes within milliseconds of a reconnect
LOOK_EVERY_S = 1.0  # at the boot id of a phone that was asked to reboot
# From the request until adb loses it: init stops services first, 2-10 s; a hanging one is killed after 20 s or so.
REBOOT_DOWN_S = 60.0


async def boot_id(client: AdbClient, serial: str) -> str:
    """This boot's name.

    Raises:
        AdbError: the phone does not answer.
    """
    return (await client.shell(serial, BOOT_ID, timeout_s=BOOT_ID_TIMEOUT_S)).text.strip()


async def reconnect(client: AdbClient, serial: str) -> None:
    """Have adb drop and make its transport again; returns only where its list did not change for that.

    Raises:
        AdbError: it could not.
    """
    await client.reconnect(serial)
    await asyncio.sleep(DROPPED_S)


async def reboot(client: AdbClient, serial: str, before: str, on_accepted: Callable[[], None]) -> None:
    """Reboot the phone; returns when it runs another boot than `before`, which adb's list may never have shown.

    Args:
        client: adb.
        serial: the phone.
        before: its boot id.
        on_accepted: called when it has taken the request.

    Raises:
        AdbError: it did not take the request.
        PhoneError: it is still in the same boot.
    """
    await client.reboot(serial)
    on_accepted()
    try:
        async with asyncio.timeout(REBOOT_DOWN_S):
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                try:
                    if await boot_id(client, serial) not in ("", before):
                        return
                except AdbError:
                    continue  # it is going down
    except TimeoutError:
        raise PhoneError(
            f"it did not go down in {REBOOT_DOWN_S:g} s after it was asked to reboot",
            Code.REBOOT_REFUSED,
            hint="hold its power button until it restarts",
        ) from None


def failed(work: m.Work, error: FarmError) -> m.DeviceEvent:
    """The answer to work that ended with this error; its words may be the phone's."""
    return answer_failed(work, plain(error.message, REASON), plain(error.hint, REASON), _device_fault(work, error))


def answer_failed(work: m.Work, reason: str, hint: str, fault: DeviceFault | None) -> m.DeviceEvent:
    """The answer to work that failed."""
    number = work.generation
    match work:
        case m.TakeAction():
            return m.ActionFailed(number, reason, hint)
        case m.RetryLater() | m.Pause():
            return m.WaitEnded(number)
        case _:
            return m.WorkFailed(number, reason, hint, fault)


def _device_fault(work: m.Work, error: FarmError) -> DeviceFault | None:
    """The fault of the phone or its bundle that a failure shows; None: none. A lost link is seen in adb's list."""
    if error.code == Code.BUNDLE_DAMAGED:  # by code: a check's error comes from another process
        return DeviceFault.BUNDLE
    if error.fault is not Fault.PHONE:
        return None
    if isinstance(error, StuckProcessError):
        return DeviceFault.STUCK
    if isinstance(error, AdbError):
        return DeviceFault.MUTE if isinstance(error, AdbTimeout) else None
    match work:
        case m.StartServer() | m.AdoptServer():
            return DeviceFault.START
        case m.RunCheck():
            return DeviceFault.CHECK
        case _:
            return None
