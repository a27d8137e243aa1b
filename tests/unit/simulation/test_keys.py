import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import ProtocolError
from farm.simulation.adbd import parse_public_key

DATA = Path(__file__).parents[2] / "data" / "simulation"
KEY = (DATA / "adbkey.pub").read_bytes().strip()  # made by `adb keygen`
SIGNATURE = (DATA / "token-signature.bin").read_bytes()  # `openssl pkeyutl -sign` of TOKEN with its private half
TOKEN = bytes(range(20))


def test_a_genuine_signature_is_verified_and_no_other():
    key = parse_public_key(KEY)
    assert key.verifies(TOKEN, SIGNATURE)
    assert not key.verifies(bytes(20), SIGNATURE)
    assert not key.verifies(TOKEN, SIGNATURE[:-1] + bytes([SIGNATURE[-1] ^ 1]))
    assert not key.verifies(TOKEN, SIGNATURE[1:])
    assert not key.verifies(TOKEN, b"")


def test_the_key_has_an_ordinary_exponent_whatever_its_comment():
    assert parse_public_key(KEY) == parse_public_key(KEY.partition(b" ")[0])
    assert parse_public_key(KEY).exponent == 65537


@pytest.mark.parametrize("text", [b"", b"QAAA", b"not base64!", b"A" * 700, b"A" * 699])
def test_what_is_no_key(text):
    with pytest.raises(ProtocolError):
        parse_public_key(text)


@given(st.binary(max_size=1000))
def test_a_key_or_protocol_error_and_nothing_else(text):
    with contextlib.suppress(ProtocolError):
        parse_public_key(text)
