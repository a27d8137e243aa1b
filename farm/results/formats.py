"""Results as files that other programs read.

Each format is a function of rows of `history.list`, newest first, that gives the content of the file. Rows whose
estimate has no interval, as one sample has none, have no ends of one in any format; Bencher does not get them.
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
from typing import Any

from farm.common.errors import HostError, UserError
from farm.common.files import short_hash
from farm.common.install import pip_install
from farm.results.series import (
    BUILD,
    COLUMNS,
    SERIES_LABELS,
    TRAITS,
    changes_in,
    columns_of,
    has_interval,
    has_median,
    series_of,
    times_of,
    traits_of,
)

NS = 1e9
_FORMULA = ("=", "+", "-", "@", "\N{MINUS SIGN}")  # how a cell begins that a spreadsheet would compute
# OpenMetrics family -> what it is; in the order of `times_of`.
_FAMILIES = {
    "farm_result_median_seconds": "The median of a bench",
    "farm_result_low_seconds": "The lower end of the 95 % interval of the median of a bench",
    "farm_result_high_seconds": "The upper end of the 95 % interval of the median of a bench",
}
_CHANGE = "farm_result_level_change_ratio"
METRIC_NAMES = (*_FAMILIES, _CHANGE)
Rows = Iterable[Mapping[str, Any]]
MS = 1000
JOB_TAG = "farm.job"  # a job that has a run is not logged again
PARAMETERS = ("model", *BUILD)  # columns that are parameters of a run
_PAGE = 1000


def json_lines(rows: Rows) -> Iterator[bytes]:
    """One result a line, `columns_of` as JSON."""
    for row in rows:
        yield json.dumps({name: _finite(value) for name, value in columns_of(row).items()}).encode() + b"\n"


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
    """A table with a line of titles, as RFC 4180 has it."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    for row in rows:
        yield _taken(text)
        writer.writerow({name: cell(value) for name, value in columns_of(row).items()})
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
    write_table(pa.Table.from_pylist([columns_of(row) for row in rows], schema=schema), file)
    yield file.getvalue()


def bencher(rows: Rows) -> Iterator[bytes]:
    """Bencher's metric format: the newest result of each model, phone and build, its latency in nanoseconds."""
    found: dict[str, Any] = {}
    for row in rows:
        if has_interval(row):
            times = zip(("value", "lower_value", "upper_value"), times_of(row), strict=True)
            found.setdefault(benchmark_name(row), {"latency": {name: (time_s or 0) * NS for name, time_s in times}})
    yield json.dumps(found, indent=2).encode() + b"\n"


def benchmark_name(row: Mapping[str, Any]) -> str:
    """Bencher's name of a build on a phone: net/emerald-9/cpu/float32. Of results with one name the newest counts."""
    found = columns_of(row)
    parts = [found[name] for name in ("model", "device", "target", "precision")]
    return "/".join(str(part) for part in (*parts, *traits_of(found)) if part)


def openmetrics(rows: Rows) -> Iterator[bytes]:
    """Gauges with the time of each result and with changes of level, for `promtool tsdb create-blocks-from`."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.openmetrics import exposition
    from prometheus_client.registry import Collector

    labels = [*SERIES_LABELS, "verdict"]
    families = [GaugeMetricFamily(*each, labels=labels) for each in _FAMILIES.items()]
    what = "At the first result of a new level: its time over the time before"
    changed = GaugeMetricFamily(_CHANGE, what, labels=labels)
    oldest_first = sorted((row for row in rows if has_median(row)), key=lambda row: (_labels(row), row["at"]))
    for row in oldest_first:
        at_s = datetime.fromisoformat(row["at"]).timestamp()
        for family, time_s in zip(families, times_of(row), strict=True):
            if time_s is not None:
                family.add_metric(_labels(row), time_s, timestamp=at_s)

    for series in series_of(oldest_first):
        for change in changes_in(series):
            changed.add_metric(_labels(series[change.index]), change.ratio, timestamp=change.at_s)

    class _Results(Collector):
        def collect(self) -> Iterable[Metric]:
            return [*families, changed]

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
    words = {**found, "model_sha256": short_hash(str(found["model_sha256"])), **traits}
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
    times = {name: found[name] for name, kind in COLUMNS.items() if kind is float}
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
