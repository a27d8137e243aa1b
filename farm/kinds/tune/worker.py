"""The tune worker: search schedules on a pool of phones, keep the records, report the speed-up.

`main` runs in the zygote's fork. Everything that an attempt finds is in a folder that outlives it: a worker or a daemon
that is killed costs the candidates that were under way. At the end of a tuning that has only so much time, what does
not fit is left out, and the rest is a result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.common.durations import many
from farm.common.errors import FarmError
from farm.compiler.build import SMALL_BYTES, make_package
from farm.compiler.record_files import BadRecordsError, FolderParts, RecordFolder, packed, read_parts, read_records
from farm.compiler.records import RecordSet
from farm.jobs.attempt import YieldedError
from farm.kinds.tune import TuneTask
from farm.kinds.tune.run import COMPARE_S, TuningPlan, builds, built, compared, prepared, searched, summary
from farm.model.specs import task_from_wire
from farm.tuning.build_process import BuildServerProcess, forked_server
from farm.tuning.phone_speed import SCALE_FILE
from farm.tuning.search import SearchOptions
from farm.worker.channel import DaemonChannel

SHORT_S = 3600.0  # a run so long ends in time without knowing what a build takes here
END_PART = 0.25  # of what is not for the search: for what is under way, and again for TVM's own schedules
MARGIN_S = 4.0  # before the attempt's own limit: the result must be out by then
BUILDS = 3.0  # times what the build without tuning took: the tuned one has more code, and both are started on a phone
MIN_PART = 0.25  # of the time is for the search, however slow this host compiles
ASK_S = 10.0  # between two questions whether others lack this worker's slot
_forked: list[BuildServerProcess] = []
FIRST_S = 2.0  # from the search's begin to the first part
KEEP_EVERY_S = 15.0  # the second copy of a part takes seconds: at most 30 s of trials are lost with a host
MAX_COST = 20.0  # the pause after a part is at least so many times its duration: a slow disk is not kept busy
MAX_PARTS = 200  # then all records become one part again: the attempt's row names each part


def early() -> None:
    """Fork the build server: TVM is imported already, and there are no threads yet."""
    _forked.append(forked_server())


def forked() -> BuildServerProcess | None:
    """The build server that `early` forked, at the first call; None afterwards."""
    return _forked.pop() if _forked else None


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Tune one model."""
    task = task_from_wire(TuneTask, payload)
    until_s = time.monotonic() + task.spec.timeout_s - MARGIN_S
    plan = _plan(task, daemon)
    ready = prepared(plan, daemon)
    if task.spec.timeout_s < SHORT_S:  # then it matters what the end will take here; the build is needed anyhow
        began_s = time.monotonic()
        built(plan, None, daemon)
        now_s = time.monotonic()
        limit_s = search_limit_s(task.search_s, until_s - now_s, now_s - began_s)
        plan = replace(plan, options=replace(plan.options, search_s=limit_s))
    daemon.search(on=True)
    take_up(task.parts, ready.folder, daemon)
    with kept_in_parts(task.keep_parts, ready.folder, daemon) as begin_keeping:
        check = yielding(daemon)

        def checked() -> None:
            begin_keeping()
            check()

        records, found = searched(plan, ready, daemon, daemon, checked, server=forked())
    daemon.search(on=False)
    stored = _store_records(records, ready.model.key, task, daemon)

    def end(report: dict[str, Any], note: Callable[[str], None]) -> None:
        reporter = DeadlineReporter(daemon, note, until_s)
        tuned, untuned = builds(plan, ready, records, reporter)
        reporter.progress("packing")
        source = plan.data if len(plan.data) <= SMALL_BYTES else None
        package, _ = make_package(ready.model, tuned.recipe, plan.cache, target_name=task.spec.target, source=source)
        report["package"] = daemon.put_artifact(package)
        report.update(compared(tuned, untuned, daemon, found["search_s"], reporter))

    report = within(until_s - time.monotonic(), end)
    return {**found, **report, "records": stored}


def _plan(task: TuneTask, daemon: DaemonChannel) -> TuningPlan:
    return TuningPlan(
        data=daemon.artifact(task.spec.model),
        name=task.spec.name,
        target=task.target,
        target_name=task.spec.target,
        precision=task.spec.precision,
        shapes=task.spec.shapes,
        dtypes=task.spec.dtypes,
        cache=Path(task.cache),
        job=task.job,
        options=SearchOptions(
            trials=task.spec.trials,
            early_stop=task.spec.early_stop,
            search_s=task.search_s,
            end_s=END_PART * (task.spec.timeout_s - task.search_s),
            cost_model=task.spec.cost_model,
            seed=task.spec.seed,
        ),
        candidate_timeout_s=task.spec.candidate_timeout_s,
        prior=_prior(task, daemon),
        nominals=task.nominals,
        builders=task.builders,
    )


def _store_records(records: RecordSet, model: str, task: TuneTask, daemon: DaemonChannel) -> dict[str, Any]:
    """Keep the records of the model of that key; returns where."""
    daemon.progress("keeping the records")
    artifact, count, name = daemon.put_artifact(packed(records)), len(records.records), task.spec.name
    version = daemon.keep_records(
        model=model, name=name, target=task.target, artifact=artifact, records=count, best=summary(records)
    )
    daemon.log(f"kept {many(count, 'record')} as version {version} of {name}")
    return {"artifact": artifact, "version": version, "records": count, "name": name}


