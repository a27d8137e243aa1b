"""Control messages: round trips, limits, and "a message or ProtocolError, nothing else"."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common import errors
from farm.control import messages as m

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
field_names = st.text(st.characters(codec="utf-8"), min_size=1).filter(
    lambda name: name not in {"v", "id", "kind", "attempt", "fence", "token"}
)
fields = st.dictionaries(field_names, json_values, max_size=4)


@given(fields=fields, frames=st.lists(st.binary(max_size=64), max_size=m.MAX_FRAMES))
def test_requests_survive_the_wire(fields, frames):
    request = m.Request("a1", "artifact.put", fields, tuple(frames))
    assert m.decode_request(m.encode_request(request)) == request


def test_a_workers_credentials_survive_the_wire():
    request = m.Request("a1", "heartbeat", {}, (), attempt="bench-1", fence=2**61, token="secret_-1")
    assert m.decode_request(m.encode_request(request)) == request


@given(fields=fields, frames=st.lists(st.binary(max_size=64), max_size=m.MAX_FRAMES), more=st.booleans())
def test_replies_survive_the_wire(fields, frames, more):
    reply = m.Reply("a1", fields, tuple(frames), more)
    assert m.decode_reply(m.encode_reply(reply)) == reply


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_bytes_are_a_message_or_a_protocol_error(frames):
    for decode in (m.decode_request, m.decode_reply):
        with contextlib.suppress(errors.ProtocolError):
            decode(frames)
    assert isinstance(m.request_id(frames), str)


@given(json_values | st.dictionaries(st.sampled_from(["v", "id", "kind", "ok", "error", "more", "fence"]), json_values))
def test_any_json_is_a_message_or_a_protocol_error(value):
    frames = [json.dumps(value).encode()]
    for decode in (m.decode_request, m.decode_reply):
        with contextlib.suppress(errors.ProtocolError):
            decode(frames)


GOOD = {"v": 1, "id": "a1", "kind": "status"}
PUT = json.dumps(GOOD | {"kind": "artifact.put"}).encode()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"v": 2}, "protocol version 2"),
        ({"v": True}, "protocol version"),
        ({"id": ""}, "'id'"),
        ({"id": "a b"}, "'id'"),
        ({"id": 7}, "'id'"),
        ({"kind": "Status"}, "'kind'"),
        ({"kind": "x" * 65}, "'kind'"),
        ({"fence": -1}, "fence"),
        ({"fence": 1.5}, "fence"),
        ({"fence": True}, "fence"),
        ({"token": "a b"}, "'token'"),
        ({"attempt": None}, "'attempt'"),
    ],
)
def test_a_bad_envelope_is_refused_and_named(change, complaint):
    with pytest.raises(errors.ProtocolError, match=complaint):
        m.decode_request([json.dumps(GOOD | change).encode()])


@pytest.mark.parametrize(
    "frame",
    [b"", b"[]", b"null", b"\xff\xfe", b'{"a":NaN}', b"[" * 100_000, b"1" * 10_000,
     b'{"v":1,"id":"a","kind":"\\ud800"}',
     b'{"v":1,"id":"a","kind":"k","x":"\\uD800"}'],
)  # fmt: skip
def test_hostile_json_is_refused(frame):
    with pytest.raises(errors.ProtocolError):
        m.decode_request([frame])


def test_surrogate_pairs_are_ordinary_text():
    assert m.decode_request([b'{"v":1,"id":"a","kind":"k","x":"\\ud83d\\ude00"}']).fields["x"] == "\U0001f600"


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b" " * (m.MAX_HEADER_BYTES + 1)],
        [PUT, b"x" * (m.MAX_FRAME_BYTES + 1)],
        [PUT, *[b""] * (m.MAX_FRAMES + 1)],
    ],
    ids=["nothing", "header", "frame", "frames"],
)
def test_limits_hold(frames):
    with pytest.raises(errors.ProtocolError):
        m.decode_request(frames)


def test_what_the_other_side_would_refuse_never_leaves():
    for request in (
        m.Request("a1", "bench", {"id": "mine"}),
        m.Request("a1", "bench", {"x": float("nan")}),
        m.Request("a1", "bench", {"x": object()}),
        m.Request("a 1", "bench"),
        m.Request("a1", "artifact.put", {}, (b"x" * (m.MAX_FRAME_BYTES + 1),)),
    ):
        with pytest.raises(errors.ProtocolError):
            m.encode_request(request)


def test_a_garbled_request_is_answered_when_its_id_can_be_read():
    assert m.request_id([b'{"v":9,"id":"a1","kind":"x"}']) == "a1"
    assert m.request_id([b'{"v":9,"id":"a 1"}']) == ""
    assert m.request_id([b"garbage"]) == ""


class LeafError(errors.PhoneError):
    """A leaf."""

    code = "leaf"


class LeafWithArgumentsError(errors.PhoneError):
    """A leaf that cannot be built from a message alone."""

    code = "leaf_with_arguments"

    def __init__(self, serial, port):
        super().__init__(f"{serial} {port}")


@pytest.mark.parametrize(
    "error",
    [
        errors.UserError("bad", hint="do this", evidence="said"),
        errors.NoPhoneError("none"),
        errors.NotAllowedError("no"),
        errors.HostError("host"),
        errors.FarmError("bug"),
        LeafError("leaf"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_class_words_and_exit_code(error):
    back = errors.error_from_wire(json.loads(json.dumps(errors.error_to_wire(error))))
    assert type(back) is type(error)
    assert (back.message, back.hint, back.evidence) == (error.message, error.hint, error.evidence)


def test_an_unknown_class_keeps_fault_code_and_exit_code():
    wire = {"code": "no_gpu", "fault": "phone", "exit": errors.ExitCode.NO_PHONE, "message": "m", "hint": "h"}
    back = errors.error_from_wire(wire)
    assert isinstance(back, errors.PhoneError)
    assert (back.code, back.fault, back.exit_code, back.message) == (
        "no_gpu",
        errors.Fault.PHONE,
        errors.ExitCode.NO_PHONE,
        "m",
    )
    assert type(errors.error_from_wire(wire)) is type(back)


def test_a_class_with_its_own_constructor_is_replaced_by_one_like_it():
    back = errors.error_from_wire(errors.error_to_wire(LeafWithArgumentsError("s", 1)))
    assert isinstance(back, errors.PhoneError)
    assert (back.code, back.message) == ("leaf_with_arguments", "s 1")


def test_other_exceptions_are_bugs_and_long_logs_keep_their_end():
    assert errors.error_from_wire(errors.error_to_wire(KeyError("x"))).fault is errors.Fault.FARM
    wire = errors.error_to_wire(errors.HostError("m", evidence="a" * errors.MAX_TEXT_CHARS + "end"))
    assert str(wire["evidence"]).endswith("end")


@given(st.dictionaries(st.sampled_from(["fault", "code", "exit", "message", "hint", "evidence"]), json_values))
def test_any_error_fields_become_an_error(wire):
    assert isinstance(errors.error_from_wire(wire), errors.FarmError)
