"""The search for schedules: rounds of candidates, built and measured while the next round is thought of.

Candidates, their evolution and the cost model are MetaSchedule's; the loop over tasks is ours: it counts trials
exactly, keeps each one the moment it is measured, and continues where a killed run stopped.

What counts as a trial: a candidate that was given to the builder and came to an end: measured, or failed to build, to
run, or in time (stock counts the same). Not a trial: one that was measured before (its result is known), and one that
was under way when the run was killed or ended (it has no result).
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from tvm.s_tir import meta_schedule as ms

from farm.compiler.records import Origin, Record
from farm.compiler.targets import device_of
from farm.compiler.tvm_errors import first_line
from farm.tuning.candidate import CandidateError, Measured
from farm.tuning.database import Tunable, TuningDatabase, WrittenTrial
from farm.tuning.progress import LatencyEstimate, TaskProgress, next_task, per_round
from farm.tuning.runner import PoolRunner

ROUNDS_AT_ONCE = 2  # one on the phones, the next one being thought of and built
EMPTY_ROUNDS = 3  # with nothing new in them: the task's space is searched
POLL_S = 0.01
MAX_ERROR_CHARS = 500
END_WAIT_S = 60.0  # for what is under way when the search ends; then it is given up, and is no trial
POPULATION = 8  # for each candidate of a round, as in stock: 512 for 64; evolution's time is proportional to it
SUPPRESS_TRAINING_SIZE = 2**40  # records: XGBModel trains when there are a fifth more than at its last training
XGB_WARM_UP = 4  # the cost model is believed after this part of the trials, 100 at most as in stock

_log = logging.getLogger("farm.tuning")
_log.addHandler(logging.NullHandler())
_log.propagate = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How to search."""

    trials: int  # in all, those of earlier attempts too
    early_stop: int | None = None
    search_s: float = math.inf
    end_s: float = END_WAIT_S  # for what is under way when the search ends
    cost_model: Literal["xgb", "random"] = "xgb"
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class SearchTask(TaskProgress):
    """One task with the objects that TVM needs to search it."""

    tunable: Tunable
    context: Any  # ms.TuneContext


@dataclass(slots=True)
class _Candidate:
    given: Any  # ms.MeasureCandidate
    result: Any = None  # ms.runner.RunnerResult
    written: WrittenTrial | None = None  # by the thread of the phone that measured it


@dataclass(slots=True)
class _Round:
    task: SearchTask
    candidates: list[_Candidate]

    @property
    def done(self) -> bool:
        return all(each.result is not None for each in self.candidates)


