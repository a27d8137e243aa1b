import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import ProtocolError
from farm.simulation import sync_protocol as sync
from farm.simulation.sync_protocol import (
    ListRequest,
    Quit,
    ReceiveRequest,
    SendEnd,
    SendPiece,
    SendRequest,
    StatRequest,
    SyncDecoder,
)


def request(identifier, path):
    return struct.pack("<4sI", identifier, len(path)) + path


WIRE = b"".join(
    [
        request(b"STAT", b"/a"),
        request(b"LST2", b"/b"),
        request(b"LIS2", b"/c"),
        request(b"SEND", b"/d,with comma,33188"),
        request(b"DATA", b"first"),
        request(b"DATA", b"second"),
        struct.pack("<4sI", b"DONE", 1_700_000_000),
        request(b"SND2", b"/e"),
        struct.pack("<4sII", b"SND2", 0o100755, 0),
        struct.pack("<4sI", b"DONE", 5),
        request(b"RECV", b"/f"),
        request(b"RCV2", b"/g"),
        struct.pack("<4sI", b"RCV2", 4),
        struct.pack("<4sI", b"QUIT", 0),
    ]
)
EXPECTED = [
    StatRequest(b"STAT", b"/a"),
    StatRequest(b"LST2", b"/b"),
    ListRequest(b"LIS2", b"/c"),
    SendRequest(b"/d,with comma", 33188, 0),
    b"firstsecond",
    SendEnd(1_700_000_000),
    SendRequest(b"/e", 0o100755, 0),
    SendEnd(5),
    ReceiveRequest(b"/f", 0),
    ReceiveRequest(b"/g", 4),
    Quit(),
]


def merged(messages):
    """Messages with file contents joined: where they were cut does not matter."""
    found = []
    for message in messages:
        if not isinstance(message, SendPiece):
            found.append(message)
        elif found and isinstance(found[-1], bytes):
            found[-1] += bytes(message.data)
        else:
            found.append(bytes(message.data))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 64, len(WIRE)])
def test_in_pieces(size):
    decoder = SyncDecoder()
    messages = [
        bytes(message.data) if isinstance(message, SendPiece) else message
        for at in range(0, len(WIRE), size)
        for message in decoder.feed(WIRE[at : at + size])
    ]
    rebuilt = merged([SendPiece(memoryview(m)) if isinstance(m, bytes) else m for m in messages])
    assert rebuilt == EXPECTED


def test_trailing_bytes_wait():
    decoder = SyncDecoder()
    assert merged(decoder.feed(WIRE + WIRE[:5])) == EXPECTED
    assert merged(decoder.feed(WIRE[5:])) == EXPECTED


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (request(b"NOPE", b"/x"), "unknown command"),
        (struct.pack("<4sI", b"STAT", 1025), "path too long"),
        (request(b"SEND", b"/x"), "missing , in ID_SEND_V1"),
        (request(b"SEND", b"/x,rwx"), "bad mode"),
        (request(b"SEND", b"/x,420") + struct.pack("<4sI", b"DATA", 65537), "oversize data message"),
        (request(b"SEND", b"/x,420") + request(b"STAT", b"/y"), "invalid data message"),
        (request(b"SND2", b"/x") + struct.pack("<4sII", b"RCV2", 0, 0), "invalid setup message"),
    ],
)
def test_errors_in_the_words_of_adbd(data, words):
    with pytest.raises(ProtocolError, match=words):
        list(SyncDecoder().feed(data))


def test_sizes_of_answers():
    found = os.lstat("/")
    assert len(sync.encode_stat(b"STAT", found)) == 16
    assert len(sync.encode_stat(b"STA2", found)) == 72
    assert len(sync.encode_entry(b"LIST", b"name", found)) == 20 + 4
    assert len(sync.encode_entry(b"LIS2", b"name", found)) == 76 + 4
    assert sync.encode_list_end(b"LIST") == b"DONE" + bytes(16)
    assert sync.encode_list_end(b"LIS2") == b"DONE" + bytes(72)
    assert sync.encode_fail("no") == b"FAIL\x02\x00\x00\x00no"


def test_a_stat_that_failed():
    assert sync.encode_stat(b"STAT", None, 2) == b"STAT" + bytes(12)
    assert sync.encode_stat(b"LST2", None, 13) == b"LST2" + struct.pack("<I", 13) + bytes(64)


@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([WIRE[:10], WIRE[10:40], request(b"SEND", b"/x,420")]), max_size=8
    )
)
def test_messages_or_protocol_error_and_nothing_else(pieces):
    decoder = SyncDecoder()
    try:
        for piece in pieces:
            for message in decoder.feed(piece):
                assert message is not None
    except ProtocolError:
        pass
