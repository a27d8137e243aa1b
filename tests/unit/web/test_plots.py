"""What plots show, as plain numbers: panels, words and tables; and what results have for them."""

import json
from datetime import datetime
from statistics import median, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.kinds.bench.page import Samples, bench_plots, bench_samples, distribution_plot, samples_plot, temperatures
from farm.kinds.compare.page import compare_plot, compare_plots
from farm.kinds.tune.page import tune_plots, tuning_plot
from farm.measure.metrics import ENERGY
from farm.results.board import Front, FrontPoint
from farm.web.measured import HistoryPoint, front_plot, history_plot
from farm.web.plots import MAX_BINS, TABLE_ROWS, PlotSource, bins, counted, quantile, time_words, unit_of

TIMES = st.lists(st.floats(1e-6, 10), min_size=2, max_size=300)


def taken(seconds, **more):
    starts = [float(number) for number in range(len(seconds))]
    return Samples(**{"seconds": seconds, "start_s": starts, "exact_start": True, **more})


@pytest.mark.parametrize(
    ("seconds", "words"), [(2.5, "2.500 s"), (0.0123456, "12.35 ms"), (7.607e-5, "76.07 µs"), (0.0, "0 µs")]
)
def test_times_have_the_unit_of_their_size(seconds, words):
    assert time_words(seconds) == words
    assert unit_of(seconds)[1] == words.split()[1]


@given(TIMES)
def test_quantiles_are_those_of_the_library(values):
    ordered = sorted(values)
    quarters = quantiles(ordered, n=4, method="inclusive")
    assert [quantile(ordered, share) for share in (0.25, 0.5, 0.75)] == pytest.approx(quarters)
    assert (quantile(ordered, 0), quantile(ordered, 1)) == (ordered[0], ordered[-1])


@given(TIMES)
def test_every_value_is_in_one_bin(values):
    ordered = sorted(values)
    edges = bins(ordered)
    assert 1 <= len(edges) - 1 <= MAX_BINS
    assert edges[0] <= ordered[0]
    assert edges[-1] == pytest.approx(max(ordered[-1], edges[-1]))
    assert sum(counted(ordered, edges)) == len(values)


@given(TIMES)
def test_whatever_was_taken_can_be_sent_and_every_sample_is_drawn_once(values):
    plot = samples_plot(taken(values, warmup=1, outliers=frozenset({len(values) - 1})))
    json.dumps(plot.data(), allow_nan=False)
    places = sorted(place for each in plot.panels[0].lines for place, v in enumerate(each.values) if v is not None)
    assert places == list(range(len(values)))
    json.dumps(distribution_plot(taken(values)).data(), allow_nan=False)


ODD = [3e-3, 2e-3, *[1e-3] * 40, 1.5e-3, 9e-3]  # two of warm-up, two outliers, two above the plot
HUNDRED = [1e-3 + number * 1e-6 for number in range(101)]
HEAT = {"sensor": "battery", "celsius": [(0.0, 30.0), (2.0, 31.0), (6.0, 33.5)]}
RATIO = {"ratio": 1.5, "low": 1.0, "high": 2.0, "confidence": 0.99}
POINT = HistoryPoint(1e-3, 9e-4, 2e-3, "trusted")
SLOWER = HistoryPoint(2e-3, 1e-3, 3e-3, "rejected")
OLDER = POINT._replace(at="2026-11-22T06:00:00+00:00", reported=3e-3)
FRONT = Front(
    "pixel", "top1", "%", "abc", 500,
    (
        FrontPoint("net", "cpu, int8", 1.0, "trusted", 80.0, 78.0, 82.0, on_front=True, jobs=("bench-1", "run-1")),
        FrontPoint("net", "cpu, float16", 2.0, "trusted", 79.0, 77.0, 81.0, on_front=False, jobs=("bench-2", "run-2")),
        FrontPoint("net", "cpu, float32", 4.0, "trusted", 95.0, 93.0, 97.0, on_front=True, jobs=("bench-3", "run-3")),
    ),
)  # fmt: skip
PLOTS = {
    "samples with warm-up, outliers and some above the plot": samples_plot(
        taken(ODD, warmup=2, outliers=frozenset({42, 43}), median_s=1e-3, low_s=9e-4, high_s=2e-3)
    ),
    "samples with their temperature": samples_plot(taken([1e-3] * 5, **HEAT)),
    "a distribution": distribution_plot(taken(HUNDRED, median_s=median(HUNDRED))),
    "a distribution at nominal speed":
        distribution_plot(taken(HUNDRED, median_s=median(HUNDRED), correction=2.0)),
    "a tuning curve to the end of the search": tuning_plot([[1, 2.0, 4e-3], [5, 10.0, 1e-3]], 24, 30.0, 24),
    "a comparison of pairs": compare_plot([1e-3, 2e-3], [2e-3, 2e-3], RATIO, [1.5, 2.0]),
    "a history keeps what is not trusted apart": history_plot([POINT, SLOWER]),
    "a history of an axis of time and of what was reported first":
        history_plot([OLDER, POINT._replace(at="2026-11-24T06:00:00+00:00", reported=1e-3)]),
    "joules over time": history_plot([POINT._replace(value=0.01, low=None), POINT], metric=ENERGY),
    "speed against quality": front_plot(FRONT, "front-0"),
    "a history without an interval": history_plot([HistoryPoint(1e-3, None, None, "rejected"), POINT], log=True),
}  # fmt: skip


