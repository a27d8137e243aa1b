"""Artifacts that killed: counted, refused from the second time on, forgotten by order."""

from datetime import timedelta

import pytest

from farm.common.errors import Code
from farm.common.events import EventLog
from farm.jobs.poison import PoisonLedger
from tests.support.errors import raises_code
from tests.unit.store.values import NOW

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


@pytest.fixture
def killed(ledger):
    """Reports kills by an artifact."""

    def report(artifact, kills=1, user="ann", job="j1", device="pixel", what="SIGSEGV", *, seen=True):
        return ledger.report(artifact, device, what, kills, user=user, job=job, seen=seen)

    return report


async def test_the_second_kill_is_the_last(ledger, killed, told):
    await killed(A)
    assert ledger.refused([A, B]) == frozenset()
    await killed(A, 1, "bob", "j2", "galaxy", "SIGBUS")
    await killed(B, 2, "bob", "j2", what="hung")
    await killed(C, 1, "bob", "j2", what="hung")
    assert ledger.refused([A, B, C]) == {A, B}
    rows = ledger.rows()
    assert ([row["artifact"] for row in rows["poison"]], rows["more"]) == ([C, B, A, A], 0)
    at = (NOW + timedelta(minutes=1)).isoformat()
    expected = {
        "kills": 1, "refused": True, "what": "SIGBUS", "device": "galaxy", "user": "bob", "job": "j2",
        "first_at": at, "last_at": at,
    }  # fmt: skip
    assert expected.items() <= rows["poison"][2].items()
    assert [(event.kind, event.subject) for event in told][:2] == [("poison.reported", A)] * 2


async def test_what_one_user_says_counts_for_that_user_and_for_all_once_a_second_says_it(ledger, killed):
    for job in ("j1", "j2"):
        await killed(A, 2, "mallory", job, seen=False)
    assert ledger.refused([A, B], "mallory") == {A}
    assert ledger.refused([A, B], "ann") == ledger.refused([A]) == frozenset()
    [row] = ledger.rows()["poison"]
    assert (row["kills"], row["seen"], row["refused"], row["refused_to_user"]) == (4, 0, False, True)
    await killed(A, 1, "bob", "j3", seen=False)
    assert ledger.refused([A], "ann") == {A}
    assert [(row["user"], row["refused"], row["refused_to_user"]) for row in ledger.rows()["poison"]] == [
        ("bob", True, False), ("mallory", True, True),
    ]  # fmt: skip
    await ledger.forget(A, "root")
    assert ledger.refused([A], "mallory") == frozenset()


async def test_a_users_word_and_what_a_worker_saw_are_two(ledger, killed):
    await killed(A)
    assert ledger.refused([A], "ann") == frozenset()
    await killed(A, 2, "mallory", "j2", seen=False)
    assert ledger.refused([A], "ann") == {A}


async def test_what_is_forgotten_may_run_again(ledger, killed, told):
    await killed(A, 2)
    await ledger.forget(A, "root")
    assert ledger.refused([A]) == frozenset()
    assert (told[-1].kind, told[-1].subject, told[-1].data["user"]) == ("poison.forgotten", A, "root")
    with raises_code(Code.NOT_POISONED):
        await ledger.forget(A, "root")
    assert len(told) == 2
    await killed(A)
    assert ledger.refused([A]) == frozenset()


async def test_many_are_asked_about_at_once(ledger, killed):
    many = [f"{number:064x}" for number in range(3000)]
    await killed(many[2500], 2)
    assert (ledger.refused(many), ledger.refused([])) == ({many[2500]}, frozenset())
