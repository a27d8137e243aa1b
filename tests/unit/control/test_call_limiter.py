"""What one user of a control door leaves to the others."""

import asyncio
import itertools
import json
import tracemalloc
from types import SimpleNamespace

import pytest

from farm.control import limits as module
from farm.control.limits import (
    MAX_CALLS,
    MAX_HELD_BYTES_PER_USER,
    BusyError,
    CallLimiter,
    CallQuota,
    StreamTurns,
    UnreadLimiter,
    in_memory_bytes,
)

ALICE, BOB, OPERATOR = 1001, 1002, 0
RULES = CallQuota(stream_kinds={"events", "job.watch"}, operators=frozenset({OPERATOR}))


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
    count = CallLimiter(RULES)
    ends, error = begin_all(count, ALICE)
    assert len(ends) == MAX_CALLS // 4
    assert "end some of your farm programs" in error.hint
    count.begin(b"bob", BOB, "status")
    ends.pop()()
    count.begin(b"alice", ALICE, "status")
    with pytest.raises(BusyError):
        count.begin(b"alice", ALICE, "status")


def test_who_follows_much_can_still_ask():
    count = CallLimiter(RULES)
    ends, error = begin_all(count, ALICE, "events")
    assert "logs -f" in error.hint
    assert len(ends) < MAX_CALLS // 4
    count.begin(b"alice", ALICE, "status")


def test_many_users_leave_calls_for_operators():
    count = CallLimiter(RULES)
    began = sum(len(begin_all(count, uid)[0]) for uid in range(1001, 1010))
    assert began == MAX_CALLS - RULES.for_operators
    ends, error = begin_all(count, OPERATOR)
    assert len(ends) == RULES.for_operators
    assert error.message == f"the farm has {MAX_CALLS} ({MAX_CALLS // 4} by uid 1001) calls at once"
    assert "try again" in error.hint


def test_streams_of_all_users_leave_capacity_for_calls():
    count = CallLimiter(RULES)
    began = sum(len(begin_all(count, uid, "events")[0]) for uid in range(1001, 1010))
    assert began == RULES.all_streams < MAX_CALLS
    with pytest.raises(BusyError, match=r"512 \(192 by uid 1001\) streams are followed"):
        count.begin(b"eve", 1020, "events")
    count.begin(b"eve", 1020, "status")
    count.begin(b"operator", OPERATOR, "events")


async def test_messages_of_streams_take_turns_by_user_and_leave_the_loop_its_other_work():
    turns, sent, seen = StreamTurns(), [], [0]

    async def send(user):
        await turns.wait(user)
        sent.append(user)

    work = [asyncio.create_task(send(user)) for user in ["greedy"] * 100 + ["ann"]]
    while len(sent) < len(work):
        await asyncio.sleep(0)
        seen.append(len(sent))
    assert sent.index("ann") <= 1
    assert max(after - before for before, after in itertools.pairwise(seen)) == 1


async def test_a_stream_that_ends_while_it_waits_keeps_nobody_waiting():
    turns = StreamTurns()
    waiting = [asyncio.create_task(turns.wait("vic")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.gather(*waiting[1:])
    await turns.wait("vic")
    assert waiting[0].cancelled()
    assert not turns._waiting


def test_one_connection_and_workers():
    count = CallLimiter(None)
    ends, error = begin_all(count, ALICE)
    assert (len(ends), error) == (MAX_CALLS, None)
    for end in ends:
        end()
    ends, error = begin_all(count, ALICE, connections=[7] * 100)
    assert len(ends) == 64
    assert "wait for answers" in error.hint


def test_nothing_is_kept_of_calls_that_ended():
    count = CallLimiter(RULES)
    for end in begin_all(count, ALICE, "events")[0]:
        end()
    assert count._calls.taken == count._connections.taken == count._streams.taken == 0
    assert count._held_bytes.taken == 0


def test_what_calls_hold_in_memory_is_bounded_by_user_and_in_all():
    count = CallLimiter(RULES)
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
    answers = UnreadLimiter()
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


def test_nothing_is_kept_of_connections_that_went():
    answers = UnreadLimiter()
    kept = unread(answers, b"gone", ALICE, 1000)
    for number in range(2 * module.LOOK_THROUGH_EVERY):
        answers.sent(b"%d" % number, ALICE, 1, SimpleNamespace(done=True))
    answers.forget_read((b"gone",))
    assert b"gone" in answers._answers
    assert len(answers._answers) <= module.LOOK_THROUGH_EVERY + 1
    kept.done = True
    answers.forget_read(tuple(answers._answers))
    assert not answers._answers
    assert answers._users.taken == answers._users.of(ALICE) == 0
