"""What adb's list means for a device's life: the reason in farm's words, what a person can do, and who watches it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from farm.adb.client import AdbClient
from farm.adb.devices import AdbDevice, DeviceState
from farm.adb.errors import AdbError
from farm.core.lifecycle_messages import Link, Listed
from farm.fleet.agent import Agent

DISCONNECT_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)

_UNAUTHORIZED_HINT = (
    "unlock the phone and accept 'Allow USB debugging' (tick 'Always allow'); no prompt: replug it, or revoke the"
    " authorizations in its developer options"
)
_WORDS: dict[DeviceState, tuple[str, str]] = {
    DeviceState.OFFLINE: ("its adb transport does not answer", "replug it; if it stays, reboot the phone"),
    DeviceState.AUTHORIZING: ("adb keys are being exchanged", ""),
    DeviceState.CONNECTING: ("adb is connecting", ""),
    DeviceState.NO_PERMISSIONS: (
        "the adb server may not open its USB node",
        "install udev rules for Android (Debian: android-sdk-platform-tools-common), then replug it",
    ),
    DeviceState.RECOVERY: ("it is in recovery mode", "reboot it: adb reboot"),
    DeviceState.SIDELOAD: ("it waits for a sideload", "reboot it"),
    DeviceState.RESCUE: ("it is in rescue mode", "reboot it"),
    DeviceState.BOOTLOADER: ("it is in its bootloader", "reboot it: fastboot reboot"),
    DeviceState.DETACHED: ("somebody detached it from the adb server", "adb attach, or replug it"),
}


class Watcher(Protocol):
    """What the fleet needs of farm.adb.watch.DeviceWatcher."""

    @property
    def server_lost(self) -> bool:
        """Whether the list is empty because no adb server answers."""

    async def run(self) -> None:
        """Watch until cancelled."""

    def snapshots(self) -> AsyncIterator[tuple[AdbDevice, ...]]:
        """The list now, and again whenever it changed."""

    def add_network(self, address: str) -> str:
        """Keep a network phone connected for ever; returns its serial."""

    def remove_network(self, address: str) -> None:
        """Stop doing so."""


async def part_from_network(client: AdbClient, watcher: Watcher, address: str) -> None:
    """Keep a network phone connected no longer. Whether adb still lists it is its server's business."""
    watcher.remove_network(address)
    try:
        async with asyncio.timeout(DISCONNECT_TIMEOUT_S):
            await client.disconnect(address)
    except (AdbError, TimeoutError) as error:
        log.info("%s: adb did not disconnect it: %s", address, error)


def listed(device: AdbDevice) -> Listed:
    """The event for one line of adb's list."""
    if device.state is DeviceState.DEVICE:
        return Listed(Link.USABLE)
    if device.state is DeviceState.UNAUTHORIZED:
        reason = "nobody has accepted the farm's adb key on its screen"
        return Listed(Link.UNAUTHORIZED, reason, _UNAUTHORIZED_HINT, mendable=True)
    reason, hint = _WORDS.get(device.state, (f"adb lists it as {device.detail or device.state}", "replug it"))
    if device.detail:
        reason = f"{reason} ({device.detail})" if device.state in _WORDS else reason
    # A handshake that went wrong leaves `offline`, or a state that says nothing (`host`): made anew it may go right.
    mendable = device.state is DeviceState.OFFLINE or device.state not in _WORDS
    return Listed(Link.OFFLINE, reason, hint, mendable=mendable)


@contextmanager
def alone(agents: Mapping[str, Agent], serial: str) -> Iterator[None]:
    """What farm itself gets wrong about one device quarantines that device; the others go on."""
    try:
        yield
    except Exception as error:
        agent = agents.get(serial)
        if agent is None:
            log.exception("%s: a bug in farm; it is not followed", serial)
        else:
            agent.bug_found(error)
