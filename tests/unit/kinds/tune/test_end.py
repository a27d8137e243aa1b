"""The end of a tuning with little time: what fits is a result, what does not is named."""

import threading
import time
from statistics import median

import numpy as np
import pytest

pytest.importorskip("tvm")

from farm.common.errors import FarmError, PhoneError
from farm.kinds.tune.run import run_wall_s, speedup
from farm.kinds.tune.summary import summary_lines, worth_it
from farm.kinds.tune.worker import DeadlineReporter, search_limit_s, within
from farm.measure.comparison import compare


def test_the_speed_up_is_the_ratio_of_the_times_beside_it():
    """A phone that grew slower within the run: the medians of both builds have another ratio than the pairs."""
    slower = np.linspace(1, 2, 40)
    found = compare(6.757e-3 * slower, 6.757e-3 / 4.27 * slower)
    gain = speedup(found, median(np.append(6.757e-3 / 4.27 * slower, [1e-3] * 8)))
    assert gain["times"] == pytest.approx(4.27, rel=1e-3)
    assert gain["untuned_ms"] / gain["tuned_ms"] == pytest.approx(gain["times"])
    assert gain["answer"] == "faster"


def test_the_search_leaves_what_builds_take_on_this_host():
    assert search_limit_s(search_s=30.0, left_s=36.0, build_s=0.5) == 30.0
    assert search_limit_s(search_s=30.0, left_s=36.0, build_s=5.0) == 18.0
    assert search_limit_s(search_s=30.0, left_s=36.0, build_s=60.0) == 9.0


def test_an_end_that_does_not_fit_names_the_part_and_keeps_what_was_done():
    reached, never = threading.Event(), threading.Event()

    def end(found, note):
        note("packing")
        found["package"] = "p"
        note("compiling with the best schedules")
        reached.set()
        never.wait()

    threading.Timer(0, reached.wait).start()
    assert within(0.5, end) == {"package": "p", "left_out": "compiling with the best schedules"}
    assert reached.is_set()
    never.set()


def test_an_end_that_fits_is_whole_and_its_error_is_raised():
    assert within(60, lambda found, _: found.update(speedup=1)) == {"speedup": 1, "left_out": ""}

    def fails(_, __):
        raise PhoneError("it failed")

    with pytest.raises(PhoneError, match="it failed"):
        within(60, fails)


def test_nothing_is_told_after_the_end():
    said = []

    class Tell:
        def progress(self, step, **_):
            said.append(step)

    DeadlineReporter(Tell(), said.append, time.monotonic() + 1000).progress("packing")
    with pytest.raises(FarmError, match="too late"):
        DeadlineReporter(Tell(), said.append, time.monotonic() - 1).progress("timing")
    assert said == ["packing", "packing"]


def test_what_was_left_out_is_printed():
    result = {
        "trials": 9, "wanted_trials": 64, "earlier_trials": 0, "ended": "timeout", "search_s": 20.0, "phones": [],
        "tasks": [], "left_out": "compiling with the best schedules",
    }  # fmt: skip
    assert summary_lines(result)[-1] == (
        "left out   the time was over at: compiling with the best schedules; there is no package; "
        "a longer --timeout has it all"
    )
    assert not worth_it(result)


def test_the_kernels_that_a_first_run_on_a_gpu_builds_do_not_lengthen_the_comparison():
    """Six seconds of building kernels made a comparison of two builds of 0.1 ms last a minute."""
    clock = iter([10.0, 10.25])
    assert run_wall_s(6.0, lambda _number, _repeat: [1e-4], "opencl", lambda: next(clock)) == 0.25
    assert run_wall_s(6.0, lambda _number, _repeat: [], "cpu") == 6.0
