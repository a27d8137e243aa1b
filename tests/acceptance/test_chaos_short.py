"""The chaos test in short: every kind of blow falls, and each job ends exactly once (CHAOS_SEED repeats a run)."""

import os

import pytest

from tests.acceptance.chaos.chaos import PROFILES, play
from tests.acceptance.chaos.orders import Size

SIZE = Size(jobs=30, phones=4, storm_s=20.0)
SEED = 7


@pytest.mark.timeout(240)
def test_every_job_ends_exactly_once(tmp_path):
    seed = int(os.environ.get("CHAOS_SEED") or SEED)
    assert play(PROFILES[: SIZE.phones], seed, SIZE, tmp_path).problems == []