class Search:
    """One run over the tasks of a model."""

    def __init__(
        self,
        database: TuningDatabase,
        builder: Any,
        runner: PoolRunner,
        options: SearchOptions,
        *,
        news: Callable[[Search], None] = lambda _: None,
    ) -> None:
        """Nothing is begun yet.

        Args:
            database: with the model's tasks.
            builder: ms.Builder; one that returns before it has built is waited for by the runner.
            runner: measures.
            options: how.
            news: called after each trial and while nothing happens, in this thread; an exception from it ends the run.
        """
        self.database = database
        self.options = options
        self.estimate = LatencyEstimate({each.task.workload: each.task.weight for each in database.tunables})
        self.reason = ""
        self.earlier = database.trials
        self.under_way = 0
        self._builder, self._runner, self._news = builder, runner, news
        self._rounds: list[_Round] = []
        self._broken: Exception | None = None
        self._closed = False
        self._keys: set[str] = set()  # of all candidates of this run
        self._device = device_of(database.target)
        self._began_s = time.monotonic()
        self._spent_before_s = database.spent_s
        self._size = per_round(options.trials, len(database.tunables))
        self._model = _cost_model(options)
        self.tasks = self._contexts()
        self._replay()

    @property
    def spent_s(self) -> float:
        """Seconds of search, those of earlier attempts too."""
        return self._spent_before_s + time.monotonic() - self._began_s

    @property
    def done(self) -> int:
        """Trials so far, those of earlier attempts too."""
        return self.database.trials

    def run(self) -> str:
        """Search to the end; returns why it ended: `trials`, `early_stop`, `timeout` or `exhausted`."""
        try:
            while not self.reason:
                self._step()
            self._finish()
        finally:
            self._closed = True  # what is answered from now on was cut off, and is no trial
        return self.reason

    def _step(self) -> None:
        self._collect()
        self.reason = self._ended()
        if self.reason:
            return
        left = self.options.trials - self.done - self.under_way
        chosen = next_task(self.tasks) if left > 0 and len(self._rounds) < ROUNDS_AT_ONCE else None
        if chosen is not None:
            self._begin(chosen, left)
        elif not self._rounds:
            self.reason = "exhausted"
        else:
            self._news(self)
            time.sleep(POLL_S)

    def _ended(self) -> str:
        if self.done >= self.options.trials:
            return "trials"
        if self.options.early_stop is not None and self.estimate.stale_trials >= self.options.early_stop:
            return "early_stop"
        if time.monotonic() - self._began_s >= self.options.search_s:
            return "timeout"
        return ""

    def _begin(self, number: int, left: int) -> None:
        task = self.tasks[number]
        given = task.context.search_strategy.generate_measure_candidates()
        made: list[_Candidate] = []
        fresh: list[_Candidate] = []
        for each in given or ():
            candidate = _Candidate(each)
            key = self.database.key_of(task.tunable, each)
            known = self.database.known(key)
            if known is not None:
                candidate.result = _result(known)
            elif key in self._keys or len(fresh) == left:
                continue
            else:
                self._keys.add(key)
                fresh.append(candidate)
            made.append(candidate)
        if not fresh:
            task.empty += 1
            task.over = given is None or task.empty >= EMPTY_ROUNDS
            task.rounds.append(task.best_s)
            if made:
                self._learn(task, made)
            return
        task.empty = 0
        self._send(task, fresh)
        task.busy += 1
        self._rounds.append(_Round(task, made))

    def _send(self, task: SearchTask, fresh: Sequence[_Candidate]) -> None:
        target = self.database.target
        inputs = [ms.builder.BuilderInput(each.given.sch.mod, target) for each in fresh]
        self.under_way += len(fresh)
        for each, built in zip(fresh, self._builder.build(inputs), strict=True):
            if built.error_msg:
                answer: Future[Measured] = Future()
                answer.set_exception(CandidateError(str(built.error_msg)))
            else:
                given = ms.runner.RunnerInput(built.artifact_path, self._device, each.given.args_info)
                answer = self._runner.submit(given)
            answer.add_done_callback(partial(self._write, task.tunable, each))

    def _collect(self) -> None:
        """Store new measurements; learn from the rounds that are complete."""
        for each in self._rounds:
            for candidate in each.candidates:
                if candidate.result is None and candidate.written is not None:
                    self.under_way -= 1
                    self._count(each.task, candidate, candidate.written)
        if self._broken is not None:
            raise self._broken
        for each in [one for one in self._rounds if one.done]:
            self._rounds.remove(each)
            each.task.busy -= 1
            each.task.rounds.append(each.task.best_s)
            self._learn(each.task, each.candidates)

    def _write(self, tunable: Tunable, candidate: _Candidate, answer: Future[Measured]) -> None:
        """Write a trial at once, in the thread that measured it: the search's own may be busy for half a minute."""
        if self._closed or self._broken is not None:
            return
        try:
            run_s: list[float] | None = None
            origin = Origin(key="", device="", at="", spent_s=round(self.spent_s, 3))
            try:
                measured = answer.result()
            except CandidateError as error:
                origin = replace(origin, error=str(error)[:MAX_ERROR_CHARS])
            else:
                run_s = [float(each) for each in measured.scaled]
                origin = replace(origin, device=measured.device, factor=round(measured.factor, 6))
            candidate.written = self.database.write(tunable, candidate.given, run_s, origin)
        except Exception as error:  # noqa: BLE001 - raised in the run's own thread
            self._broken = error

    def _count(self, task: SearchTask, candidate: _Candidate, written: WrittenTrial) -> None:
        candidate.result = _result(written.record, written.origin.error)
        self.database.commit(written)
        task.count(written.record.seconds)
        self.estimate.add(written.record.workload, written.record.seconds, written.origin.spent_s)
        self._news(self)

    def _learn(self, task: SearchTask, candidates: Sequence[_Candidate]) -> None:
        given = [each.given for each in candidates]
        results = [each.result for each in candidates]
        if self.done + self.under_way < self.options.trials:  # else no round is thought of any more: seconds saved
            self._model.update(task.context, given, results)
        task.context.search_strategy.notify_runner_results(given, results)

    def _finish(self) -> None:
        """Collect or give up the trials under way; end the strategies."""
        deadline_s = time.monotonic() + min(END_WAIT_S, self.options.end_s)
        while self.under_way and self.reason != "trials" and time.monotonic() < deadline_s:
            self._collect()
            self._news(self)
            time.sleep(POLL_S)
        for task in self.tasks:
            task.context.search_strategy.post_tuning()

    def _contexts(self) -> list[SearchTask]:
        # Another seed for each attempt: with the same one it would think of what was measured already.
        seeds = np.random.RandomState([self.options.seed, self.earlier]).randint(1, 2**30, len(self.database.tunables))
        made = []
        for tunable, seed in zip(self.database.tunables, seeds, strict=True):
            context = ms.TuneContext(
                mod=tunable.module,
                target=self.database.target,
                space_generator="post-order-apply",
                search_strategy=_strategy(self.options, self._size),
                task_name=tunable.task.name,
                rand_state=int(seed),
                num_threads=os.cpu_count() or 1,
                logger=_log,
            )
            context.pre_tuning(
                max_trials=2**30,
                num_trials_per_iter=self._size,
                database=self.database.memory,
                cost_model=self._model,
            )
            task = tunable.task
            made.append(
                SearchTask(name=task.name, weight=task.weight, flop=task.flop, tunable=tunable, context=context)
            )
        return made

    def _replay(self) -> None:
        """Take over the records of earlier attempts and of the prior."""
        by_workload = {each.tunable.task.workload: each for each in self.tasks}
        for record in self.database.prior():
            self.estimate.know(record.workload, record.seconds)
            by_workload[record.workload].best_s = min(by_workload[record.workload].best_s, record.seconds)
        origins = self.database.only_own().origins
        for record in self.database.own():
            task = by_workload[record.workload]
            task.count(record.seconds)
            origin = origins.get(record.key)  # records of stock have none
            self.estimate.add(record.workload, record.seconds, origin.spent_s if origin else 0.0)
            if task.trials % self._size == 0:
                task.rounds.append(task.best_s)
        for task in self.tasks:
            if task.trials and not task.rounds:
                task.rounds.append(task.best_s)
        if self.options.cost_model == "xgb":
            self._teach()

    def _teach(self) -> None:
        """Let the cost model learn from all that is known; it is trained once, at the end: that takes seconds."""
        model = self._model._inst  # noqa: SLF001 - the Python object behind TVM's
        known = [(task, self.database.records(task.tunable.task.workload)) for task in self.tasks]
        known = [each for each in known if each[1]]
        for number, (task, records) in enumerate(known, 1):
            model.last_train_size = 0 if number == len(known) else SUPPRESS_TRAINING_SIZE
            model.update(task.context, [each for each, _ in records], [_result(each) for _, each in records])


