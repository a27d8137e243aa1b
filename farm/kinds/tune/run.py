"""A tuning run from model to speed-up, on any source of phones: search, keep, compile, check, compare; its reports."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import tvm
from tvm.s_tir import meta_schedule as ms

from farm.common.durations import many
from farm.common.errors import Code, FarmError, ModelError, PhoneError, UserError
from farm.common.files import write_durably
from farm.compiler.build import Build, BuildRequest, build
from farm.compiler.compile import Recipe, default_schedules, lowered
from farm.compiler.files import drop_unused, newest_inside_s
from farm.compiler.inputs import import_with
from farm.compiler.load import read
from farm.compiler.model import ImportedModel
from farm.compiler.package import is_package
from farm.compiler.record_files import LOCK, write_records
from farm.compiler.records import RecordSet, best, pruned
from farm.compiler.reference_kernel import load_kernel, reference_kernel
from farm.compiler.targets import is_texture, target_from
from farm.measure.comparison import FIRST_PAIRS, Comparison
from farm.model.identity import target_key
from farm.tuning.build_process import BuildServerProcess
from farm.tuning.builder import FarmBuilder
from farm.tuning.candidate import host_errors_reported
from farm.tuning.database import TuningDatabase
from farm.tuning.phone_speed import LIMIT, SpeedJudge, read_nominal, write_nominal
from farm.tuning.phones import PhoneSource, PooledPhone
from farm.tuning.progress import eta_s, failure_notes, finite, news_due, replayed, standing_line, thinned
from farm.tuning.runner import PoolRunner
from farm.tuning.search import Search, SearchOptions, measure_defaults
from farm.tuning.stock import load_intrinsics
from farm.worker.session import PhoneSession, first_run, opened
from farm.worker.timing import MIN_SAMPLE_S, MS, Timer, time_pairs, timer_of

COMPARE_S = (3.0, 60.0)  # for the two builds in turns: at least, at most
COMPARE_PART = 0.2  # of the time the search took
COMPARE_RUNS = 1.5 * FIRST_PAIRS  # of both: enough for an answer, and some to spare
PHONE_POLL_S = 0.5
TUNING = "tuning"  # folder in the cache
MODEL = "model.json"  # beside a run's records: what they are kept under, should its worker be killed


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningPlan:
    """The inputs and settings of a tuning run."""

    data: bytes  # the model file
    name: str
    target: Any  # a TVM tag or target dict
    target_name: str
    precision: str
    shapes: Mapping[str, Sequence[int]]
    dtypes: Mapping[str, str]
    cache: Path
    job: str  # whose trials these are: with the same one, model and target it continues
    options: SearchOptions
    candidate_timeout_s: float
    prior: RecordSet | None = None
    same_limit: float | None = LIMIT  # how far a phone may be from the pool; None: as far as it likes
    nominals: Mapping[str, float] = field(default_factory=dict)  # known seconds of reference kernels, by their keys
    builders: str = ""  # the unix socket of the farm's builders


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that needs no phone."""

    model: ImportedModel
    target: Any  # tvm.target.Target
    tasks: Sequence[Any]  # ms.ExtractedTask
    folder: Path


def prepared(plan: TuningPlan, reporter: Reporter) -> Prepared:
    """Read the model and find its tasks."""
    if is_package(plan.data):
        raise UserError(f"{plan.name} is a package: compiled already", hint="tune the model file that it was made from")
    if is_texture(plan.target):
        raise UserError(
            f"nothing can be tuned for {plan.target_name}: MetaSchedule knows no textures",
            Code.NOT_TUNABLE,
            hint="--target adreno",
        )
    reporter.progress("reading the model")
    model, _ = import_with(read(plan.data, plan.name), None, plan.shapes, plan.dtypes)
    target = target_from(plan.target)
    if target.kind.name == "llvm" and "num-cores" not in target.attrs:
        raise UserError(
            f"the target of {plan.target_name} does not say how many cores there are",
            Code.NOT_TUNABLE,
            hint='add "num-cores" to it: MetaSchedule must know',
        )
    reporter.progress("looking for what can be tuned")
    load_intrinsics()
    with target:
        module = lowered(model, Recipe(plan.target, plan.precision))
        tasks = list(ms.relax_integration.extract_tasks(module, target))
    if not tasks:
        raise ModelError(
            f"{model.name} has no operator that could be tuned for {plan.target_name}",
            Code.NOTHING_TO_TUNE,
            hint="it runs as it is: farm run, farm bench",
        )
    folder = plan.cache / TUNING / f"{model.key[:16]}-{target_key(plan.target)}" / plan.job
    return Prepared(model, target, tasks, folder)


