"""One build under two bundles in turns: when the bundle is changed, and what a block says."""

from contextlib import contextmanager

import pytest

from farm.common.errors import Code
from farm.model.specs import BundleUse
from farm.worker.timing import BLOCK_SAMPLES, BundleTurns, TimedBlock, at_speed, check_versions, time_pairs
from tests.support.errors import raises_code

A = BundleUse(name="old", hash="1" * 64, tvm="0.27.0")
B = BundleUse(name="new", hash="2" * 64, tvm="0.27.0")
SIDES = {A.hash: "A", B.hash: "B"}


class Phone:
    """A phone under which everything runs by one clock; under B the model takes 10 % longer."""

    def __init__(self):
        self.story = ""  # a letter per change, a dot per session
        self.on = ""
        self.readings = 0

    def change(self, bundle):
        self.on = SIDES[bundle]
        self.story += self.on

    @contextmanager
    def turn(self, side):
        assert "AB"[side] == self.on
        self.story += "."
        self.clock = 1 + (self.readings % 7) / 10
        yield self.samples, self.reading

    def samples(self, number, repeat):
        assert repeat == BLOCK_SAMPLES
        return [0.02 * self.clock * (1.1 if self.on == "B" else 1.0)] * repeat

    def reading(self):
        self.readings += 1
        return 0.001 * self.clock


def test_a_bundle_is_changed_only_between_unlike_blocks_and_the_clock_is_taken_out():
    phone = Phone()
    turns = BundleTurns((A, B), phone.change, phone.turn)
    seconds = iter(range(1000))
    pairs = time_pairs(turns.timer(0), turns.timer(1), measure_s=5.0, shuffled=False, clock=lambda: next(seconds))
    assert phone.story.startswith("A.B." + "A.B.." + "A..B..A..B..")  # one of each first, for how many runs it takes
    assert len(pairs.a_s) == len(pairs.b_s) == len(turns.blocks[0]) - 1
    ratios = [b / a for a, b in zip(pairs.a_s, pairs.b_s, strict=True)]
    assert ratios == pytest.approx([1.1] * len(ratios))
    assert len({block.reference_s for block in turns.blocks[0]}) > 1


def test_a_block_is_its_median_at_nominal_speed():
    assert at_speed(TimedBlock((1.0, 2.0, 90.0), reference_s=0.5), nominal_s=0.25) == 1.0


def test_libraries_run_only_under_their_own_tvm():
    check_versions((A, B), "0.27.0")
    with raises_code(Code.BUNDLE_MISMATCH, match=r"bundle old is of TVM 0\.27\.0, .* compiles with TVM 0\.28\.0"):
        check_versions((A, B), "0.28.0")
