"""`reverse:`: listeners on the phone whose connections the host answers. They live as long as the link."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.core.errors import ProtocolError
from farm.simulation.sockets import SocketService, describe, listen, parse_address

if TYPE_CHECKING:
    import asyncio

    from farm.simulation.machine import Machine
    from farm.simulation.session import Session


@dataclass(frozen=True, slots=True)
class _Listener:
    local: str
    destination: str
    socket: socket.socket


class ReverseTable:
    """The reverse forwards of one session."""

    def __init__(self, loop: asyncio.AbstractEventLoop, machine: Machine, transport_name: str) -> None:
        self._loop = loop
        self._machine = machine
        self._transport_name = transport_name  # the first column of `adb reverse --list`; not the serial
        self._listeners: dict[str, _Listener] = {}
        self.session: Session | None = None

    def run(self, command: str) -> bytes:
        """Perform what follows `reverse:` and return the bytes of the whole answer."""
        try:
            return self._perform(command)
        except ProtocolError as error:
            return _fail(error.message)

    def close(self) -> None:
        """The link is gone, and all listeners with it."""
        for listener in self._listeners.values():
            self._stop(listener)
        self._listeners.clear()

    def _perform(self, command: str) -> bytes:
        if command == "list-forward":
            rows = (f"{self._transport_name} {item.local} {item.destination}\n" for item in self._listeners.values())
            text = "".join(rows).encode()
            return f"{len(text):04x}".encode() + text
        if command == "killforward-all":
            self.close()
            return b"OKAY"
        verb, colon, rest = command.partition(":")
        if verb == "killforward" and colon:
            listener = self._listeners.pop(rest, None)
            if listener is None:
                raise ProtocolError(f"listener '{rest}' not found")
            self._stop(listener)
            return b"OKAY"
        if verb == "forward" and colon:
            return self._forward(rest)
        raise ProtocolError(f"unknown reverse command {command!r}")

    def _forward(self, rest: str) -> bytes:
        keep_existing = rest.startswith("norebind:")
        local, semicolon, destination = rest.removeprefix("norebind:").partition(";")
        if not semicolon or not local or not destination:
            raise ProtocolError(f"bad forward: {rest}")
        existing = self._listeners.get(local)
        if existing is not None:
            if keep_existing:
                raise ProtocolError("cannot rebind existing socket")
            self._listeners[local] = _Listener(local, destination, existing.socket)
            return b"OKAY"
        try:
            sock = listen(parse_address(local, self._machine.translate))
        except OSError as error:
            raise ProtocolError(f"cannot bind listener: {describe(error)}") from error
        answer = b"OKAY"
        if local == "tcp:0":
            port = str(sock.getsockname()[1])
            local = f"tcp:{port}"
            answer += f"{len(port):04x}{port}".encode()
        self._listeners[local] = _Listener(local, destination, sock)
        self._loop.add_reader(sock, self._on_connection, local)
        return answer

    def _on_connection(self, local: str) -> None:
        listener = self._listeners.get(local)
        if listener is None or self.session is None:
            return
        try:
            sock, _ = listener.socket.accept()
        except OSError:
            return  # it went away again, or descriptors ran out: the backlog keeps it
        sock.setblocking(False)
        stream = self.session.open(listener.destination)
        stream.service = SocketService(self._loop, stream, sock)

    def _stop(self, listener: _Listener) -> None:
        self._loop.remove_reader(listener.socket)
        listener.socket.close()


def _fail(message: str) -> bytes:
    text = message.encode()
    return b"FAIL" + f"{len(text):04x}".encode() + text
