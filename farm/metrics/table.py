"""docs/metrics.md, made of the catalogue: `python -m farm.metrics.table > docs/metrics.md`."""

from __future__ import annotations

import sys

from farm.metrics.catalogue import GROUPS, Metric

HEAD = """# Metrics

The content of `GET /metrics`, in Prometheus's text format or as OpenMetrics. Generated from
`farm/metrics/catalogue.py` by `python -m farm.metrics.table > docs/metrics.md`.

- A scrape reads memory only (`make bench NAME=scrape` measures it). Counters begin at 0 with each start of the daemon.
- Labels name adopted devices and the first 20 users since the start (others: `other`), never jobs, serials or paths.
- A name ends in its unit; a ratio is 0 to 1. `process_*` and `python_gc_*` come from prometheus_client.
- Scraping and alerts: [operations-alerts.md](operations-alerts.md).
"""


def table() -> str:
    """The whole document."""
    parts = [HEAD]
    for title, metrics in GROUPS.items():
        rows = "\n".join(_row(metric) for metric in metrics)
        parts.append(f"## {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.shown}` | {metric.kind} | {labels} | {metric.meaning} |"


if __name__ == "__main__":
    sys.stdout.write(table())