def yielding(daemon: DaemonChannel, clock: Callable[[], float] = time.monotonic) -> Callable[[], None]:
    """Asks now and then whether the attempt should end; raises YieldedError when it should."""
    asked_s = clock()

    def check() -> None:
        nonlocal asked_s
        if clock() - asked_s >= ASK_S:
            asked_s = clock()
            if daemon.yield_wanted():
                raise YieldedError("others wait for a worker slot")

    return check


def _prior(task: TuneTask, daemon: DaemonChannel) -> RecordSet | None:
    if task.spec.prior is None:
        return None
    try:
        found = read_records(daemon.artifact(task.spec.prior), "the prior")
    except BadRecordsError as error:
        raise BadRecordsError(f"--prior: {error.message}", hint=error.hint, evidence=error.evidence) from error
    for line in found.problems("the prior"):
        daemon.log(line, "warning")
    return found.set


Part = Callable[[dict[str, Any], Callable[[str], None]], None]


def search_limit_s(search_s: float, left_s: float, build_s: float) -> float:
    """How long a search may take.

    Args:
        search_s: as planned without knowing this host.
        left_s: until the result must be out.
        build_s: that the build without tuning took here.
    """
    return min(search_s, max(MIN_PART * left_s, left_s - BUILDS * build_s - COMPARE_S[0]))


def within(limit_s: float, part: Part) -> dict[str, Any]:
    """The dict that `part` has filled after `limit_s`, with `left_out`: the step it was at; "" when it is done.

    TVM cannot be interrupted, so it continues in a thread whose result is dropped; the process ends soon.
    """
    found: dict[str, Any] = {}
    steps = ["the end"]
    raised: list[Exception] = []

    def run() -> None:
        try:
            part(found, steps.append)
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that asked
            raised.append(error)

    thread = threading.Thread(target=run, name="tuning: end", daemon=True)
    thread.start()
    thread.join(max(0.0, limit_s))
    late = thread.is_alive()
    if raised:
        raise raised[0]
    return {**dict(found), "left_out": steps[-1] if late else ""}


class DeadlineReporter:
    """A Reporter that notes each step, and raises once the end was cut."""

    def __init__(self, reporter: Any, note: Callable[[str], None], until_s: float) -> None:
        """`until_s`: monotonic."""
        self._reporter, self._note, self._until_s = reporter, note, until_s

    def progress(self, step: str, **facts: Any) -> None:
        """Report the step that begins."""
        self._check()
        self._note(step)
        self._reporter.progress(step, **facts)

    def log(self, text: str, level: str = "info") -> None:
        """Keep a line."""
        self._check()
        self._reporter.log(text, level)

    def _check(self) -> None:
        if time.monotonic() >= self._until_s:
            raise FarmError("the end of the tuning came too late")


class PartKeeper:
    """Keeps a folder's parts from `begin` to `end`. Only the search's thread calls these two."""

    def __init__(self, folder: Path, daemon: DaemonChannel) -> None:
        self._folder = folder
        self._daemon = daemon
        self._parts = FolderParts(folder, (SCALE_FILE,))
        self._count = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin: from now on the search only appends to the folder. Harmless when repeated."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tuning: parts", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Keep the last part: the search is over."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            with suppress(FarmError):  # the daemon is gone
                self.keep()

    def keep(self) -> None:
        """Keep the records since the last part; after a failure the next part has them too."""
        try:
            if self._count == MAX_PARTS:
                self._parts, self._count = FolderParts(self._folder, (SCALE_FILE,)), 0
            if part := self._parts.next():
                artifact = self._daemon.put_artifact(part)
                self._daemon.call("records.part", artifact=artifact, first=self._count == 0)
                self._parts.taken()
                self._count += 1
        except (FarmError, OSError) as error:
            self._daemon.log(f"the records so far are on this host only: {error}", "warning")

    def _run(self) -> None:
        wait_s = FIRST_S
        while not self._over.wait(wait_s):
            began_s = time.monotonic()
            try:
                self.keep()
            except FarmError:  # the daemon is gone: this worker ends
                return
            wait_s = max(KEEP_EVERY_S, MAX_COST * (time.monotonic() - began_s))


@contextmanager
def kept_in_parts(wanted: bool, folder: Path, daemon: DaemonChannel) -> Iterator[Callable[[], None]]:
    """While a search runs there; the search calls the yielded function often."""
    if not wanted:
        yield lambda: None
        return
    keeper = PartKeeper(folder, daemon)
    try:
        yield keeper.begin
    finally:
        keeper.end()


def take_up(parts: Sequence[str], folder: Path, daemon: DaemonChannel) -> None:
    """Merge the parts that an attempt at another host kept into the folder."""
    if not parts:
        return
    try:
        found, others = read_parts(daemon.artifact(each) for each in parts)
    except FarmError as error:
        daemon.log(f"the trials of an earlier attempt on another host cannot be read: {error.message}", "warning")
        return
    for line in found.problems("the records of an earlier attempt"):
        daemon.log(line, "warning")
    with RecordFolder(folder) as there:
        if more := there.add(found.set):
            daemon.log(f"took up {many(more, 'trial')} that an earlier attempt measured on another host")
    if (scale := others.get(SCALE_FILE)) is not None and not (folder / SCALE_FILE).exists():
        (folder / SCALE_FILE).write_bytes(scale)
