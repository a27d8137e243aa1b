"""Results as runs of an MLflow tracking server."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from farm.common.errors import HostError, UserError
from farm.common.install import pip_install
from farm.results.columns import COLUMNS, columns_of
from farm.results.series import BUILD

MS = 1000
JOB_TAG = "farm.job"  # a job that has a run is not logged again
PARAMETERS = ("model", *BUILD)  # columns that are parameters of a run
_PAGE = 1000


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