def searched(
    plan: TuningPlan,
    ready: Prepared,
    phones: PhoneSource,
    reporter: Reporter,
    check: Callable[[], None] = lambda: None,
    *,
    server: BuildServerProcess | None = None,
) -> tuple[RecordSet, dict[str, Any]]:
    """Search, beginning with the records that an earlier attempt left in the folder.

    Returns the records, the prior's too, and what the search came to, as fields of the result.

    `check` is called often; what it raises ends the search, and nothing that was measured is lost. `server`, where one
    runs already, builds.
    """
    _drop_unused(plan.cache, ready.folder)
    kernel = reference_kernel(plan.target, plan.cache)
    judge = SpeedJudge(
        lambda session: load_kernel(session, kernel),
        limit=plan.same_limit,
        nominal_s=read_nominal(ready.folder, kernel.key),
        history_s=plan.nominals.get(kernel.key),
        found=lambda nominal_s: write_nominal(ready.folder, kernel.key, nominal_s),
    )
    with host_errors_reported(ready.folder), TuningDatabase(ready.folder, ready.target, plan.prior) as database:
        write_durably(ready.folder / MODEL, json.dumps({"model": ready.model.key, "target": plan.target}).encode())
        database.add_tasks(ready.tasks)
        for line in (*database.damage, *database.left_out):
            reporter.log(f"records: {line}", "warning")
        if plan.options.trials < (tasks := len(ready.tasks)):
            reporter.log(f"{many(plan.options.trials, 'trial')} for {tasks} tasks: the rest is not tuned", "warning")
        if database.trials:
            reporter.log(f"going on after {many(database.trials, 'trial')} of an earlier attempt")
        with (
            PoolRunner(
                phones, timeout_s=plan.candidate_timeout_s, report=reporter.log, judge_of=lambda _: judge
            ) as runner,
            FarmBuilder(runner, cache=plan.cache, server=server, builders=plan.builders) as builder,
        ):
            news = News(reporter, runner, check, builder.counts)
            search = Search(database, builder, runner, plan.options, news=news.on_progress)
            reason = search.run()
            news.publish(search)
            reporter.progress("measuring TVM's own schedules")
            with ready.target:
                default = tvm.transform.Sequential(default_schedules(ready.target))
                found = measure_defaults(
                    database, builder, runner, default, check, reporter.log, limit_s=plan.options.end_s
                )
                database.set_default_latencies(found)
            runner.close()
        notes = [*database.damage, *database.left_out]
        found_all = report(search, reason, database.only_own(), judge, notes)
        return database.everything(), {**found_all, "builds": builder.counts()}


def compared(tuned: Build, untuned: Build, phones: PhoneSource, search_s: float, reporter: Reporter) -> dict[str, Any]:
    """Check the tuned build's numbers on a phone, and time it there in turns with the untuned one."""
    with phone_session(phones, reporter) as (phone, session):
        before = first_run(untuned, session, reporter.progress, side="-untuned")
        after = first_run(tuned, session, reporter.progress, side="-tuned")
        numerics = tuned.judged(after.outputs)
        reporter.progress("timing the tuned build and the untuned one in turns")
        timers = [timer_of(ran.machine, ran.device) for ran in (before, after)]
        runs_s = [
            run_wall_s(ran.timings["run_s"], timer, tuned.device)
            for ran, timer in zip((before, after), timers, strict=True)
        ]
        pairs = time_pairs(*timers, measure_s=compare_s(search_s, sum(runs_s) + 2 * MIN_SAMPLE_S))
    return {
        **numerics,
        **tuned.about(),
        "device": phone.device,
        "speedup": speedup(pairs.comparison, median(pairs.b_s)),
        "comparison": pairs.comparison.to_wire(),
    }


