"""300 jobs on 8 phones while everything is killed at random: each ends exactly once (CHAOS_SEED repeats a run)."""

import os
import random

import pytest

from tests.acceptance.chaos.chaos import PROFILES, play
from tests.acceptance.chaos.orders import Size

SIZE = Size(jobs=300, phones=8, storm_s=150.0, stock_clients=2)


@pytest.mark.timeout(600)
def test_every_job_ends_exactly_once(tmp_path):
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
    assert (
        play([PROFILES[number % len(PROFILES)] for number in range(SIZE.phones)], seed, SIZE, tmp_path).problems == []
    )
