import contextlib
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb.host_protocol import (
    SHELL_HEADER,
    BlockReader,
    Fail,
    Okay,
    SentinelReader,
    ShellPacket,
    ShellPacketId,
    ShellReader,
    StatusReader,
    SyncData,
    SyncDone,
    SyncReader,
    SyncStat,
    SyncWord,
    encode_done,
    encode_request,
    encode_send,
    encode_send_v2,
    encode_sync,
)
from farm.common.errors import ProtocolError, UserError

SHELL = [
    ShellPacket(ShellPacketId.STDOUT, b"out"),
    ShellPacket(ShellPacketId.STDERR, b""),
    ShellPacket(ShellPacketId.EXIT, b"\x03"),
]
SHELL_BYTES = b"".join(SHELL_HEADER.pack(packet.id, len(packet.data)) + packet.data for packet in SHELL)
SYNC = [SyncStat(0o100644, 7, 9), SyncData(b"abc"), SyncDone(), Okay(), Fail("No space left on device")]
SYNC_BYTES = (
    b"STAT" + struct.pack("<III", 0o100644, 7, 9)
    + b"DATA\x03\0\0\0abc" + b"DONE\0\0\0\0" + b"OKAY\0\0\0\0" + b"FAIL\x17\0\0\0No space left on device"
)  # fmt: skip
BLOCKS = [b"", b"0029", "gerät\n".encode()]
BLOCK_BYTES = b"0000" + b"00040029" + b"0007" + "gerät\n".encode()
STREAMS = [
    (ShellReader, SHELL_BYTES, SHELL),
    (SyncReader, SYNC_BYTES, SYNC),
    (BlockReader, BLOCK_BYTES, BLOCKS),
]


def drain(reader):
    messages = []
    while (message := reader.next()) is not None:
        messages.append(message)
    return messages


@pytest.mark.parametrize(("reader", "data", "messages"), STREAMS)
@pytest.mark.parametrize("step", [1, 1000])
def test_whole_and_byte_by_byte_and_the_beginning_of_a_next_message_waits(reader, data, messages, step):
    fed, seen = reader(), []
    for at in range(0, len(data), step):
        fed.feed(data[at : at + step])
        seen += drain(fed)
    assert seen == messages
    fed.feed(data + data[:3])
    assert drain(fed) == messages
    fed.feed(data[3:])
    assert drain(fed) == messages


@pytest.mark.parametrize(("reader", "data", "messages"), STREAMS)
@given(positions=st.lists(st.integers(0, 200)))
def test_any_cuts_give_the_same_messages(reader, data, messages, positions):
    edges = [0, *sorted(min(position, len(data)) for position in positions), len(data)]
    cut, seen = reader(), []
    for start, end in itertools.pairwise(edges):
        cut.feed(data[start:end])
        seen += drain(cut)
    assert seen == messages


def test_who_reads_only_what_a_reader_wants_leaves_what_follows():
    data, reader, at = encode_request("host:transport-any") + b"stream", BlockReader(), 0
    while wanted := reader.wants:
        reader.feed(data[at : at + wanted])
        at += wanted
    assert (reader.next(), data[at:]) == (b"host:transport-any", b"stream")
    reader.feed(b"000")
    assert (reader.next(), reader.rest(), reader.wants) == (None, b"000", 1)
    reader.feed(b"7")
    assert (reader.next(), reader.wants) == (None, 7)


@pytest.mark.parametrize("reader", [ShellReader, SyncReader, BlockReader, StatusReader])
@given(pieces=st.lists(st.binary(max_size=80), max_size=6))
def test_any_bytes_are_a_message_or_a_protocol_error(reader, pieces):
    fuzzed = reader()
    with contextlib.suppress(ProtocolError):
        for piece in pieces:
            fuzzed.feed(piece)
            if reader is StatusReader:
                assert isinstance(fuzzed.next(), Okay | Fail | None)
                return
            drain(fuzzed)
            assert fuzzed.next() is None


def test_a_request_carries_its_length_in_bytes():
    assert encode_request("host:version") == b"000chost:version"
    assert encode_request("host:transport:ü") == b"0011host:transport:\xc3\xbc"
    for service in ("", "x" * 0x10000):
        with pytest.raises(UserError, match="bytes is not possible"):
            encode_request(service)


@pytest.mark.parametrize("follows", [b"", b"OKAY", b"\x05\0stream of the phone"])
def test_a_status_takes_exactly_what_it_wants(follows):
    for words, meaning in ((b"OKAY", Okay()), (b"FAIL0006closed", Fail("closed")), (b"FAIL0000", Fail(""))):
        wire, reader, at = words + follows, StatusReader(), 0
        while size := reader.wants:
            reader.feed(wire[at : at + size])
            at += size
        assert reader.next() == meaning
        assert wire[at:] == follows


@pytest.mark.parametrize(
    ("reader", "data", "said"),
    [
        *((BlockReader, digits, "hex digits") for digits in (b"00g1", b"+001", b" 001", b"0_01", b"-001", b"\xff" * 4)),
        (ShellReader, struct.pack("<BI", 6, 0), "shell,v2"),
        (ShellReader, struct.pack("<BI", 1, 1 << 30), "shell,v2"),
        (ShellReader, struct.pack("<BI", 3, 2) + b"ab", "shell,v2"),
        *(
            (SyncReader, data, "not a sync reply")
            for data in (b"NOPE\0\0\0\0", b"DATA\1\0\1\0", b"FAIL\xff\xff\xff\xff")
        ),
        (StatusReader, b"HTTP/1.1 400 Bad Request", "not an adb server"),
    ],
)
def test_a_stream_gone_wrong_is_refused(reader, data, said):
    wrong = reader()
    with pytest.raises(ProtocolError, match=said):
        wrong.feed(data) or wrong.next()


def test_sync_requests_on_the_wire():
    assert encode_sync(SyncWord.STAT, "/a") == b"STAT\x02\0\0\0/a"
    assert encode_send("/a", 0o755) == b"SEND\x08\0\0\0/a,33261"
    assert encode_send_v2("/a,b", 0o644) == b"SND2\x04\0\0\0/a,bSND2" + struct.pack("<II", 0o100644, 0)
    assert encode_done(5) == b"DONE\x05\0\0\0"
    with pytest.raises(UserError, match="path of 1025 bytes"):
        encode_sync(SyncWord.RECV, "/" + "x" * 1024)


def answer(reader, output, code, newline=b"\n", step=1000):
    wire = output + newline + reader.wrap("x").split()[-1].replace("$farm_rc", str(code)).encode() + newline
    seen = b"".join(reader.feed(wire[at : at + step]) for at in range(0, len(wire), step))
    return seen + reader.finish()


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("output", [b"", b"no newline", b"lines\nlines\n", b"\n\n", b"fake farm-0:3\n" * 50])
def test_an_old_shell_gives_output_and_exit_code(output, step):
    reader = SentinelReader("farm-token")
    assert answer(reader, output, 255, step=step) == output
    assert (reader.exit_code, reader.translated) == (255, False)


def test_an_old_pty_is_noticed_and_an_old_shell_cut_off_has_no_exit_code():
    reader = SentinelReader("farm-token")
    assert answer(reader, b"a\r\nb\r\n", 0, b"\r\n") == b"a\r\nb\r\n"
    assert (reader.exit_code, reader.translated) == (0, True)
    reader = SentinelReader("farm-token")
    assert reader.feed(b"half an ans") + reader.finish() == b"half an ans"
    assert reader.exit_code is None
