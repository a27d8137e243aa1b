"""The tracker protocol and the session handshake: whole, byte by byte, several at once, trailing bytes, hostile."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import ProtocolError
from farm.tvm_server import wire
from farm.tvm_server.wire import (
    MAX_HELLO_BYTES,
    SESSION_MAGIC,
    ClientHello,
    ClientHelloParser,
    ServerHello,
    ServerHelloParser,
    SessionCode,
    encode_client_hello,
    encode_server_hello,
)
from tests.support.golden import rows
from tests.support.raw import encode_message

MESSAGES = [
    wire.TrackerCode.PING,
    wire.TrackerCode.STOP,
    wire.Put("rasp3b", 9091, "rasp3b:0.123", None),
    wire.Put("rasp3b", 65535, "rasp3b:0.123", "10.1.2.3"),
    wire.TrackerRequest("adreno-740", "", 1),
    wire.TrackerRequest("gpu=adreno-740,pool=lab", "somebody", -3),
    wire.UpdateInfo("rasp3b", None, 9091),
    wire.UpdateInfo("rasp3b", "board.example", 1),
    wire.TrackerCode.SUMMARY,
    wire.TrackerCode.GET_PENDING_MATCHKEYS,
]
STREAM = wire.encode_magic() + b"".join(encode_message(message) for message in MESSAGES)


def events_of(parser, chunks):
    events = []
    for chunk in chunks:
        parser.receive_data(chunk)
        while (event := parser.next_event()) is not None:
            events.append(event)
    return events


def frame(text):
    body = text.encode() if isinstance(text, str) else text
    return struct.pack("<i", len(body)) + body


def decoded(text):
    parser = wire.TrackerParser()
    parser.receive_data(wire.encode_magic() + frame(text))
    assert parser.next_event() == wire.TrackerHello()
    event = parser.next_event()
    assert parser.held_bytes == 0
    return event


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_every_message_survives_any_chunking(size):
    chunks = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert events_of(wire.TrackerParser(), chunks) == [wire.TrackerHello(), *MESSAGES]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_trailing_bytes_wait_for_the_rest_of_their_message(message):
    parser = wire.TrackerParser()
    following = encode_message(wire.TrackerCode.PING)
    events = events_of(parser, [wire.encode_magic() + encode_message(message) + following[:-1]])
    assert events == [wire.TrackerHello(), message]
    assert parser.held_bytes == len(following) - 1
    assert events_of(parser, [following[-1:]]) == [wire.TrackerCode.PING]
    assert parser.held_bytes == 0


def test_messages_as_stock_clients_and_servers_write_them():
    # tvm/rpc/client.py, tvm/rpc/server.py, and apps/cpp_rpc (which sends the port of UPDATE_INFO as a text).
    assert decoded('[4, "android", "", 1]') == wire.TrackerRequest("android", "", 1)
    assert decoded('[3, "android", [9090, "android:0.71"], null]') == wire.Put("android", 9090, "android:0.71", None)
    assert decoded('[5, {"key": "server:android", "addr": [null, 9090]}]') == wire.UpdateInfo("android", None, 9090)
    assert decoded('[5, {"key": "server:android", "addr": ["1.2.3.4", "9090"]}]') == wire.UpdateInfo(
        "android", "1.2.3.4", 9090
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *rows(__file__, "nonsense"),
        (b"\xff\xfe", None),
        *(("[6]".encode(encoding), None) for encoding in ("utf-16", "utf-16-be", "utf-32-le", "utf-8-sig")),
        (f"[{'9' * 4000}]", None),
        ("[" * wire.MAX_TRACKER_MESSAGE_BYTES, None),
        (json.dumps([4, "a" * (wire.MAX_KEY_LENGTH + 1), "", 1]), "REQUEST"),
    ],
)
def test_nonsense_in_a_good_frame_is_invalid_and_the_connection_lives(text, code):
    event = decoded(text)
    assert isinstance(event, wire.Invalid)
    assert event.code == (code and wire.TrackerCode[code])
    assert 0 < len(event.reason) < 200


@pytest.mark.parametrize("length", [0, -1, -(2**31), wire.MAX_TRACKER_MESSAGE_BYTES + 1, 2**31 - 1])
def test_an_impossible_length_ends_the_connection_for_good(length):
    parser = wire.TrackerParser()
    parser.receive_data(wire.encode_magic() + struct.pack("<i", length))
    assert parser.next_event() == wire.TrackerHello()
    for _ in range(2):
        with pytest.raises(ProtocolError):
            parser.next_event()
        parser.receive_data(encode_message(wire.TrackerCode.PING))


def test_the_longest_message_is_read():
    text = json.dumps([4, "android", "", 1]).ljust(wire.MAX_TRACKER_MESSAGE_BYTES)
    assert decoded(text) == wire.TrackerRequest("android", "", 1)


def test_another_protocol_is_refused_by_its_first_word():
    parser = wire.TrackerParser()
    parser.receive_data(b"GET / HTTP/1.1\r\n")
    with pytest.raises(ProtocolError, match="0x20544547"):
        parser.next_event()


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("client:android:0f", ClientHello("android:0f")),
        ("client:android:0f -timeout=10", ClientHello("android:0f", 10.0)),
        ("client:android:0f -timeout=10.5 -unknown", ClientHello("android:0f", 10.5)),
    ],
)
def test_client_hello(size, body, expected):
    stream = struct.pack("<i", SESSION_MAGIC) + frame(body) + b"first packet"
    parser = ClientHelloParser()
    assert events_of(parser, [stream[start : start + size] for start in range(0, len(stream), size)]) == [expected]
    assert parser.trailing_data() == b"first packet"
    assert parser.next_event() is None


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack("<i", wire.TRACKER_MAGIC),
        struct.pack("<ii", SESSION_MAGIC, 0),
        struct.pack("<ii", SESSION_MAGIC, -5),
        struct.pack("<ii", SESSION_MAGIC, MAX_HELLO_BYTES + 1),
        struct.pack("<i", SESSION_MAGIC) + frame("   "),
        struct.pack("<i", SESSION_MAGIC) + frame(b"client:\xff"),
        struct.pack("<i", SESSION_MAGIC) + frame("server:android"),
        *(
            struct.pack("<i", SESSION_MAGIC) + frame(f"client:a:1 -timeout={value}")
            for value in ("nan", "-1", "inf", "1e99", "1e999", "soon", "", "1_0", "\u0661", "0x10", ".")
        ),
    ],
)
def test_a_bad_client_hello_is_refused_for_good(stream):
    parser = ClientHelloParser()
    parser.receive_data(stream)
    for _ in range(2):
        with pytest.raises(ProtocolError):
            parser.next_event()


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "hello",
    [
        ServerHello(SessionCode.SUCCESS, "server:android"),
        ServerHello(SessionCode.DUPLICATE),
        ServerHello(SessionCode.MISMATCH),
    ],
)
def test_server_hello(size, hello):
    stream = encode_server_hello(hello) + b"rest"
    parser = ServerHelloParser()
    assert events_of(parser, [stream[start : start + size] for start in range(0, len(stream), size)]) == [hello]
    assert parser.trailing_data() == b"rest"


@pytest.mark.parametrize("stream", [struct.pack("<i", 7), struct.pack("<ii", SESSION_MAGIC, 0)])
def test_a_bad_server_hello_is_refused(stream):
    with pytest.raises(ProtocolError):
        events_of(ServerHelloParser(), [stream])


def test_our_client_hello_carries_no_options():
    parser = ClientHelloParser()
    assert events_of(parser, [encode_client_hello("secret")]) == [ClientHello("secret")]


PARSERS = [
    (wire.TrackerParser, wire.encode_magic()),
    (ClientHelloParser, struct.pack("<i", SESSION_MAGIC)),
    (ServerHelloParser, struct.pack("<i", SESSION_MAGIC)),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["key", "addr", "x"]), inner),
    max_leaves=12,
)
BODIES = st.binary(max_size=64) | st.builds(
    lambda code, rest: json.dumps([code, *rest]).encode(), st.integers(-2, 9), st.lists(JSON, max_size=5)
)


@pytest.mark.parametrize(("parser_class", "magic"), PARSERS, ids=lambda value: getattr(value, "__name__", ""))
@given(
    begins_well=st.booleans(),
    parts=st.lists(st.binary(max_size=64) | st.builds(frame, BODIES.filter(bool)), max_size=6),
    cut=st.integers(1, 40),
)
def test_any_bytes_are_messages_or_a_protocol_error(parser_class, magic, begins_well, parts, cut):
    stream = (magic if begins_well else b"") + b"".join(parts)

    def run(chunks):
        parser, events = parser_class(), []
        try:
            for chunk in chunks:
                parser.receive_data(chunk)
                while (event := parser.next_event()) is not None:
                    events.append(event)
        except ProtocolError as error:
            return events, str(error)
        return events, None

    whole = run([stream])
    # repr: NaN is no equal of itself
    assert repr(run([stream[at : at + cut] for at in range(0, len(stream), cut)])) == repr(whole)
