"""The device's side of an adb connection, without I/O: a state machine from packets to events and from calls to bytes.

Rules (measured against adb 29 and 36, see docs/facts.md):

- The host speaks first (CNXN). The phone answers CNXN, or AUTH until the host has signed a token with an accepted key.
- A stream has one WRTE in flight per direction; the receiver's OKAY asks for the next.
- A service that does not exist is refused with CLSE(0, remote), never with an OKAY first.

Read into `writable()`, tell `wrote(count)`, call `next_event()` until it returns None; send what `take_output()` gives.

A host offers its public key as base64 of: u32 words (64), u32 n0inv, 256 bytes modulus, 256 bytes R squared, u32
exponent (all little-endian), then a space and a comment. Its signature is PKCS#1 v1.5 over a SHA-1 DigestInfo whose
digest is the 20-byte token itself (it is not hashed again).
"""

from __future__ import annotations

import base64
import binascii
import secrets
import struct
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from farm.common.errors import ProtocolError
from farm.simulation.packets import (
    HANDSHAKE,
    HANDSHAKE_PAYLOAD_BYTES,
    MAX_PAYLOAD_BYTES,
    VERSION_MIN,
    VERSION_SKIP_CHECKSUM,
    AuthKind,
    Buffer,
    Command,
    Packet,
    PacketDecoder,
    encode_header,
    pieces,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_BYTES = 20
_UINT32 = 0xFFFFFFFF

# --- events: what the host did -------------------------------------------------------------------------------------
_MODULUS_BYTES = 256
_KEY = struct.Struct(f"<II{_MODULUS_BYTES}s{_MODULUS_BYTES}sI")
_SHA1_DIGEST_INFO = bytes.fromhex("3021300906052b0e03021a05000414")


@dataclass(frozen=True, slots=True)
class WentOnline:
    """The handshake is complete. `dropped` are the streams of an earlier handshake on the same connection."""

    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeyOffered:
    """The host has no accepted key left and offers this one for a person to accept."""

    public_key: bytes


@dataclass(frozen=True, slots=True)
class StreamRequested:
    """The host wants `service`; answer with `accept` or `refuse`."""

    stream: int
    service: str


@dataclass(frozen=True, slots=True)
class DataReceived:
    """Bytes for a stream; call `acknowledge` to get more."""

    stream: int
    payload: Buffer


@dataclass(frozen=True, slots=True)
class WriteAllowed:
    """The host took the last WRTE, or accepted a stream the phone opened: one `write` may follow."""

    stream: int


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The host closed or refused a stream; its number is free."""

    stream: int


Event = WentOnline | KeyOffered | StreamRequested | DataReceived | WriteAllowed | StreamClosed


class HandshakePhase(Enum):
    """How far the handshake is."""

    WAITING = "waiting for the host's CNXN"
    AUTHORIZING = "waiting for an accepted key"
    ONLINE = "online"


@dataclass(slots=True)
class _Stream:
    remote: int
    opened: bool = False  # both ends know each other
    may_write: bool = False
    owes_acknowledgement: bool = False


def _random_token() -> bytes:
    return secrets.token_bytes(TOKEN_BYTES)


class DeviceConnection:
    """One host on one connection, as adbd sees it.

    `banner` is `device::key=value;...;features=a,b`. `verify(token, signature)` decides about keys; None trusts
    everyone (as a phone with ro.adb.secure=0 does). `new_token` supplies 20 random bytes per attempt.
    """

    def __init__(
        self,
        banner: str,
        *,
        verify: Callable[[bytes, bytes], bool] | None = None,
        new_token: Callable[[], bytes] = _random_token,
    ) -> None:
        self.phase = HandshakePhase.WAITING
        self.max_payload = MAX_PAYLOAD_BYTES
        self._decoder = PacketDecoder()
        self._banner = banner.encode()
        self._verify = verify
        self._new_token = new_token
        self._token = b""
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        self._output: list[Buffer] = []

    # -- in ----------------------------------------------------------------------------------------------------------

    def writable(self) -> memoryview:
        """Where the next received bytes belong; never empty."""
        return self._decoder.writable()

    def wrote(self, count: int) -> None:
        """`count` bytes of the last `writable()` were received."""
        self._decoder.wrote(count)

    def next_event(self) -> Event | None:
        """The host's next action, or None when more bytes are needed."""
        while (packet := self._decoder.next_packet()) is not None:
            if (event := self._receive(packet)) is not None:
                return event
        return None

    def receive(self, data: Buffer) -> list[Event]:
        """Take received bytes, copying them in, and return everything they complete."""
        events: list[Event] = []
        for _ in pieces(data, self):
            while (event := self.next_event()) is not None:
                events.append(event)
        return events

    def _receive(self, packet: Packet) -> Event | None:
        command = packet.command
        if command is Command.CNXN:
            return self._on_connect(packet)
        if command is Command.AUTH:
            return self._on_auth(packet)
        if self.phase is not HandshakePhase.ONLINE:
            return None  # adbd drops whatever comes before the handshake is complete
        if command is Command.WRTE:
            return self._on_write(packet)
        if command is Command.OKAY:
            return self._on_okay(packet)
        if command is Command.OPEN:
            return self._on_open(packet)
        if command is Command.CLSE:
            return self._on_close(packet)
        return None

    def _on_connect(self, packet: Packet) -> Event | None:
        if packet.arg0 < VERSION_MIN:
            raise ProtocolError(f"adb version 0x{packet.arg0:08x} is older than any we know")
        if packet.arg1 < HANDSHAKE_PAYLOAD_BYTES:
            raise ProtocolError(f"the host takes {packet.arg1} bytes of payload, fewer than a handshake needs")
        self.max_payload = min(MAX_PAYLOAD_BYTES, packet.arg1)
        self._decoder.max_payload = self.max_payload
        self._decoder.check_sums = packet.arg0 < VERSION_SKIP_CHECKSUM
        self.phase = HandshakePhase.WAITING
        if self._verify is None:
            return self.accept_host()
        self._challenge()
        return None

    def _on_auth(self, packet: Packet) -> Event | None:
        if self.phase is not HandshakePhase.AUTHORIZING or self._verify is None:
            return None
        if packet.arg0 == AuthKind.SIGNATURE:
            if self._verify(self._token, bytes(packet.payload)):
                return self.accept_host()
            self._challenge()
            return None
        if packet.arg0 == AuthKind.PUBLIC_KEY:
            return KeyOffered(bytes(packet.payload).rstrip(b"\0"))
        raise ProtocolError(f"the host sent AUTH of kind {packet.arg0}")

    def _on_open(self, packet: Packet) -> Event | None:
        if packet.arg0 == 0:
            raise ProtocolError("the host opened a stream numbered 0")
        service = bytes(packet.payload).rstrip(b"\0").decode("utf-8", "surrogateescape")
        stream = self._new_stream(packet.arg0)
        return StreamRequested(stream, service)

    def _on_write(self, packet: Packet) -> Event | None:
        stream = self._streams.get(packet.arg1)
        if stream is None or stream.remote != packet.arg0:
            return None  # crossed with our own CLSE
        if stream.owes_acknowledgement:
            raise ProtocolError(f"the host wrote to stream {packet.arg1} twice without waiting")
        stream.owes_acknowledgement = True
        return DataReceived(packet.arg1, packet.payload)

    def _on_okay(self, packet: Packet) -> Event | None:
        stream = self._streams.get(packet.arg1)
        if stream is None:
            return None
        if not stream.opened:
            if packet.arg0 == 0:
                raise ProtocolError("the host accepted a stream with number 0")
            stream.remote, stream.opened = packet.arg0, True
        elif stream.remote != packet.arg0:
            return None
        stream.may_write = True
        return WriteAllowed(packet.arg1)

    def _on_close(self, packet: Packet) -> Event | None:
        stream = self._streams.get(packet.arg1)
        if stream is None or (packet.arg0 and stream.opened and stream.remote != packet.arg0):
            return None
        del self._streams[packet.arg1]
        return StreamClosed(packet.arg1)

    # -- out ---------------------------------------------------------------------------------------------------------

    def accept_host(self) -> WentOnline:
        """Complete the handshake: the host is trusted (its key was accepted, or no key is asked for)."""
        dropped = tuple(self._streams)
        self._streams.clear()
        self.phase = HandshakePhase.ONLINE
        self._send(Command.CNXN, VERSION_SKIP_CHECKSUM, MAX_PAYLOAD_BYTES, self._banner)
        return WentOnline(dropped)

    def accept(self, stream: int) -> None:
        """Answer `StreamRequested`: the service runs; the phone may write at once."""
        state = self._streams[stream]
        state.opened = state.may_write = True
        self._send(Command.OKAY, stream, state.remote)

    def refuse(self, stream: int) -> None:
        """Answer `StreamRequested`: no such service here."""
        self._send(Command.CLSE, 0, self._streams.pop(stream).remote)

    def acknowledge(self, stream: int) -> None:
        """Ask for the next bytes of a stream whose last `DataReceived` was taken."""
        state = self._streams[stream]
        if state.owes_acknowledgement:
            state.owes_acknowledgement = False
            self._send(Command.OKAY, stream, state.remote)

    def write(self, stream: int, payload: Buffer) -> None:
        """Send bytes. `payload` must never change afterwards.

        Not even after the next `WriteAllowed`: adb 36 sends an OKAY too many now and then (measured), so it does not
        prove that these bytes have left.
        """
        state = self._streams[stream]
        if not state.may_write or len(payload) > self.max_payload:
            raise ValueError(f"stream {stream} may not write {len(payload)} bytes now")
        state.may_write = False
        self._send(Command.WRTE, stream, state.remote, payload)

    def open(self, service: str) -> int:
        """Ask the host for a service (a reverse forward's destination); `WriteAllowed` or `StreamClosed` follows."""
        stream = self._new_stream(remote=0)
        self._send(Command.OPEN, stream, 0, service.encode() + b"\0")
        return stream

    def close(self, stream: int) -> None:
        """End a stream; the host's half is closed with it."""
        state = self._streams.pop(stream, None)
        if state is not None:
            self._send(Command.CLSE, stream, state.remote)

    def may_write(self, stream: int) -> bool:
        """Whether `write` is allowed on that stream now."""
        state = self._streams.get(stream)
        return state is not None and state.may_write

    def take_output(self) -> list[Buffer]:
        """The buffers to send, oldest first; they are handed over once."""
        output, self._output = self._output, []
        return output

    def _challenge(self) -> None:
        self.phase = HandshakePhase.AUTHORIZING
        self._token = self._new_token()
        self._send(Command.AUTH, AuthKind.TOKEN, 0, self._token)

    def _send(self, command: Command, arg0: int, arg1: int, payload: Buffer = b"") -> None:
        checked = self._decoder.check_sums or command in HANDSHAKE
        self._output.append(encode_header(command, arg0, arg1, payload, checked=checked))
        if payload:
            self._output.append(payload)

    def _new_stream(self, remote: int) -> int:
        while True:
            self._last_stream = self._last_stream % _UINT32 + 1
            if self._last_stream not in self._streams:
                self._streams[self._last_stream] = _Stream(remote)
                return self._last_stream


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A 2048-bit RSA key of an adb host."""

    modulus: int
    exponent: int

    def verifies(self, token: bytes, signature: bytes) -> bool:
        """Whether `signature` is this key's over `token`."""
        if len(signature) != _MODULUS_BYTES:
            return False
        tail = b"\x00" + _SHA1_DIGEST_INFO + token
        expected = b"\x00\x01" + b"\xff" * (_MODULUS_BYTES - 2 - len(tail)) + tail
        number = pow(int.from_bytes(signature, "big"), self.exponent, self.modulus)
        return number.to_bytes(_MODULUS_BYTES, "big") == expected


def parse_public_key(text: bytes) -> PublicKey:
    """Read a host's key from AUTH(3), without its closing NUL."""
    encoded, _, _user_at_host = text.partition(b" ")
    try:
        blob = base64.b64decode(encoded, validate=True)
        words, _n0inv, modulus, _rr, exponent = _KEY.unpack(blob)
    except (binascii.Error, struct.error) as error:
        raise ProtocolError("the host's public key cannot be read", evidence=text[:80].hex()) from error
    if words * 4 != _MODULUS_BYTES:
        raise ProtocolError(f"the host's public key has {words} words, 64 expected")
    number = int.from_bytes(modulus, "little")
    if number == 0:
        raise ProtocolError("the host's public key has a modulus of 0")
    return PublicKey(number, exponent)
