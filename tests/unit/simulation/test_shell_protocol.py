import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import ProtocolError
from farm.simulation.shell import Descriptors, parse_shell
from farm.simulation.shell_protocol import ShellDecoder, ShellId, encode, parse_window_size

WIRE = encode(ShellId.STDIN, b"hello") + encode(ShellId.WINDOW_SIZE, b"24x80,0x0") + encode(ShellId.CLOSE_STDIN, b"")


def merged(pieces):
    """Pieces with the stdin ones joined: how it arrives does not matter."""
    stdin = b"".join(piece.data for piece in pieces if piece.id is ShellId.STDIN)
    return stdin, [(piece.id, piece.data) for piece in pieces if piece.id is not ShellId.STDIN]


EXPECTED = (b"hello", [(ShellId.WINDOW_SIZE, b"24x80,0x0"), (ShellId.CLOSE_STDIN, b"")])


def test_whole():
    assert merged(ShellDecoder().feed(WIRE)) == EXPECTED


@pytest.mark.parametrize("size", [1, 2, 5, 6, 7])
def test_in_pieces(size):
    decoder = ShellDecoder()
    pieces = [piece for at in range(0, len(WIRE), size) for piece in decoder.feed(WIRE[at : at + size])]
    assert merged(pieces) == EXPECTED


def test_trailing_bytes_wait():
    decoder = ShellDecoder()
    assert merged(decoder.feed(WIRE + WIRE[:3])) == EXPECTED
    assert merged(decoder.feed(WIRE[3:])) == EXPECTED


def test_encoding():
    assert encode(ShellId.EXIT, b"\x07") == b"\x03\x01\x00\x00\x00\x07"


def test_unknown_ids_and_absurd_lengths():
    with pytest.raises(ProtocolError, match="unknown id 9"):
        ShellDecoder().feed(struct.pack("<BI", 9, 0))
    with pytest.raises(ProtocolError, match="4294967295"):
        ShellDecoder().feed(struct.pack("<BI", 0, 0xFFFFFFFF))


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_pieces_or_protocol_error_and_nothing_else(chunks):
    decoder = ShellDecoder()
    try:
        for chunk in chunks:
            decoder.feed(chunk)
    except ProtocolError:
        pass


@given(st.binary(max_size=30) | st.from_regex(rb"\d{1,6}x\d{1,6},\d{1,6}x\d{1,6}", fullmatch=True))
def test_a_window_size_or_protocol_error(text):
    with contextlib.suppress(ProtocolError):
        assert all(0 <= number <= 0xFFFF for number in parse_window_size(text))


def test_a_window_size():
    assert parse_window_size(b"24x80,640x480\0") == (24, 80, 640, 480)


@pytest.mark.parametrize(
    ("service", "command", "protocol", "descriptors"),
    [
        ("shell:ls", "ls", False, Descriptors.RAW_TERMINAL),
        ("shell,v2,raw:ls -l", "ls -l", True, Descriptors.SOCKET_PAIRS),
        ("shell,v2,TERM=xterm-256color,pty:", "", True, Descriptors.TERMINAL),
        ("shell,v2:a:b", "a:b", True, Descriptors.TERMINAL),
        ("exec:cat x", "cat x", False, Descriptors.RAW_TERMINAL),
    ],
)
def test_service_names(service, command, protocol, descriptors):
    request = parse_shell(service)
    assert (request.command, request.protocol, request.descriptors) == (command, protocol, descriptors)


def test_term_is_passed_on_and_unknown_arguments_are_refused():
    assert parse_shell("shell,v2,TERM=vt100:").terminal == "vt100"
    with pytest.raises(ProtocolError, match="v9"):
        parse_shell("shell,v9:true")
