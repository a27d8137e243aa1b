"""The preface of a connection between hosts and its answer: whole, byte by byte, with trailing bytes, and any bytes."""

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import Code, FarmError, HostError, ProtocolError
from farm.lab import wire
from farm.lab.wire import (
    FirstMessageReader,
    Preface,
    PrefaceAnswer,
    decode_answer,
    decode_preface,
    encode_answer,
    encode_preface,
)

PREFACE = Preface("artifact", {"sha256": "ab" * 32, "offset": 7, "name": "größe"})
REFUSAL = HostError("it has none", Code.NO_SUCH_ARTIFACT, hint="ask another")
preface_reader = partial(FirstMessageReader, decode_preface)
answer_reader = partial(FirstMessageReader, decode_answer)
TRAILING = b"\x00\x01{\n"
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("message", [PREFACE, PrefaceAnswer({"size_bytes": 5})], ids=["preface", "answer"])
def test_a_message_is_read_byte_by_byte(message):
    preface = isinstance(message, Preface)
    data, reader = (encode_preface(message), preface_reader()) if preface else (encode_answer(message), answer_reader())
    *first, last = data
    assert [reader.feed(bytes([each])) for each in first] == [None] * len(first)
    assert reader.feed(bytes([last]) + TRAILING) == message
    assert [reader.trailing_data() for _ in range(2)] == [TRAILING, b""]


def test_a_refusal_keeps_fault_code_and_hint():
    error = answer_reader().feed(encode_answer(PrefaceAnswer(error=REFUSAL))).error
    assert isinstance(error, HostError)
    assert (error.code, error.message, error.hint) == (REFUSAL.code, REFUSAL.message, REFUSAL.hint)


def test_the_longest_error_fits():
    worst = FarmError("\x00" * 9000, hint="\x00" * 9000, evidence="\x00" * 9000)  # six bytes each in JSON
    with pytest.raises(ProtocolError, match="bytes"):
        encode_preface(Preface("artifact", {"x": "\x00" * wire.MAX_BYTES}))
    assert answer_reader().feed(encode_answer(PrefaceAnswer(error=worst))).error.message


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1\n",
        b"[]\n",
        b'{"service": "artifact", "fields": {}}\n',
        b'{"lab": true, "service": "artifact", "fields": {}}\n',
        b'{"lab": 1, "service": "../x", "fields": {}}\n',
        b'{"lab": 1, "service": "artifact", "fields": []}\n',
        b'{"lab": 1, "service": "artifact", "fields": {}, "payload_bytes": 1}\n',
        b"[" * 50_000 + b"\n",
        b"x" * (wire.MAX_BYTES + 1),
        b" " * (wire.MAX_BYTES + 1) + b"\n",
    ],
)
def test_something_else_is_refused(line):
    with pytest.raises(ProtocolError):
        preface_reader().feed(line)


def test_a_later_version_is_read_so_that_it_can_be_refused_in_words():
    assert preface_reader().feed(encode_preface(Preface("artifact", {}, 2))).version == 2


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_are_a_message_or_a_protocol_error(parts):
    for reader in (preface_reader(), answer_reader()):
        try:
            found = [message for part in parts if (message := reader.feed(part)) is not None]
        except ProtocolError:
            continue
        assert found == []  # forty random bytes are none
        assert reader.trailing_data() == b"".join(parts)


@given(ANY)
def test_any_json_is_a_message_or_a_protocol_error(value):
    data = json.dumps(value).encode() + b"\n"
    for reader in (preface_reader(), answer_reader()):
        try:
            message = reader.feed(data)
        except ProtocolError:
            continue
        assert isinstance(message, (Preface, PrefaceAnswer))


@given(st.dictionaries(st.text(max_size=8), ANY, max_size=4), st.binary(max_size=20))
def test_what_is_written_is_read(fields, behind):
    reader = preface_reader()
    assert reader.feed(encode_preface(Preface("verb", fields)) + behind) == Preface("verb", fields)
    assert reader.trailing_data() == behind
