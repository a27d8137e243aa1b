"""Where a virtual phone is found: a port of this host that listens exactly while the phone can be reached."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

LOOPBACK = "127.0.0.1"
_ADB_EMULATOR_SCAN = range(5553, 5588)  # the adb server looks for emulators there by itself


class Door:
    """A port that stays the phone's, open or not, and the one below it (the serial number's)."""

    def __init__(self, on_connection: Callable[[socket.socket], None]) -> None:
        self.on_connection = on_connection
        self._held = _hold_port_pair()
        self._listener: socket.socket | None = None
        self.port = int(self._held[0].getsockname()[1])

    def set_open(self, *, wanted: bool) -> None:
        """Listen or not: adb looks for a lost phone each second for a minute."""
        if wanted and self._listener is None:
            self._listener = _listen_on(self.port)
            asyncio.get_running_loop().add_reader(self._listener, self._accept)
        elif not wanted and self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Give the port back."""
        self.set_open(wanted=False)
        for sock in self._held:
            sock.close()

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the server changed its mind
        with connection:
            self.on_connection(connection)


class HasDoor(Protocol):
    """A phone with a door."""

    door: Door
    port: int


def trade_doors(one: HasDoor, other: HasDoor) -> None:
    """Each gets the other's port, and so its serial number. Both doors must be closed."""
    one.door.on_connection, other.door.on_connection = other.door.on_connection, one.door.on_connection
    one.door, other.door = other.door, one.door
    one.port, other.port = other.port, one.port


def _hold_port_pair() -> tuple[socket.socket, socket.socket]:
    """Two sockets that keep a port of the kernel's choice and the one below it (the serial number's) from others."""
    while True:
        door, console = socket.socket(), socket.socket()
        try:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            door.bind((LOOPBACK, 0))
            port = int(door.getsockname()[1])
            console.bind((LOOPBACK, port - 1))
        except OSError:
            port = 0
        if port and port not in _ADB_EMULATOR_SCAN:
            return door, console
        door.close()
        console.close()


def _listen_on(port: int) -> socket.socket:
    listener = socket.socket()
    # A connection of the last life may linger in TIME_WAIT; the port itself is held by a socket that does not listen.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((LOOPBACK, port))
    listener.listen(8)
    listener.setblocking(False)
    return listener
