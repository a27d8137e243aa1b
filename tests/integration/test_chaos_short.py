"""The chaos test in short: every kind of blow falls, and each job ends exactly once (CHAOS_SEED repeats a run)."""

import os

import pytest

from tests.acceptance.chaos.chaos import PROFILES, Chaos, Size, judge
from tests.support.whole_farm import running_farm

SIZE = Size(jobs=30, phones=4, storm_s=20.0)
SEED = 3  # with it each kind of blow falls at least once


@pytest.mark.timeout(240)
def test_every_job_ends_exactly_once(tmp_path):
    seed = int(os.environ.get("CHAOS_SEED") or SEED)
    print(f"CHAOS_SEED={seed}")
    with running_farm(*PROFILES[: SIZE.phones]) as farm:
        chaos = Chaos(farm, seed, SIZE)
        try:
            chaos.run()
            verdict = judge(farm, chaos, tmp_path)
        finally:
            print("\n".join(chaos.story))
        print(dict(chaos.blows), dict(verdict.states), dict(verdict.attempts))
    assert verdict.problems == []
