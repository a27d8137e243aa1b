"""The one list of metrics: Prometheus's naming and bounded labels."""

import re

import pytest

from farm.metrics.catalogue import METRICS, UNITS, Kind, Metric

BOUNDED = {
    "cause", "class", "cluster", "component", "device", "direction", "fault", "finding", "gpu", "group", "host", "hub",
    "kind", "model", "outcome", "pool", "action", "result_job", "sensor", "soc", "source", "state", "to", "toolchain",
    "topic", "user", "version", "where",
}  # fmt: skip


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_names_follow_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"farm(_[a-z0-9]+)+", metric.name)
    assert not metric.name.endswith(("_total", "_info", "_count", "_sum", "_bucket"))
    assert metric.meaning.endswith(".")
    if metric.kind is Kind.HISTOGRAM:
        assert metric.unit == "seconds"


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_labels_are_known_to_be_bounded(metric: Metric) -> None:
    assert set(metric.labels) <= BOUNDED


def test_units_are_prometheus_base_units() -> None:
    assert not {"ms", "milliseconds", "minutes", "percent", "mv", "khz", "kilobytes"} & set(UNITS)