def _cost_model(options: SearchOptions) -> Any:
    if options.cost_model == "random":
        return ms.cost_model.RandomModel(seed=options.seed)
    warm_up = min(100, max(1, options.trials // XGB_WARM_UP))
    # One thread: OpenMP's would spin against the builder's, which have all cores.
    return ms.cost_model.XGBModel(num_tuning_cores=1, num_warmup_samples=warm_up)


def _strategy(options: SearchOptions, size: int) -> Any:
    """Evolution guided by the cost model; without one, evolution is a slow way to roll dice."""
    if options.cost_model == "random":
        return ms.search_strategy.ReplayTrace()
    population = min(512, POPULATION * size)
    return ms.search_strategy.EvolutionarySearch(
        population_size=population, init_min_unmeasured=min(50, population // 4)
    )


def _result(record: Record, error: str = "") -> Any:
    if math.isfinite(record.seconds):
        return ms.runner.RunnerResult(list(record.run_s), None)
    return ms.runner.RunnerResult(None, error or "it failed when it was measured")


DEFAULTS_LIMIT_S = 60.0  # beyond which what is not measured stays unknown
DEFAULTS_POLL_S = 0.05


def measure_defaults(
    database: TuningDatabase,
    builder: Any,
    runner: PoolRunner,
    schedule: Callable[[Any], Any],
    check: Callable[[], None] = lambda: None,
    report: Callable[[str], None] = lambda _: None,
    *,
    limit_s: float = DEFAULTS_LIMIT_S,
) -> dict[str, float]:
    """Seconds of each task that has records, by workload, as TVM schedules it by itself; those that ran.

    Args:
        database: of the search.
        builder: ms.Builder.
        runner: measures.
        schedule: what compiling does to a function without a record (IRModule -> IRModule).
        check: called while it waits; may raise.
        report: called with sentences on tasks that TVM cannot schedule or build.
        limit_s: how long it may take.
    """
    tried = {record.workload for record in database.own()}
    asked: dict[str, Future[Measured]] = {}
    for each in database.tunables:
        if each.task.workload in tried and not each.task.default_s:
            try:
                module = schedule(each.module)
                [built] = builder.build([ms.builder.BuilderInput(module, database.target)])
                if not built.error_msg:
                    info = ms.arg_info.ArgInfo.from_prim_func(each.module["main"])
                    given = ms.runner.RunnerInput(built.artifact_path, device_of(database.target), info)
                    asked[each.task.workload] = runner.submit(given)
            except Exception as error:  # noqa: BLE001 - whatever TVM raises: the search is done, this is a bonus
                report(f"TVM's own schedule of {each.task.name} is not known: {first_line(error)}")
    deadline_s = time.monotonic() + min(DEFAULTS_LIMIT_S, limit_s)
    while not all(each.done() for each in asked.values()) and time.monotonic() < deadline_s:
        check()
        time.sleep(DEFAULTS_POLL_S)
    return {name: seconds for name, each in asked.items() if (seconds := _seconds(each)) is not None}


def _seconds(answer: Future[Measured]) -> float | None:
    if not answer.done():
        return None
    try:
        runs = answer.result().scaled
    except CandidateError:
        return None
    return sum(runs) / len(runs)
