"""Which host has which artifact, and what the artifact folder asks the store before it deletes anything."""

from hypothesis import given
from hypothesis import strategies as st

from farm.store.artifact_copies import ArtifactCopy, changes
from tests.unit.store.values import NOW, attempt, begin, ended, job, over

A, B, C = "aa" * 32, "bb" * 32, "cc" * 32


async def test_live_jobs_and_kept_results_name_their_artifacts(store):
    waiting, done = job("j1", spec={"model": A, "inputs": None, "name": "d" * 63}), job("j2", spec={"model": B})
    await store.jobs.add([waiting, done])
    begun = attempt(of="j2")
    assert await begin(store, begun)
    assert (store.artifact_use.live(), store.artifact_use.results()) == ({A, B}, set())
    await store.jobs.finish(over(begun), ended(done), result={"outputs": {"artifact": C}})
    assert (store.artifact_use.live(), store.artifact_use.results()) == ({A}, {C})


async def test_hosts_are_known_by_what_they_have(store):
    copies = store.artifact_copies
    await copies.change("one", {A: 10, B: 20})
    await copies.change("two", {A: 10})
    assert [each.host for each in copies.of(A)] == ["two", "one"]
    assert {each.sha256: each.size_bytes for each in copies.of_host("one")} == {A: 10, B: 20}
    await copies.change("one", {A: None, B: 21, C: None})
    assert [each.host for each in copies.of(A)] == ["two"]
    assert [(each.host, each.size_bytes) for each in copies.of(B)] == [("one", 21)]
    assert copies.of(C) == ()
    await store.mailbox.forget_host("one")
    assert ([each.host for each in copies.of(A)], copies.of(B)) == (["two"], ())


sizes = st.dictionaries(st.sampled_from((A, B, C)), st.integers(0, 2))


@given(sizes, sizes)
def test_afterwards_the_rows_say_what_the_folder_has(rows, files):
    there = [ArtifactCopy(sha256, "one", size, NOW) for sha256, size in rows.items()]
    after: dict[str, int | None] = {**rows, **changes(there, files)}
    assert {sha256: size for sha256, size in after.items() if size is not None} == files
    assert changes([ArtifactCopy(sha256, "one", size, NOW) for sha256, size in files.items()], files) == {}
