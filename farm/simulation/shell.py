"""`shell:`, `shell,v2:` and `exec:`: a program on the phone, connected to a stream.

Which descriptors it gets follows adbd: with the shell protocol and `raw`, one socket pair for stdin and stdout and one
for stderr; with the protocol otherwise a terminal; without the protocol a terminal in raw mode. A lost stream sends
SIGHUP to the shell's pid alone; what it started in the background lives on.

`Reaper` collects children that ended: shells and, as pid 1 of a namespace, what they left behind.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import termios
import tty
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from farm.common.errors import ProtocolError
from farm.simulation.shell_protocol import HEADER, ShellDecoder, ShellId, encode, parse_window_size

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from farm.simulation.machine import Machine, OutputFilter
    from farm.simulation.packets import Buffer
    from farm.simulation.session import Stream

_READ_BYTES = 64 * 1024
_QUEUE_LIMIT_BYTES = 1024 * 1024  # the program waits while the host is this far behind
_INPUT_LIMIT_BYTES = 1024 * 1024  # the host waits while the program is this far behind
_TYPING_PAUSE_S = 0.03  # who types must see the first letters of what may become a path
# Python ignores SIGPIPE; a shell that inherits that never ends `yes | head`.
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
_CANNOT_RUN = 127


class Descriptors(Enum):
    """Kinds of the program's stdin, stdout and stderr."""

    SOCKET_PAIRS = "stdin+stdout on one socket pair, stderr on another"
    TERMINAL = "a terminal"
    RAW_TERMINAL = "a terminal in raw mode"


@dataclass(frozen=True, slots=True)
class ShellRequest:
    """A parsed shell service name."""

    command: str
    protocol: bool  # the bytes are packets with ids, and the exit code is told
    descriptors: Descriptors
    terminal: str = ""  # TERM


def parse_shell(service: str) -> ShellRequest:
    """Read `shell:CMD`, `shell,v2,raw:CMD`, `exec:CMD`."""
    head, _, command = service.partition(":")
    name, *arguments = head.split(",")
    if name == "exec":
        return ShellRequest(command, protocol=False, descriptors=Descriptors.RAW_TERMINAL)
    protocol, raw, terminal = False, False, ""
    for argument in arguments:
        if argument == "v2":
            protocol = True
        elif argument == "raw":
            raw = True
        elif argument == "pty":
            raw = False
        elif argument.startswith("TERM="):
            terminal = argument.removeprefix("TERM=")
        elif argument:
            raise ProtocolError(f"unknown shell argument {argument!r}")
    if not protocol:
        return ShellRequest(command, protocol=False, descriptors=Descriptors.RAW_TERMINAL, terminal=terminal)
    return ShellRequest(command, True, Descriptors.SOCKET_PAIRS if raw else Descriptors.TERMINAL, terminal)


