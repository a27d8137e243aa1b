"""What plots show, as plain numbers: panels, words and tables."""

from __future__ import annotations

import json
from statistics import median, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.kinds.bench.page import Samples, distribution_plot, samples_plot
from farm.kinds.compare.page import compare_plot
from farm.kinds.tune.page import tuning_plot
from farm.web.measured import HistoryPoint, history_plot
from farm.web.plots import MOST_BINS, TABLE_ROWS, bins, counted, quantile, time_words, unit_of

TIMES = st.lists(st.floats(1e-6, 10), min_size=2, max_size=300)


def taken(seconds, **more):
    starts = [float(number) for number in range(len(seconds))]
    return Samples(**{"seconds": seconds, "start_s": starts, "exact_start": True, **more})


def line(plot, name, panel=0):
    return next(each for each in plot.panels[panel].lines if each.name == name)


def drawn(plot, name, panel=0):
    return [place for place, value in enumerate(line(plot, name, panel).values) if value is not None]


@pytest.mark.parametrize(
    ("seconds", "words"), [(2.5, "2.500 s"), (0.0123456, "12.35 ms"), (7.607e-5, "76.07 µs"), (0.0, "0 µs")]
)
def test_times_have_the_unit_of_their_size(seconds, words):
    assert time_words(seconds) == words


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
    assert 1 <= len(edges) - 1 <= MOST_BINS
    assert edges[0] <= ordered[0]
    assert edges[-1] == pytest.approx(max(ordered[-1], edges[-1]))
    assert sum(counted(ordered, edges)) == len(values)


@given(TIMES)
def test_whatever_was_taken_can_be_sent_and_every_sample_is_drawn_once(values):
    plot = samples_plot(taken(values, warmup=1, outliers=frozenset({len(values) - 1})))
    json.dumps(plot.data(), allow_nan=False)
    places = sorted(place for each in plot.panels[0].lines for place, v in enumerate(each.values) if v is not None)
    assert places == list(range(len(values)))
    distribution = distribution_plot(taken(values))
    json.dumps(distribution.data(), allow_nan=False)


def test_warm_up_outliers_and_what_lies_above_are_series_of_their_own():
    seconds = [3e-3, 2e-3, *[1e-3] * 40, 1.5e-3, 9e-3]
    plot = samples_plot(taken(seconds, warmup=2, outliers=frozenset({42, 43}), median_s=1e-3, low_s=9e-4, high_s=2e-3))
    assert drawn(plot, "warm-up") == [1]  # the first is above the plot
    assert drawn(plot, "outlier") == [42]
    assert drawn(plot, "above the plot") == [0, 43]
    assert drawn(plot, "sample") == list(range(2, 42))
    assert plot.panels[0].label == "one run, ms"
    assert [(mark.name, mark.at, mark.to) for mark in plot.panels[0].marks] == [
        ("95 % interval", pytest.approx(0.9), pytest.approx(2.0)),
        ("median by the clock", pytest.approx(1.0), None),
    ]
    assert "2 are above the plot" in plot.summary
    assert "the slowest took 9.000 ms" in plot.summary


def test_temperature_lies_under_the_samples_on_the_same_axis_of_time():
    plot = samples_plot(taken([1e-3] * 5, sensor="battery", celsius=[(0.0, 30.0), (2.0, 31.0), (6.0, 33.5)]))
    heat = plot.panels[1]
    assert (heat.label, heat.x, heat.lines[0].values) == ("battery, °C", [0.0, 2.0, 6.0], [30.0, 31.0, 33.5])
    assert plot.span == (0.0, 6.0)
    assert "battery 30.0 °C at the beginning, 33.5 °C at the end" in plot.summary
    assert len(samples_plot(taken([1e-3] * 5)).panels) == 1


def test_a_table_tells_the_samples_in_equal_parts():
    plot = samples_plot(taken([1e-3 * (1 + number) for number in range(160)]))
    assert len(plot.table.rows) == TABLE_ROWS
    assert sum(int(row[1]) for row in plot.table.rows) == 160
    assert plot.table.rows[0][0] == "0.00 to 9.00"


def test_a_distribution_leaves_a_few_far_ones_out_and_says_so():
    values = [1e-3 + number * 1e-6 for number in range(1000)] + [1.0]
    plot = distribution_plot(taken(values))
    assert sum(plot.panels[0].lines[0].values) < 1001
    assert "not drawn, up to 1.000 s" in plot.summary
    assert [row[0] for row in plot.table.rows] == ["least", "5%", "25%", "50%", "75%", "95%", "most"]
    assert float(plot.table.rows[3][1]) == pytest.approx(median(values) * 1000, rel=1e-3)
    assert distribution_plot(taken([1e-3])) is None


