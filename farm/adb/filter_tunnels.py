"""Forwards and reverses made under a lease: theirs alone, and gone with it.

A forward is a listener of the filter itself that opens a stream to the phone for each connection: only the lease's user
may dial it, it is cut with the lease, and no entry of the adb server's one table for everybody is touched, where adb
would silently rebind somebody else's port.

A reverse is the real adb's: the phone's adbd listens. The adb server aborts, and every phone's streams with it, when a
phone dials a host socket that no reverse of it leads to any more; between `killforward` and adbd's answer that is a
matter of luck (docs/facts.md). So before one is removed, a second one to the same host socket is made under a name that
nobody knows, and removed when the first is gone: adbd has answered by then, and dials no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable

from farm.adb.client import AdbClient
from farm.adb.errors import AdbError, AdbFailed
from farm.adb.filter_streams import Admits, Doorway, relay
from farm.adb.tunnels import Tunnel, TunnelKind, parse_reverses
from farm.core.errors import FarmError, UserError

MOST_TUNNELS = 64  # of one lease; removing a reverse takes three answers of the phone, and its next user waits
PLACEHOLDER_BYTES = 8  # random, in the name of the reverse that stands in for one being removed

log = logging.getLogger(__name__)


class LeaseTunnels:
    """The tunnels of one lease on one phone."""

    def __init__(
        self,
        client: AdbClient,
        serial: str,
        admits: Admits,
        *,
        barred_ports: Callable[[], Collection[int]],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """Start without any.

        Args:
            client: of the real adb server.
            serial: the phone's.
            admits: who may dial a forward.
            barred_ports: of the host, where no reverse may lead: doors that know people by their sockets' owner.
            changed: called after `made` has changed, before a client hears of it.
        """
        self._client = client
        self._serial = serial
        self._admits = admits
        self._barred_ports = barred_ports
        self._changed = changed
        self._forwards: dict[str, tuple[Tunnel, Doorway]] = {}  # by the host's socket
        self._reverses: dict[str, Tunnel] = {}  # by the phone's socket
        self._turn = asyncio.Lock()  # one change at a time

    @property
    def made(self) -> tuple[Tunnel, ...]:
        """What there is now."""
        return (*(tunnel for tunnel, _ in self._forwards.values()), *self._reverses.values())

    async def restore(self, tunnels: Iterable[Tunnel]) -> None:
        """Take over what an earlier daemon made; a forward whose port is taken by now is given up."""
        async with self._turn:
            for tunnel in tunnels:
                if tunnel.kind is TunnelKind.REVERSE:
                    self._reverses[tunnel.listen] = tunnel
                    continue
                try:
                    self._listen(tunnel.listen, tunnel.dial)
                except FarmError as error:
                    log.warning("%s: a forward is lost: %s", self._serial, error)

    async def remake_reverses(self) -> tuple[str, ...]:
        """Make again what the adb server has forgotten; returns what could not be made, for people."""
        problems = []
        async with self._turn:
            there = parse_reverses(self._serial, await self._client.list_reverses(self._serial))
            for tunnel in tuple(self._reverses.values()):
                try:
                    if self._is_barred(tunnel.dial):
                        problems.append(f"reverse {tunnel.listen} is removed: {tunnel.dial} is farm's own door by now")
                        await self._remove_reverse(tunnel)
                    elif tunnel not in there:
                        await self._client.add_reverse(self._serial, tunnel.listen, tunnel.dial)
                except AdbError as error:
                    self._reverses.pop(tunnel.listen, None)
                    problems.append(f"reverse {tunnel.listen} is lost: {error.message}")
        return tuple(problems)

    async def close(self) -> None:
        """Remove all; what the phone does not answer for is left to its adbd, which forgets it with the link."""
        async with self._turn:
            await asyncio.gather(*(door.close() for _, door in self._forwards.values()))
            self._forwards.clear()
            for remote, tunnel in tuple(self._reverses.items()):
                try:
                    await self._remove_reverse(tunnel)
                except AdbError as error:
                    log.info("%s: reverse %s could not be removed: %s", self._serial, remote, error)
            self._reverses.clear()

    # -- forwards --

    def listing(self) -> str:
        """`SERIAL LOCAL REMOTE` lines."""
        return "".join(f"{self._serial} {each.listen} {each.dial}\n" for each, _ in self._forwards.values())

    async def add_forward(self, local: str, remote: str, *, rebind: bool) -> str:
        """Listen on the host; returns the port of `tcp:0`, or "".

        Raises:
            UserError: the lease has one there and `rebind` is not wanted, or has too many.
            AdbPortTaken: somebody else listens there.
        """
        async with self._turn:
            if local in self._forwards:
                if not rebind:
                    raise UserError("cannot rebind existing socket")
                await self._forwards.pop(local)[1].close()
            self._check_room()
            port = self._listen(local, remote)
            await self._changed()
            return str(port) if local == "tcp:0" else ""

    async def remove_forward(self, local: str | None) -> None:
        """Stop listening on the host's `local`, or on all.

        Raises:
            UserError: the lease has none there.
        """
        async with self._turn:
            if local is not None and local not in self._forwards:
                raise UserError(f"listener '{local}' not found")
            for each in [local] if local is not None else list(self._forwards):
                await self._forwards.pop(each)[1].close()
            await self._changed()

    def _listen(self, local: str, remote: str) -> int:
        door = Doorway(self._admits, lambda connection: self._connect(connection, remote))
        port = door.open(int(local.removeprefix("tcp:")))
        tunnel = Tunnel(TunnelKind.FORWARD, self._serial, f"tcp:{port}", remote)
        self._forwards[tunnel.listen] = (tunnel, door)
        return port

    async def _connect(self, connection: socket.socket, remote: str) -> None:
        async with await self._client.open_service(self._serial, remote) as phone:
            await relay(connection, phone.raw)

    # -- reverses --

    async def add_reverse(self, remote: str, local: str, *, rebind: bool) -> str:
        """Listen on the phone; returns the port of `tcp:0`, or "".

        Raises:
            UserError: nobody may lead the phone there, or the lease has too many.
            AdbError: the phone refused, or is not there.
        """
        if self._is_barred(local):
            raise UserError(f"not on a leased adb: the host's {local} is one of farm's own doors")
        async with self._turn:
            held = self._reverses.get(remote)
            if held is not None and rebind:
                with contextlib.suppress(AdbFailed):  # adb forgot it with a lost link
                    await self._remove_reverse(held)
            if remote not in self._reverses:
                self._check_room()
            chosen = await self._client.add_reverse(self._serial, remote, local)
            listen = f"tcp:{chosen}" if chosen else remote
            self._reverses[listen] = Tunnel(TunnelKind.REVERSE, self._serial, listen, local)
            await self._changed()
            return chosen

    async def remove_reverse(self, remote: str | None) -> None:
        """Stop listening on the phone's `remote`, or on all that the lease made.

        Raises:
            UserError: the lease has none there.
            AdbError: the phone refused, or is not there.
        """
        async with self._turn:
            if remote is not None and remote not in self._reverses:
                raise UserError(f"listener '{remote}' not found")
            try:
                for each in [remote] if remote is not None else list(self._reverses):
                    await self._remove_reverse(self._reverses[each])
            finally:
                await self._changed()

    def _is_barred(self, local: str) -> bool:
        return int(local.removeprefix("tcp:")) in self._barred_ports()

    def _check_room(self) -> None:
        if len(self.made) >= MOST_TUNNELS:
            raise UserError(f"not on a leased adb: a lease has at most {MOST_TUNNELS} forwards and reverses")

    async def _remove_reverse(self, tunnel: Tunnel) -> None:
        """Remove one although the phone may dial it (see the top of this file)."""
        placeholder = f"localabstract:farm-{secrets.token_hex(PLACEHOLDER_BYTES)}"
        await self._client.add_reverse(self._serial, placeholder, tunnel.dial)
        try:
            await self._client.remove_reverse(self._serial, tunnel.listen)
        finally:
            self._reverses.pop(tunnel.listen, None)
            await self._client.remove_reverse(self._serial, placeholder)
