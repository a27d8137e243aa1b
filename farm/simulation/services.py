"""Which service name leads where: adbd's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from farm.common.errors import ProtocolError
from farm.simulation.shell import ShellService, failed_output, parse_shell
from farm.simulation.sockets import SocketService, dial, parse_address
from farm.simulation.sync import SyncService

if TYPE_CHECKING:
    import asyncio
    import socket

    from farm.simulation.machine import DiskQuota, Machine, PushFuse
    from farm.simulation.packets import Buffer
    from farm.simulation.session import Stream
    from farm.simulation.shell import Reaper
    from farm.simulation.sockets import ReverseTable

# What this adbd can do, in the words of its banner. No compression: a phone may lack it, and the loopback needs none.
FEATURES = (
    "shell_v2",
    "cmd",
    "stat_v2",
    "ls_v2",
    "fixed_push_mkdir",
    "fixed_push_symlink_timestamp",
    "sendrecv_v2",
    "sendrecv_v2_dry_run_send",
)
_SOCKET_SERVICES = ("tcp:", "localabstract:", "localreserved:", "localfilesystem:", "local:")
# What adbd of a production build answers, before it closes the stream.
_REFUSALS = {
    "root:": "adbd cannot run as root in production builds\n",
    "unroot:": "adbd not running as root\n",
    "remount:": "remount failed: Permission denied\n",
    "disable-verity:": "verity cannot be disabled/enabled - USER build\n",
    "enable-verity:": "verity cannot be disabled/enabled - USER build\n",
}


class PhoneControls(Protocol):
    """The interface of a phone for its services."""

    loop: asyncio.AbstractEventLoop
    machine: Machine
    reaper: Reaper
    quota: DiskQuota
    fuse: PushFuse
    reverses: ReverseTable

    def reboot(self, into: str) -> None:
        """Go down and come back; `into` is empty, `recovery`, `bootloader`, ..."""


def open_service(phone: PhoneControls, name: str, stream: Stream) -> None:
    """Start the service `name` behind `stream`, or refuse it."""
    if name.startswith(_SOCKET_SERVICES):
        _open_socket(phone, name, stream)
    elif name == "sync:":
        stream.accept(SyncService(stream, phone.machine, phone.quota, phone.fuse))
    elif name.startswith(("shell:", "shell,", "exec:")):
        _open_shell(phone, name, stream)
    elif name.startswith("reverse:"):
        _say(stream, phone.reverses.run(name.removeprefix("reverse:")))
    elif name.startswith("reboot:"):
        stream.accept(_Statement(stream))
        phone.reboot(name.removeprefix("reboot:"))
    elif name in _REFUSALS:
        _say(stream, _REFUSALS[name].encode())
    else:
        stream.refuse()


def _open_shell(phone: PhoneControls, name: str, stream: Stream) -> None:
    try:
        request = parse_shell(name)
    except ProtocolError:
        stream.refuse()
        return
    try:
        stream.accept(ShellService(phone.loop, stream, phone.machine, phone.reaper, request))
    except (OSError, ValueError) as error:  # no shell, no terminal, a NUL in the command
        _say(stream, failed_output(request, str(error)))


def _open_socket(phone: PhoneControls, name: str, stream: Stream) -> None:
    try:
        address = parse_address(name, phone.machine.translate)
    except ProtocolError:
        stream.refuse()
        return

    def connected(sock: socket.socket | None) -> None:
        if sock is None:
            stream.refuse()
        elif not stream.is_open:
            sock.close()
        else:
            service = SocketService(phone.loop, stream, sock)
            stream.accept(service)
            service.start()

    dial(phone.loop, address, connected)


def _say(stream: Stream, text: bytes) -> None:
    stream.accept(_Statement(stream))
    stream.write(text)
    stream.finish()


class _Statement:
    """A service that says something and ends."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def received(self, _payload: Buffer, /) -> None:
        """Nobody listens."""
        self._stream.acknowledge()

    def drained(self) -> None:
        """Nothing more to say."""

    def closed(self) -> None:
        """Nothing to release."""
