"""Keeps the ledger of `adb forward` and `adb reverse` entries true while phones come and go."""

from __future__ import annotations

import asyncio
import logging

from farm.adb.client import AdbClient
from farm.adb.devices import AdbState
from farm.adb.tunnels import PlannedStep, Tunnel, TunnelLedger, TunnelStep
from farm.adb.watch import DeviceWatcher
from farm.common.errors import FarmError, HostError, UserError
from farm.common.tasks import Begin
from farm.devices.server.rpc_server import FIRST_PORT, PORT_END

RETRY_S = 5.0  # an adb server that just came back may not list its phones yet
ROUND_LIMIT_S = 30.0  # a few requests to adb, each with a limit of its own; an order may come during another's round

log = logging.getLogger(__name__)


class TunnelKeeper:
    """One ledger, reconciled by one task: after every change of adb's list and after every order."""

    def __init__(self, client: AdbClient, watcher: DeviceWatcher, ledger: TunnelLedger) -> None:
        self._client = client
        self._watcher = watcher
        self._ledger = ledger
        self._state: dict[Tunnel, PlannedStep] = {}  # what the last round said of each
        self._dirty = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []  # for the end of a round that has not begun

    def tasks(self) -> dict[str, Begin]:
        """The tasks that reconcile whenever something changed, by name."""
        return {"tunnels list": self._follow_list, "tunnels": self._keep}

    async def _follow_list(self) -> None:
        async for _ in self._watcher.snapshots():
            self._dirty.set()

    async def _keep(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            waiting, self._waiting = self._waiting, []
            try:
                await self._reconcile()
            except FarmError as error:
                log.info("tunnels are not set up now: %s", error)
                asyncio.get_running_loop().call_later(RETRY_S, self._dirty.set)
                for each in waiting:
                    if not each.done():
                        each.set_exception(error)
            except BaseException:  # the daemon stops, or there is a bug
                for each in waiting:
                    if not each.done():
                        each.set_exception(HostError("the daemon stopped before the tunnels were set up"))
                raise
            for each in waiting:
                if not each.done():
                    each.set_result(None)

    async def _reconcile(self) -> None:
        for entry in self._ledger.entries:
            if _reaches_server(entry.tunnel) and not entry.releasing:
                log.warning(
                    "%s of %s is given up: it leads to farm's own server", entry.tunnel.listen, entry.tunnel.serial
                )
                await self._ledger.release(entry.tunnel)
        devices = self._watcher.devices or ()
        usable = {device.serial for device in devices if device.state is AdbState.DEVICE}
        planned = await self._ledger.reconcile(self._client, usable)
        self._state = {each.tunnel: each for each in planned}
        for each in planned:
            log.info(
                "%s %s -> %s: %s %s", each.tunnel.serial, each.tunnel.listen, each.tunnel.dial, each.step, each.reason
            )

    async def _reconciled(self) -> None:
        """Return when a round that begins after now has ended.

        Raises:
            AdbError: the adb server does not answer; it is tried again by itself.
            HostError: the ledger cannot be written, or there is no end.
        """
        ended = asyncio.get_running_loop().create_future()
        self._waiting.append(ended)
        self._dirty.set()
        try:
            async with asyncio.timeout(ROUND_LIMIT_S):
                await ended
        except TimeoutError as error:
            raise HostError(
                f"the tunnels were not set up within {ROUND_LIMIT_S:.0f} s", hint="farm continues: farm forward list"
            ) from error

    async def add(self, tunnel: Tunnel) -> None:
        """Own a tunnel and set it up.

        Raises:
            UserError: it cannot be, or must not, as one to farm's own server on the phone.
            HostError: another program's entry has its place; farm does not keep it then.
        """
        if _reaches_server(tunnel):
            raise UserError(
                f"the phone's tcp:{tunnel.port_of_phone} is for farm's own RPC server",
                hint=f"TVM needs no forward: ask the tracker for a key. For a server of your own take a port from "
                f"{PORT_END} up (--port={PORT_END + 1} --port-end={PORT_END + 2})",
            )
        await self._ledger.own(tunnel)
        await self._reconciled()
        planned = self._state.get(tunnel)
        if planned is not None and planned.step is TunnelStep.CONFLICT:
            await self._ledger.release(tunnel, dialler_stopped=True)
            await self._reconciled()
            raise HostError(
                f"{tunnel.listen} is taken: {planned.reason}", hint="choose another port; farm leaves that one alone"
            )

    async def remove(self, tunnel: Tunnel, *, dialler_stopped: bool) -> str:
        """Release a tunnel; returns why it still stands, or "".

        Raises:
            AdbError: the adb server does not answer.
            HostError: the ledger cannot be written.
        """
        await self._ledger.release(tunnel, dialler_stopped=dialler_stopped)
        await self._reconciled()
        waiting = any(entry.tunnel == tunnel for entry in self._ledger.entries)
        return self._state[tunnel].reason if waiting and tunnel in self._state else ""

    def listed(self) -> tuple[tuple[Tunnel, str], ...]:
        """Every tunnel farm owns, with the reason why it does not work, or ""."""
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


def _reaches_server(tunnel: Tunnel) -> bool:
    """Whether its port on the phone may be that of farm's own RPC server, which no lease guards there."""
    return tunnel.port_of_phone in range(FIRST_PORT, PORT_END)
