"""Keeps the ledger of `adb forward` and `adb reverse` entries true while phones come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Protocol

from farm.adb.client import AdbClient
from farm.adb.devices import AdbDevice, DeviceState
from farm.adb.errors import AdbError
from farm.adb.tunnels import Planned, Step, Tunnel, TunnelLedger
from farm.core.errors import HostError, ProtocolError

RETRY_S = 5.0  # an adb server that just came back may not list its phones yet

log = logging.getLogger(__name__)


class Snapshots(Protocol):
    """What is needed of farm.adb.watch.DeviceWatcher."""

    devices: tuple[AdbDevice, ...] | None

    def snapshots(self) -> AsyncIterator[tuple[AdbDevice, ...]]:
        """The list now, and again whenever it changed."""


class TunnelKeeper:
    """One ledger, reconciled after every change of adb's list and after every order."""

    def __init__(self, client: AdbClient, watcher: Snapshots, ledger: TunnelLedger) -> None:
        self._client = client
        self._watcher = watcher
        self._ledger = ledger
        self._state: dict[Tunnel, Planned] = {}  # what the last reconciliation said of each

    async def run(self) -> None:
        """Follow adb's list until cancelled."""
        async for _ in self._watcher.snapshots():
            try:
                await self.reconcile()
            except (AdbError, ProtocolError) as error:
                log.info("tunnels are not set up now: %s", error)
                await asyncio.sleep(RETRY_S)

    async def reconcile(self) -> None:
        """Set up what is missing, remove what was released.

        Raises:
            AdbError: the adb server does not answer.
        """
        devices = self._watcher.devices or ()
        usable = {device.serial for device in devices if device.state is DeviceState.DEVICE}
        planned = await self._ledger.reconcile(self._client, usable)
        self._state = {each.tunnel: each for each in planned}
        for each in planned:
            log.info(
                "%s %s -> %s: %s %s", each.tunnel.serial, each.tunnel.listen, each.tunnel.dial, each.step, each.reason
            )

    async def add(self, tunnel: Tunnel) -> None:
        """Own a tunnel and set it up.

        Raises:
            UserError: it cannot be, or must not.
            HostError: its place is taken by somebody else's entry; farm does not keep it then.
        """
        self._ledger.own(tunnel)
        await self.reconcile()
        said = self._state.get(tunnel)
        if said is not None and said.step is Step.CONFLICT:
            self._ledger.release(tunnel, dialler_stopped=True)
            await self.reconcile()
            raise HostError(
                f"{tunnel.listen} is taken: {said.reason}", hint="choose another port; farm leaves that one alone"
            )

    async def remove(self, tunnel: Tunnel, *, dialler_stopped: bool) -> str:
        """Release a tunnel; returns why it still stands, or "".

        Raises:
            AdbError: the adb server does not answer.
        """
        self._ledger.release(tunnel, dialler_stopped=dialler_stopped)
        await self.reconcile()
        waiting = any(entry.tunnel == tunnel for entry in self._ledger.entries)
        return self._state[tunnel].reason if waiting and tunnel in self._state else ""

    def listed(self) -> tuple[tuple[Tunnel, str], ...]:
        """Every tunnel farm owns, with what keeps it from working, or ""."""
        return tuple(
            (entry.tunnel, self._state[entry.tunnel].reason if entry.tunnel in self._state else "")
            for entry in self._ledger.entries
        )

    def find(self, serial: str, listen: str) -> Tunnel | None:
        """A phone's tunnel by the socket that listens."""
        return next(
            (
                each.tunnel
                for each in self._ledger.entries
                if (each.tunnel.serial, each.tunnel.listen) == (serial, listen)
            ),
            None,
        )
