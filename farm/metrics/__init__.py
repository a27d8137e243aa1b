"""Metrics for Prometheus: what the farm is doing, read from its state at each scrape (docs/metrics.md)."""

from farm.metrics.collector import FarmCollector
from farm.metrics.exposition import exposition
from farm.metrics.sources import Sources

__all__ = ["FarmCollector", "Sources", "exposition"]
