"""Keeps what a tune job had measured when it was cancelled or failed. `main` is a zygote child's task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.compiler.fitting import ForeignRecordsError, fitting
from farm.compiler.record_files import packed, read_records
from farm.compiler.records import RecordSet, merge
from farm.jobs.tasks import TuneTask
from farm.worker.daemon import Daemon
from farm.worker.tuning_report import summary
from farm.worker.tuning_run import MODEL, TUNING


def main(payload: Mapping[str, Any], daemon: Daemon) -> dict[str, Any]:
    """Keep the records in the job's folder, with those of its prior that are about the same operators.

    Raises:
        BadRecordsError: no line of them can be read.
    """
    task = TuneTask.from_wire(payload)
    [folder, *_] = [*(Path(task.cache) / TUNING).glob(f"*/{task.job}"), None]
    if folder is None or not (folder / MODEL).is_file():
        return {"trials": 0}
    own = read_records(folder).set
    if not own.records:
        return {"trials": 0}
    prior = read_records(daemon.artifact(task.prior)).set if task.prior else RecordSet()
    found = merge([own, _about(own, prior, task.target)])
    model = str(json.loads((folder / MODEL).read_text())["model"])
    version = daemon.keep_records(
        model=model,
        name=task.name,
        target=task.target,
        artifact=daemon.put_artifact(packed(found)),
        records=len(found.records),
        best=summary(found),
    )
    daemon.log(f"kept {len(found.records)} records as version {version} of {task.name}")
    return {"trials": len(own.records), "version": version}


def _about(own: RecordSet, prior: RecordSet, target: object) -> RecordSet:
    """The prior's records of operators that this search has, for its target."""
    if not prior.records:
        return prior
    try:
        fit = fitting(prior, target, "the prior").set
    except ForeignRecordsError:
        return RecordSet()
    return replace(
        fit,
        workloads={name: each for name, each in fit.workloads.items() if name in own.workloads},
        records=tuple(each for each in fit.records if each.workload in own.workloads),
        tasks={name: each for name, each in fit.tasks.items() if name in own.tasks},
    )
