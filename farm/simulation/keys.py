"""adb host keys: reading the public key a host offers and checking its signatures, with integers only.

The key travels as base64 of: u32 words (64), u32 n0inv, 256 bytes modulus, 256 bytes R squared, u32 exponent (all
little-endian), then a space and a comment. A signature is PKCS#1 v1.5 over a SHA-1 DigestInfo whose digest is the
20-byte token itself (it is not hashed again).
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass

from farm.core.errors import ProtocolError

_MODULUS_BYTES = 256
_KEY = struct.Struct(f"<II{_MODULUS_BYTES}s{_MODULUS_BYTES}sI")
_SHA1_DIGEST_INFO = bytes.fromhex("3021300906052b0e03021a05000414")


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
    """Read what a host offers in AUTH(3), without its closing NUL.

    Raises:
        ProtocolError: it is not an adb key.
    """
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
