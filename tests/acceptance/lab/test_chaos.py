"""A short storm over a lab of two hosts: every kind of fault falls, each job ends once (CHAOS_SEED repeats it)."""

import os
from contextlib import ExitStack

import pytest

from benchmarks import lab_chaos
from tests.support import postgres
from tests.support.whole_lab import whole_lab

SEED = 16
STORM_S = 90.0


@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_ends_twice(tmp_path):
    postgres.need()
    with whole_lab() as lab, ExitStack() as stack:
        stormy = lab_chaos.StormyLab(lab, stack, lab_chaos.shifted_clock(tmp_path), hosts=2, phones_each=2)
        storm = lab_chaos.Storm(stormy, int(os.environ.get("CHAOS_SEED") or SEED), tmp_path)
        try:
            storm.run(STORM_S)
        finally:
            print("\n".join(storm.story))
        found = lab_chaos.verdict(lab, stormy.hosts.values(), tmp_path)
        assert stormy.ended() == []
    assert len(storm.faults) == 7, storm.faults
    assert found["counts"]["jobs"]
    assert found["wrong"] == {}
