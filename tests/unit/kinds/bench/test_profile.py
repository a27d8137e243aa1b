"""Notes of runs as a profile: which times count, the shares of units, what is said of operators on the CPU."""

import numpy as np
import pytest

from farm.compiler.stamps import StampedCall, nanoseconds
from farm.kinds.bench.command import offload_of, on_cpu
from farm.kinds.bench.worker import profile_of, ran_on_of
from farm.measure.comparison import compare

CALLS = [StampedCall(name, ("1x4 float32",), external) for name, external in (("a", False), ("b", True), ("a", False))]
SAME = compare([1.0] * 20, [1.01] * 20, min_effect=0.03)


def noted(*microseconds):
    """What a run leaves whose calls took so long."""
    times = 3_999_999_000 + 1000 * np.cumsum([0, *microseconds])
    timeline = np.zeros(2 * (len(microseconds) + 2), np.int64)
    timeline[0] = len(microseconds)
    timeline[2:] = np.stack([times // 10**9, times % 10**9], axis=1).ravel()
    return nanoseconds(timeline)


def test_an_operators_time_is_the_median_of_its_times_in_all_runs():
    profile = profile_of(CALLS, [noted(10, 20, 30), noted(12, 22, 32), noted(900, 24, 34)], SAME, 100e-6, waits=False)
    rows = {each["name"]: each for each in profile["operators"]}
    assert (rows["a"]["calls"], rows["a"]["total_ms"]) == (2, pytest.approx(0.044))  # 12 and 32 us
    assert (rows["b"]["unit"], rows["b"]["each_ms"]) == ("offloaded", pytest.approx(0.022))
    assert profile["units"] == {"cpu": pytest.approx(2 / 3), "offloaded": pytest.approx(1 / 3)}
    assert profile["operators_ms"] == pytest.approx(0.066)
    assert "timed in 3 runs" in profile["notes"][0]
    assert "+1.0 % to the plain one" in profile["notes"][0]


def test_the_run_that_is_shown_is_the_one_in_the_middle():
    profile = profile_of(CALLS, [noted(10, 20, 30), noted(12, 22, 32), noted(900, 24, 34)], SAME, 100e-6, waits=False)
    assert [(each["name"], each["start_us"], each["us"]) for each in profile["run"]] == [
        ("a", 0.0, 12.0), ("b", 12.0, 22.0), ("a", 34.0, 32.0),
    ]  # fmt: skip


def test_on_a_gpu_the_time_of_a_wait_for_nothing_is_subtracted_from_each_operator():
    runs = [noted(8, 18, 28, 6), noted(8, 20, 30, 7), noted(9, 21, 32, 7)]  # the first is the wait for nothing
    profile = profile_of(CALLS, runs, SAME, 100e-6, waits=True)
    rows = {each["name"]: each for each in profile["operators"]}
    assert (rows["a"]["unit"], rows["a"]["total_ms"]) == ("gpu", pytest.approx(0.012))  # 20 - 8 us, and nothing
    assert (rows["b"]["unit"], rows["b"]["total_ms"]) == ("cpu", pytest.approx(0.022))  # TVM calls others on the host
    assert [each["start_us"] for each in profile["run"]] == [0.0, 20.0, 50.0]
    assert "a wait for nothing, 8.000 us, is subtracted" in profile["notes"][1]


def test_operators_on_the_cpu_are_named_and_so_is_what_is_not_known():
    gpu, cpu = (
        {"name": unit, "unit": unit, "calls": 1, "total_ms": ms} for unit, ms in (("gpu", 9.996), ("cpu", 0.004))
    )

    def profiled(*operators):
        ran_on = ran_on_of({"gpu": 1}, operators)
        return {"profile": {"operators": operators}, "ran_on": ran_on and ran_on.to_wire()}

    assert on_cpu(profiled(gpu), 1.0) == on_cpu(profiled(gpu, cpu), 0.99) == ""
    assert on_cpu(profiled(gpu, cpu), 1.0) == "99.9 % was offloaded of 100 %; on the CPU ran cpu"
    assert on_cpu(profiled(), 1.0) == ""  # without a profile kernels are counted
    assert ran_on_of({}, ()) is None
    assert on_cpu({}, 1.0) == "where its work ran is not known"


def test_the_placement_of_another_runtime_is_told_in_its_words():
    ran_on = {"words": "GPU 3, CPU 7 nodes", "offloaded": 0.3}
    assert on_cpu({"ran_on": ran_on}, 0.3) == ""
    assert on_cpu({"ran_on": ran_on}, 0.5) == "30 % was offloaded of 50 %; it ran on GPU 3, CPU 7 nodes"
    unknown = {"ran_on": {"words": "GPU, CPU", "offloaded": None}}
    assert on_cpu(unknown, 0.5) == "how much of its work ran on GPU, CPU is not known"


@pytest.mark.parametrize(("text", "wanted"), [("", None), ("100%", 1.0), ("50 %", 0.5), ("12.5", 0.125)])
def test_how_much_must_be_offloaded(text, wanted):
    assert offload_of(text) == wanted
