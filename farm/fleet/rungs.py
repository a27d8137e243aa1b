"""The harder rungs of the recovery ladder, carried out on one phone: adb's reconnect and reboot (power: `power.py`).

Whether and when is `farm.core.recovery`'s. Each of them makes adb's list change as a rule: whoever waits here is then
cancelled, and the life cycle goes on by the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import assert_never

from farm.adb.client import AdbClient
from farm.adb.errors import AdbError, AdbTimeout
from farm.core import lifecycle_messages as m
from farm.core.errors import FarmError, Fault, PhoneError
from farm.core.phone_text import REASON, plain
from farm.core.recovery import Ailment
from farm.fleet.rpc_server import StuckProcessError

BOOT_ID_TIMEOUT_S = 5.0
DROPPED_S = 1.0  # adb's list changes within milliseconds of a reconnect
LOOK_EVERY_S = 1.0  # at the boot id of a phone that was asked to reboot
# From the request until adb loses it: init stops services first, 2-10 s; a hanging one is killed after 20 s or so.
REBOOT_DOWN_S = 60.0
# As processes.sh reads it, but for phones that have no script of ours (yet); some hide the first.
_BOOT_ID = "cat ${FARM_BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id} 2>/dev/null || grep btime /proc/stat"


class RebootRefusedError(PhoneError):
    """The phone was asked to reboot and did not go down."""

    code = "reboot_refused"


async def boot_id(client: AdbClient, serial: str) -> str:
    """This boot's name.

    Raises:
        AdbError: the phone does not answer.
    """
    return (await client.shell(serial, _BOOT_ID, timeout_s=BOOT_ID_TIMEOUT_S)).text.strip()


async def reconnect(client: AdbClient, serial: str) -> None:
    """Have adb drop and make its transport anew; returns only where its list did not change for that.

    Raises:
        AdbError: it could not.
    """
    await client.reconnect(serial)
    await asyncio.sleep(DROPPED_S)


async def reboot(client: AdbClient, serial: str, before: str, heard: Callable[[], None]) -> None:
    """Reboot the phone; returns when it runs another boot than `before`, which adb's list may never have shown.

    Args:
        client: adb.
        serial: the phone.
        before: its boot id.
        heard: called when it has taken the request.

    Raises:
        AdbError: it did not take the request.
        RebootRefusedError: it is still in the same boot.
    """
    await client.reboot(serial)
    heard()
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
        raise RebootRefusedError(
            f"it did not go down in {REBOOT_DOWN_S:g} s after it was asked to reboot",
            hint="hold its power button until it restarts",
        ) from None


def failed(work: m.Work, error: FarmError) -> m.Event:
    """The answer to work that ended with this error; its words may be the phone's."""
    return answer_failed(work, plain(error.message, REASON), plain(error.hint, REASON), _ailment(work, error))


def answer_failed(work: m.Work, reason: str, hint: str, ailment: Ailment | None) -> m.Event:
    """The answer to work that failed."""
    number = work.generation
    match work:
        case m.Identify():
            return m.IdentifyFailed(number, reason, hint, ailment)
        case m.Provision():
            return m.ProvisionFailed(number, reason, hint, ailment)
        case m.StartServer() | m.AdoptServer():
            return m.StartFailed(number, reason, hint, ailment)
        case m.Check():
            return m.CheckFailed(number, reason, hint, ailment)
        case m.Reap():
            return m.RecoveryFailed(number, reason, hint, ailment)
        case m.Reconnect() | m.Reboot() | m.PowerCycle():
            return m.RungFailed(number, reason, hint)
        case m.BackOff():
            return m.BackedOff(number)
        case m.Pause():
            return m.Paused(number)
        case _:
            assert_never(work)


def _ailment(work: m.Work, error: FarmError) -> Ailment | None:
    """What a failure says of the phone; None: nothing. A lost link is adb's list to tell."""
    if error.fault is not Fault.PHONE:
        return None
    if isinstance(error, StuckProcessError):
        return Ailment.STUCK
    if isinstance(error, AdbError):
        return Ailment.MUTE if isinstance(error, AdbTimeout) else None
    match work:
        case m.StartServer() | m.AdoptServer():
            return Ailment.START
        case m.Check():
            return Ailment.CHECK
        case _:
            return None
