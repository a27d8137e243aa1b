import numpy as np
import pytest

from farm.common.errors import Code, FarmError
from farm.kinds.sweep import SweepSpec
from farm.kinds.sweep.command import remarks
from farm.kinds.sweep.worker import BLOCK_SAMPLES, MIN_ROUNDS, take_rounds
from farm.measure.conditions import versus_fastest
from farm.measure.sweep import estimates, recommended
from farm.model.identity import CpuCluster
from farm.model.placement import ThreadPlacement
from tests.support.errors import raises_code

CLUSTERS = (CpuCluster(4, max_khz=1_800_000), CpuCluster(2, max_khz=2_400_000))


def spec(**fields):
    return SweepSpec.from_wire({"on": "android", "model": "0" * 64, "name": "a.onnx", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"threads": [2]},
        {"cores": ["big"]},
        {"threads": [2, 2]},
        {"threads": list(range(1, 17)), "cores": [f"0x{n}" for n in range(1, 6)]},
    ],
)
def test_a_sweep_has_something_to_choose_from(fields):
    with raises_code(Code.BAD_SPEC, match="a sweep has 2 to 64 settings"):
        spec(**fields)


def test_every_number_goes_with_every_choice_of_cores_that_has_so_many():
    found, left_out = spec(threads=[1, 4], cores=["big", "little"]).settings_on(CLUSTERS, "p1")
    assert found == (ThreadPlacement(1, 0x30), ThreadPlacement(1, 0x0F), ThreadPlacement(4, 0x0F))
    assert left_out == ("p1 has 2 cores in big, too few for 4 threads",)


def test_a_number_that_goes_with_nothing_is_an_error():
    with raises_code(Code.NO_SUCH_CORES, match="p1 has 6 cores, too few for 8 threads"):
        spec(threads=[1, 8]).settings_on(CLUSTERS, "p1")
    with raises_code(Code.NO_SUCH_CORES, match="0x40 names core 6"):
        spec(threads=[1, 2], cores=["big", "0x40"]).settings_on(CLUSTERS, "p1")
    with pytest.raises(FarmError, match="all settings are the same on p1"):
        spec(cores=["big", "0x30"]).settings_on(CLUSTERS, "p1")


class Phone:
    """Takes as long as its setting's threads say, and becomes slower from round to round."""

    def __init__(self, run_s, scatter=0.01):
        self.run_s, self.scatter = run_s, scatter
        self.random, self.now_s, self.order = np.random.default_rng(5), 0.0, []
        self.set = None

    def set_up(self, placement):
        self.set = placement
        self.order.append(placement.threads)
        return placement

    def timer(self, number, repeat):
        level_s = self.run_s[self.set.threads] * (1 + self.now_s / 100)
        self.now_s += number * repeat * level_s
        return list(level_s * np.exp(self.scatter * self.random.normal(size=repeat)))

    def taken(self, **fields):
        settings = [ThreadPlacement(threads) for threads in self.run_s]
        return take_rounds(
            self.set_up, self.timer, settings, spec(threads=list(self.run_s), **fields), lambda: self.now_s
        )


def test_rounds_in_drawn_order_find_the_fastest_on_a_phone_that_becomes_warm():
    phone = Phone({1: 4e-3, 2: 2e-3, 4: 3e-3})
    taken = phone.taken(measure_s=20.0)
    rounds = [tuple(phone.order[at : at + 3]) for at in range(3, len(phone.order), 3)]
    assert len(set(rounds)) > 2  # another order each time
    assert all(sorted(each) == [1, 2, 4] for each in rounds)
    found = taken.estimates()
    assert [each.slower for each in found] == [True, False, True]
    assert found[0].ratio.median_s == pytest.approx(2, rel=0.05)
    assert recommended(found, [1, 2, 4]) == 1
    assert taken.numbers == [3, 6, 4]


def test_settings_that_are_alike_are_not_told_apart_and_the_cheapest_is_recommended():
    found = Phone({2: 2e-3, 4: 2e-3, 1: 5e-3}, scatter=0.03).taken(measure_s=2.0).estimates()
    assert [each.slower for each in found] == [False, False, True]
    assert recommended(found, [2, 4, 1]) == 0


def test_a_sweep_ends_when_all_intervals_are_narrow_or_its_time_is_over():
    narrow = Phone({1: 2e-3, 2: 1e-3}, scatter=1e-4).taken(measure_s=3600.0, half_width=0.5)
    assert len(narrow.rounds_s[0]) == MIN_ROUNDS
    short = Phone({1: 2e-3, 2: 1e-3}).taken(measure_s=0.1, half_width=0.0005)
    assert len(short.rounds_s[0]) == MIN_ROUNDS
    assert BLOCK_SAMPLES > 1


def test_no_round_has_no_estimate():
    with pytest.raises(ValueError, match="no round"):
        estimates([[], []])


def row(setting, ratio, low, high):
    return {"setting": setting, "ratio": ratio, "ratio_low": low, "ratio_high": high, "slower": low > 1}


def test_a_sweep_in_words():
    rows = [row("1 thread", 1.0, 1.0, 1.0), row("2 threads", 1.01, 0.98, 1.03), row("4 threads", 1.5, 1.4, 1.6)]
    rows.append(row("2 threads, cores 0-3", 1.01, 0.98, 1.03))
    assert [versus_fastest(each) for each in rows[:3]] == ["the fastest", "not distinguishable", "50 % slower"]
    said = remarks({"settings": rows, "recommended": 0, "certificate": {"notes": ["a note"]}})
    assert said == ["recommended: 1 thread (not distinguishable: 2 threads; 2 threads, cores 0-3)", "a note"]
