import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import ProtocolError
from farm.simulation.packets import HANDSHAKE_PAYLOAD_BYTES, HEADER, Command, Packet, PacketDecoder, checksum

PACKETS = [
    Packet(Command.OPEN, 1, 0, b"shell,v2,raw:true\0"),
    Packet(Command.OKAY, 7, 1),
    Packet(Command.WRTE, 1, 7, bytes(range(256)) * 2000),
    Packet(Command.CLSE, 0, 7),
    Packet(Command.CNXN, 0x01000001, 1024 * 1024, b"host::features=shell_v2"),
]
WIRE = b"".join(bytes(part) for packet in PACKETS for part in packet.encode())


def decoder():
    made = PacketDecoder()
    made.max_payload = 1024 * 1024
    made.check_sums = False
    return made


def same(found, expected):
    return [(p.command, p.arg0, p.arg1, bytes(p.payload)) for p in found] == [
        (p.command, p.arg0, p.arg1, bytes(p.payload)) for p in expected
    ]


def test_whole():
    assert same(decoder().feed(WIRE), PACKETS)


def test_byte_by_byte():
    made = decoder()
    # The large payload is shortened: half a million single bytes prove no more than six hundred.
    short = [*PACKETS[:2], Packet(Command.WRTE, 1, 7, b"x" * 600), *PACKETS[3:]]
    wire = b"".join(bytes(part) for packet in short for part in packet.encode())
    assert same([packet for at in range(len(wire)) for packet in made.feed(wire[at : at + 1])], short)


@pytest.mark.parametrize("size", [23, 24, 25, 65_535, 65_536, 65_537])
def test_pieces_of_any_size(size):
    made = decoder()
    assert same([packet for at in range(0, len(WIRE), size) for packet in made.feed(WIRE[at : at + size])], PACKETS)


def test_trailing_bytes_wait_for_the_rest():
    made = decoder()
    assert same(made.feed(WIRE + WIRE[:30]), PACKETS)
    assert same(made.feed(WIRE[30:]), PACKETS)


def test_a_payload_is_not_overwritten_by_what_comes_next():
    made = decoder()
    first = made.feed(WIRE)
    made.feed(WIRE)
    assert same(first, PACKETS)


def test_wrong_magic_is_refused():
    with pytest.raises(ProtocolError, match="magic"):
        decoder().feed(HEADER.pack(Command.OKAY, 1, 1, 0, 0, 0))


def test_unknown_command_is_refused():
    with pytest.raises(ProtocolError, match="unknown adb command 0x12345678"):
        decoder().feed(HEADER.pack(0x12345678, 0, 0, 0, 0, 0x12345678 ^ 0xFFFFFFFF))


def test_payload_limits():
    made = PacketDecoder()
    made.check_sums = False
    allowed = Packet(Command.WRTE, 1, 1, bytes(HANDSHAKE_PAYLOAD_BYTES))
    assert same(made.feed(b"".join(bytes(part) for part in allowed.encode())), [allowed])
    too_long = HEADER.pack(Command.WRTE, 1, 1, HANDSHAKE_PAYLOAD_BYTES + 1, 0, Command.WRTE ^ 0xFFFFFFFF)
    with pytest.raises(ProtocolError, match="4097 bytes of payload, 4096 allowed"):
        made.feed(too_long)
    handshake = HEADER.pack(Command.CNXN, 0x01000001, 4096, 4097, 0, Command.CNXN ^ 0xFFFFFFFF)
    with pytest.raises(ProtocolError, match="CNXN with 4097"):
        decoder().feed(handshake)


def test_sums_are_checked_only_where_they_count():
    wrong = HEADER.pack(Command.OKAY, 1, 1, 3, 5, Command.OKAY ^ 0xFFFFFFFF) + b"abc"
    with pytest.raises(ProtocolError, match="checksum"):
        PacketDecoder().feed(wrong)
    right = HEADER.pack(Command.OKAY, 1, 1, 3, checksum(b"abc"), Command.OKAY ^ 0xFFFFFFFF) + b"abc"
    assert len(PacketDecoder().feed(right)) == 1
    assert len(decoder().feed(wrong)) == 1


def test_checksum_is_the_plain_sum():
    assert checksum(b"\x01\x02\xff") == 0x102


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_a_packet_or_protocol_error_and_nothing_else(pieces):
    made = decoder()
    try:
        for piece in pieces:
            for packet in made.feed(piece):
                assert len(packet.payload) <= made.max_payload
    except ProtocolError:
        pass


@given(
    st.lists(
        st.builds(
            Packet,
            st.sampled_from(list(Command)),
            st.integers(0, 0xFFFFFFFF),
            st.integers(0, 0xFFFFFFFF),
            st.binary(max_size=300),
        ),
        max_size=5,
    ),
    st.integers(1, 100),
)
def test_what_is_encoded_is_decoded(packets, size):
    wire = b"".join(bytes(part) for packet in packets for part in packet.encode())
    made = decoder()
    assert same([packet for at in range(0, len(wire), size) for packet in made.feed(wire[at : at + size])], packets)
