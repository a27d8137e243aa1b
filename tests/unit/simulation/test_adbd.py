import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import ProtocolError
from farm.simulation.adbd import (
    DataReceived,
    DeviceConnection,
    HandshakePhase,
    KeyOffered,
    StreamClosed,
    StreamRequested,
    WentOnline,
    WriteAllowed,
)
from farm.simulation.packets import AuthKind, Command, Packet, PacketDecoder

BANNER = "device::ro.product.name=n;features=shell_v2"


def wire(*packets):
    return b"".join(bytes(part) for packet in packets for part in packet.encode())


def connect(version=0x01000001, max_payload=1024 * 1024):
    return Packet(Command.CNXN, version, max_payload, b"host::features=shell_v2\0")


def sent(connection):
    decoder = PacketDecoder()
    decoder.max_payload, decoder.check_sums = 1024 * 1024, False
    data = b"".join(bytes(part) for part in connection.take_output())
    return [(p.command, p.arg0, p.arg1, bytes(p.payload)) for p in decoder.feed(data)]


@pytest.fixture
def online():
    connection = DeviceConnection(BANNER)
    connection.receive(wire(connect()))
    connection.take_output()
    return connection


def test_handshake_byte_by_byte_before_which_nothing_happens():
    connection = DeviceConnection(BANNER)
    data = wire(Packet(Command.CLSE, 1, 1), connect())
    events = [event for at in range(len(data)) for event in connection.receive(data[at : at + 1])]
    assert events == [WentOnline(())]
    assert sent(connection) == [(Command.CNXN, 0x01000001, 1024 * 1024, BANNER.encode())]
    assert connection.phase is HandshakePhase.ONLINE


def test_an_old_host_wants_checksums_and_the_smaller_payload_wins():
    connection = DeviceConnection(BANNER)
    connection.receive(wire(connect(version=0x01000000, max_payload=4096)))
    connection.take_output()
    assert connection.max_payload == 4096
    with pytest.raises(ProtocolError, match="checksum"):
        connection.receive(wire(Packet(Command.OPEN, 5, 0, b"sync:\0")))


@pytest.mark.parametrize(("version", "payload"), [(0x00FFFFFF, 4096), (0x01000001, 4095)])
def test_impossible_hosts_are_refused(version, payload):
    with pytest.raises(ProtocolError):
        DeviceConnection(BANNER).receive(wire(connect(version, payload)))


def tokens():
    return (bytes([number]) * 20 for number in itertools.count(1)).__next__


def test_keys_are_asked_for_and_a_new_token_follows_each_rejected_one():
    good = b"g" * 256
    connection = DeviceConnection(BANNER, verify=lambda token, signature: signature == good, new_token=tokens())
    assert connection.receive(wire(connect())) == []
    assert sent(connection) == [(Command.AUTH, AuthKind.TOKEN, 0, b"\x01" * 20)]
    assert connection.receive(wire(Packet(Command.AUTH, AuthKind.SIGNATURE, 0, b"b" * 256))) == []
    assert sent(connection) == [(Command.AUTH, AuthKind.TOKEN, 0, b"\x02" * 20)]
    assert isinstance(connection.receive(wire(Packet(Command.AUTH, AuthKind.SIGNATURE, 0, good)))[0], WentOnline)
    assert sent(connection)[0][0] is Command.CNXN


def test_an_offered_key_waits_for_a_person():
    connection = DeviceConnection(BANNER, verify=lambda *_: False, new_token=tokens())
    connection.receive(wire(connect()))
    offer = Packet(Command.AUTH, AuthKind.PUBLIC_KEY, 0, b"QAAA me@host\0")
    assert connection.receive(wire(offer)) == [KeyOffered(b"QAAA me@host")]
    assert connection.phase is HandshakePhase.AUTHORIZING
    assert isinstance(connection.accept_host(), WentOnline)
    assert sent(connection)[-1][0] is Command.CNXN


def test_a_stream_from_open_to_close(online):
    events = online.receive(wire(Packet(Command.OPEN, 9, 0, b"tcp:5000\0")))
    assert events == [StreamRequested(1, "tcp:5000")]
    online.accept(1)
    online.write(1, b"hello")
    assert sent(online) == [(Command.OKAY, 1, 9, b""), (Command.WRTE, 1, 9, b"hello")]
    with pytest.raises(ValueError, match="may not write"):
        online.write(1, b"too early")
    assert online.receive(wire(Packet(Command.OKAY, 8, 1))) == []  # of another stream of the host
    assert online.receive(wire(Packet(Command.OKAY, 9, 1))) == [WriteAllowed(1)]
    assert online.may_write(1)
    assert online.receive(wire(Packet(Command.WRTE, 9, 1, b"data"))) == [DataReceived(1, b"data")]
    online.acknowledge(1)
    online.close(1)
    assert sent(online) == [(Command.OKAY, 1, 9, b""), (Command.CLSE, 1, 9, b"")]
    assert not online.may_write(1)


def test_several_at_once_and_a_refusal_is_a_close_without_a_number(online):
    opens = [Packet(Command.OPEN, remote, 0, b"sync:\0") for remote in (4, 5, 6)]
    assert [event.stream for event in online.receive(wire(*opens))] == [1, 2, 3]
    online.refuse(2)
    assert sent(online) == [(Command.CLSE, 0, 5, b"")]


@pytest.fixture
def stream(online):
    """A connection with one stream: 1 here, 9 at the host."""
    online.receive(wire(Packet(Command.OPEN, 9, 0, b"sync:\0")))
    online.accept(1)
    return online


def test_the_host_closes(stream):
    assert stream.receive(wire(Packet(Command.CLSE, 9, 1))) == [StreamClosed(1)]
    assert stream.receive(wire(Packet(Command.WRTE, 9, 1, b"crossed"))) == []


def test_a_host_that_does_not_wait_is_dropped(stream):
    stream.receive(wire(Packet(Command.WRTE, 9, 1, b"a")))
    with pytest.raises(ProtocolError, match="twice without waiting"):
        stream.receive(wire(Packet(Command.WRTE, 9, 1, b"b")))


def test_the_phone_opens_a_stream(online):
    number = online.open("tcp:7000")
    assert sent(online) == [(Command.OPEN, number, 0, b"tcp:7000\0")]
    assert not online.may_write(number)
    assert online.receive(wire(Packet(Command.OKAY, 33, number))) == [WriteAllowed(number)]
    online.write(number, b"x")
    assert sent(online) == [(Command.WRTE, number, 33, b"x")]
    refused = online.open("tcp:7000")
    assert online.receive(wire(Packet(Command.CLSE, 0, refused))) == [StreamClosed(refused)]


def test_a_second_handshake_drops_all_streams(stream):
    assert stream.receive(wire(connect())) == [WentOnline((1,))]


@given(
    st.lists(
        st.builds(
            Packet,
            st.sampled_from(list(Command)),
            st.integers(0, 4) | st.integers(0, 0xFFFFFFFF),
            st.integers(0, 4) | st.integers(0, 0xFFFFFFFF),
            st.binary(max_size=40),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_an_event_or_protocol_error_and_nothing_else(packets, secure):
    verify = (lambda *_: False) if secure else None
    connection = DeviceConnection(BANNER, verify=verify, new_token=lambda: bytes(20))
    try:
        connection.receive(wire(connect()))
        for event in connection.receive(wire(*packets)):
            assert event is not None
    except ProtocolError:
        pass
    sent(connection)  # whatever was answered is well-formed