@pytest.mark.parametrize("name", PLOTS)
def test_plot(snapshot, name):
    data = PLOTS[name].data()
    lines = [
        json.dumps(each, ensure_ascii=False) for panel in data.pop("panels") for each in [*panel.pop("lines"), panel]
    ]
    table = PLOTS[name].table
    rows = [" | ".join(map(str, row)) for row in table.rows]
    snapshot("\n".join([*lines, json.dumps(data, ensure_ascii=False), PLOTS[name].summary, *rows]))


def test_too_little_is_no_plot():
    assert distribution_plot(taken([1e-3])) is tuning_plot([], 0, None) is history_plot([POINT]) is None
    assert compare_plot([], [], {"ratio": 1, "low": 1, "high": 1}) is None


def test_a_table_tells_the_samples_in_equal_parts():
    plot = samples_plot(taken([1e-3 * (1 + number) for number in range(160)]))
    assert (len(plot.table.rows), sum(int(row[1]) for row in plot.table.rows)) == (TABLE_ROWS, 160)
    assert plot.table.rows[0][0] == "0.00 to 9.00"


def test_a_distribution_leaves_a_few_far_ones_out_and_says_so():
    values = [1e-3 + number * 1e-6 for number in range(1000)] + [1.0]
    plot = distribution_plot(taken(values))
    assert sum(plot.panels[0].lines[0].values) < 1001
    assert "not drawn, up to 1.000 s" in plot.summary
    assert float(plot.table.rows[3][1]) == pytest.approx(median(values) * 1000, rel=1e-3)


STARTED = "2026-11-22T06:17:06+00:00"
RESULT = {
    "samples_s": [1e-3, 2e-3, 1e-3],
    "latency": {"median_ms": 1.0, "low_ms": 0.9, "high_ms": 1.1},
    "certificate": {
        "number": 10, "warmup": 1, "outliers": {"indices": [2]}, "raw": "a" * 64,
        "tries": [{"reported": False}, {"reported": True, "started_at": STARTED, "seconds": 8.0}],
        "conditions": {"before": {"temperature_c": 29.0}, "during": [], "after": {"temperature_c": 31.0}},
    },
}  # fmt: skip
CONDITIONS = RESULT["certificate"]["conditions"]
BEGAN = datetime.fromisoformat(STARTED).timestamp()
READINGS = [(BEGAN - 5, 20.0), (BEGAN + 1, 30.0), (BEGAN + 4, 30.5), (BEGAN + 60, 40.0)]


def test_starts_come_from_the_reported_try_of_the_raw_samples():
    raw = {"tries": [{"start_s": [9, 9, 9]}, {"start_s": [0.5, 1.5, 2.5]}]}
    taken = bench_samples({**RESULT, "estimate": {"median_ms": 2.0}}, raw)
    assert (taken.nominal_s, taken.correction, taken.median_s) == pytest.approx((2e-3, 2.0, 1e-3))
    assert (taken.start_s, taken.exact_start) == ([0.5, 1.5, 2.5], True)
    assert (taken.warmup, taken.outliers, taken.celsius) == (1, frozenset({2}), [(0.0, 29.0), (8.0, 31.0)])