def speedup(found: Comparison, tuned_s: float) -> dict[str, Any]:
    """The gain of the tuned build (B), as plain JSON.

    `untuned_ms` is `times` that of the tuned one: `times` comes from pairs in turns. The two medians by themselves have
    another ratio where the phone's speed changed meanwhile.
    """
    return {
        "answer": str(found.answer),
        "times": 1 / found.ratio,
        "low": 1 / found.high,
        "high": 1 / found.low,
        "known_to": found.known_to,
        "confidence": found.confidence,
        "tuned_ms": MS * tuned_s,
        "untuned_ms": MS * tuned_s / found.ratio,
    }


def run_wall_s(first_s: float, timer: Timer, device: str, clock: Callable[[], float] = time.monotonic) -> float:
    """How long a run keeps the host waiting, seconds. On a GPU one more is timed, since the first one built kernels."""
    if device == "cpu":
        return first_s
    began_s = clock()
    timer(1, 1)
    return clock() - began_s


def compare_s(search_s: float, both_s: float) -> float:
    """How long two builds may be timed after a search of so many seconds, when a sample of each takes `both_s`."""
    return min(COMPARE_S[1], max(COMPARE_S[0], COMPARE_PART * search_s, COMPARE_RUNS * both_s))


def builds(plan: TuningPlan, ready: Prepared, records: RecordSet, reporter: Reporter) -> tuple[Build, Build]:
    """The model with the best records, and without any."""
    useful = pruned(records)
    if not any(math.isfinite(each.seconds) for each in records.records):
        errors = [each.error for each in records.origins.values() if each.error]
        raise UserError(
            f"none of {len(records.records)} candidates ran",
            Code.NO_CANDIDATE_RAN,
            hint="the evidence says why; --candidate-timeout gives slow ones more time",
            evidence="\n".join(errors[:5]),
        )
    folder = ready.folder / "best"
    write_records(useful, folder)
    untuned = built(plan, None, reporter)
    if not useful.records:
        reporter.log("no schedule was faster than TVM's own: the model is compiled without records", "warning")
    return (built(plan, folder, reporter) if useful.records else untuned), untuned


def built(plan: TuningPlan, records: Path | None, reporter: Reporter) -> Build:
    """The model with the records in a folder, or without any; from the cache if it was built before."""
    what = "with the best schedules" if records else "without tuning"
    wanted = BuildRequest(recipe=Recipe(plan.target, plan.precision, records), shapes=plan.shapes, dtypes=plan.dtypes)
    return build(plan.data, plan.name, wanted, plan.cache, lambda step: reporter.progress(f"{step} {what}"))


@contextlib.contextmanager
def phone_session(phones: PhoneSource, reporter: Reporter) -> Iterator[tuple[PooledPhone, PhoneSession]]:
    """A session with one of the phones; waits for one. When the phone fails in it, the source looks at the phone."""
    phone = _a_phone(phones, reporter)
    try:
        with opened(phones.open_session(phone.lease)) as session:
            yield phone, session
    except PhoneError as error:
        with contextlib.suppress(FarmError):
            phones.abort_session(phone.lease, error.message)
        raise


def _a_phone(phones: PhoneSource, reporter: Reporter) -> PooledPhone:
    shown = ""
    while not (state := phones.state()).phones:
        if state.waits != shown:
            shown = state.waits
            reporter.progress(f"waiting for a phone: {shown}")
        time.sleep(PHONE_POLL_S)
    return state.phones[0]


def _drop_unused(cache: Path, mine: Path) -> None:
    """Delete the files of runs older than a week; keep the folder itself young, which the compile cache tidies by age.

    `mine` stays, too: a job may continue after a week.
    """
    tuning = cache / TUNING
    tuning.mkdir(parents=True, exist_ok=True)
    os.utime(tuning)
    drop_unused((each for each in tuning.glob("*/*") if each != mine), newest_inside_s, LOCK)


class Reporter(Protocol):
    """Takes a tuning's progress: the daemon, or a terminal."""

    def progress(self, step: str, **facts: Any) -> None:
        """Show the step that begins."""

    def log(self, text: str, level: str = "info") -> None:
        """Keep a line."""


