"""Artifacts that killed: counted, refused from the second time on, forgotten by order."""

from datetime import UTC, datetime, timedelta

import pytest

from farm.common.errors import Code
from farm.common.events import EventLog
from farm.jobs.poison import PoisonLedger
from tests.support.errors import raises_code

NOW = datetime(2026, 11, 20, tzinfo=UTC)
A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def told():
    return []


@pytest.fixture
def ledger(store, told):
    events = EventLog(store.epoch)
    events.subscribe(told.append)
    times = iter(NOW + timedelta(minutes=number) for number in range(100))
    return PoisonLedger(store.poison, events, wall=lambda: next(times))


async def test_the_second_kill_is_the_last(ledger, told):
    await ledger.report(A, "pixel", "SIGSEGV", 1, user="ann", job="j1", seen=True)
    assert ledger.refused([A, B]) == frozenset()
    await ledger.report(A, "galaxy", "SIGBUS", 1, user="bob", job="j2", seen=True)
    await ledger.report(B, "pixel", "hung", 2, user="bob", job="j2", seen=True)
    await ledger.report(C, "pixel", "hung", 1, user="bob", job="j2", seen=True)
    assert ledger.refused([A, B, C]) == {A, B}
    rows = ledger.rows()
    assert [row["artifact"] for row in rows["poison"]] == [C, B, A, A]
    assert rows["more"] == 0
    row = rows["poison"][2]
    assert (row["kills"], row["refused"], row["what"], row["device"]) == (1, True, "SIGBUS", "galaxy")
    assert (row["user"], row["job"]) == ("bob", "j2")
    assert row["first_at"] == row["last_at"] == (NOW + timedelta(minutes=1)).isoformat()
    assert [(event.kind, event.subject) for event in told][:2] == [("poison.reported", A)] * 2


async def test_what_one_user_says_counts_for_that_user_and_for_all_once_a_second_says_it(ledger):
    await ledger.report(A, "pixel", "SIGSEGV", 2, user="mallory", job="j1", seen=False)
    await ledger.report(A, "pixel", "SIGSEGV", 2, user="mallory", job="j2", seen=False)
    assert ledger.refused([A, B], "mallory") == {A}
    assert ledger.refused([A, B], "ann") == ledger.refused([A]) == frozenset()
    [row] = ledger.rows()["poison"]
    assert (row["kills"], row["seen"], row["refused"], row["refused_to_user"]) == (4, 0, False, True)
    await ledger.report(A, "galaxy", "SIGBUS", 1, user="bob", job="j3", seen=False)
    assert ledger.refused([A], "ann") == {A}
    assert [(row["user"], row["refused"], row["refused_to_user"]) for row in ledger.rows()["poison"]] == [
        ("bob", True, False), ("mallory", True, True),
    ]  # fmt: skip
    await ledger.forget(A, "root")
    assert ledger.refused([A], "mallory") == frozenset()


async def test_a_users_word_and_what_a_worker_saw_are_two(ledger):
    await ledger.report(A, "pixel", "SIGSEGV", 1, user="ann", job="j1", seen=True)
    assert ledger.refused([A], "ann") == frozenset()
    await ledger.report(A, "pixel", "SIGSEGV", 2, user="mallory", job="j2", seen=False)
    assert ledger.refused([A], "ann") == {A}


async def test_what_is_forgotten_may_run_again(ledger, told):
    await ledger.report(A, "pixel", "SIGSEGV", 2, user="ann", job="j1", seen=True)
    await ledger.forget(A, "root")
    assert ledger.refused([A]) == frozenset()
    assert (told[-1].kind, told[-1].subject, told[-1].data["user"]) == ("poison.forgotten", A, "root")
    with raises_code(Code.NOT_POISONED):
        await ledger.forget(A, "root")
    assert len(told) == 2
    await ledger.report(A, "pixel", "SIGSEGV", 1, user="ann", job="j1", seen=True)
    assert ledger.refused([A]) == frozenset()


async def test_many_are_asked_about_at_once(ledger):
    many = [f"{number:064x}" for number in range(3000)]
    await ledger.report(many[2500], "pixel", "hung", 2, user="ann", job="j1", seen=True)
    assert ledger.refused(many) == {many[2500]}
    assert ledger.refused([]) == frozenset()