@pytest.mark.parametrize("raw", [None, {}, {"tries": []}, {"tries": [{}, {"start_s": [1]}]}, {"tries": "x"}])
def test_without_raw_samples_starts_are_sums_and_that_is_told(raw):
    taken = bench_samples(RESULT, raw)
    assert (taken.start_s, taken.exact_start) == (pytest.approx([0.0, 0.01, 0.03]), False)
    assert "estimated" in bench_plots(PlotSource(shown={"result": RESULT}, samples=raw))[0].summary


@pytest.mark.parametrize("estimate", [None, "x", {}, {"median_ms": "x"}, {"median_ms": 0.0}])
def test_a_result_without_a_headline_is_not_corrected(estimate):
    assert bench_samples({**RESULT, "estimate": estimate}, None).correction == 1.0


@pytest.mark.parametrize(
    ("drawn", "result"),
    [
        *((bench_plots, result) for result in ({}, {"samples_s": []}, {"samples_s": [0.0]}, {"samples_s": ["x"]})),
        (compare_plots, {}),
        (tune_plots, None),
    ],
)
def test_a_result_without_samples_has_no_plots(drawn, result):
    assert drawn(PlotSource(shown={"result": result, "progress": None}, samples={"a_s": [0]})) == []


@pytest.mark.parametrize(
    ("conditions", "readings", "found"),
    [
        (CONDITIONS, READINGS, ("TEMP", [(1.0, 30.0), (4.0, 30.5)])),
        (CONDITIONS, READINGS[:2], ("battery", [(0.0, 29.0), (8.0, 31.0)])),
        ({"before": None, "after": {"temperature_c": 3}}, (), ("battery", [(8.0, 3.0)])),
    ],
)
def test_the_phone_s_own_readings_are_taken_where_there_are_some(conditions, readings, found):
    assert temperatures(conditions, STARTED, 8.0, readings) == found
    assert temperatures(conditions, None, None) == ("", [])


@pytest.mark.parametrize(
    ("samples", "ratios"),
    [
        ({"a_s": [1e-3] * 4, "b_s": [2e-3] * 4}, [[2.0] * 4]),
        ({"a": [{"samples_s": [3e-3, 1e-3, 2e-3]}], "b": [{"samples_s": [4e-3, 5e-3, 1.0]}]}, [[2.5]]),
        (None, []),
        ({"a_s": [0]}, []),
    ],
)
def test_comparisons_of_builds_and_of_bundles(samples, ratios):
    plots = compare_plots(PlotSource(shown={"result": {"comparison": RATIO}}, samples=samples))
    assert [plot.panels[1].lines[0].values for plot in plots] == ratios


def test_a_tuning_curve_of_the_result_or_of_the_search_that_goes_on():
    done = {"result": {"curve": [[1, 1.0, 2e-3]], "trials": 8, "search_s": 5.0, "wanted_trials": 8}, "progress": None}
    assert tune_plots(PlotSource(shown=done))[0].span == (0.0, 5.0)
    running = {"result": None, "progress": {"tuning": {"trials": 3, "wanted": 8, "spent_s": 4.0}, "curve": [[1, 1, 1]]}}
    assert tune_plots(PlotSource(shown=running))[0].panels[1].lines[0].values == [0.0, 1.0, 3.0]


def test_the_median_by_the_clock_and_that_at_nominal_speed_are_drawn_and_named():
    samples, _ = bench_plots(PlotSource(shown={"result": {**RESULT, "estimate": {"median_ms": 5.0}}}))
    found = {mark.name: mark.at for mark in samples.panels[0].marks if mark.to is None}
    assert found == pytest.approx({"median by the clock": 1.0, "median at nominal speed": 5.0})
    assert samples.panels[0].top > 5.0  # inside the plot
    assert "1.000 ms by the clock, 5.000 ms at nominal speed" in samples.summary
