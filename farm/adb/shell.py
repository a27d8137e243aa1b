"""Commands on a phone: the result of a finished command, and the stream of a running command."""

from __future__ import annotations

import codecs
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from farm.adb.connection import AdbConnection, deadline
from farm.adb.errors import AdbFailed, AdbLinkLost, AdbTimeout
from farm.adb.host_protocol import CLOSE_STDIN_PACKET, SentinelReader, ShellPacketId, ShellReader

MAX_OUTPUT_BYTES = 64 << 20  # of one command; a runaway one must not fill the daemon's memory
MAX_LINE_CHARACTERS = 1 << 20  # of a line that has not ended
STDERR_TAIL_BYTES = 16 << 10  # of stderr that a stream keeps, as evidence
_EVIDENCE_BYTES = 2000


@dataclass(frozen=True, slots=True)
class ShellResult:
    """A finished command. Without shell,v2 on the phone, stderr is merged into stdout."""

    stdout: bytes
    stderr: bytes
    exit_code: int

    @property
    def text(self) -> str:
        """Stdout as text, with undecodable bytes replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def output(self) -> str:
        """Stdout, then stderr, as text."""
        return self.text + self.stderr.decode("utf-8", "replace")


def new_sentinel() -> SentinelReader:
    """A reader with a token that no command's output can contain by accident or on purpose."""
    return SentinelReader(f"farm-{secrets.token_hex(8)}")


class ShellStream:
    """A command that continues: `async for chunk in stream` or `stream.lines()`, then `exit_code`.

    It ends with AdbLinkLost when phone, link or server went away before the command ended. Its opener closes it.
    """

    def __init__(
        self,
        connection: AdbConnection,
        serial: str,
        sentinel: SentinelReader | None,
        *,
        stderr_bytes: int = STDERR_TAIL_BYTES,
        on_stderr: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        """`stderr_bytes`: how much of its end is kept. `on_stderr` gets all of it and sets its pace."""
        self.serial = serial
        self._connection = connection
        self._stderr_bytes = stderr_bytes
        self._on_stderr = on_stderr
        self._unread_stderr = bytearray()
        self._sentinel = sentinel  # None: shell,v2
        self._packets = ShellReader()
        self._stderr = bytearray()
        self._ended = False
        self.exit_code: int | None = None  # None until the command has ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks()

    @property
    def stderr(self) -> bytes:
        """The end of stderr so far. Always empty without shell,v2: adbd merges it into stdout."""
        return bytes(self._stderr)

    @property
    def translated(self) -> bool:
        """Whether an old pty turned every newline of stdout into CR LF, known at the end only."""
        return self._sentinel is not None and self._sentinel.translated

    async def read(self, *, timeout_s: float | None = None) -> bytes:
        """The next piece of stdout; empty once the command has ended.

        Args:
            timeout_s: None waits for as long as the command stays silent.

        Raises:
            AdbLinkLost: the stream ended before the command did.
            AdbTimeout: no byte came in time (the command continues).
        """
        async with deadline(timeout_s, self._silent):
            while not self._ended:
                data = await self._connection.receive()
                out = self._take_v2(data) if self._sentinel is None else self._take_v1(self._sentinel, data)
                if self._unread_stderr and self._on_stderr is not None:
                    unread, self._unread_stderr = bytes(self._unread_stderr), bytearray()
                    await self._on_stderr(unread)
                if out:
                    return out
        return b""

    async def lines(self) -> AsyncIterator[str]:
        """Stdout line by line, without line ends; the last one even if it has none. An endless one comes in pieces."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        rest = ""
        async for chunk in self:
            *whole, rest = (rest + decode(chunk)).split("\n")
            for line in whole:
                yield line.removesuffix("\r")
            if len(rest) > MAX_LINE_CHARACTERS:
                yield rest
                rest = ""
        rest += decode(b"", final=True)
        if rest:
            yield rest

    async def close_stdin(self, *, timeout_s: float = 10.0) -> None:
        """Ends the command's stdin. Does nothing without shell,v2: that stream has no half-close."""
        if self._sentinel is None:
            # A short command may be over by now, its output waiting for us: reading shows whether the link was lost.
            with contextlib.suppress(AdbLinkLost):
                async with deadline(timeout_s, self._silent):
                    await self._connection.send(CLOSE_STDIN_PACKET)

    def close(self) -> None:
        """Ends the stream. adbd then sends SIGHUP to the shell if it still runs."""
        self._ended = True
        self._connection.close()

    async def _chunks(self) -> AsyncIterator[bytes]:
        while chunk := await self.read():
            yield chunk

    def _take_v2(self, data: bytes) -> bytes:
        if not data:
            raise self._lost()
        self._packets.feed(data)
        out: list[bytes] = []
        for packet in self._packets:
            if packet.id is ShellPacketId.STDOUT:
                out.append(packet.data)
            elif packet.id is ShellPacketId.STDERR:
                self._stderr += packet.data
                del self._stderr[: -self._stderr_bytes]
                if self._on_stderr is not None:
                    self._unread_stderr += packet.data
            elif packet.id is ShellPacketId.EXIT:
                self.exit_code = packet.data[0]
                self._ended = True
        return out[0] if len(out) == 1 else b"".join(out)

    def _take_v1(self, sentinel: SentinelReader, data: bytes) -> bytes:
        if data:
            return sentinel.feed(data)
        out = sentinel.finish()
        self._ended = True
        if sentinel.exit_code is None:
            raise self._lost(out)
        self.exit_code = sentinel.exit_code
        return out

    def _lost(self, out: bytes = b"") -> AdbLinkLost:
        self._ended = True
        words = (bytes(self._stderr) or out)[-_EVIDENCE_BYTES:].decode("utf-8", "replace")
        return AdbLinkLost(f"The link to phone {self.serial} ended before its command did.", evidence=words)

    def _silent(self) -> AdbTimeout:
        return AdbTimeout(f"The command on phone {self.serial} neither sent nor took any byte in time.")


async def collect(stream: ShellStream, kept: list[bytes], *, most_bytes: int = MAX_OUTPUT_BYTES) -> ShellResult:
    """Reads a command to its end. `kept` grows with stdout, so that a caller who gives up has the evidence.

    Raises:
        AdbLinkLost: the stream ended before the command did.
        AdbFailed: more output than `most_bytes`.
    """
    size = 0
    while chunk := await stream.read():
        kept.append(chunk)
        size += len(chunk)
        if size > most_bytes:
            raise AdbFailed(f"A command on phone {stream.serial} printed more than {most_bytes >> 20} MiB.")
    assert stream.exit_code is not None  # read() ends in no other way
    out = b"".join(kept)
    return ShellResult(out.replace(b"\r\n", b"\n") if stream.translated else out, stream.stderr, stream.exit_code)
