"""What people see of a search: its line, its rates, how often it is told."""

import math

from farm.compiler.records import Origin, Record, RecordSet, TuningTask
from farm.tuning.progress import TaskProgress, eta_s, failure_notes, finite, news_due, standing_line


def line(**changes):
    facts = {
        "trials": 12, "wanted": 64, "estimate_s": 0.00123, "phones": ("a", "b"), "busy": 1, "waits": "",
        "spent_s": 20.0, "eta_s": 90.0, "left_out": 0, "of_tasks": 12,
    }  # fmt: skip
    return standing_line(facts | changes)


def test_the_line():
    assert line() == "trial 12 of 64, best 1.230 ms, 1 of 2 phones busy, 1m 30s left"
    assert line(left_out=9) == "trial 12 of 64, 3 of 12 tasks measured, 1 of 2 phones busy, 1m 30s left"
    waiting = line(estimate_s=None, phones=(), busy=0, eta_s=None, waits="0 of 2 phones; b is cooling")
    assert waiting == "trial 12 of 64, 0 of 0 phones busy, 0 of 2 phones; b is cooling"


def test_what_is_not_known_is_null():
    assert (finite(math.inf), finite(0.5)) == (None, 0.5)
    row = TaskProgress(name="conv", weight=2, trials=1, failed=1, flop=2e6).to_wire(0.0)
    assert (row["best_ms"], row["best_gflops"], row["latest_gflops"]) == (None, None, None)


def test_rates():
    row = TaskProgress(name="conv", weight=2, trials=3, flop=2e6, best_s=0.001, latest_s=0.002).to_wire(0.0)
    assert (row["best_ms"], row["best_gflops"], row["latest_gflops"]) == (1.0, 2.0, 1.0)
    assert TaskProgress(name="copy", weight=1, best_s=1, latest_s=1).to_wire(0.0)["best_gflops"] is None


def test_the_time_left_is_told_at_this_attempts_pace():
    assert eta_s(10, 64, 8, 100.0) is None
    assert eta_s(40, 64, 32, 16.0) == 48.0


def test_news_come_every_second_and_later_less_often():
    assert news_due(0.0, 1.0)
    assert not news_due(9.5, 10.0)
    assert not news_due(3600.0, 3630.0)
    assert news_due(3600.0, 3640.0)


def test_reasons_of_failed_candidates_are_counted_by_task():
    errors = ["no result after 10 s\nsee the log", "no result after 10 s", "", "out of memory", *map(str, range(4))]
    records = tuple(Record("1234", [], (), {}, [], f"key {number}") for number in range(len(errors)))
    origins = {
        record.key: Origin(key=record.key, device="", at="", error=error)
        for record, error in zip(records, errors, strict=True)
    }
    tasks = {"1234": TuningTask(workload="1234", name="pool")}
    notes = failure_notes(RecordSet({}, records, origins, tasks))
    assert notes[:2] == [
        "pool: 2 candidates failed: no result after 10 s", "pool: 1 candidate failed: out of memory"
    ]  # fmt: skip
    assert (len(notes), notes[-1]) == (6, "1 candidate failed for other reasons")
    assert failure_notes(RecordSet()) == []
