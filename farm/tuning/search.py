"""The search for schedules: rounds of candidates, built and measured while the next round is thought of.

Candidates, their evolution and the cost model are MetaSchedule's; the loop over tasks is ours: it counts trials
exactly, keeps each one the moment it is measured, and goes on where a killed run stopped.

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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
from tvm.s_tir import meta_schedule as ms

from farm.compiler.records import Origin, Record
from farm.compiler.targets import device_of
from farm.compiler.tuning_curve import Estimate
from farm.tuning.candidate import CandidateError, Measured
from farm.tuning.database import Kept, Tunable, TuningDatabase
from farm.tuning.gradient import TaskState, next_task, per_round

ROUNDS_AT_ONCE = 2  # one on the phones, the next one being thought of and built
EMPTY_ROUNDS = 3  # with nothing new in them: the task's space is searched
LOOK_S = 0.01
MOST_ERROR_CHARS = 500
END_WAIT_S = 60.0  # for what is under way when the search ends; then it is given up, and is no trial
POPULATION = 8  # for each candidate of a round, as in stock: 512 for 64; evolution's time is proportional to it
NOT_NOW = 2**40  # records: XGBModel trains when there are a fifth more than at its last training
XGB_WARM_UP = 4  # the cost model is believed after this part of the trials, 100 at most as in stock

_log = logging.getLogger("farm.tuning")
_log.addHandler(logging.NullHandler())
_log.propagate = False


class Runner(Protocol):
    """farm.tuning.runner.PoolRunner, as far as a search needs it."""

    def submit(self, given: Any) -> Future[Measured]:
        """Have one candidate (ms.runner.RunnerInput) measured; the answer may be a CandidateError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How to search."""

    trials: int  # in all, those of earlier attempts too
    early_stop: int | None = None
    search_s: float = math.inf
    end_s: float = END_WAIT_S  # for what is under way when the search ends
    cost_model: Literal["xgb", "random"] = "xgb"
    seed: int = 0


@dataclass(slots=True)
class TaskProgress:
    """One task of the search."""

    tunable: Tunable
    context: Any  # ms.TuneContext
    trials: int = 0
    failed: int = 0
    best_s: float = math.inf
    latest_s: float = math.inf
    rounds: list[float] = field(default_factory=list)
    empty: int = 0
    over: bool = False
    busy: int = 0  # rounds under way

    def note(self, record: Record) -> None:
        """Count a trial."""
        self.trials += 1
        self.latest_s = record.seconds
        self.failed += not math.isfinite(record.seconds)
        self.best_s = min(self.best_s, record.seconds)


@dataclass(slots=True)
class _Candidate:
    given: Any  # ms.MeasureCandidate
    result: Any = None  # ms.runner.RunnerResult
    kept: Kept | None = None  # written by the thread of the phone that measured it


@dataclass(slots=True)
class _Round:
    task: TaskProgress
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
        runner: Runner,
        options: SearchOptions,
        *,
        news: Callable[[Search], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is begun yet.

        Args:
            database: with the model's tasks.
            builder: ms.Builder; one that returns before it has built is waited for by the runner.
            runner: measures.
            options: how.
            news: called after each trial and while nothing happens, in this thread; it may raise, which ends the run.
            clock: monotonic seconds.
        """
        self.database = database
        self.options = options
        self.estimate = Estimate({each.task.workload: each.task.weight for each in database.tunables})
        self.reason = ""
        self.earlier = database.trials
        self.under_way = 0
        self._builder, self._runner, self._news, self._clock = builder, runner, news, clock
        self._rounds: list[_Round] = []
        self._broken: Exception | None = None
        self._closed = False
        self._keys: set[str] = set()  # of all candidates of this run
        self._device = device_of(database.target)
        self._began_s = clock()
        self._spent_before_s = database.spent_s
        self._size = per_round(options.trials, len(database.tunables))
        self._model = _cost_model(options)
        self.tasks = self._contexts()
        self._replay()

    @property
    def spent_s(self) -> float:
        """Seconds of search, those of earlier attempts too."""
        return self._spent_before_s + self._clock() - self._began_s

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
        chosen = self._next() if left > 0 and len(self._rounds) < ROUNDS_AT_ONCE else None
        if chosen is not None:
            self._begin(chosen, left)
        elif not self._rounds:
            self.reason = "exhausted"
        else:
            self._news(self)
            time.sleep(LOOK_S)

    def _ended(self) -> str:
        if self.done >= self.options.trials:
            return "trials"
        if self.options.early_stop is not None and self.estimate.stale_trials >= self.options.early_stop:
            return "early_stop"
        if self._clock() - self._began_s >= self.options.search_s:
            return "timeout"
        return ""

    def _next(self) -> int | None:
        """The task to go on with; one that is under way only when it is the only one left."""
        alone = sum(not each.over for each in self.tasks) == 1
        states = [
            TaskState(each.tunable.task.weight, tuple(each.rounds), each.over, each.busy > 0 and not alone)
            for each in self.tasks
        ]
        return next_task(states)

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

    def _send(self, task: TaskProgress, fresh: Sequence[_Candidate]) -> None:
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
        """Keep what was measured since; learn from the rounds that are complete."""
        for each in self._rounds:
            for candidate in each.candidates:
                if candidate.result is None and candidate.kept is not None:
                    self.under_way -= 1
                    self._count(each.task, candidate, candidate.kept)
        if self._broken is not None:
            raise self._broken
        for each in [one for one in self._rounds if one.done]:
            self._rounds.remove(each)
            each.task.busy -= 1
            each.task.rounds.append(each.task.best_s)
            self._learn(each.task, each.candidates)

    def _write(self, tunable: Tunable, candidate: _Candidate, answer: Future[Measured]) -> None:
        """Have a trial safe at once, whatever this thread's owner is at: the next round may take it half a minute."""
        if self._closed or self._broken is not None:
            return
        try:
            run_s: list[float] | None = None
            origin = Origin(key="", device="", at="", spent_s=round(self.spent_s, 3))
            try:
                measured = answer.result()
            except CandidateError as error:
                origin = replace(origin, error=str(error)[:MOST_ERROR_CHARS])
            else:
                run_s = [float(each) for each in measured.scaled]
                origin = replace(origin, device=measured.device, factor=round(measured.factor, 6))
            candidate.kept = self.database.write(tunable, candidate.given, run_s, origin)
        except Exception as error:  # noqa: BLE001 - raised in the run's own thread
            self._broken = error

    def _count(self, task: TaskProgress, candidate: _Candidate, kept: Kept) -> None:
        candidate.result = _result(kept.record, kept.origin.error)
        self.database.commit(kept)
        task.note(kept.record)
        self.estimate.add(kept.record.workload, kept.record.seconds, kept.origin.spent_s)
        self._news(self)

    def _learn(self, task: TaskProgress, candidates: Sequence[_Candidate]) -> None:
        given = [each.given for each in candidates]
        results = [each.result for each in candidates]
        if self.done + self.under_way < self.options.trials:  # else no round is thought of any more: seconds saved
            self._model.update(task.context, given, results)
        task.context.search_strategy.notify_runner_results(given, results)

    def _finish(self) -> None:
        """What is under way comes in or is given up; the strategies end."""
        deadline_s = self._clock() + min(END_WAIT_S, self.options.end_s)
        while self.under_way and self.reason != "trials" and self._clock() < deadline_s:
            self._collect()
            self._news(self)
            time.sleep(LOOK_S)
        for task in self.tasks:
            task.context.search_strategy.post_tuning()

    def _contexts(self) -> list[TaskProgress]:
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
            made.append(TaskProgress(tunable, context))
        return made

    def _replay(self) -> None:
        """Know what earlier attempts and the prior know."""
        by_workload = {each.tunable.task.workload: each for each in self.tasks}
        for record in self.database.prior():
            self.estimate.know(record.workload, record.seconds)
            by_workload[record.workload].best_s = min(by_workload[record.workload].best_s, record.seconds)
        origins = self.database.only_own().origins
        for record in self.database.own():
            task = by_workload[record.workload]
            task.note(record)
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
            model.last_train_size = 0 if number == len(known) else NOT_NOW
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
