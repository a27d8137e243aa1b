"""What gate and daemon tell each other: every message there and back, and nothing else."""

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.core.errors import ProtocolError
from farm.tracker import gate_messages as m

BY_TYPE = {
    "str": st.text(max_size=200),
    "int": st.integers(0, (1 << 63) - 1),
    "float": st.floats(0, 1e9),
    "bool": st.booleans(),
}


def messages(side):
    return st.one_of([st.builds(each, **{one.name: BY_TYPE[str(one.type)] for one in fields(each)}) for each in side])


@pytest.mark.parametrize("side", [m.FROM_GATE, m.FROM_DAEMON])
def test_every_message_comes_back_as_it_went(side):
    @given(messages(side))
    def there_and_back(message):
        assert m.decode(m.encode(message), side) == message

    there_and_back()


@pytest.mark.parametrize("side", [m.FROM_GATE, m.FROM_DAEMON])
def test_garbage_is_a_protocol_error_and_nothing_else(side):
    values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists)
    kinds = st.sampled_from([m.kind_of(each) for each in side])

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
        (b"", "no JSON"),
        (b"[" * 60_000, "no JSON"),
        (b" " * (m.MAX_MESSAGE_BYTES + 1), "more than"),
        (b"[]", "no JSON object"),
        (b'{"kind": ["left"]}', "kind"),
        (b'{"kind": "open", "n": 1}', "kind"),  # the gate's, not the daemon's
        (b'{"kind": "left"}', "fields"),
        (b'{"kind": "left", "n": 1, "m": 2}', "fields"),
        (b'{"kind": "left", "n": true}', "no int"),
        (b'{"kind": "left", "n": -1}', "range"),
        (b'{"kind": "left", "n": 1e3}', "no int"),
        (b'{"kind": "use", "idle_s": NaN}', "NaN"),
        (b'{"kind": "use", "idle_s": 1e999}', "seconds"),
        (b'{"kind": "use", "idle_s": "1"}', "seconds"),
        (b'{"kind": "cut", "n": 1, "reason": "\\ud800"}', "UTF-8"),
        (b'{"kind": "cut", "n": 1, "reason": "' + b"x" * (m.MAX_TEXT + 1) + b'"}', "characters"),
    ],
)
def test_what_is_wrong_is_said(data, said):
    with pytest.raises(ProtocolError, match=said):
        m.decode(data, m.FROM_DAEMON)


def test_the_largest_hello_of_a_client_fits():
    m.decode(m.encode(m.Open(1, "\x01" * 4096, "::1", 1, "alice", 30.0)), m.FROM_GATE)
    first = m.pack(bytes(range(256)) * 16)
    newcomer = m.Newcomer(1, "::1", 1, "alice", first)
    assert m.unpack(m.decode(m.encode(newcomer), m.FROM_GATE).first) == bytes(range(256)) * 16


def test_secrets_are_in_no_log():
    kept = m.Kept(1, "session-1-1", 7, "pixel", "the-key", "the-secret", "::1", 1, "alice", 1.0, 2, 3, told=True)
    assert "secret" not in m.secretless(kept)
    assert "the-key" not in m.secretless(kept)
    assert "session-1-1" in m.secretless(kept)


def test_the_version_is_found_in_a_hello_of_any_release():
    assert m.version_of(b'{"kind": "hello", "v": 9, "whatever": {}}') == 9
    assert m.version_of(b'{"v": true}') is m.version_of(b"\xff") is m.version_of(b'{"kind": "hello"}') is None


@pytest.mark.parametrize("text", ["===", "a", "ab\ncd", "ä"])
def test_what_is_no_base64_is_refused(text):
    with pytest.raises(ProtocolError):
        m.unpack(text)


def test_a_line_for_people_always_fits():
    cut = m.Cut(1, m.clip("\ud800 is wrong " * 1000))
    assert m.decode(m.encode(cut), m.FROM_DAEMON) == cut
    assert len(cut.reason) == m.MAX_DETAIL