def test_a_distribution_has_the_headline_s_clock():
    values = [1e-3 + number * 1e-6 for number in range(101)]
    plot = distribution_plot(taken(values, median_s=median(values), correction=2.0))
    (middle,) = [mark.at for mark in plot.panels[0].marks if mark.name == "median"]
    assert middle == pytest.approx(2 * median(values) * 1000)
    assert "Half of the runs took 2.050 ms to 2.150 ms" in plot.summary
    assert "at nominal speed, as the headline: those by the clock times 2.000" in plot.summary
    assert plot.x_label == "one run at nominal speed, ms"
    assert "nominal" not in distribution_plot(taken(values, median_s=median(values))).summary


def test_a_tuning_curve_goes_on_to_the_end_of_the_search():
    plot = tuning_plot([[1, 2.0, 4e-3], [5, 10.0, 1e-3]], 24, 30.0, 24)
    assert plot.panels[0].x == [2.0, 10.0, 30.0]
    assert plot.panels[0].lines[0].values == pytest.approx([4.0, 1.0, 1.0])
    assert plot.panels[1].lines[0].values == [0.0, 1.0, 5.0, 24.0]
    assert "(4.00 times) in 24 trials" in plot.summary
    assert "the whole model is timed afterwards" in plot.summary
    assert tuning_plot([], 0, None) is None


def test_a_comparison_shows_both_sides_and_the_ratio_of_each_pair():
    plot = compare_plot([1e-3, 2e-3], [2e-3, 2e-3], {"ratio": 1.5, "low": 1.0, "high": 2.0, "confidence": 0.99})
    assert line(plot, "A").values == pytest.approx([1.0, 2.0])
    assert line(plot, "B / A", 1).values == [2.0, 1.0]
    assert "B took 1.5000 times as long as A" in plot.summary
    assert compare_plot([], [], {"ratio": 1, "low": 1, "high": 1}) is None


POINT = HistoryPoint(1e-3, 9e-4, 2e-3, "trusted")
SLOWER = HistoryPoint(2e-3, 1e-3, 3e-3, "rejected")


def test_a_history_keeps_what_is_not_trusted_apart():
    plot = history_plot([POINT, SLOWER])
    assert drawn(plot, "trusted") == [0]
    assert drawn(plot, "suspect or rejected") == [1]
    assert history_plot([POINT]) is None
    assert (plot.panels[0].log, history_plot([POINT, POINT], log=True).panels[0].log) == (False, True)
    assert [(each.kind, each.values) for each in plot.panels[0].lines[2:]] == [  # error bars
        ("high", pytest.approx([2.0, 3.0])), ("low", pytest.approx([0.9, 1.0])),
    ]  # fmt: skip


def test_a_history_lies_on_an_axis_of_time_and_keeps_what_was_reported_first():
    older = POINT._replace(at="2026-11-22T06:00:00+00:00", reported_s=3e-3)
    plot = history_plot([older, POINT._replace(at="2026-11-24T06:00:00+00:00", reported_s=1e-3)])
    assert plot.data()["time"] is True
    first, last = plot.data()["panels"][0]["x"]  # as the browser gets it
    assert last - first == 2 * 86400
    assert plot.span[0] < plot.panels[0].x[0] < plot.panels[0].x[1] < plot.span[1]
    assert line(plot, "as reported then").values == [pytest.approx(3.0), None]
    assert "1 rescaled to today's nominal speed" in plot.summary
    assert [row[4] for row in plot.table.rows] == ["3.000", "-"]
    assert 'datetime="2026-11-22' in plot.table.rows[0][0]
    plain = history_plot([POINT, POINT])
    assert (plain.data()["time"], plain.panels[0].x, plain.span) == (False, [1.0, 2.0], (0.0, 3.0))
    assert "rescaled" not in plain.summary


def test_a_result_without_an_interval_has_no_error_bar():
    plot = history_plot([HistoryPoint(1e-3, None, None, "rejected"), POINT])
    assert drawn(plot, "suspect or rejected") == [0]
    assert [next(iter(each.values)) for each in plot.panels[0].lines[2:]] == [None, None]
    assert [row[2] for row in plot.table.rows] == ["-", "0.9000 to 2.000"]


def test_both_medians_are_drawn_and_named():
    compared = {"ratio": 1.5, "low": 1.0, "high": 2.0}
    plot = compare_plot([1e-3, 2e-3], [2e-3, 2e-3], compared, [1.5, 2.0])
    assert [(each.name, each.at) for each in plot.panels[0].marks] == [
        ("median of A", pytest.approx(1.5)), ("median of B", pytest.approx(2.0)),
    ]  # fmt: skip


def test_units_of_nothing():
    assert [unit_of(each) for each in (2.0, 0.5, 5e-5)] == [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")]
