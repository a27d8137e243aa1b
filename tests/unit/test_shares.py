"""What one user of a control door leaves to the others."""

import json
import tracemalloc
from types import SimpleNamespace

import pytest

from farm.control import shares as module
from farm.control.server import STREAMS
from farm.control.shares import (
    MAX_CALLS,
    MAX_HELD_BYTES_PER_USER,
    BusyError,
    CallCount,
    Shares,
    UnreadAnswers,
    in_memory_bytes,
)

ALICE, BOB, OPERATOR = 1001, 1002, 0
RULES = Shares(stream_kinds=STREAMS, operators=frozenset({OPERATOR}))


def begin_all(count, uid, kind="status", connections=range(MAX_CALLS)):
    """As many calls of `uid` as there may be, and what was said to the one beyond; returns the ends of those."""
    ends = []
    for number in connections:
        try:
            ends.append(count.begin(b"%d.%d" % (uid, number), uid, kind))
        except BusyError as error:
            return ends, error
    return ends, None


def test_one_user_has_a_quarter_and_the_others_go_on():
    count = CallCount(RULES)
    ends, error = begin_all(count, ALICE)
    assert len(ends) == MAX_CALLS // 4
    assert "end some of your farm programs" in error.hint
    count.begin(b"bob", BOB, "status")
    ends.pop()()
    count.begin(b"alice", ALICE, "status")
    with pytest.raises(BusyError):
        count.begin(b"alice", ALICE, "status")


def test_who_follows_much_can_still_ask():
    count = CallCount(RULES)
    ends, error = begin_all(count, ALICE, "events")
    assert "logs -f" in error.hint
    assert len(ends) < MAX_CALLS // 4
    count.begin(b"alice", ALICE, "status")


def test_many_users_leave_room_for_operators():
    count = CallCount(RULES)
    began = sum(len(begin_all(count, uid)[0]) for uid in range(1001, 1010))
    assert began == MAX_CALLS - RULES.for_operators
    ends, error = begin_all(count, OPERATOR)
    assert len(ends) == RULES.for_operators
    assert "try again" in error.hint


def test_one_connection_and_workers():
    count = CallCount(None)
    ends, error = begin_all(count, ALICE)
    assert (len(ends), error) == (MAX_CALLS, None)
    for end in ends:
        end()
    ends, error = begin_all(count, ALICE, connections=[7] * 100)
    assert len(ends) == 64
    assert "wait for answers" in error.hint


def test_nothing_is_kept_of_calls_that_ended():
    count = CallCount(RULES)
    for end in begin_all(count, ALICE, "events")[0]:
        end()
    assert not count._counts
    assert not count._held_bytes


def test_what_calls_hold_in_memory_is_bounded_by_user_and_in_all():
    count = CallCount(RULES)
    quarter = MAX_HELD_BYTES_PER_USER
    end = count.begin(b"a", ALICE, "events", quarter)
    with pytest.raises(BusyError, match="too much in them"):
        count.begin(b"b", ALICE, "status", 1)
    for user in (BOB, 1003, 1004):
        count.begin(b"%d" % user, user, "events", quarter)
    with pytest.raises(BusyError, match="too many calls"):
        count.begin(b"c", 1005, "status", 1)
    count.begin(b"o", OPERATOR, "status", quarter)  # theirs takes nothing from the others
    end()
    count.begin(b"c", 1005, "status", 1)


def test_json_of_nothing_but_lists_holds_no_more_than_is_counted():
    depth = 500
    body = b"[" + b",".join([b"[" * depth + b"]" * depth] * 100) + b"]"
    tracemalloc.start()
    held = json.loads(body)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held
    assert held_bytes <= in_memory_bytes([body]) < 2 * held_bytes


def unread(answers, route, uid, size_bytes):
    tracker = SimpleNamespace(done=False)
    answers.sent(route, uid, size_bytes, tracker)
    return tracker


def test_unread_bytes_are_bounded_by_connection_and_by_user():
    answers = UnreadAnswers()
    per_connection, per_user = module.MAX_UNREAD_BYTES_PER_CONNECTION, module.MAX_UNREAD_BYTES_PER_USER
    assert answers.fits(b"first", ALICE, per_connection)
    first = unread(answers, b"first", ALICE, per_connection)
    assert not answers.fits(b"first", ALICE, 1)
    assert answers.fits(b"second", ALICE, 1)
    for number in range(1, per_user // per_connection):
        unread(answers, b"%d" % number, ALICE, per_connection)
    assert not answers.fits(b"second", ALICE, 1)
    assert answers.fits(b"bob", BOB, 1)
    first.done = True
    assert answers.fits(b"second", ALICE, 1)
    assert answers.fits(b"first", ALICE, per_connection)


def test_nothing_is_kept_of_connections_that_went(monkeypatch):
    monkeypatch.setattr(module, "LOOK_THROUGH_EVERY", 4)
    answers = UnreadAnswers()
    for number in range(4):
        answers.sent(b"%d" % number, ALICE, 1, SimpleNamespace(done=True))
    assert not answers._by_route
    assert not answers._by_user