@dataclass(slots=True)
class News:
    """Reports how the search stands when it has changed, not too often: each time is a line of the job's log."""

    reporter: Reporter
    runner: PoolRunner
    check: Callable[[], None]
    builds: Callable[[], Mapping[str, int]]  # by where they were built
    began_s: float = field(default_factory=time.monotonic)
    published_s: float = -1e9
    published: tuple[object, ...] = ()  # what had changed then
    curve: int = 0  # points published
    raised: int = 0  # as the estimate's when they were published

    def on_progress(self, search: Search) -> None:
        """Called often; publishes when it is due."""
        self.check()
        now_s = time.monotonic() - self.began_s
        if not news_due(self.published_s, now_s):
            return
        status = self.runner.status()
        news = search.done, status.phones, bool(status.waits)
        if news != self.published:
            self.published_s, self.published = now_s, news
            self.publish(search)

    def publish(self, search: Search) -> None:
        """Report now."""
        status, now_s = self.runner.status(), time.monotonic() - self.began_s
        estimate = search.estimate
        first = self.curve if self.raised == estimate.raised else 0
        self.curve, self.raised = len(estimate.curve), estimate.raised
        facts = {
            "trials": search.done,
            "wanted": search.options.trials,
            "estimate_s": finite(estimate.seconds),
            "phones": list(status.phones),
            "busy": status.busy,
            "waits": status.waits,
            "spent_s": round(search.spent_s, 1),
            "eta_s": eta_s(search.done, search.options.trials, search.earlier, now_s),
            "left_out": len(estimate.weights) - len(estimate.best_s),
            "of_tasks": len(estimate.weights),
            "tasks": task_rows(search),
            "builds": self.builds(),
            "points": estimate.curve[first:],
            "points_from": first,
        }
        self.reporter.progress(standing_line(facts), tuning=facts)


def task_rows(search: Search) -> list[dict[str, Any]]:
    """The search's tasks, as plain JSON."""
    defaults = search.database.defaults()
    return [each.to_wire(defaults.get(each.tunable.task.workload, 0.0)) for each in search.tasks]


def report(search: Search, reason: str, own: RecordSet, judge: SpeedJudge, notes: list[str]) -> dict[str, Any]:
    """The outcome of a search, as a result's fields."""
    measured: dict[str, int] = {}
    for each in own.origins.values():
        if each.device:
            measured[each.device] = measured.get(each.device, 0) + 1
    everything = search.database.everything()
    kept_own = {each.workload: each.kept_own for each in best(everything)}
    estimate = replayed(replace(own, tasks=everything.tasks), search.database.prior())
    return {
        "trials": search.done,
        "earlier_trials": search.earlier,
        "wanted_trials": search.options.trials,
        "ended": reason,
        "search_s": round(search.spent_s, 3),
        "tasks": [
            {**row, "kept_own": kept_own.get(each.tunable.task.workload, True)}
            for each, row in zip(search.tasks, task_rows(search), strict=True)
        ],
        "estimate_s": estimate.seconds if estimate.best_s else None,
        "curve": [list(point) for point in thinned(estimate.curve)],
        "phones": [
            {
                "device": device,
                "trials": measured.get(device, 0),
                "factor": round(judge.scales[device].now, 4) if device in judge.scales else None,
                "left_out": judge.left_out.get(device, ""),
            }
            for device in sorted(measured.keys() | judge.scales.keys())
        ],
        "notes": [*notes, *failure_notes(own)],
    }


def summary(records: RecordSet) -> dict[str, Any]:
    """The summary stored with a set: the best of each task."""
    rows = [
        {
            "name": each.name,
            "weight": each.weight,
            "trials": each.trials,
            "failed": each.failed,
            "seconds": each.seconds,
            "gflops": round(each.gflops, 3) if each.gflops else None,
            "default_s": each.default_s or None,
            "device": each.device,
            "kept_own": each.kept_own,
        }
        for each in best(records)
    ]
    estimate = replayed(records)
    return {"tasks": rows, "estimate_s": estimate.seconds if estimate.best_s else None}
