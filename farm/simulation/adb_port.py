"""The port of this host on which adb finds a virtual phone: it listens exactly while the phone can be reached."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from farm.simulation.lab_phone import LabPhone

LOOPBACK = "127.0.0.1"
_ADB_EMULATOR_SCAN = range(5553, 5588)  # the adb server looks for emulators there by itself


class AdbPort:
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
            return  # the server closed it before it was accepted
        with connection:
            self.on_connection(connection)


def swap_ports(one: LabPhone, other: LabPhone) -> None:
    """Each gets the other's port, and so its serial number. Both ports must be closed."""
    one.adb_port.on_connection, other.adb_port.on_connection = other.adb_port.on_connection, one.adb_port.on_connection
    one.adb_port, other.adb_port = other.adb_port, one.adb_port
    one.port, other.port = other.port, one.port


def _hold_port_pair() -> tuple[socket.socket, socket.socket]:
    """Two sockets that keep a port of the kernel's choice and the one below it (the serial number's) from others."""
    while True:
        adb, console = socket.socket(), socket.socket()
        try:
            adb.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            adb.bind((LOOPBACK, 0))
            port = int(adb.getsockname()[1])
            console.bind((LOOPBACK, port - 1))
        except OSError:
            port = 0
        if port and port not in _ADB_EMULATOR_SCAN:
            return adb, console
        adb.close()
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
