"""Kept sets of tuning records: versions by model and target, found by number and by name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from farm.store import artifacts
from farm.store.artifacts import KEPT_VERSIONS, MOST_VERSIONS, KeptSet
from tests.support.waiting import HANG_S

ARM = {"kind": "llvm", "mcpu": "cortex-a76"}


async def kept(store: Any, **changes: Any) -> int:
    fields = {
        "model": "a" * 64, "name": "net.onnx", "target": ARM, "artifact": "b" * 64,
        "records": 8, "best": {}, "user": "ann", "job": "j1",
    }  # fmt: skip
    version: int = await store.record_sets.save(**(fields | changes))
    return version


async def test_versions_count_per_model_and_target(store: Any) -> None:
    assert await kept(store) == 1
    assert await kept(store, job="j2", artifact="c" * 64) == 2
    assert await kept(store, target={"mcpu": "cortex-a55", "kind": "llvm"}) == 1
    assert await kept(store, model="d" * 64) == 1
    assert [each.version for each in store.record_sets.page(limit=3)] == [1, 1, 2]


async def test_what_a_job_has_kept_it_does_not_keep_again(store: Any) -> None:
    assert await kept(store) == 1
    assert await kept(store, target=dict(reversed(ARM.items()))) == 1
    assert await kept(store, job="") == 2
    assert len(store.record_sets.page(limit=10)) == 2


async def test_only_the_newest_versions_are_kept_and_only_their_artifacts_are_needed(store: Any) -> None:
    await kept(store, artifact="0" * 64, model="d" * 64)
    for number in range(1, KEPT_VERSIONS + 3):
        assert await kept(store, job=f"j{number}", artifact=f"{number}" * 64) == number
    assert [each.version for each in store.record_sets.page(limit=50)] == [7, 6, 5, 4, 3, 1]
    assert store.artifact_use.live() == {f"{number}" * 64 for number in (0, 3, 4, 5, 6, 7)}


def tuned(trials: int, seconds: float | None, name: str = "conv") -> dict[str, Any]:
    return {"records": trials, "best": {"tasks": [{"name": name, "trials": trials, "seconds": seconds}]}}


async def test_a_long_search_stays_until_a_newer_set_holds_what_it_found(store: Any) -> None:
    await kept(store, **tuned(300, 0.001))
    for number in range(2, 10):  # quick tries without --prior, each worse than the one before
        await kept(store, job=f"j{number}", **tuned(number, 0.002 if number < 9 else None))
    assert [each.version for each in store.record_sets.page(limit=50)] == [9, 8, 7, 6, 5, 1]
    for number in range(10, 15):  # --prior 1
        await kept(store, job=f"j{number}", **tuned(300 + number, 0.001))
    assert [each.version for each in store.record_sets.page(limit=50)] == [14, 13, 12, 11, 10]


async def test_sets_that_hold_different_things_are_bounded_and_the_smallest_goes(store: Any) -> None:
    for number in range(1, MOST_VERSIONS + 3):
        await kept(store, job=f"j{number}", **tuned(10 if number in (3, 5) else 300, 0.001, name=f"conv{number}"))
    versions = sorted(each.version for each in store.record_sets.page(limit=50))
    assert versions == sorted({*range(1, MOST_VERSIONS + 3)} - {3, 5})


@pytest.mark.parametrize("best", [{"tasks": 7}, {"tasks": [7, {"trials": "x", "seconds": []}]}, {"tasks": [{}]}])
async def test_what_clients_say_of_tasks_may_be_nonsense(store: Any, best: dict[str, Any]) -> None:
    for number in range(1, KEPT_VERSIONS + 2):
        await kept(store, job=f"j{number}", best=best)
    assert len(store.record_sets.page(limit=50)) == KEPT_VERSIONS


async def test_no_user_displaces_records_of_others(store: Any) -> None:
    assert await kept(store) == 1
    for number in range(2, KEPT_VERSIONS + 5):
        assert await kept(store, user="mallory", job="", artifact=f"{number:064}") == number
    whose = [(each.user, each.version) for each in store.record_sets.page(limit=50)]
    assert whose == [*(("mallory", version) for version in range(9, 4, -1)), ("ann", 1)]
    newest = store.record_sets.newest("net.onnx")
    assert [(each.user, each.version) for each in newest] == [("mallory", 9), ("ann", 1)]
    assert await kept(store, job="") == 10  # the next of all: no two are version 2
    assert await kept(store, user="bob", job="") == 11  # the same file, kept by another


async def test_what_is_removed_is_forgotten_and_its_artifact_not_needed(store: Any) -> None:
    await kept(store)
    [there] = store.record_sets.page(limit=2)
    assert there.user == "ann"
    assert await store.record_sets.remove(there.id)
    assert not await store.record_sets.remove(there.id)
    assert store.record_sets.page(limit=2) == ()
    assert "b" * 64 not in store.artifact_use.live()


async def test_two_at_once_get_different_versions(store: Any) -> None:
    versions = await asyncio.gather(*(kept(store, job=f"j{i}") for i in range(8)))
    assert sorted(versions) == list(range(1, 9))
    assert len(store.record_sets.page(limit=50)) == KEPT_VERSIONS


async def test_found_by_number_and_by_name(store: Any) -> None:
    await kept(store, best={"tasks": [{"name": "conv", "gflops": 1.5}]})
    await kept(store, job="j2", best={"tasks": []})
    await kept(store, name="other.onnx", model="e" * 64)
    first = store.record_sets.page(limit=10)[-1]
    best = {"tasks": [{"name": "conv", "gflops": 1.5}]}
    assert store.record_sets.get(first.id) == replace(first, best=best)
    assert first.best == {}  # lists do without: a thousand of them were a gigabyte
    assert first.target == ARM
    assert store.record_sets.get(999) is None
    assert [(each.version, each.best) for each in store.record_sets.newest("net.onnx")] == [(2, {})]
    assert [each.name for each in store.record_sets.page(name="other.onnx", limit=10)] == ["other.onnx"]


async def test_their_artifacts_are_never_in_the_way(store: Any) -> None:
    await kept(store, artifact="f" * 64)
    assert "f" * 64 in store.artifact_use.live()


async def test_no_grant_waits_for_the_search_for_sets_to_delete(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """21 sets of 0.9 MB, kept again and again by one user, stopped every commit for 8 s each time."""
    looking, written, real = threading.Event(), threading.Event(), artifacts.superseded

    def look(sets: Iterable[KeptSet]) -> object:
        looking.set()
        assert written.wait(HANG_S), "the writer waits for it"
        return real(sets)

    monkeypatch.setattr(artifacts, "superseded", look)
    keeping = asyncio.create_task(kept(store))
    assert await asyncio.to_thread(looking.wait, 10)
    assert not await store.record_sets.remove(7)
    written.set()
    assert await keeping == 1
