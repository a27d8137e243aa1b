"""Who dials a leased adb, or one of its forwards: which user of this host, told from what a phone's reverse dials.

For a reverse the adb server dials, under the daemon's uid, which may use every lease: a phone is told apart by the
process that has the socket. Where a reverse leads cannot be checked when it is made: doors open later.
"""

from __future__ import annotations

import asyncio
import os
import socket

from farm.adb.connection import ServerAddress
from farm.adb.program import holds_socket, server_pid
from farm.core.errors import NotAllowedError
from farm.tracker.sockets import UserNames, owner_of


class LeasePeople:
    """Whose a loopback connection is."""

    def __init__(self, adb: ServerAddress) -> None:
        """`adb` is where the real adb server listens."""
        self._adb = adb
        self._names = UserNames()

    async def __call__(self, connection: socket.socket) -> str:
        """The name under which they submit jobs; "" for root and the daemon's user.

        Raises:
            NotAllowedError: a phone, or nobody that can be told.
            OSError: they have left.
        """
        owner = owner_of(connection)
        if owner is None:
            raise NotAllowedError("the kernel does not say who connects")
        if owner.uid not in (0, os.geteuid()):
            return await self._names(owner.uid)
        if await asyncio.to_thread(self._is_adb_server, owner.inode):
            raise NotAllowedError("a phone dials a lease through a reverse")
        if owner_of(connection) != owner:  # closed while we looked: what it has sent must not count
            raise NotAllowedError("whoever connected has left")
        return ""

    def _is_adb_server(self, inode: int) -> bool:
        try:
            return holds_socket(server_pid(self._adb), inode)
        except OSError as error:
            raise NotAllowedError(f"it cannot be told from a phone who connects: {error}") from error
