"""A network of its own for each host of a lab, in namespaces of the kernel, whose cables can lose packets one way.

The hosts' cables end at one switch, where the database is too. A lost packet is lost in silence: no end of a connection
is told anything. Nothing is left of the network when its object and the processes in it have ended.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum

from farm.common.errors import HostError
from farm.simulation.namespaces import CLONE_NEWNET, unshare
from tests.support.needs import lacks

SWITCH = "switch"  # the name of its place, for a database
_LOSES_ALL = ("tbf", "rate", "8bit", "burst", "1", "limit", "1")  # no packet fits into one byte


class Lost(StrEnum):
    """The packets that a host's cable loses."""

    FROM_HOST = "from the host"
    TO_HOST = "to the host"


class HostNetwork:
    """The namespaces. `inside` puts processes into them, `lose` and `mend` cut a host off and connect it again."""

    def __init__(self, *hosts: str) -> None:
        """Make it.

        Raises:
            HostError: this machine lacks a program for it, or does not allow it.
        """
        if why := lacks("ip", "tc"):
            raise HostError(why)
        self._stack = ExitStack()
        self._spaces: dict[str, int] = {}
        self._own = self._opened()
        self._hosts = hosts
        try:
            self._spaces = {name: self._new_space() for name in (SWITCH, *hosts)}
            self._connect()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            raise HostError(f"this host lets us make no network namespaces: {error}") from error

    def close(self) -> None:
        """Forget it."""
        self._stack.close()

    def address(self, place: str) -> str:
        """The address of a host, or of the switch."""
        return f"10.77.0.{1 + [SWITCH, *self._hosts].index(place)}"

    @contextmanager
    def inside(self, place: str) -> Iterator[None]:
        """The processes and sockets that this thread makes meanwhile are there."""
        join_network(self._spaces[place])
        try:
            yield
        finally:
            join_network(self._own)

    def lose(self, host: str, *lost: Lost) -> None:
        """Lose these packets from now on."""
        for each in lost:
            self._cable(host, each, "add", *_LOSES_ALL)

    def mend(self, host: str, *lost: Lost) -> None:
        """Lose them no more."""
        for each in lost:
            self._cable(host, each, "del")

    def _cable(self, host: str, lost: Lost, change: str, *how: str) -> None:
        """What an end of the cable sends passes its queue: the host's end, or the switch's."""
        place, device = (host, "cable") if lost is Lost.FROM_HOST else (SWITCH, f"to-{host}")
        with self.inside(place):
            _run("tc", "qdisc", change, "dev", device, "root", *how)

    def _connect(self) -> None:
        with self.inside(SWITCH):
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", SWITCH, "type", "bridge")
            _run("ip", "address", "add", f"{self.address(SWITCH)}/24", "dev", SWITCH)
            _run("ip", "link", "set", SWITCH, "up")
            for host in self._hosts:
                there = f"/proc/{os.getpid()}/fd/{self._spaces[host]}"
                _run("ip", "link", "add", f"to-{host}", "type", "veth", "peer", "name", "cable", "netns", there)
                _run("ip", "link", "set", f"to-{host}", "master", SWITCH, "up")
        for host in self._hosts:
            with self.inside(host):
                _run("ip", "link", "set", "lo", "up")
                _run("ip", "address", "add", f"{self.address(host)}/24", "dev", "cable")
                _run("ip", "link", "set", "cable", "up")

    def _new_space(self) -> int:
        unshare(CLONE_NEWNET)
        try:
            return self._opened()
        finally:
            join_network(self._own)

    def _opened(self) -> int:
        """A descriptor of this thread's network, which keeps it."""
        descriptor = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._stack.callback(os.close, descriptor)
        return descriptor


def join_network(space: int) -> None:
    """Bring this thread into the network of a descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(space, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "setns")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
