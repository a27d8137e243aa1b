"""The database of a tuning run with real TVM: what it keeps stock TVM reads; what only TVM can refuse is set aside."""

import errno
import json
import os
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from farm.common.errors import HostError
from farm.compiler.files import UNUSED_S
from farm.compiler.record_files import LOCK, read_records
from farm.compiler.records import MEASURED_BY, RECORDS, WORKLOADS, Origin, merge, pruned
from farm.jobs.attempt import YieldedError
from farm.kinds.tune.run import TUNING, _drop_unused
from farm.tuning.candidate import CandidateError, CannotBuildError, Measured, cannot_build_error
from farm.tuning.database import TuningDatabase
from farm.tuning.search import Search, SearchOptions
from farm.tuning.stock import load_intrinsics

TARGET = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 2})
OTHER = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 4})


def task(size):
    """As extract_tasks gives them: an addition of `size` numbers, used three times."""
    a = te.placeholder((size,), name="a")
    function = te.create_prim_func([a, te.compute((size,), lambda i: a[i] + 1.0, name="b")])
    return SimpleNamespace(task_name=f"add{size}", weight=3, dispatched=[tvm.IRModule({"main": function})])


def matmul():
    """One with many schedules."""
    a, b = te.placeholder((64, 64), name="a"), te.placeholder((64, 64), name="b")
    k = te.reduce_axis((0, 64), name="k")
    function = te.create_prim_func(
        [a, b, te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")]
    )
    return SimpleNamespace(task_name="matmul", weight=1, dispatched=[tvm.IRModule({"main": function})])


def candidate(module, factor):
    schedule = Schedule(module)
    [loop] = schedule.get_loops(schedule.get_sblock("b"))
    schedule.split(loop, [None, factor])
    return ms.search_strategy.MeasureCandidate(schedule, ms.arg_info.ArgInfo.from_prim_func(module["main"]))


def measured(database, factors, seconds=0.001):
    tunable = database.tunables[0]
    for factor in factors:
        origin = Origin(key="", device="pixel", at="", factor=1.1, spent_s=float(factor))
        run_s = None if seconds is None else [seconds * factor]
        database.commit(database.write(tunable, candidate(tunable.module, factor), run_s, origin))


@pytest.fixture
def folder(tmp_path):
    with TuningDatabase(tmp_path / "run", TARGET) as database:
        database.add_tasks([task(64), task(32)])
        measured(database, (2, 4))
        measured(database, (8,), None)
    return tmp_path / "run"


def test_what_is_kept_is_known_again_and_stock_tvm_reads_it(folder):
    with TuningDatabase(folder, TARGET) as database:
        first, second = database.add_tasks([task(32), task(64)])
        assert (first.task.name, second.task.name) == ("add64", "add32")  # the most work first
        assert (database.trials, database.spent_s) == (3, 8.0)
        assert [each.run_s for each in database.own()] == [(0.002,), (0.004,), (1e10,)]
        assert database.known(database.key_of(first, candidate(first.module, 4))) is not None
        assert database.known(database.key_of(first, candidate(first.module, 16))) is None
        database.set_default_latencies({first.task.workload: 0.003})
    stock = ms.database.JSONDatabase(work_dir=str(folder))
    assert len(stock) == 3
    best = stock.query_tuning_record(task(64).dispatched[0], TARGET, "add64")
    assert [float(each) for each in best.run_secs] == [0.002]
    found = read_records(folder).set
    assert {each.device for each in found.origins.values()} == {"pixel"}
    assert [each.default_s for each in found.tasks.values()] == [0.003, 0.0]
    assert len(pruned(found).records) == 1


def test_a_trace_that_tvm_does_not_take_is_set_aside(folder):
    lines = (folder / RECORDS).read_text().splitlines()
    wrong = json.loads(lines[1])
    wrong[1][0][0][0][0] = "Conjure"
    (folder / RECORDS).write_text("\n".join([lines[0], json.dumps(wrong), lines[2]]) + "\n")
    with TuningDatabase(folder, TARGET) as database:
        database.add_tasks([task(64), task(32)])
        assert database.trials == 2
        assert f"{RECORDS} line 2: TVM cannot use it" in database.damage[0]
        measured(database, (4,))
        assert database.trials == 3
    assert len(ms.database.JSONDatabase(work_dir=str(folder))) == 3


def test_a_record_without_origin_is_a_trial(folder):
    load_intrinsics()
    lines = (folder / MEASURED_BY).read_text().splitlines()
    (folder / MEASURED_BY).write_text(lines[0] + "\n")
    with TuningDatabase(folder, TARGET) as database:
        database.add_tasks([task(64), task(32)])
        search = Search(database, None, SimpleNamespace(), SearchOptions(trials=8, cost_model="random"))
        assert (search.done, database.spent_s) == (3, 2.0)
        assert [(each.trials, each.failed) for each in search.tasks] == [(3, 1), (0, 0)]


def test_a_lost_workload_and_a_wrong_trace_together_cost_that_record_only(folder):
    """The second workload's line is garbage, and TVM does not take a record of the first."""
    workloads, records = (folder / WORKLOADS), (folder / RECORDS)
    workloads.write_text(workloads.read_text().splitlines()[0] + "\n\0garbage\n")
    records.write_text(records.read_text().replace('"GetSBlock"', '"NoSuchInstruction"', 1))
    with TuningDatabase(folder, TARGET) as database:
        first, second = database.add_tasks([task(64), task(32)])
        assert database.trials == 2
        origin = Origin(key="", device="pixel", at="")
        database.commit(database.write(second, candidate(second.module, 2), [0.5], origin))
        measured(database, (16,))
    found = read_records(folder)
    assert not found.damage
    assert {each.workload for each in found.set.records} == {first.task.workload, second.task.workload}
    assert found.set.tasks.keys() == found.set.workloads.keys()
    assert len(ms.database.JSONDatabase(work_dir=str(folder))) == 4


@pytest.mark.parametrize("module", ["AAAA", None], ids=["garbage", "another module"])
def test_a_workload_with_a_wrong_module_is_put_right_and_loses_no_record(folder, module):
    lines = [json.loads(line) for line in (folder / WORKLOADS).read_text().splitlines()]
    right = lines[0][1]
    lines[0][1] = module or lines[1][1]
    (folder / WORKLOADS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with TuningDatabase(folder, TARGET) as database:
        database.add_tasks([task(64), task(32)])
        assert (database.trials, len(database.damage)) == (3, 1)
        assert f"{WORKLOADS} line 1: its module is another one" in database.damage[0]
        measured(database, (16,))
        assert database.everything().workloads[lines[0][0]].module == right
    assert len(ms.database.JSONDatabase(work_dir=str(folder))) == 4
    with TuningDatabase(folder, TARGET) as database:
        database.add_tasks([task(64), task(32)])
        assert (database.trials, database.damage) == (4, [])


def test_a_workload_that_is_there_twice_shifts_no_record(folder):
    lines = (folder / WORKLOADS).read_text().splitlines()
    (folder / WORKLOADS).write_text("\n".join([lines[0], lines[0], lines[1]]) + "\n")
    with TuningDatabase(folder, TARGET) as database:
        _, second = database.add_tasks([task(64), task(32)])
        origin = Origin(key="", device="pixel", at="")
        database.commit(database.write(second, candidate(second.module, 2), [0.5], origin))
    assert read_records(folder).set.records[-1].workload == second.task.workload


def test_a_full_disk_says_where_how_full_and_what_to_do(folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with TuningDatabase(folder, TARGET) as database:
        database.add_tasks([task(64), task(32)])
        with monkeypatch.context() as patched:
            patched.setattr("farm.compiler.record_files.os.write", full)
            with pytest.raises(HostError, match=rf"in {folder} \(\d+ MB free\): No space left") as raised:
                measured(database, (16,))
        assert "free some room there" in raised.value.hint
        assert database.trials == 3


class Phones:
    """Builder and phones of a search; `answer` has the future of each candidate and the candidate."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def build(self, inputs):
        return [ms.builder.BuilderResult("candidate.so", None) for _ in inputs]

    def submit(self, given):
        self.asked.append(Future())
        self.answer(self.asked[-1], given)
        return self.asked[-1]

    def search(self, database, trials=8, **options):
        load_intrinsics()
        database.add_tasks([matmul()])
        return Search(database, self, self, SearchOptions(trials=trials, cost_model="random"), **options)


def measure(future, given):
    future.set_result(Measured(given.artifact_path, "", "pixel", 0.0, (0.002,), 1.0))


def test_what_the_host_could_not_build_is_no_trial_and_ends_the_run(tmp_path):
    full = Phones(lambda future, _: future.set_exception(cannot_build_error(errno.ENOSPC, tmp_path)))
    with TuningDatabase(tmp_path, TARGET) as database:
        with pytest.raises(CannotBuildError):
            full.search(database).run()
        assert database.trials == 0
    assert not (tmp_path / RECORDS).exists()


def test_of_a_prior_what_fits_is_known_and_the_rest_is_told(folder, tmp_path):
    given = read_records(folder).set
    with TuningDatabase(tmp_path / "arm", OTHER) as database:
        database.add_tasks([task(64)])
        measured(database, (16,))
        given = merge([given, database.everything()])
    with TuningDatabase(tmp_path / "small", TARGET) as database:
        database.add_tasks([task(16)])
        measured(database, (2,))
        given = merge([given, database.everything()])
    with TuningDatabase(tmp_path / "new", TARGET, given) as database:
        [tunable] = database.add_tasks([task(64)])
        assert (database.trials, len(database.prior())) == (0, 3)
        assert database.left_out == [
            "the prior: 1 of 5 records are left out: 1 for llvm aarch64-linux-gnu",
            "1 of the prior's 5 records are of operators that this model does not have",
        ]
        assert database.known(database.key_of(tunable, candidate(tunable.module, 2))) is not None
        measured(database, (32,))
        kept = database.everything()
    assert len(kept.records) == 4
    assert kept.tasks.keys() == kept.workloads.keys() == {tunable.task.workload}
    assert kept.origins.keys() == {each.key for each in kept.records}


def test_what_is_under_way_when_a_run_breaks_off_is_no_trial(tmp_path):
    def news(search):
        if search.done:
            raise YieldedError

    phones = Phones(lambda future, given: measure(future, given) if len(phones.asked) == 1 else None)
    with TuningDatabase(tmp_path, TARGET) as database:
        with pytest.raises(YieldedError):
            phones.search(database, news=news).run()
        for each in phones.asked[1:]:
            each.set_exception(CandidateError("the run was closed"))
    assert len(phones.asked) > 1
    assert len(read_records(tmp_path).set.records) == 1


def test_the_cost_model_learns_as_long_as_there_are_rounds_to_think_of(tmp_path):
    learned = []
    with TuningDatabase(tmp_path, TARGET) as database:
        search = Phones(measure).search(database, trials=24)
        search._model = SimpleNamespace(update=lambda context, given, results: learned.append(search.done))
        assert search.run() == "trials"
    assert search.done == 24
    assert learned
    assert max(learned) < 24


def test_cleanup_leaves_ones_own_folder_and_those_in_use_however_old(tmp_path):
    long_ago_s = time.time() - 2 * UNUSED_S
    mine, busy, left = (tmp_path / TUNING / "model" / name for name in ("mine", "busy", "left"))
    for each in (mine, left):
        TuningDatabase(each, TARGET).__exit__(None, None, None)
    with TuningDatabase(busy, TARGET):
        for each in (mine, busy, left):
            os.utime(each / LOCK, (long_ago_s, long_ago_s))
            os.utime(each, (long_ago_s, long_ago_s))
        _drop_unused(tmp_path, mine)
    assert {each.name for each in mine.parent.iterdir()} == {"mine", "busy"}


def test_how_long_a_task_takes_untuned_is_known_from_a_prior_for_the_same_target(folder, tmp_path):
    with TuningDatabase(tmp_path / "arm", OTHER) as database:
        [tunable] = database.add_tasks([task(64)])
        measured(database, (16,))
        database.set_default_latencies({tunable.task.workload: 9.0})
        foreign = database.everything()
    with TuningDatabase(tmp_path / "before", TARGET) as database:
        database.add_tasks([task(64)])
        measured(database, (2,))
        database.set_default_latencies({tunable.task.workload: 0.25})
        ours = database.everything()
    for given, known in ((merge([foreign, read_records(folder).set]), {}), (ours, {tunable.task.workload: 0.25})):
        with TuningDatabase(tmp_path / f"after-{len(known)}", TARGET, given) as database:
            database.add_tasks([task(64)])
            assert database.defaults() == known
            database.set_default_latencies({tunable.task.workload: 0.5})
            assert database.defaults() == {tunable.task.workload: 0.5}  # this run's own is better
