"""The tune worker: search schedules on a pool of phones, keep the records, say what they are worth.

`main` is a zygote child's task. Everything that an attempt finds is in a folder that outlives it: a worker or a daemon
that is killed costs the candidates that were under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.compiler.packing import SMALL_BYTES, make_package
from farm.compiler.record_files import BadRecordsError, packed, read_records
from farm.compiler.records import RecordSet
from farm.jobs.executor import YieldedError
from farm.jobs.tasks import TuneTask
from farm.tuning.builder import Server, forked_server
from farm.tuning.search import SearchOptions
from farm.worker.daemon import Daemon
from farm.worker.daemon_phones import DaemonPhones
from farm.worker.tune_end import MARGIN_S, Ending, search_limit_s, within
from farm.worker.tuning_report import summary
from farm.worker.tuning_run import TuningPlan, builds, built, compared, prepared, searched

SHORT_S = 3600.0  # a run so long ends in time without knowing what a build takes here
END_PART = 0.25  # of what is not for the search: for what is under way, and again for TVM's own schedules
ASK_S = 10.0  # between two questions whether others lack this worker's place

_forked: list[Server] = []


def early() -> None:
    """Fork what builds candidates: TVM is imported already, and there are no threads yet."""
    _forked.append(forked_server())


def forked() -> Server | None:
    """What `early` forked; once."""
    return _forked.pop() if _forked else None


def main(payload: Mapping[str, Any], daemon: Daemon) -> dict[str, Any]:
    """Tune one model.

    Raises:
        ModelError: it cannot be used, or there is nothing to tune in it.
        BadRecordsError: the prior is no set of records.
        PhoneError: the tuned build failed on a phone; its records are kept.
        YieldedError: others lack only this worker's place; another attempt goes on from the records.
    """
    task = TuneTask.from_wire(payload)
    until_s = time.monotonic() + task.timeout_s - MARGIN_S
    plan = TuningPlan(
        data=daemon.artifact(task.model),
        name=task.name,
        target=task.target,
        target_name=task.target_name,
        precision=task.precision,
        shapes=task.shapes,
        dtypes=task.dtypes,
        cache=Path(task.cache),
        job=task.job,
        options=SearchOptions(
            trials=task.trials,
            early_stop=task.early_stop,
            search_s=task.search_s,
            end_s=END_PART * (task.timeout_s - task.search_s),
            cost_model=task.cost_model,
            seed=task.seed,
        ),
        candidate_timeout_s=task.candidate_timeout_s,
        prior=_prior(task, daemon),
        nominals=task.nominals,
    )
    phones = DaemonPhones(daemon)
    ready = prepared(plan, daemon)
    if task.timeout_s < SHORT_S:  # then it matters what the end will take here; the build is needed anyhow
        began_s = time.monotonic()
        built(plan, None, daemon)
        now_s = time.monotonic()
        limit_s = search_limit_s(task.search_s, until_s - now_s, now_s - began_s)
        plan = replace(plan, options=replace(plan.options, search_s=limit_s))
    phones.search(on=True)
    found = searched(plan, ready, phones, daemon, yielding(daemon), server=forked())
    phones.search(on=False)
    daemon.progress("keeping the records")
    artifact = daemon.put_artifact(packed(found.records))
    count, best = len(found.records.records), summary(found.records)
    version = daemon.keep_records(
        model=ready.model.key, name=task.name, target=task.target, artifact=artifact, records=count, best=best
    )
    kept = {"artifact": artifact, "version": version, "records": count, "name": task.name}
    daemon.log(f"kept {count} records as version {version} of {task.name}")

    def end(report: dict[str, Any], note: Callable[[str], None]) -> None:
        tell = Ending(daemon, note, until_s)
        tuned, untuned = builds(plan, ready, found.records, tell)
        tell.progress("packing")
        source = plan.data if len(plan.data) <= SMALL_BYTES else None
        package = make_package(ready.model, tuned.recipe, plan.cache, target_name=task.target_name, source=source)
        report["package"] = daemon.put_artifact(package)
        report.update(compared(tuned, untuned, phones, found.report["search_s"], tell))

    report = within(until_s - time.monotonic(), end)
    return {**found.report, **report, "records": kept}


def yielding(daemon: Daemon, clock: Callable[[], float] = time.monotonic) -> Callable[[], None]:
    """Asks now and then whether the attempt should end; raises YieldedError when it should."""
    asked_s = clock()

    def look() -> None:
        nonlocal asked_s
        if clock() - asked_s >= ASK_S:
            asked_s = clock()
            if daemon.yield_wanted():
                raise YieldedError("others wait for a worker place")

    return look


def _prior(task: TuneTask, daemon: Daemon) -> RecordSet | None:
    if task.prior is None:
        return None
    try:
        found = read_records(daemon.artifact(task.prior), "the prior")
    except BadRecordsError as error:
        raise BadRecordsError(f"--prior: {error.message}", hint=error.hint, evidence=error.evidence) from error
    for line in found.told("the prior"):
        daemon.log(line, "warning")
    return found.set
