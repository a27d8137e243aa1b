"""The samples of one scrape, by metric, before anybody has chosen a format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from farm.core.histogram import Histogram
from farm.metrics.catalogue import METRICS, Kind

Labels = tuple[str, ...]
L = TypeVar("L", bound=str | Labels)


class Page:
    """Values by metric and label values, as the catalogue has them."""

    def __init__(self) -> None:
        self.values: dict[str, dict[Labels, float]] = {name: {} for name in METRICS}
        self.histograms: dict[str, dict[Labels, Histogram]] = {
            name: {} for name, metric in METRICS.items() if metric.kind is Kind.HISTOGRAM
        }

    def set(self, name: str, value: float | None, *labels: str) -> None:
        """One sample; None: nobody knows, so there is none."""
        if value is not None:
            self.values[name][labels] = value

    def counted(self, name: str, counts: Mapping[L, float]) -> None:
        """A sample for each; one label value needs no tuple."""
        into = self.values[name]
        for labels, value in counts.items():
            into[_tuple(labels)] = value

    def distributed(self, name: str, histograms: Mapping[L, Histogram]) -> None:
        """A histogram for each."""
        into = self.histograms[name]
        for labels, histogram in histograms.items():
            into[_tuple(labels)] = histogram


def _tuple(labels: str | Labels) -> Labels:
    return (labels,) if isinstance(labels, str) else labels
