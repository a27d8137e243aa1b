"""Searches over jobs: what they find, how pages follow each other, and that each looks at so many jobs only."""

import pytest

from farm.model.job import JobState
from farm.store.jobs import LOOKED_AT, JobFilter
from tests.unit.store.values import attempt, begin, ended, job


@pytest.fixture
def found(store):
    """The ids of what a search finds."""
    return lambda **wanted: [each.id for each in store.job_search.search(JobFilter(**wanted)).jobs]


def pages_of(store, wanted, **options):
    """All pages of a search: the ids and where the next one begins."""
    before = ""
    while True:
        page = store.job_search.search(wanted, before=before, **options)
        before = page.before
        yield [each.id for each in page.jobs], before
        if not before:
            return


async def test_words_are_found_in_ids_phones_selectors_and_values_of_the_spec(store, found):
    await store.jobs.add(
        [
            job("a-1", spec={"command": "getprop"}),
            job("a-2", spec={"name": 'odd "name" 50%.onnx', "shapes": {"input": [1, 3]}}),
            job("a-3", device="pixel-8"),
            job("a-4", selector="soc=sm8650", spec={"targets": [{"kind": "llvm"}]}),
        ]
    )
    assert {word: found(text=word) for word in ("GETPROP", '"name" 50%', "Pixel-8", "8650", "llvm")} == {
        "GETPROP": ["a-1"], '"name" 50%': ["a-2"], "Pixel-8": ["a-3"], "8650": ["a-4"], "llvm": ["a-4"],
    }  # fmt: skip
    assert found(text="50_") == []  # no wildcard
    assert found(text="shapes") == []  # the name of a field says nothing of a job
    assert found(text="A-") == ["a-4", "a-3", "a-2", "a-1"]


async def test_conditions_are_joined(store, found):
    jobs = [job(f"j{n}", user=("ann", "bob")[n % 2], kind=("shell", "bench")[n % 3 == 0]) for n in range(8)]
    await store.jobs.add(jobs)
    await store.jobs.save(ended(jobs[3], JobState.FAILED), expected=(JobState.QUEUED,))
    assert found(text="j", user="bob", kind="bench") == ["j3"]
    assert found(selector="soc=sm8550", state=(JobState.FAILED,)) == ["j3"]
    assert found(selector="soc=sm8550", state=(JobState.QUEUED,), user="bob") == ["j7", "j5", "j1"]
    assert found(selector="soc=sm8650") == []


async def test_a_phone_has_the_jobs_that_ran_there_and_those_for_it_alone(store, found):
    await store.jobs.add([job("j1"), job("j2", device="pixel"), job("j3", device="other")])
    await begin(store, attempt(of="j1", device="pixel"))
    assert found(device="pixel") == ["j2", "j1"]


async def test_pages_follow_each_other_and_together_have_all(store):
    assert list(pages_of(store, JobFilter(text="j"))) == [([], "")]
    await store.jobs.add([job(f"j{n:02}", kind=("shell", "bench")[n % 2]) for n in range(20)])
    pages = pages_of(store, JobFilter(text="j", kind="bench"), limit=3, look_at=7)
    assert [each for page, _ in pages for each in page] == [f"j{n:02}" for n in range(19, 0, -2)]
    assert store.job_search.search(JobFilter(text="j"), before="j00").jobs == ()


async def test_of_ten_thousand_jobs_a_search_looks_at_so_many(store):
    await store.jobs.add([job("needle-0", spec={"command": "needle"})])
    for first in range(0, 5 * LOOKED_AT, 1000):  # a write that lasts 5 s is given up
        await store.jobs.add([job(f"j{n}") for n in range(first, first + 1000)])
    empty = [([], f"j{times * LOOKED_AT}") for times in range(4, -1, -1)]
    for wanted in (JobFilter(text="needle"), JobFilter(selector="soc=none"), JobFilter(device="nobody")):
        assert list(pages_of(store, wanted)) == [*empty, (["needle-0"] if wanted.text else [], "")]
