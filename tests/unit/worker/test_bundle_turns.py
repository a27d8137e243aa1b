"""One build under two bundles in turns: when the bundle is changed, and what a block says."""

from contextlib import contextmanager

import pytest

from farm.common.errors import Code
from farm.model.specs import BundleUse
from farm.worker.timing import BLOCK_SAMPLES, BundleTurns, check_versions, time_pairs
from tests.support.errors import raises_code

A = BundleUse(name="old", hash="1" * 64, tvm="0.27.0")
B = BundleUse(name="new", hash="2" * 64, tvm="0.27.0")
SIDES = {A.hash: "A", B.hash: "B"}


class Phone:
    """A phone whose clock becomes slower by 1 % of its first speed in each session; B slows model and kernel down."""

    def __init__(self, model_slower, kernel_slower):
        self.slower = model_slower, kernel_slower
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
        self.clock = 1 + self.story.count(".") / 100
        yield self.samples, self.reading

    def samples(self, number, repeat):
        assert repeat == BLOCK_SAMPLES
        return [0.02 * self._times(0)] * repeat

    def reading(self):
        self.readings += 1
        return 0.001 * self._times(1)

    def _times(self, what):
        return self.clock * (self.slower[what] if self.on == "B" else 1.0)


@pytest.mark.parametrize(("model_slower", "kernel_slower"), [(1.1, 1.0), (1.45, 1.45), (1.0, 1.2)])
def test_a_bundle_is_changed_only_between_unlike_blocks_and_its_own_speed_counts(model_slower, kernel_slower):
    phone = Phone(model_slower, kernel_slower)
    turns = BundleTurns((A, B), phone.change, phone.turn)
    seconds = iter(range(1000))
    pairs = time_pairs(turns.timer(0), turns.timer(1), measure_s=5.0, shuffled=False, clock=lambda: next(seconds))
    assert phone.story.startswith("A.B." + "A.B.." + "A..B..A..B..")  # one of each first, for how many runs it takes
    assert len(pairs.a_s) == len(pairs.b_s) == len(turns.blocks[0]) - 1
    assert pairs.comparison.ratio == pytest.approx(model_slower, rel=0.002)
    assert (pairs.comparison.answer == "slower") is (model_slower > 1)
    assert turns.reference_ratio() == pytest.approx(kernel_slower, rel=0.02)


def test_libraries_run_only_under_their_own_tvm():
    check_versions((A, B), "0.27.0")
    with raises_code(Code.BUNDLE_MISMATCH, match=r"bundle old is of TVM 0\.27\.0, .* compiles with TVM 0\.28\.0"):
        check_versions((A, B), "0.28.0")
