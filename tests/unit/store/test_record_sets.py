"""Kept sets of tuning records: versions by model and target, found by number and by name."""

import asyncio
import threading
from dataclasses import replace

import pytest

from farm.store import artifacts
from farm.store.artifacts import KEPT_VERSIONS, MAX_VERSIONS
from tests.support.waiting import HANG_S

ARM = {"kind": "llvm", "mcpu": "cortex-a76"}


@pytest.fixture
def sets(store):
    return store.record_sets


@pytest.fixture
def kept(sets):
    """Keeps a set; its version."""
    fields = {
        "model": "a" * 64, "name": "net.onnx", "target": ARM, "artifact": "b" * 64,
        "records": 8, "best": {}, "user": "ann", "job": "j1",
    }  # fmt: skip
    return lambda **changes: sets.save(**(fields | changes))


def versions(sets):
    return [each.version for each in sets.page(limit=50)]


async def test_versions_count_per_model_and_target_once_a_job(sets, kept):
    assert await kept() == 1
    assert await kept(job="j2", artifact="c" * 64) == 2
    assert await kept(target={"mcpu": "cortex-a55", "kind": "llvm"}) == 1
    assert await kept(model="d" * 64) == 1
    assert await kept(target=dict(reversed(ARM.items()))) == 1  # what a job has kept it does not keep again
    assert await kept(job="") == 3
    assert versions(sets) == [3, 1, 1, 2, 1]


async def test_only_the_newest_versions_are_kept_and_only_their_artifacts_are_needed(store, sets, kept):
    await kept(artifact="0" * 64, model="d" * 64)
    for number in range(1, KEPT_VERSIONS + 3):
        assert await kept(job=f"j{number}", artifact=f"{number}" * 64) == number
    assert versions(sets) == [7, 6, 5, 4, 3, 1]
    assert store.artifact_use.live() == {f"{number}" * 64 for number in (0, 3, 4, 5, 6, 7)}


def tuned(trials, seconds, name="conv"):
    return {"records": trials, "best": {"tasks": [{"name": name, "trials": trials, "seconds": seconds}]}}


async def test_a_long_search_stays_until_a_newer_set_holds_what_it_found(sets, kept):
    await kept(**tuned(300, 0.001))
    for number in range(2, 10):  # quick tries without --prior, each worse than the one before
        await kept(job=f"j{number}", **tuned(number, 0.002 if number < 9 else None))
    assert versions(sets) == [9, 8, 7, 6, 5, 1]
    for number in range(10, 15):  # --prior 1
        await kept(job=f"j{number}", **tuned(300 + number, 0.001))
    assert versions(sets) == [14, 13, 12, 11, 10]


async def test_sets_that_hold_different_things_are_bounded_and_the_smallest_goes(sets, kept):
    for number in range(1, MAX_VERSIONS + 3):
        await kept(job=f"j{number}", **tuned(10 if number in (3, 5) else 300, 0.001, name=f"conv{number}"))
    assert sorted(versions(sets)) == sorted({*range(1, MAX_VERSIONS + 3)} - {3, 5})


@pytest.mark.parametrize("best", [{"tasks": 7}, {"tasks": [7, {"trials": "x", "seconds": []}]}, {"tasks": [{}]}])
async def test_what_clients_say_of_tasks_may_be_nonsense(sets, kept, best):
    for number in range(1, KEPT_VERSIONS + 2):
        await kept(job=f"j{number}", best=best)
    assert len(versions(sets)) == KEPT_VERSIONS


async def test_no_user_displaces_records_of_others(sets, kept):
    assert await kept() == 1
    for number in range(2, KEPT_VERSIONS + 5):
        assert await kept(user="mallory", job="", artifact=f"{number:064}") == number
    whose = [(each.user, each.version) for each in sets.page(limit=50)]
    assert whose == [*(("mallory", version) for version in range(9, 4, -1)), ("ann", 1)]
    assert [(each.user, each.version) for each in sets.newest("net.onnx")] == [("mallory", 9), ("ann", 1)]
    assert await kept(job="") == 10  # the next of all: no two are version 2
    assert await kept(user="bob", job="") == 11  # the same file, kept by another


async def test_what_is_removed_is_forgotten_and_its_artifact_not_needed(store, sets, kept):
    await kept()
    assert store.artifact_use.live() == {"b" * 64}
    [there] = sets.page(limit=2)
    assert there.user == "ann"
    assert [await sets.remove(there.id) for _ in range(2)] == [True, False]
    assert (sets.page(limit=2), store.artifact_use.live()) == ((), set())


async def test_several_at_once_get_different_versions(sets, kept):
    assert sorted(await asyncio.gather(*(kept(job=f"j{i}") for i in range(8)))) == list(range(1, 9))
    assert len(versions(sets)) == KEPT_VERSIONS


async def test_found_by_number_and_by_name(sets, kept):
    best = {"tasks": [{"name": "conv", "gflops": 1.5}]}
    await kept(best=best)
    await kept(job="j2", best={"tasks": []})
    await kept(name="other.onnx", model="e" * 64)
    first = sets.page(limit=10)[-1]
    assert (first.best, first.target) == ({}, ARM)  # lists do without: a thousand of them were a gigabyte
    assert (sets.get(first.id), sets.get(999)) == (replace(first, best=best), None)
    assert [(each.version, each.best) for each in sets.newest("net.onnx")] == [(2, {})]
    assert [each.name for each in sets.page(name="other.onnx", limit=10)] == ["other.onnx"]


async def test_no_grant_waits_for_the_search_for_sets_to_delete(sets, kept, monkeypatch):
    """21 sets of 0.9 MB, kept again and again by one user, stopped every commit for 8 s each time."""
    looking, written, real = threading.Event(), threading.Event(), artifacts.superseded

    def look(found):
        looking.set()
        assert written.wait(HANG_S), "the writer waits for it"
        return real(found)

    monkeypatch.setattr(artifacts, "superseded", look)
    keeping = asyncio.create_task(kept())
    assert await asyncio.to_thread(looking.wait, 10)
    assert not await sets.remove(7)
    written.set()
    assert await keeping == 1
