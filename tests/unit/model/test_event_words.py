"""Events as sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.model.event_kinds import KINDS, TROUBLE
from farm.model.event_words import WHY, event_words

AT = "2026-11-22T06:00:00+00:00"
SHA = "ab" * 32
LISTS = ("devices", "classes", "applied", "restart")


def words(kind, /, **data):
    return event_words({"seq": 1, "at": AT, "kind": kind, "subject": "pixel", "data": data})


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_every_kind_of_event_has_a_sentence_of_its_own(kind):
    texts = {name: f"its-{name}" for name in kind.data}
    lists = {name: [f"its-{name}"] for name in kind.data if name in LISTS}
    numbers = {name: 70.0 for name in kind.data if name.endswith(("_s", "seconds")) or "bytes" in name}
    data = {**texts, **lists, **numbers, **({"expires_at": AT} if "expires_at" in kind.data else {})}
    sentence = words(kind.kind, **data)
    assert kind.kind not in sentence  # its words, not its name
    assert not set(sentence) & set("{}[]")
    assert len(sentence.split()) >= 3


def test_the_log_warns_of_kinds_that_there_are():
    assert KINDS.keys() >= TROUBLE


LEASE = {"user": "ann", "device": "pixel"}
ENDED = {"job": "bench-1", "device": "pixel"}
SESSION = {**LEASE, "outcome": "closed", "detail": "", "seconds": 3.14, "bytes_up": 1234, "bytes_down": 5e6}


@pytest.mark.parametrize(
    ("kind", "data", "sentence"),
    [
        ("device.ready", {"reason": ""}, "pixel is ready"),
        ("device.gone", {"reason": "it was unplugged"}, "pixel is gone: it was unplugged"),
        ("device.service", {"service": "draining", "by": "ann"}, "ann drains pixel"),
        (
            "device.cooling",
            {"classes": ["bench", "tune"], "reason": "45 °C"},
            "pixel is closed to bench, tune: 45 °C",
        ),
        ("lease.granted", {**LEASE, "job": "run-1", "waited_s": 75}, "ann leased pixel for run-1 after waiting 1m 15s"),
        ("lease.granted", {**LEASE, "job": "", "waited_s": 0.2}, "ann leased pixel"),
        ("lease.extended", {**LEASE, "expires_at": "2026-11-22T06:30:00+00:00"}, "ann keeps pixel for another 30m"),
        (
            "attempt.ended",
            {**ENDED, "state": "failed", "error": {"message": "no"}},
            "bench-1 ended on pixel, failed: no",
        ),
        ("attempt.ended", {**ENDED, "state": "done", "error": None}, "bench-1 ended on pixel, done"),
        ("session.ended", SESSION, "ann's session on pixel ended after 3.1 s, closed, 1.2 kB up, 5.0 MB down"),
        ("clock.jumped", {"seconds": -120.0}, "The host's clock was set, by -2m"),
        ("bundle.trying", {"device": "pixel", "hash": SHA}, "pixel gets bundle abababababab"),
        ("later.kind", {"reason": "who knows", "list": [{}]}, "later.kind pixel: who knows"),
    ],
)
def test_an_event_in_words(kind, data, sentence):
    assert words(kind, **data) == sentence


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="{}[]"), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | TEXTS | st.just(AT)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WHY), inner, max_size=2)
)
NAMES = sorted({name for kind in KINDS.values() for name in kind.data} | {"by", "host", "step", "service", *WHY})


@given(st.sampled_from(sorted(KINDS)), ANYTHING, st.dictionaries(st.sampled_from(NAMES), ANYTHING))
def test_data_of_any_type_gives_a_sentence(kind, subject, data):
    sentence = event_words({"seq": 1, "at": AT, "kind": kind, "subject": subject, "data": data})
    assert not set(sentence) & set("{}[]")
    assert len(sentence.split()) >= 2


def test_what_an_event_does_not_say_has_a_question_mark():
    assert words("lease.granted", user=None, device=[["a"], ["b", None]], waited_s="soon") == (
        "? leased a, b after waiting soon"
    )
