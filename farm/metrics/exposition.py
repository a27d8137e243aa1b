"""/metrics as text: Prometheus's own format 0.0.4, or OpenMetrics 1.0 for whoever asks for it.

prometheus_client renders the same in four times the time (`make bench NAME=scrape`), and the event loop waits for it: a
test holds this to its output. What prometheus_client collects itself (process, garbage collection) it renders itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest as generate_plain
from prometheus_client.openmetrics.exposition import generate_latest as generate_open

from farm.metrics.catalogue import METRICS, Kind, Metric
from farm.metrics.collector import FarmCollector
from farm.metrics.page import Page

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_EOF = b"# EOF\n"


def exposition(
    collector: FarmCollector, accept: str = "", *, process: CollectorRegistry | None = None
) -> tuple[bytes, str]:
    """The answer to a scrape and its content type.

    Args:
        collector: the farm's.
        accept: the request's Accept header.
        process: what else to tell, as prometheus_client renders it.
    """
    if "application/openmetrics-text" not in accept:
        return rendered(collector.read(), openly=False) + (bytes(generate_plain(process)) if process else b""), PLAIN
    end = bytes(generate_open(process)) if process else _EOF  # type: ignore[no-untyped-call]
    return rendered(collector.read(), openly=True) + end, OPEN


def rendered(page: Page, *, openly: bool) -> bytes:
    """A page's families; without OpenMetrics's end mark."""
    lines: list[str] = []
    for metric in METRICS.values():
        name, kind = (metric.name, metric.kind.value) if openly else (metric.shown, _plain_kind(metric))
        lines.append(f"# HELP {name} {metric.meaning}")
        lines.append(f"# TYPE {name} {kind}")
        if metric.kind is Kind.HISTOGRAM:
            lines += _spread(metric, page)
        else:
            sample = metric.shown
            for labels, value in page.values[metric.name].items():
                lines.append(f"{sample}{_labels(metric.labels, labels)} {float(value)!r}")
    lines.append("")
    return "\n".join(lines).encode()


def _spread(metric: Metric, page: Page) -> Iterable[str]:
    for labels, histogram in page.histograms[metric.name].items():
        rows = histogram.cumulative()
        for bound, count in rows:
            text = "+Inf" if bound == float("inf") else repr(bound)
            yield f"{metric.name}_bucket{_labels((*metric.labels, 'le'), (*labels, text))} {float(count)!r}"
        own = _labels(metric.labels, labels)
        yield f"{metric.name}_count{own} {float(rows[-1][1])!r}"
        yield f"{metric.name}_sum{own} {histogram.total!r}"


def _plain_kind(metric: Metric) -> str:
    return "gauge" if metric.kind is Kind.INFO else metric.kind.value


@lru_cache(maxsize=50_000)  # the same in every scrape: 500 devices have some 20,000
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
