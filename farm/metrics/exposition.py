"""The samples of one scrape, and their text: prometheus_client's own format, or OpenMetrics for a client that asks.

A page with 200 devices takes prometheus_client some 100 ms (`make bench NAME=scrape`), so a scrape is read from the
daemon's state on the event loop and rendered in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as generate_plain
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.exposition import generate_latest as generate_open
from prometheus_client.registry import Collector

from farm.common.histogram import Histogram
from farm.metrics.catalogue import METRICS, Kind

Labels = tuple[str, ...]
L = TypeVar("L", bound=str | Labels)


class Page(Collector):
    """Values by metric and label values, as the catalogue has them; a collector for a registry of prometheus_client."""

    def __init__(self) -> None:
        self.values: dict[str, dict[Labels, float]] = {name: {} for name in METRICS}
        # Upper bounds with how many were at most that, and the sum.
        self.histograms: dict[str, dict[Labels, tuple[list[tuple[float, int]], float]]] = {
            name: {} for name, metric in METRICS.items() if metric.kind is Kind.HISTOGRAM
        }

    def set(self, name: str, value: float | None, *labels: str) -> None:
        """Add one sample; None adds none."""
        if value is not None:
            self.values[name][labels] = value

    def counted(self, name: str, counts: Mapping[L, float]) -> None:
        """Add a sample for each; one label value needs no tuple."""
        into = self.values[name]
        for labels, value in counts.items():
            into[_tuple(labels)] = value

    def distributed(self, name: str, histograms: Mapping[L, Histogram]) -> None:
        """Add a histogram for each."""
        into = self.histograms[name]
        for labels, histogram in histograms.items():
            into[_tuple(labels)] = histogram.cumulative(), histogram.total

    def collect(self) -> Iterator[Metric]:
        """Every family of the catalogue, also those without a sample."""
        for name, metric in METRICS.items():
            values = self.values[name]
            match metric.kind:
                case Kind.HISTOGRAM:
                    spread = HistogramMetricFamily(name, metric.meaning, labels=metric.labels)
                    for labels, (rows, total) in self.histograms[name].items():
                        buckets = [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in rows]
                        spread.add_metric(labels, buckets, total)
                    yield spread
                case Kind.INFO:
                    info = InfoMetricFamily(name, metric.meaning)
                    for labels in values:
                        info.add_metric((), dict(zip(metric.labels, labels, strict=True)))
                    yield info
                case kind:
                    family = CounterMetricFamily if kind is Kind.COUNTER else GaugeMetricFamily
                    plain = family(name, metric.meaning, labels=metric.labels)
                    for labels, value in values.items():
                        plain.add_metric(labels, value)
                    yield plain


def _tuple(labels: str | Labels) -> Labels:
    return (labels,) if isinstance(labels, str) else labels


PLAIN, OPEN = CONTENT_TYPE_PLAIN_0_0_4, CONTENT_TYPE_LATEST


def content_type_of(accept: str) -> str:
    """The content type for a request with that Accept header."""
    return OPEN if "application/openmetrics-text" in accept else PLAIN


def rendered(page: Page, accept: str = "", *, process: Collector | None = None) -> tuple[bytes, str]:
    """The answer to a scrape and its content type.

    Args:
        page: what was read of the farm.
        accept: the request's Accept header.
        process: further metrics, of the process.
    """
    registry = CollectorRegistry()
    registry.register(page)
    if process is not None:
        registry.register(process)
    if content_type_of(accept) == PLAIN:
        return bytes(generate_plain(registry)), PLAIN
    generate: Callable[[CollectorRegistry], bytes] = generate_open
    return generate(registry), OPEN
