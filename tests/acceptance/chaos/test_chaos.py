"""300 jobs on 8 phones while everything is killed at random: each ends exactly once (CHAOS_SEED repeats a run)."""

import os
import random

import pytest

from tests.acceptance.chaos.chaos import PROFILES, Chaos, Size, judge
from tests.support.whole_farm import running_farm

SIZE = Size(jobs=300, phones=8, storm_s=150.0)


@pytest.mark.timeout(600)
def test_every_job_ends_exactly_once(tmp_path):
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"CHAOS_SEED={seed}")
    with running_farm(*(PROFILES[number % len(PROFILES)] for number in range(SIZE.phones))) as farm:
        chaos = Chaos(farm, seed, SIZE)
        try:
            chaos.run()
            verdict = judge(farm, chaos, tmp_path)
        finally:
            print("\n".join(chaos.story))
        print(dict(chaos.blows), dict(verdict.states), dict(verdict.attempts))
    assert verdict.problems == []
