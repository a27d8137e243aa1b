"""What results have for plots: the reported try, its starts from the raw samples, temperatures; less of less."""

from __future__ import annotations

from datetime import datetime

import pytest

from farm.kinds.bench.page import bench_plots, bench_samples, temperatures
from farm.kinds.compare.page import compare_plots
from farm.kinds.tune.page import tune_plots
from farm.web.plots import PlotSource

STARTED = "2026-11-22T06:17:06+00:00"
RESULT = {
    "samples_s": [1e-3, 2e-3, 1e-3],
    "latency": {"median_ms": 1.0, "low_ms": 0.9, "high_ms": 1.1},
    "certificate": {
        "number": 10,
        "warmup": 1,
        "outliers": {"indices": [2]},
        "tries": [{"reported": False}, {"reported": True, "started_at": STARTED, "seconds": 8.0}],
        "conditions": {"before": {"temperature_c": 29.0}, "during": [], "after": {"temperature_c": 31.0}},
        "raw": "a" * 64,
    },
}


def test_starts_come_from_the_reported_try_of_the_raw_samples():
    raw = {"tries": [{"start_s": [9, 9, 9]}, {"start_s": [0.5, 1.5, 2.5]}]}
    taken = bench_samples({**RESULT, "estimate": {"median_ms": 2.0}}, raw)
    assert (taken.nominal_s, taken.correction) == (pytest.approx(2e-3), 2.0)
    assert (taken.start_s, taken.exact_start) == ([0.5, 1.5, 2.5], True)
    assert (taken.warmup, taken.outliers, taken.median_s) == (1, frozenset({2}), pytest.approx(1e-3))
    assert taken.celsius == [(0.0, 29.0), (8.0, 31.0)]


@pytest.mark.parametrize("raw", [None, {}, {"tries": []}, {"tries": [{}, {"start_s": [1]}]}, {"tries": "x"}])
def test_without_raw_samples_starts_are_sums_and_that_is_told(raw):
    taken = bench_samples(RESULT, raw)
    assert taken.start_s == pytest.approx([0.0, 0.01, 0.03])
    assert not taken.exact_start
    assert "estimated" in bench_plots(PlotSource(shown={"result": RESULT}, samples=raw))[0].summary


@pytest.mark.parametrize("estimate", [None, "x", {}, {"median_ms": "x"}, {"median_ms": 0.0}])
def test_a_result_without_a_headline_is_not_corrected(estimate):
    assert bench_samples({**RESULT, "estimate": estimate}, None).correction == 1.0


@pytest.mark.parametrize("result", [{}, {"samples_s": []}, {"samples_s": [0.0]}, {"samples_s": ["x"]}])
def test_a_result_without_samples_has_no_plots(result):
    assert bench_plots(PlotSource(shown={"result": result})) == []


def test_the_phone_s_own_readings_are_taken_where_there_are_some():
    began = datetime.fromisoformat(STARTED).timestamp()
    conditions = RESULT["certificate"]["conditions"]
    readings = [(began - 5, 20.0), (began + 1, 30.0), (began + 4, 30.5), (began + 60, 40.0)]
    assert temperatures(conditions, STARTED, 8.0, readings) == ("TEMP", [(1.0, 30.0), (4.0, 30.5)])
    assert temperatures(conditions, STARTED, 8.0, readings[:2]) == ("battery", [(0.0, 29.0), (8.0, 31.0)])
    assert temperatures({"before": None, "after": {"temperature_c": 3}}, STARTED, 8.0) == ("battery", [(8.0, 3.0)])
    assert temperatures(conditions, None, None) == ("", [])


def test_comparisons_of_builds_and_of_bundles():
    result = {"comparison": {"ratio": 2.0, "low": 1.9, "high": 2.1, "confidence": 0.99}}

    def plots(samples, result=result):
        return compare_plots(PlotSource(shown={"result": result}, samples=samples))

    (plot,) = plots({"a_s": [1e-3] * 4, "b_s": [2e-3] * 4})
    assert plot.panels[1].lines[0].values == [2.0] * 4
    blocks = {"a": [{"samples_s": [3e-3, 1e-3, 2e-3]}], "b": [{"samples_s": [4e-3, 5e-3, 1.0]}]}
    (plot,) = plots(blocks)
    assert plot.panels[1].lines[0].values == [2.5]
    assert plots(None) == plots(blocks, {}) == plots({"a_s": [0]}) == []


def test_a_tuning_curve_of_the_result_or_of_the_search_that_goes_on():
    done = {"result": {"curve": [[1, 1.0, 2e-3]], "trials": 8, "search_s": 5.0, "wanted_trials": 8}, "progress": None}
    assert tune_plots(PlotSource(shown=done))[0].span == (0.0, 5.0)
    running = {"result": None, "progress": {"tuning": {"trials": 3, "wanted": 8, "spent_s": 4.0}, "curve": [[1, 1, 1]]}}
    assert tune_plots(PlotSource(shown=running))[0].panels[1].lines[0].values == [0.0, 1.0, 3.0]
    assert tune_plots(PlotSource(shown={"result": None, "progress": None})) == []


def test_the_median_by_the_clock_and_that_at_nominal_speed_are_drawn_and_named() -> None:
    samples, _ = bench_plots(PlotSource(shown={"result": {**RESULT, "estimate": {"median_ms": 5.0}}}))
    panel = samples.panels[0]
    found = {mark.name: mark.at for mark in panel.marks if mark.to is None}
    assert found == {"median by the clock": pytest.approx(1.0), "median at nominal speed": pytest.approx(5.0)}
    assert panel.top is not None
    assert panel.top > 5.0  # inside the plot
    assert "1.000 ms by the clock, 5.000 ms at nominal speed" in samples.summary
