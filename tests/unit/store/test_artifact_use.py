"""What the artifact folder asks the store before it deletes anything."""

from tests.unit.store.values import attempt, begin, ended, job, over

MODEL, INPUTS, OUTPUT = ("a" * 64, "b" * 64, "c" * 64)


async def test_live_jobs_and_kept_results_name_their_artifacts(store):
    waiting = job("j1", spec={"model": MODEL, "inputs": None, "name": "d" * 63})
    done = job("j2", spec={"model": INPUTS})
    await store.jobs.add([waiting, done])
    begun = attempt(of="j2")
    assert await begin(store, begun)
    assert store.artifact_use.live() == {MODEL, INPUTS}
    assert store.artifact_use.results() == set()
    await store.jobs.finish(over(begun), ended(done), result={"outputs": {"artifact": OUTPUT}})
    assert store.artifact_use.live() == {MODEL}
    assert store.artifact_use.results() == {OUTPUT}
