"""adb's transport, `shell,v2` and `sync:` from the phone's side: whole, in pieces, several at once, hostile."""

import os
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import ProtocolError
from farm.simulation import sync_protocol as sync
from farm.simulation.packets import HANDSHAKE_PAYLOAD_BYTES, HEADER, Command, Packet, PacketDecoder, checksum
from farm.simulation.shell import Descriptors, parse_shell
from farm.simulation.shell_protocol import ShellDecoder, ShellId, ShellPiece, encode, parse_window_size
from farm.simulation.sync_protocol import SyncDecoder


def packet_decoder():
    made = PacketDecoder()
    made.max_payload, made.check_sums = 1024 * 1024, False
    return made


def wire(*packets):
    return b"".join(bytes(part) for packet in packets for part in packet.encode())


def request(identifier, path):
    return struct.pack("<4sI", identifier, len(path)) + path


PACKETS = [
    Packet(Command.OPEN, 1, 0, b"shell,v2,raw:true\0"),
    Packet(Command.OKAY, 7, 1),
    Packet(Command.WRTE, 1, 7, bytes(range(256)) * 3),
    Packet(Command.CLSE, 0, 7),
    Packet(Command.CNXN, 0x01000001, 1024 * 1024, b"host::features=shell_v2"),
]
SHELL = [(ShellId.STDIN, b"hello"), (ShellId.WINDOW_SIZE, b"24x80,0x0"), (ShellId.CLOSE_STDIN, b"")]
SYNC = {
    request(b"STAT", b"/a"): [sync.StatRequest(b"STAT", b"/a")],
    request(b"LST2", b"/b"): [sync.StatRequest(b"LST2", b"/b")],
    request(b"LIS2", b"/c"): [sync.ListRequest(b"LIS2", b"/c")],
    request(b"SEND", b"/d,with comma,33188"): [sync.SendRequest(b"/d,with comma", 33188, 0)],
    request(b"DATA", b"first") + request(b"DATA", b"second"): [b"firstsecond"],
    struct.pack("<4sI", b"DONE", 1_700_000_000): [sync.SendEnd(1_700_000_000)],
    request(b"SND2", b"/e") + struct.pack("<4sII", b"SND2", 0o100755, 0): [sync.SendRequest(b"/e", 0o100755, 0)],
    struct.pack("<4sI", b"DONE", 5): [sync.SendEnd(5)],
    request(b"RECV", b"/f"): [sync.ReceiveRequest(b"/f", 0)],
    request(b"RCV2", b"/g") + struct.pack("<4sI", b"RCV2", 4): [sync.ReceiveRequest(b"/g", 4)],
    struct.pack("<4sI", b"QUIT", 0): [sync.Quit()],
}


def plain(packets):
    return [(each.command, each.arg0, each.arg1, bytes(each.payload)) for each in packets]


def joined(messages):
    """Messages with the contents of files and of stdin joined: where they were cut does not matter."""
    found = []
    for message in messages:
        if isinstance(message, Packet):
            found += plain([message])
        elif isinstance(message, sync.SendPiece):
            found[-1:] = (
                [found[-1] + bytes(message.data)] if isinstance(found[-1], bytes) else [found[-1], message.data]
            )
        elif isinstance(message, ShellPiece) and found and found[-1][0] == message.id:
            found[-1] = (message.id, found[-1][1] + message.data)
        else:
            found.append((message.id, message.data) if isinstance(message, ShellPiece) else message)
    return found


def kept(messages):
    """The decoder's buffer is used again for what comes next: what a test keeps is a copy."""
    return [sync.SendPiece(bytes(each.data)) if isinstance(each, sync.SendPiece) else each for each in messages]


STREAMS = [
    pytest.param(packet_decoder, wire(*PACKETS), plain(PACKETS), id="packets"),
    pytest.param(ShellDecoder, b"".join(encode(*each) for each in SHELL), SHELL, id="shell"),
    pytest.param(SyncDecoder, b"".join(SYNC), [each for messages in SYNC.values() for each in messages], id="sync"),
]


@pytest.mark.parametrize(("decoder", "data", "messages"), STREAMS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 8, 9, 23, 24, 25, 64, 10_000])
def test_pieces_of_any_size_and_the_beginning_of_a_next_message_that_waits(decoder, data, messages, size):
    fed = decoder()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert joined([message for piece in pieces for message in kept(fed.feed(piece))]) == messages
    assert joined([*kept(fed.feed(data + data[:3])), *kept(fed.feed(data[3:]))]) == messages * 2


@pytest.mark.parametrize(("decoder", "data", "messages"), STREAMS)
@given(noise=st.lists(st.binary(max_size=60), max_size=8), good=st.integers(0, 100))
def test_messages_or_protocol_error_and_nothing_else(decoder, data, messages, noise, good):
    fed = decoder()
    with suppress(ProtocolError):
        for piece in (data[:good], *noise):
            assert None not in list(fed.feed(piece))


def test_large_payloads_in_large_pieces_and_none_is_overwritten_by_what_comes_next():
    large = [*PACKETS, Packet(Command.WRTE, 1, 7, bytes(range(256)) * 2000)]
    data = wire(*large)
    for size in (65_535, 65_536, 65_537, len(data)):
        fed = packet_decoder()
        found = [packet for at in range(0, len(data), size) for packet in fed.feed(data[at : at + size])]
        list(fed.feed(data))
        assert plain(found) == plain(large)


