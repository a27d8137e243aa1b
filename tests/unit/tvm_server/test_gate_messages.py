"""What gate and daemon tell each other: every message there and back, and nothing else."""

import json
from dataclasses import is_dataclass
from enum import Enum
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import ProtocolError
from farm.model.sessions import Peer
from farm.tvm_server.gate import messages as m
from tests.support.golden import rows

ALICE = Peer("::1", 1, "alice")
BY_TYPE = {
    str: st.text(max_size=200),
    int: st.integers(0, (1 << 63) - 1),
    float: st.floats(0, 1e9),
    bool: st.booleans(),
}


def values(wanted):
    if is_dataclass(wanted):
        return st.builds(wanted, **{name: values(each) for name, each in get_type_hints(wanted).items()})
    return st.sampled_from(wanted) if issubclass(wanted, Enum) else BY_TYPE[wanted]


def messages(side):
    return st.one_of([values(each) for each in side.values()])


@pytest.mark.parametrize("side", [m.FROM_GATE, m.FROM_DAEMON])
def test_every_message_comes_back_as_it_went(side):
    @given(messages(side))
    def there_and_back(message):
        assert m.decode(m.encode(message), side) == message

    there_and_back()


@pytest.mark.parametrize("side", [m.FROM_GATE, m.FROM_DAEMON])
def test_garbage_is_a_protocol_error_and_nothing_else(side):
    values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists)
    kinds = st.sampled_from(list(side))

    @given(st.binary() | st.builds(lambda kind, more: json.dumps({**more, "kind": kind}).encode(), kinds,
                                   st.dictionaries(st.sampled_from(["n", "key", "v", "reason"]), values)))  # fmt: skip
    def refused_or_whole(data):
        try:
            message = m.decode(data, side)
        except ProtocolError:
            return
        assert m.decode(m.encode(message), side) == message

    refused_or_whole()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        *rows(__file__, "wrong_messages"),
        ("[" * 60_000, "no JSON"),
        (" " * (m.MAX_MESSAGE_BYTES + 1), "more than"),
        (json.dumps({"kind": "cut_session", "n": 1, "reason": "x" * (m.MAX_TEXT + 1)}), "characters"),
    ],
)
def test_what_is_wrong_is_said(data, said):
    with pytest.raises(ProtocolError, match=said):
        m.decode(data.encode(), m.FROM_DAEMON)


def test_the_largest_hello_of_a_client_fits():
    m.decode(m.encode(m.OpenSession(1, "\x01" * 4096, ALICE, 30.0)), m.FROM_GATE)
    first = m.pack(bytes(range(256)) * 16)
    new_request = m.ClientHandoff(1, ALICE, first)
    assert m.unpack(m.decode(m.encode(new_request), m.FROM_GATE).first) == bytes(range(256)) * 16


def test_a_record_in_a_message_has_exactly_its_fields():
    whole = json.loads(m.encode(m.ClientHandoff(1, ALICE, "")))
    for peer in ({**whole["peer"], "more": 1}, {"address": "::1"}, "::1", None):
        with pytest.raises(ProtocolError, match="peer does not have these fields"):
            m.decode(json.dumps({**whole, "peer": peer}).encode(), m.FROM_GATE)


def test_the_version_is_found_in_a_hello_of_any_release():
    assert m.version_of(b'{"kind": "daemon_hello", "v": 9, "whatever": {}}') == 9
    assert m.version_of(b'{"v": true}') is m.version_of(b"\xff") is m.version_of(b'{"kind": "daemon_hello"}') is None


@pytest.mark.parametrize("text", ["===", "a", "ab\ncd", "ä"])
def test_what_is_no_base64_is_refused(text):
    with pytest.raises(ProtocolError):
        m.unpack(text)


def test_a_line_for_people_always_fits():
    cut = m.CutSession(1, m.clip("\ud800 is wrong " * 1000))
    assert m.decode(m.encode(cut), m.FROM_DAEMON) == cut
    assert len(cut.reason) == m.MAX_DETAIL
