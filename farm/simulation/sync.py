"""The `sync:` service: files in and out as adbd does it, with its modes, its order of attempts and its words.

File work happens on the event loop: it goes to the page cache of the lab host, tens of microseconds for 64 KiB.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.common.errors import ProtocolError
from farm.simulation.sync_protocol import (
    FLAG_DRY_RUN,
    MAX_DATA_BYTES,
    ListRequest,
    Message,
    Quit,
    ReceiveRequest,
    SendEnd,
    SendPiece,
    SendRequest,
    StatRequest,
    SyncDecoder,
    encode_entry,
    encode_fail,
    encode_list_end,
    encode_ok,
    encode_receive_end,
    encode_stat,
)

if TYPE_CHECKING:
    from farm.simulation.machine import DiskQuota, Machine, PushFuse
    from farm.simulation.packets import Buffer
    from farm.simulation.session import Stream

_DATA_HEADER = struct.Struct("<4sI")
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO without a writer must not stop the phone
_CHUNK_BYTES = _DATA_HEADER.size + MAX_DATA_BYTES
_FOLDER_MODE = 0o775  # what adbd's secure_mkdirs gives folders it makes on the way
_LIST_PORTION_BYTES = 256 * 1024


@dataclass(slots=True)
class _Incoming:
    """A file that is being pushed. `descriptor` is None for symlinks, dry runs and after a failure."""

    path: bytes
    mode: int
    unlink_on_failure: bool
    descriptor: int | None = None
    link_target: bytearray | None = None
    failed: bool = False
    created: bool = False


class SyncService:
    """One `sync:` stream."""

    def __init__(self, stream: Stream, machine: Machine, quota: DiskQuota, fuse: PushFuse) -> None:
        self._stream = stream
        self._machine = machine
        self._quota = quota
        self._fuse = fuse
        self._decoder = SyncDecoder()
        self._incoming: _Incoming | None = None
        self._outgoing: _Outgoing | None = None
        self._waiting: list[bytes] = []  # requests that came while a file was going out

    # -- Service -----------------------------------------------------------------------------------------------------

    def received(self, payload: Buffer) -> None:
        """Work on requests; the host may send the next packet meanwhile."""
        if self._outgoing is not None:
            self._waiting.append(bytes(payload))
            return
        self._stream.acknowledge(at_once=True)
        try:
            for message in self._decoder.feed(payload):
                if not self._stream.is_open:
                    return
                self._handle(message)
        except ProtocolError as error:
            self._abandon_incoming()
            self._stream.write(encode_fail(error.message))
            self._stream.finish()

    def drained(self) -> None:
        """Send the next portion of the file that is going out."""
        if self._outgoing is None:
            return
        if self._outgoing.send_portion(self._stream):
            return
        self._outgoing = None
        waiting, self._waiting = self._waiting, []
        for payload in waiting:
            self.received(payload)

    def closed(self) -> None:
        """The link is gone: remove half-pushed files."""
        self._abandon_incoming()
        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None

    # -- requests ----------------------------------------------------------------------------------------------------

    def _handle(self, message: Message) -> None:
        if isinstance(message, SendPiece):
            self._on_piece(message.data)
        elif isinstance(message, SendEnd):
            self._on_end(message.mtime)
        elif isinstance(message, SendRequest):
            self._on_send(message)
        elif isinstance(message, StatRequest):
            self._on_stat(message)
        elif isinstance(message, ListRequest):
            self._on_list(message)
        elif isinstance(message, ReceiveRequest):
            self._on_receive(message)
        elif isinstance(message, Quit):
            self._stream.finish()

    def _on_stat(self, request: StatRequest) -> None:
        read_status = os.stat if request.kind == b"STA2" else os.lstat
        try:
            reply = encode_stat(request.kind, read_status(self._machine.translate(request.path)))
        except OSError as error:
            reply = encode_stat(request.kind, None, error.errno or errno.EIO)
        except ValueError:  # a NUL inside the path
            reply = encode_stat(request.kind, None, errno.EINVAL)
        self._stream.write(reply)

    def _on_list(self, request: ListRequest) -> None:
        folder = self._machine.translate(request.path)
        reply = bytearray()
        for name in _entries(folder):
            try:
                reply += encode_entry(request.kind, name, os.lstat(os.path.join(folder, name)))  # noqa: PTH118 (bytes)
            except OSError as error:
                if request.kind == b"LIS2":
                    reply += encode_entry(request.kind, name, None, error.errno or errno.EIO)
            if len(reply) >= _LIST_PORTION_BYTES:
                self._stream.write(bytes(reply))
                reply.clear()
        self._stream.write(bytes(reply) + encode_list_end(request.kind))

    def _on_receive(self, request: ReceiveRequest) -> None:
        if request.flags:
            self._fail(f"unsupported flags 0x{request.flags:x} in RCV2")
            return
        try:
            descriptor = os.open(self._machine.translate(request.path), _READ_FLAGS)
        except (OSError, ValueError) as error:
            self._fail(f"open failed: {_words(error)}")
            return
        self._outgoing = _Outgoing(descriptor, self._stream.max_payload)
        self.drained()

    # -- a file comes in -----------------------------------------------------------------------------------------------

    def _on_send(self, request: SendRequest) -> None:
        path = self._machine.translate(request.path)
        dry_run = bool(request.flags & FLAG_DRY_RUN)
        incoming = _Incoming(path, request.mode, unlink_on_failure=False)
        self._incoming = incoming
        if request.flags & ~FLAG_DRY_RUN:
            self._fail(f"unsupported flags 0x{request.flags:x} in SND2")
            return
        if dry_run:
            return
        try:
            found = os.lstat(path)
            incoming.unlink_on_failure = stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
        except (OSError, ValueError):
            incoming.unlink_on_failure = True
        if incoming.unlink_on_failure:
            _unlink_quietly(path)
        if stat.S_ISLNK(request.mode):
            incoming.link_target = bytearray()
            return
        self._create(incoming)

    def _create(self, incoming: _Incoming) -> None:
        # adbd copies the owner's permission bits to group and others.
        mode = incoming.mode & 0o777
        mode |= (mode >> 3) & 0o070
        mode |= (mode >> 3) & 0o007
        try:
            try:
                incoming.descriptor = _open_for_writing(incoming.path, mode)
            except FileNotFoundError:
                if (reason := _make_folders(os.path.dirname(incoming.path))) is not None:  # noqa: PTH120 (bytes)
                    self._fail(f"secure_mkdirs failed: {reason}")
                    return
                incoming.descriptor = _open_for_writing(incoming.path, mode)
        except (OSError, ValueError) as error:
            self._fail(f"couldn't create file: {_words(error)}")
            return
        incoming.created = True
        os.fchmod(incoming.descriptor, mode)

    def _on_piece(self, data: memoryview) -> None:
        incoming = self._incoming
        if incoming is None or incoming.failed:
            return  # drained: the host continues sending until it has read the FAIL
        if incoming.link_target is not None:
            incoming.link_target += data
            return
        if incoming.descriptor is None:
            return
        size = len(data)
        try:
            self._quota.take(size)
            while data:
                data = data[os.write(incoming.descriptor, data) :]
        except OSError as error:
            self._fail(f"write failed: {_words(error)}")
            self._abandon_file(incoming)
            return
        self._fuse.burn(size)

    def _on_end(self, mtime: int) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is None or incoming.failed:
            return
        if incoming.link_target is not None and not self._make_link(incoming):
            return
        if incoming.descriptor is not None:
            os.close(incoming.descriptor)
        if incoming.created:
            # Like adbd, which does not look at the result: the file may have been replaced meanwhile.
            with contextlib.suppress(OSError):
                os.utime(incoming.path, (mtime, mtime), follow_symlinks=False)
        self._stream.write(encode_ok())

    def _make_link(self, incoming: _Incoming) -> bool:
        target = bytes(incoming.link_target or b"").rstrip(b"\0")
        if target.startswith(b"/"):
            target = self._machine.translate(target)
        try:
            try:
                os.symlink(target, incoming.path)  # noqa: PTH211 (bytes)
            except FileNotFoundError:
                if (reason := _make_folders(os.path.dirname(incoming.path))) is not None:  # noqa: PTH120 (bytes)
                    self._fail(f"secure_mkdirs failed: {reason}")
                    return False
                os.symlink(target, incoming.path)  # noqa: PTH211 (bytes)
        except (OSError, ValueError) as error:
            self._fail(f"couldn't create symlink: {_words(error)}")
            return False
        incoming.created = True
        return True

    def _fail(self, message: str) -> None:
        if self._incoming is not None:
            self._incoming.failed = True
        self._stream.write(encode_fail(message))

    def _abandon_incoming(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            self._abandon_file(incoming)

    @staticmethod
    def _abandon_file(incoming: _Incoming) -> None:
        if incoming.descriptor is not None:
            os.close(incoming.descriptor)
            incoming.descriptor = None
            if incoming.unlink_on_failure:
                _unlink_quietly(incoming.path)


class _Outgoing:
    """A file going out, in portions as large as one packet may be."""

    def __init__(self, descriptor: int, portion_bytes: int) -> None:
        self._descriptor: int | None = descriptor
        chunks, rest = divmod(portion_bytes, _CHUNK_BYTES)
        sizes = [MAX_DATA_BYTES] * chunks
        if rest > _DATA_HEADER.size:
            sizes.append(rest - _DATA_HEADER.size)
        self._sizes = sizes
        self._portion_bytes = portion_bytes
        self._regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._read_bytes = 0
        self._ready: tuple[memoryview, bool] | None = None

    def send_portion(self, stream: Stream) -> bool:
        """Write the next portion; False when there is nothing left. Prepares the one after it."""
        if self._descriptor is None and self._ready is None:
            return False
        portion, last = self._ready if self._ready is not None else self._prepare()
        self._ready = None
        stream.write(portion)
        if not last:
            self._ready = self._prepare()
        return True

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _prepare(self) -> tuple[memoryview, bool]:
        """The next portion, and whether it is the last."""
        assert self._descriptor is not None
        # No buffer is used twice: adb 36 sometimes asks for the next portion before it has read the last (measured).
        buffer = bytearray(self._portion_bytes)
        view = memoryview(buffer)
        targets = []
        start = 0
        for size in self._sizes:
            targets.append(view[start + _DATA_HEADER.size : start + _DATA_HEADER.size + size])
            start += _DATA_HEADER.size + size
        try:
            count = os.readv(self._descriptor, targets)
        except OSError as error:
            self.close()
            return memoryview(encode_fail(f"read failed: {_words(error)}")), True
        self._read_bytes += count
        # The end goes into the same packet as the last bytes: two packets cost a host 44 ms (Nagle in its server).
        # Sizes cannot tell where it is: files of /proc and /sys claim a size of 0 or of a page.
        ended = count == 0 or (self._regular and not os.pread(self._descriptor, 1, self._read_bytes))
        end = 0
        for size in self._sizes:
            taken = min(size, count)
            if taken == 0:
                break
            _DATA_HEADER.pack_into(buffer, end, b"DATA", taken)
            end += _DATA_HEADER.size + taken
            count -= taken
        done = encode_receive_end()
        if not ended or end + len(done) > len(buffer):
            return view[:end], False
        self.close()
        buffer[end : end + len(done)] = done
        return view[: end + len(done)], True


def _entries(folder: bytes) -> list[bytes]:
    """Names in a folder as readdir gives them, empty when it cannot be read."""
    try:
        return [b".", b"..", *os.listdir(folder)]  # noqa: PTH208 (bytes)
    except (OSError, ValueError):
        return []


def _open_for_writing(path: bytes, mode: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_EXCL, mode)
    except FileExistsError:
        return os.open(path, flags & ~os.O_CREAT, mode)


def _make_folders(folder: bytes) -> str | None:
    """Create a folder and those above it; the reason in words when that fails."""
    try:
        os.makedirs(folder, _FOLDER_MODE, exist_ok=True)  # noqa: PTH103 (bytes)
    except (OSError, ValueError) as error:
        return _words(error)
    return None


def _unlink_quietly(path: bytes) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 (bytes)
    except (OSError, ValueError):
        return  # adbd does not look at the result either


def _words(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return os.strerror(errno.EINVAL)
