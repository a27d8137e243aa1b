"""Stores the measurements of a tune job that was cancelled or failed. `main` runs in the zygote's fork."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.common.durations import many
from farm.common.errors import HostError
from farm.compiler.record_files import packed, read_records
from farm.compiler.records import RECORDS, RecordSet, merge
from farm.compiler.targets import ForeignRecordsError, records_for
from farm.kinds.tune import SalvageTask
from farm.kinds.tune.run import MODEL, TUNING, summary
from farm.worker.channel import DaemonChannel


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Keep the records in the job's folder, with those of its prior that are about the same operators."""
    task = SalvageTask(**payload)
    folder = _folder(Path(task.cache), task.job)
    if folder is None:
        return {"trials": 0}
    own = read_records(folder).set
    if not own.records:
        return {"trials": 0}
    about = _model_of(folder)
    prior = read_records(daemon.artifact(task.prior)).set if task.prior else RecordSet()
    found = merge([own, _about(own, prior, about["target"])])
    version = daemon.keep_records(
        model=about["model"],
        name=task.name,
        target=about["target"],
        artifact=daemon.put_artifact(packed(found)),
        records=len(found.records),
        best=summary(found),
    )
    daemon.log(f"kept {many(len(found.records), 'record')} as version {version} of {task.name}")
    return {"trials": len(own.records), "version": version}


def _model_of(folder: Path) -> Mapping[str, Any]:
    """{model, target} of a search's trials."""
    try:
        about = json.loads((folder / MODEL).read_text())
        return {"model": str(about["model"]), "target": about["target"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise HostError(
            f"{folder / MODEL} is damaged, so nobody knows which model the records beside it are of",
            hint=f"tune the model again; farm records merge reads {folder}",
            evidence=repr(error),
        ) from error


def _folder(cache: Path, job: str) -> Path | None:
    """Where the job's latest attempt that measured kept its trials; None: none did.

    In the cache of any toolchain: the phone of that attempt, which says whose workers measured, may be gone.
    """
    found = cache.parent.glob(f"*/{TUNING}/*/{job}")
    begun = [each for each in found if (each / MODEL).is_file() and (each / RECORDS).is_file()]
    return max(begun, key=lambda each: (each / MODEL).stat().st_mtime, default=None)


def _about(own: RecordSet, prior: RecordSet, target: object) -> RecordSet:
    """The prior's records of operators that this search has, for its target."""
    if not prior.records:
        return prior
    try:
        suitable, _ = records_for(target, prior, "the prior")
    except ForeignRecordsError:
        return RecordSet()
    workloads = {name: each for name, each in suitable.workloads.items() if name in own.workloads}
    return replace(suitable, workloads=workloads).with_records(
        tuple(each for each in suitable.records if each.workload in own.workloads)
    )
