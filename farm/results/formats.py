"""Results as files that other programs read.

Each format is a function of rows of `history.list`, newest first, that gives the content of the file: of each row a
line for each metric, for MLflow a run. Values without an interval have no ends of one in any format; Bencher does not
get medians of one sample.
Bencher and OpenMetrics draw times over days, so theirs are at today's nominal speed, as those of the board.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any

from farm.common.errors import HostError, UserError
from farm.common.files import short_hash
from farm.common.install import pip_install
from farm.measure.metrics import LATENCY, ResultMetric
from farm.results.series import (
    BUILD,
    COLUMNS,
    SERIES_LABELS,
    TRAITS,
    Reading,
    accelerated,
    by_metric,
    changes_in,
    columns_of,
    is_judged,
    metric_of,
    reading_of,
    reported,
    series_of,
    traits_of,
)

NS = 1e9
SAMPLES = "samples_s"  # of a row: seconds in the order they were taken, as measured; None: its job is gone
_FORMULA = ("=", "+", "-", "@", "\N{MINUS SIGN}")  # how a cell begins that a spreadsheet would compute
_UNITS = {"s": "seconds", "J": "joules", "B": "bytes", "": "ratio"}  # in names of OpenMetrics
_CHANGE = "farm_result_level_change_ratio"


def families(metric: ResultMetric) -> dict[str, str]:
    """OpenMetrics family -> what it is, of a metric; in the order of `reading_of`."""
    stem, unit = f"farm_result_{metric.name.replace(' ', '_')}", _UNITS[metric.unit]
    names = [f"{stem}_{unit}", f"{stem}_low_{unit}", f"{stem}_high_{unit}"]
    if metric is LATENCY:
        names = [f"farm_result_{each}_seconds" for each in ("median", "low", "high")]
    what = "The median of a bench" if metric is LATENCY else f"The {metric.name} that a job measured"
    ends = [f"The {end} end of its 95 % interval: {names[0]}" for end in ("lower", "upper")]
    return dict(zip(names, [what, *ends], strict=True))


METRIC_NAMES = (*families(LATENCY), _CHANGE)
Rows = Iterable[Mapping[str, Any]]
MS = 1000
JOB_TAG = "farm.job"  # a job that has a run is not logged again
PARAMETERS = ("model", *BUILD)  # columns that are parameters of a run
_PAGE = 1000


def json_lines(rows: Rows) -> Iterator[bytes]:
    """One result a line, `columns_of` as JSON, and its `samples_s` where the row has them."""
    for row in by_metric(rows):
        found = {name: _finite(value) for name, value in columns_of(row).items()}
        yield json.dumps(found | {name: row[name] for name in (SAMPLES,) if name in row}).encode() + b"\n"


def cell(value: object) -> object:
    """A cell of a CSV file: text that a spreadsheet would compute gets `'` before it, whatever precedes its sign.

    Spreadsheets skip blanks and control characters, and take signs of other widths (U+FF1D) for the plain ones.
    """
    if not isinstance(value, str):
        return value
    first = next((each for each in value if unicodedata.category(each)[0] not in "CZ"), "")
    computed = unicodedata.normalize("NFKC", first).startswith(_FORMULA) or value.startswith(("\t", "\r", "\n"))
    return f"'{value}" if computed else value


def csv_table(rows: Rows) -> Iterator[bytes]:
    """A table with a line of titles, as RFC 4180 has it; samples are one cell, with a space between."""
    text, known = io.StringIO(), by_metric(rows)
    first = next(known, {})
    writer = csv.DictWriter(text, [*COLUMNS, *([SAMPLES] if SAMPLES in first else [])])
    writer.writeheader()
    for row in chain([first] if first else [], known):
        samples = {SAMPLES: " ".join(map(repr, row[SAMPLES] or ()))} if SAMPLES in row else {}
        writer.writerow({name: cell(value) for name, value in columns_of(row).items()} | samples)
        yield _taken(text)
    yield _taken(text)


def parquet(rows: Rows) -> Iterator[bytes]:
    """A Parquet file with a column of its own type for each of `COLUMNS`.

    Raises:
        UserError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow.parquet import write_table
    except ImportError:
        raise UserError(
            "--format parquet needs the package pyarrow, which is not installed",
            hint=pip_install("results", sys.executable),
        ) from None
    types = {str: pa.string(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    file = io.BytesIO()
    write_table(pa.Table.from_pylist([columns_of(row) for row in by_metric(rows)], schema=schema), file)
    yield file.getvalue()


def bencher(rows: Rows) -> Iterator[bytes]:
    """Bencher's metric format: the newest value of each model, phone, build and metric; latency in nanoseconds."""
    found: dict[str, Any] = {}
    for row in filter(is_judged, by_metric(rows)):
        metric, factor = metric_of(row), NS if metric_of(row) is LATENCY else 1.0
        values = zip(("value", "lower_value", "upper_value"), reading_of(row), strict=True)
        measure = {name: value * factor for name, value in values if value is not None}
        found.setdefault(benchmark_name(row), {metric.name.replace(" ", "-"): measure})
    yield json.dumps(found, indent=2).encode() + b"\n"


def benchmark_name(row: Mapping[str, Any]) -> str:
    """Bencher's name of a build on a phone: net/emerald-9/cpu/float32. Of results with one name the newest counts."""
    found = columns_of(row)
    parts = [found[name] for name in ("model", "device", "target", "precision")]
    return "/".join(str(part) for part in (*parts, *traits_of(row)) if part)


def openmetrics(rows: Rows) -> Iterator[bytes]:
    """Gauges with the time of each result and with changes of level, for `promtool tsdb create-blocks-from`."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.openmetrics import exposition
    from prometheus_client.registry import Collector

    labels = [*SERIES_LABELS, "verdict"]
    gauges: dict[str, list[GaugeMetricFamily]] = {}  # by metric
    what = "At the first result of a new level: its value over the value before"
    changed = GaugeMetricFamily(_CHANGE, what, labels=labels)
    known = filter(reported, by_metric(rows))
    oldest_first = sorted(known, key=lambda row: (_labels(row), row["at"]))
    for row in oldest_first:
        at_s, metric = datetime.fromisoformat(row["at"]).timestamp(), metric_of(row)
        if metric.name not in gauges:
            gauges[metric.name] = [GaugeMetricFamily(*each, labels=labels) for each in families(metric).items()]
        for family, value in zip(gauges[metric.name], reading_of(row), strict=True):
            if value is not None:
                family.add_metric(_labels(row), value, timestamp=at_s)

    for series in series_of(oldest_first):
        for change in changes_in(series):
            changed.add_metric(_labels(series[change.index]), change.ratio, timestamp=change.at_s)

    class _Results(Collector):
        def collect(self) -> Iterable[Metric]:
            return [*chain.from_iterable(gauges.values()), changed]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Results())
    generate: Callable[[CollectorRegistry], bytes] = exposition.generate_latest
    yield generate(registry)


FORMATS: Mapping[str, Callable[[Rows], Iterator[bytes]]] = {
    "jsonl": json_lines,
    "csv": csv_table,
    "parquet": parquet,
    "bencher": bencher,
    "openmetrics": openmetrics,
}


def _labels(row: Mapping[str, Any]) -> list[str]:
    found = columns_of(row)
    traits = {name: "yes" if found[name] else "" for name in TRAITS}
    words = {**found, "model_sha256": short_hash(str(found["model_sha256"])), "ran_on": accelerated(row), **traits}
    return ["" if words[name] is None else str(words[name]) for name in (*SERIES_LABELS, "verdict")]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _taken(text: io.StringIO) -> bytes:
    done = text.getvalue().encode()
    text.seek(0)
    text.truncate()
    return done


def log_runs(rows: Iterable[Mapping[str, Any]], uri: str, experiment: str) -> tuple[int, int]:
    """Log each result as a run that ended: times as metrics, the build as parameters, the phone as tags.

    Args:
        rows: of `history.list`.
        uri: the tracking server's, as in MLFLOW_TRACKING_URI.
        experiment: its name; created if it is not there.

    Returns:
        How many runs were logged, and how many were there already.

    Raises:
        UserError: mlflow is not installed.
        HostError: the server refused or did not answer.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise UserError(
            "--format mlflow needs the package mlflow-skinny, which is not installed",
            hint=pip_install("results", sys.executable),
        ) from None
    try:
        client = MlflowClient(uri)
        there = client.get_experiment_by_name(experiment)
        number = there.experiment_id if there else client.create_experiment(experiment)
        known, logged, present = _known_jobs(client, number), 0, 0
        for row in rows:
            if row["job"] in known:
                present += 1
            else:
                _log_run(client, number, row)
                logged += 1
    except (MlflowException, OSError) as error:
        raise HostError(
            f"MLflow at {shown_uri(uri)}: {next(iter(str(error).splitlines()), type(error).__name__)}",
            hint="repeat the command: results that were logged are left out",
        ) from error
    return logged, present


def shown_uri(uri: str) -> str:
    """The address without user and password."""
    scheme, there, rest = uri.partition("://")
    return f"{scheme}{there}{rest.rpartition('@')[2]}"


def _log_run(client: Any, experiment: str, row: Mapping[str, Any]) -> None:
    from mlflow.entities import Metric, Param, RunTag

    found = columns_of(row)
    at_ms = int(datetime.fromisoformat(row["at"]).timestamp() * MS)
    times = {name: found[name] for name, kind in COLUMNS.items() if kind is float and name not in Reading._fields}
    others = [each for each in by_metric([row]) if metric_of(each) is not LATENCY and reported(each)]
    times |= {metric_of(each).name.replace(" ", "_"): reading_of(each).value for each in others}
    words = {name: str(found[name]) for name, kind in COLUMNS.items() if kind is not float and found[name] is not None}
    run = client.create_run(experiment, start_time=at_ms, run_name=found["job"])
    client.set_terminated(run.info.run_id, "FINISHED", at_ms)
    client.log_batch(  # at once: with the tag by which the job is known
        run.info.run_id,
        metrics=[
            Metric(name, value, at_ms, 0) for name, value in times.items() if value is not None and math.isfinite(value)
        ],
        params=[Param(name, words[name]) for name in PARAMETERS if name in words],
        tags=[RunTag(f"farm.{name}", value) for name, value in words.items() if name not in PARAMETERS],
    )


def _known_jobs(client: Any, experiment: str) -> set[str]:
    found: set[str] = set()
    token = None
    while True:
        page = client.search_runs([experiment], max_results=_PAGE, page_token=token)
        found.update(run.data.tags[JOB_TAG] for run in page if JOB_TAG in run.data.tags)
        token = page.token
        if not token:
            return found
