"""docs/metrics.md, made of the catalogue: `python -m farm.metrics.table > docs/metrics.md`."""

from __future__ import annotations

import sys

from farm.metrics.catalogue import GROUPS, Metric

HEAD = """# Metrics

What `GET /metrics` answers, in Prometheus's text format, or as OpenMetrics to whoever asks for that. Made of
`farm/metrics/catalogue.py` by `python -m farm.metrics.table > docs/metrics.md`.

- Everything is read from the daemon's memory when it is asked: nothing waits and no history is searched. With 200
  devices a scrape is measured by `make bench NAME=scrape`.
- Counters begin at 0 with each start of the daemon; Prometheus's `rate` and `increase` know that.
- Only adopted devices are named. Users are named as long as they are few: the first 20 since the daemon started; all
  others are `other`. No job, serial number or path is ever a label.
- `process_*` and `python_gc_*` come from prometheus_client and mean what they mean everywhere.
- How to scrape, and what the alerts mean: [operations-alerts.md](operations-alerts.md).
"""


def table() -> str:
    """The whole document."""
    parts = [HEAD]
    for title, metrics in GROUPS.items():
        rows = "\n".join(_row(metric) for metric in metrics)
        parts.append(f"## {title}\n\n| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.shown}` | {metric.kind} | {metric.unit} | {labels} | {metric.meaning} |"


if __name__ == "__main__":
    sys.stdout.write(table())