NUMBERS = st.integers(0, 0xFFFFFFFF)


@given(
    st.lists(st.builds(Packet, st.sampled_from(Command), NUMBERS, NUMBERS, st.binary(max_size=300)), max_size=5),
    st.integers(1, 100),
)
def test_what_is_encoded_is_decoded(packets, size):
    data, fed = wire(*packets), packet_decoder()
    found = [packet for at in range(0, len(data), size) for packet in fed.feed(data[at : at + size])]
    assert plain(found) == plain(packets)


def header(command, arg0, size, check, magic=0xFFFFFFFF):
    return HEADER.pack(command, arg0, 1, size, check, (command ^ 0xFFFFFFFF) & magic)


WRONG_SUM, RIGHT_SUM = (header(Command.OKAY, 1, 3, check) + b"abc" for check in (5, checksum(b"abc")))


@pytest.mark.parametrize(
    ("decoder", "data", "words"),
    [
        (packet_decoder, header(Command.OKAY, 1, 0, 0, magic=0), "magic"),
        (packet_decoder, header(0x12345678, 0, 0, 0), "unknown adb command 0x12345678"),
        (packet_decoder, header(Command.CNXN, 0x01000001, 4097, 0), "CNXN with 4097"),
        (PacketDecoder, header(Command.WRTE, 1, HANDSHAKE_PAYLOAD_BYTES + 1, 0), "4097 bytes of payload, 4096 allowed"),
        (PacketDecoder, WRONG_SUM, "checksum"),
        (ShellDecoder, struct.pack("<BI", 9, 0), "unknown id 9"),
        (ShellDecoder, struct.pack("<BI", 0, 0xFFFFFFFF), "4294967295"),
        (SyncDecoder, request(b"NOPE", b"/x"), "unknown command"),  # in the words of adbd
        (SyncDecoder, struct.pack("<4sI", b"STAT", 1025), "path too long"),
        (SyncDecoder, request(b"SEND", b"/x"), "missing , in ID_SEND_V1"),
        (SyncDecoder, request(b"SEND", b"/x,rwx"), "bad mode"),
        (SyncDecoder, request(b"SEND", b"/x,420") + struct.pack("<4sI", b"DATA", 65537), "oversize data message"),
        (SyncDecoder, request(b"SEND", b"/x,420") + request(b"STAT", b"/y"), "invalid data message"),
        (SyncDecoder, request(b"SND2", b"/x") + struct.pack("<4sII", b"RCV2", 0, 0), "invalid setup message"),
    ],
)
def test_what_breaks_the_protocol_is_refused(decoder, data, words):
    with pytest.raises(ProtocolError, match=words):
        list(decoder().feed(data))


def test_sums_and_limits_count_where_they_should():
    assert checksum(b"\x01\x02\xff") == 0x102
    assert len(PacketDecoder().feed(RIGHT_SUM)) == len(packet_decoder().feed(WRONG_SUM)) == 1
    made = PacketDecoder()
    made.check_sums = False
    allowed = Packet(Command.WRTE, 1, 1, bytes(HANDSHAKE_PAYLOAD_BYTES))
    assert plain(made.feed(wire(allowed))) == plain([allowed])


def test_answers_to_sync_requests():
    found = os.lstat("/")
    sizes = {sync.encode_stat(b"STAT", found): 16, sync.encode_stat(b"STA2", found): 72}
    sizes |= {sync.encode_entry(b"LIST", b"name", found): 24, sync.encode_entry(b"LIS2", b"name", found): 80}
    assert all(len(answer) == size for answer, size in sizes.items())
    assert sync.encode_list_end(b"LIST") == b"DONE" + bytes(16)
    assert sync.encode_list_end(b"LIS2") == b"DONE" + bytes(72)
    assert sync.encode_fail("no") == b"FAIL\x02\x00\x00\x00no"
    assert sync.encode_stat(b"STAT", None, 2) == b"STAT" + bytes(12)
    assert sync.encode_stat(b"LST2", None, 13) == b"LST2" + struct.pack("<I", 13) + bytes(64)


def test_a_window_size_and_an_exit_code():
    assert parse_window_size(b"24x80,640x480\0") == (24, 80, 640, 480)
    assert encode(ShellId.EXIT, b"\x07") == b"\x03\x01\x00\x00\x00\x07"


@given(st.binary(max_size=30) | st.from_regex(rb"\d{1,6}x\d{1,6},\d{1,6}x\d{1,6}", fullmatch=True))
def test_a_window_size_or_protocol_error(text):
    with suppress(ProtocolError):
        assert all(0 <= number <= 0xFFFF for number in parse_window_size(text))


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
    asked = parse_shell(service)
    assert (asked.command, asked.protocol, asked.descriptors) == (command, protocol, descriptors)


def test_term_is_passed_on_and_unknown_arguments_are_refused():
    assert parse_shell("shell,v2,TERM=vt100:").terminal == "vt100"
    with pytest.raises(ProtocolError, match="v9"):
        parse_shell("shell,v9:true")
