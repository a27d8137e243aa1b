"""A tuning run from model to speed-up, whoever holds the phones: search, keep, compile, check, compare."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms

from farm.compiler.build import Build, Wanted, build
from farm.compiler.cache import drop_unused, newest_inside_s
from farm.compiler.compile import Recipe, default_schedules, lowered
from farm.compiler.inputs import import_with
from farm.compiler.load import read
from farm.compiler.model import ImportedModel
from farm.compiler.package import is_package
from farm.compiler.record_files import LOCK, write_records
from farm.compiler.records import RecordSet, pruned
from farm.compiler.reference_kernel import load_kernel, reference_kernel
from farm.compiler.targets import is_texture, target_from
from farm.core.errors import FarmError, ModelError, PhoneError, UserError
from farm.core.target_key import target_key
from farm.measure.comparison import FIRST_PAIRS
from farm.tuning import intrinsics
from farm.tuning.builder import FarmBuilder, Server
from farm.tuning.database import TuningDatabase
from farm.tuning.defaults import measure_defaults
from farm.tuning.host_faults import told_of
from farm.tuning.identical import LIMIT, Judge, read_nominal, write_nominal
from farm.tuning.phones import PhoneSource, PooledPhone
from farm.tuning.runner import PoolRunner
from farm.tuning.search import Search, SearchOptions
from farm.tuning.session import Evaluator
from farm.worker.model_run import first_run
from farm.worker.session import PhoneSession, opened
from farm.worker.timing import MIN_SAMPLE_S, MS, time_pairs, timer_of
from farm.worker.tuning_report import News, Tell, report

COMPARE_S = (3.0, 60.0)  # for the two builds in turns: at least, at most
COMPARE_PART = 0.2  # of the time the search took
COMPARE_RUNS = 1.5 * FIRST_PAIRS  # of both: enough for an answer, and some to spare
PHONE_LOOK_S = 0.5
TUNING = "tuning"  # folder in the cache
MODEL = "model.json"  # beside a run's records: what they are kept under, should its worker be killed


class NothingToTuneError(ModelError):
    """The model has no operator whose schedule could be tuned."""

    code = "nothing_to_tune"


class NotTunableTargetError(UserError):
    """Nothing can be tuned for that target."""

    code = "not_tunable"


class NoCandidateRanError(UserError):
    """No candidate ran."""

    code = "no_candidate_ran"
    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningPlan:
    """What to tune, and how."""

    data: bytes  # the model file
    name: str
    target: Any  # a TVM tag or target dict
    target_name: str
    precision: str
    shapes: Mapping[str, Sequence[int]]
    dtypes: Mapping[str, str]
    cache: Path
    job: str  # whose trials these are: with the same one, model and target it goes on
    options: SearchOptions
    candidate_timeout_s: float
    prior: RecordSet | None = None
    same_limit: float | None = LIMIT  # how far a phone may be from the pool; None: as far as it likes
    nominals: Mapping[str, float] = field(default_factory=dict)  # known seconds of reference kernels, by their keys


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that needs no phone."""

    model: ImportedModel
    target: Any  # tvm.target.Target
    tasks: Sequence[Any]  # ms.ExtractedTask
    folder: Path


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search came to."""

    records: RecordSet  # the prior's too
    report: dict[str, Any]


def prepared(plan: TuningPlan, tell: Tell) -> Prepared:
    """Read the model and find its tasks.

    Raises:
        ModelError: it cannot be read, or there is nothing to tune in it.
        UserError: nothing can be tuned for the target.
    """
    if is_package(plan.data):
        raise UserError(f"{plan.name} is a package: compiled already", hint="tune the model file that it was made from")
    if is_texture(plan.target):
        raise NotTunableTargetError(
            f"nothing can be tuned for {plan.target_name}: MetaSchedule knows no textures", hint="--target adreno"
        )
    tell.progress("reading the model")
    model, _ = import_with(read(plan.data, plan.name), None, plan.shapes, plan.dtypes)
    target = target_from(plan.target)
    if target.kind.name == "llvm" and "num-cores" not in target.attrs:
        raise NotTunableTargetError(
            f"the target of {plan.target_name} does not say how many cores there are",
            hint='add "num-cores" to it: MetaSchedule must know',
        )
    tell.progress("looking for what can be tuned")
    intrinsics.load()
    with target:
        module = lowered(model, Recipe(plan.target, plan.precision))
        tasks = list(ms.relax_integration.extract_tasks(module, target))
    if not tasks:
        raise NothingToTuneError(
            f"{model.name} has no operator that could be tuned for {plan.target_name}",
            hint="it runs as it is: farm run, farm bench",
        )
    folder = plan.cache / TUNING / f"{model.key[:16]}-{target_key(plan.target)}" / plan.job
    return Prepared(model, target, tasks, folder)


def searched(
    plan: TuningPlan,
    ready: Prepared,
    phones: PhoneSource,
    tell: Tell,
    look: Callable[[], None] = lambda: None,
    *,
    server: Server | None = None,
) -> Searched:
    """Search, beginning with what an attempt before this one left in the folder.

    `look` is called often; what it raises ends the search, and nothing that was measured is lost. `server`, where one
    runs already, builds.

    Raises:
        RecordsBusyError: another process tunes there.
        HostError: there is no room for records, or nothing can be built.
        FarmError: as `tell` raises.
    """
    _drop_unused(plan.cache, ready.folder)
    kernel = reference_kernel(plan.target, plan.cache)
    judge = Judge(
        lambda session: load_kernel(session, kernel).seconds,
        limit=plan.same_limit,
        nominal_s=read_nominal(ready.folder, kernel.key),
        history_s=plan.nominals.get(kernel.key),
        found=lambda nominal_s: write_nominal(ready.folder, kernel.key, nominal_s),
    )
    with told_of(ready.folder), TuningDatabase(ready.folder, ready.target, plan.prior) as database:
        (ready.folder / MODEL).write_text(json.dumps({"model": ready.model.key, "target": plan.target}))
        database.add_tasks(ready.tasks)
        for line in (*database.damage, *database.left_out):
            tell.log(f"records: {line}", "warning")
        if plan.options.trials < (tasks := len(ready.tasks)):
            tell.log(f"{plan.options.trials} trials for {tasks} tasks: the rest is not tuned", "warning")
        if database.trials:
            tell.log(f"going on after {database.trials} trials of an earlier attempt")
        with (
            PoolRunner(
                phones, evaluator=Evaluator(), timeout_s=plan.candidate_timeout_s, tell=tell.log, judge=judge
            ) as runner,
            FarmBuilder(runner, cache=plan.cache, server=server) as builder,
        ):
            news = News(tell, runner, look)
            search = Search(database, builder, runner, plan.options, news=news.heard)
            reason = search.run()
            news.tell(search)
            tell.progress("measuring TVM's own schedules")
            with ready.target:
                default = tvm.transform.Sequential(default_schedules(ready.target))
                found = measure_defaults(
                    database, builder, runner, default, look, tell.log, patience_s=plan.options.end_s
                )
                database.know_defaults(found)
            runner.close()
        notes = [*database.damage, *database.left_out]
        return Searched(database.everything(), report(search, reason, database.only_own(), judge, notes))


def compared(tuned: Build, untuned: Build, phones: PhoneSource, search_s: float, tell: Tell) -> dict[str, Any]:
    """Check the tuned build's numbers on a phone, and time it there in turns with the untuned one.

    Raises:
        PhoneError: the phone failed, or computed wrong numbers.
        ModelError: TVM compiles the tuned model wrongly.
    """
    with phone_session(phones, tell) as (phone, session):
        before = first_run(untuned, session, tell, side="-untuned")
        after = first_run(tuned, session, tell, side="-tuned")
        numerics = tuned.judged(after.outputs)
        tell.progress("timing the tuned build and the untuned one in turns")
        both_s = before.timings["run_s"] + after.timings["run_s"] + 2 * MIN_SAMPLE_S
        measure_s = compare_s(search_s, both_s)
        pairs = time_pairs(
            timer_of(before.machine, before.device), timer_of(after.machine, after.device), measure_s=measure_s
        )
    found = pairs.comparison
    return {
        **numerics,
        **tuned.about(),
        "device": phone.device,
        "speedup": {
            "answer": str(found.answer),
            "times": 1 / found.ratio,
            "low": 1 / found.high,
            "high": 1 / found.low,
            "confidence": found.confidence,
            "tuned_ms": MS * median(pairs.b_s),
            "untuned_ms": MS * median(pairs.a_s),
        },
        "comparison": found.to_wire(),
    }


def compare_s(search_s: float, both_s: float) -> float:
    """How long two builds may be timed after a search of so many seconds, when a sample of each takes `both_s`."""
    return min(COMPARE_S[1], max(COMPARE_S[0], COMPARE_PART * search_s, COMPARE_RUNS * both_s))


def builds(plan: TuningPlan, ready: Prepared, records: RecordSet, tell: Tell) -> tuple[Build, Build]:
    """The model with the best records, and without any.

    Raises:
        NoCandidateRanError: no record is any good.
    """
    kept = pruned(records)
    if not any(math.isfinite(each.seconds) for each in records.records):
        errors = [each.error for each in records.origins.values() if each.error]
        raise NoCandidateRanError(
            f"none of {len(records.records)} candidates ran",
            hint="the evidence says why",
            evidence="\n".join(errors[:5]),
        )
    folder = ready.folder / "best"
    write_records(kept, folder)
    untuned = built(plan, None, tell)
    if not kept.records:
        tell.log("no schedule was faster than TVM's own: the model is compiled without records", "warning")
    return (built(plan, folder, tell) if kept.records else untuned), untuned


def built(plan: TuningPlan, records: Path | None, tell: Tell) -> Build:
    """The model with the records in a folder, or without any; from the cache if it was built before.

    Raises:
        FarmError: as farm.compiler.build.build.
    """
    what = "with the best schedules" if records else "without tuning"
    wanted = Wanted(recipe=Recipe(plan.target, plan.precision, records), shapes=plan.shapes, dtypes=plan.dtypes)
    return build(plan.data, plan.name, wanted, plan.cache, lambda step: tell.progress(f"{step} {what}"))


@contextlib.contextmanager
def phone_session(phones: PhoneSource, tell: Tell) -> Iterator[tuple[PooledPhone, PhoneSession]]:
    """A session with one of the phones; waits for one. When the phone fails in it, the source looks at the phone.

    Raises:
        PhoneError: it did.
    """
    phone = _a_phone(phones, tell)
    try:
        with opened(phones.open_session(phone.lease)) as session:
            yield phone, session
    except PhoneError as error:
        with contextlib.suppress(FarmError):
            phones.abort_session(phone.lease, error.message)
        raise


def _a_phone(phones: PhoneSource, tell: Tell) -> PooledPhone:
    told = ""
    while not (state := phones.state()).phones:
        if state.waits != told:
            told = state.waits
            tell.progress(f"waiting for a phone: {told}")
        time.sleep(PHONE_LOOK_S)
    return state.phones[0]


def _drop_unused(cache: Path, mine: Path) -> None:
    """Delete what runs of last week left; keep the folder itself young, which the compile cache tidies by age.

    `mine` stays, too: a job may go on after a week.
    """
    tuning = cache / TUNING
    tuning.mkdir(parents=True, exist_ok=True)
    os.utime(tuning)
    drop_unused((each for each in tuning.glob("*/*") if each != mine), newest_inside_s, LOCK)
