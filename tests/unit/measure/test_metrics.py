"""Metrics of results: how their values are written, which direction is worse, and what readers can read."""

from dataclasses import replace

import pytest

from farm.measure.metrics import ENERGY, LATENCY, METRICS, PEAK_MEMORY, SLOWDOWN, are_values, values_of


@pytest.mark.parametrize(
    ("metric", "values", "words"),
    [
        (LATENCY, [0.0123, 76.07e-6], ["12300 µs", "76.07 µs"]),
        (ENERGY, [0.01002, None], ["10.02 mJ", "-"]),
        (PEAK_MEMORY, [274.3e6, 50e6], ["274.3 MB", "50.00 MB"]),
        (SLOWDOWN, [1.3], ["1.300"]),
    ],
)
def test_values_are_written_in_one_unit(metric, values, words):
    assert metric.words(values, aligned=False) == words


def test_a_metric_says_which_direction_is_worse():
    assert all(each.is_worse(1.1) and not each.is_worse(0.9) for each in METRICS.values())
    throughput = replace(ENERGY, higher=True)
    assert (throughput.is_worse(1.1), throughput.is_worse(0.9)) == (False, True)


def test_values_that_readers_cannot_read_are_none():
    assert are_values(values_of((ENERGY, 0.01, 0.009, 0.011), (PEAK_MEMORY, 1e6, None, None)))
    for wrong in (
        [],
        {"energy": 0.01},
        {"energy": {}},
        {"energy": {"value": "0.01"}},
        {"energy": {"value": 10**400}},
        {"energy": {"value": 0}},
    ):
        assert not are_values(wrong)
    assert not are_values({"energy": {"value": 0.01, "low": "0"}})
    assert are_values({"of another release": {"value": 1}})