class ShellService:
    """One running program behind one stream."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stream: Stream, machine: Machine, reaper: Reaper, request: ShellRequest
    ) -> None:
        self._loop = loop
        self._stream = stream
        self._reaper = reaper
        self._protocol = request.protocol
        self._decoder = ShellDecoder()
        self._outputs: dict[int, ShellId] = {}  # descriptors still open, and what comes from them
        self._filters: dict[int, OutputFilter] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._reading = False
        self._input: int | None = None
        self._unsent = bytearray()
        self._owes_acknowledgement = False
        self._close_input_when_sent = False
        self._terminal: int | None = None
        self._owned: list[int] = []
        self._exit_code: int | None = None
        try:
            self._pid = self._start(machine, request)
        except (OSError, ValueError):
            self._release()
            raise
        for descriptor in self._outputs:
            if (output_filter := machine.new_filter()) is not None:
                self._filters[descriptor] = output_filter
        reaper.watch(self._pid, self._ended)
        self._resume_reading()

    # -- Service -----------------------------------------------------------------------------------------------------

    def received(self, payload: Buffer) -> None:
        """Input for the program."""
        if not self._protocol:
            self._feed_input(payload)
        else:
            try:
                pieces = self._decoder.feed(payload)
            except ProtocolError:
                self._stream.close()
                self.closed()
                return
            for piece in pieces:
                if piece.id is ShellId.STDIN:
                    self._feed_input(piece.data)
                elif piece.id is ShellId.CLOSE_STDIN:
                    self._close_input_when_sent = True
                    self._push_input()
                elif piece.id is ShellId.WINDOW_SIZE:
                    self._resize(piece.data)
        if len(self._unsent) < _INPUT_LIMIT_BYTES:
            self._stream.acknowledge()
        else:
            self._owes_acknowledgement = True

    def drained(self) -> None:
        """The host took the output: read on."""
        self._resume_reading()

    def closed(self) -> None:
        """The host or the link is gone."""
        self._release()
        self._reaper.send_signal(self._pid, signal.SIGHUP)

    # -- start -------------------------------------------------------------------------------------------------------

    def _start(self, machine: Machine, request: ShellRequest) -> int:
        environment = dict(machine.environment)
        if request.terminal:
            environment["TERM"] = request.terminal
        argv = list(machine.shell_argv(request.command))
        if request.descriptors is Descriptors.SOCKET_PAIRS:
            return self._start_on_sockets(argv, environment)
        return self._start_on_terminal(argv, environment, raw=request.descriptors is Descriptors.RAW_TERMINAL)

    def _start_on_sockets(self, argv: list[str], environment: Mapping[str, str]) -> int:
        ours, theirs = socket.socketpair()
        our_errors, their_errors = socket.socketpair()
        actions: list[tuple[int, int, int]] = [
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, their_errors.fileno(), 2),
        ]
        with theirs, their_errors:
            ours.setblocking(False)
            our_errors.setblocking(False)
            output, errors = ours.detach(), our_errors.detach()
            self._owned = [output, errors]
            pid = os.posix_spawn(
                argv[0], argv, environment, file_actions=actions, setsid=True, setsigdef=_DEFAULT_SIGNALS
            )
        self._input = output
        self._outputs = {output: ShellId.STDOUT, errors: ShellId.STDERR}
        return pid

    def _start_on_terminal(self, argv: list[str], environment: Mapping[str, str], *, raw: bool) -> int:
        ours, theirs = os.openpty()
        self._owned = [ours]
        try:
            if raw:
                tty.setraw(theirs)
            # A session leader that opens a terminal gets it as its controlling one.
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.ttyname(theirs), os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            ]
            pid = os.posix_spawn(
                argv[0], argv, environment, file_actions=actions, setsid=True, setsigdef=_DEFAULT_SIGNALS
            )
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        self._input = self._terminal = ours
        self._outputs = {ours: ShellId.STDOUT}
        return pid

    # -- output ------------------------------------------------------------------------------------------------------

    def _resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            for descriptor in self._outputs:
                self._loop.add_reader(descriptor, self._on_readable, descriptor)

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            for descriptor in self._outputs:
                self._loop.remove_reader(descriptor)

    def _on_readable(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: the last program left the terminal
            data = b""
        output_filter = self._filters.get(descriptor)
        if not data:
            self._loop.remove_reader(descriptor)
            if output_filter is not None:
                self._say(descriptor, output_filter.flush())
            del self._outputs[descriptor]
            self._finish_when_over()
            return
        if output_filter is not None:
            data = output_filter.feed(data)
            if self._terminal is not None:
                self._flush_after_a_pause(descriptor, output_filter)
        self._say(descriptor, data)
        if self._stream.queued_bytes >= _QUEUE_LIMIT_BYTES:
            self._pause_reading()

    def _say(self, descriptor: int, data: bytes) -> None:
        if not data:
            return
        if not self._protocol:
            self._stream.write(data)
        else:
            self._stream.write(HEADER.pack(self._outputs[descriptor], len(data)) + data)

    def _flush_after_a_pause(self, descriptor: int, output_filter: OutputFilter) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if output_filter.pending:
            self._pause = self._loop.call_later(_TYPING_PAUSE_S, lambda: self._say(descriptor, output_filter.flush()))

    def _ended(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._finish_when_over()

    def _finish_when_over(self) -> None:
        # A background child that kept stdout open keeps the stream open too, as on a phone.
        if self._outputs or self._exit_code is None or not self._stream.is_open:
            return
        if self._protocol:
            self._stream.write(encode(ShellId.EXIT, bytes([self._exit_code & 0xFF])))
        self._stream.finish()
        self._release()

    # -- input -------------------------------------------------------------------------------------------------------

    def _feed_input(self, data: Buffer) -> None:
        if self._input is not None:
            self._unsent += data
            self._push_input()

    def _push_input(self) -> None:
        if self._input is None:
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(self._input, self._unsent)]
        except BlockingIOError:
            self._loop.add_writer(self._input, self._push_input)
            return
        except OSError:  # the program closed its stdin, or is gone
            self._unsent.clear()
        self._loop.remove_writer(self._input)
        if self._owes_acknowledgement:
            self._owes_acknowledgement = False
            self._stream.acknowledge()
        if self._close_input_when_sent:
            self._close_input()

    def _close_input(self) -> None:
        if self._input is None:
            return
        if self._terminal is None:
            with socket.socket(fileno=os.dup(self._input)) as ours:
                _shut_writing(ours)
        self._input = None

    def _resize(self, data: bytes) -> None:
        if self._terminal is None:
            return
        try:
            size = parse_window_size(data)
        except ProtocolError:
            return  # adbd ignores a size it cannot read
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("<4H", *size))

    def _release(self) -> None:
        self._pause_reading()
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._outputs.clear()
        if self._input is not None:
            self._loop.remove_writer(self._input)
            self._input = None
        self._terminal = None
        for descriptor in self._owned:
            os.close(descriptor)
        self._owned.clear()


def failed_output(request: ShellRequest, reason: str) -> bytes:
    """The output for the host when the shell itself cannot be started."""
    text = f"cannot start the shell: {reason}\n".encode()
    if not request.protocol:
        return text
    return encode(ShellId.STDERR, text) + encode(ShellId.EXIT, bytes([_CANNOT_RUN]))


def _shut_writing(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the program ended first


class Reaper:
    """Waits for every child of this process and calls back with its status. One per process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watched: dict[int, Callable[[int], None]] = {}
        loop.add_signal_handler(signal.SIGCHLD, self._collect)

    def watch(self, pid: int, ended: Callable[[int], None]) -> None:
        """Call `ended(exit code)` when the child ends; a signal n counts as 128 + n, as adbd reports it."""
        self._watched[pid] = ended

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Signal a watched child; does nothing once it ended (its pid may be another's by then)."""
        if pid in self._watched:
            os.kill(pid, number)

    def _collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._watched.pop(pid, None)
            if ended is not None:
                code = os.waitstatus_to_exitcode(status)
                ended(code if code >= 0 else 128 - code)
