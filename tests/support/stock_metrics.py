"""A page of metrics as prometheus_client has it: what farm's own text is held to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from farm.metrics.catalogue import METRICS, Kind
from farm.metrics.page import Page


class StockPage(Collector):
    """For a registry of prometheus_client."""

    def __init__(self, read: Callable[[], Page]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """The families of what is read now."""
        page = self._read()
        for name, metric in METRICS.items():
            match metric.kind:
                case Kind.HISTOGRAM:
                    spread = HistogramMetricFamily(name, metric.meaning, labels=metric.labels)
                    for labels, histogram in page.histograms[name].items():
                        rows = [
                            ("+Inf" if bound == float("inf") else repr(bound), float(count))
                            for bound, count in histogram.cumulative()
                        ]
                        spread.add_metric(labels, rows, histogram.total)
                    yield spread
                case Kind.INFO:
                    info = InfoMetricFamily(name, metric.meaning)
                    for labels in page.values[name]:
                        info.add_metric((), dict(zip(metric.labels, labels, strict=True)))
                    yield info
                case kind:
                    family = CounterMetricFamily if kind is Kind.COUNTER else GaugeMetricFamily
                    plain = family(name, metric.meaning, labels=metric.labels)
                    for labels, value in page.values[name].items():
                        plain.add_metric(labels, value)
                    yield plain
