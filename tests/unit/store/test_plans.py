"""Whatever is asked per request finds its rows by an index: 100,000 jobs cost a request no more than a hundred."""

import asyncio

import pytest
from sqlalchemy import event, text

from farm.model.job import FINAL, JobState
from farm.store import jobs, leases
from farm.store.jobs import JobFilter
from tests.unit.store.values import NOW, job

LIVE = tuple(state for state in JobState if state not in FINAL)
ASKED = {
    "get": lambda store: store.jobs.get("j"),
    "several": lambda store: store.jobs.several(("j", "k")),
    "find": lambda store: store.jobs.find("j"),
    "states": lambda store: store.jobs.states("a"),
    "attempts": lambda store: store.jobs.attempts("j"),
    "latest attempts": lambda store: store.jobs.latest_attempts(("j", "k")),
    "submitted": lambda store: store.jobs.submitted("ann", "key"),
    "result": lambda store: store.jobs.result("j"),
    "page by array": lambda store: store.jobs.page(array="a"),
    "page by array and state": lambda store: store.jobs.page(array="a", state=LIVE),
    "page by user": lambda store: store.jobs.page(user="ann"),
    "page by kind": lambda store: store.jobs.page(kind="shell"),
    "page by user before one": lambda store: store.jobs.page(user="ann", before="j"),
    "page by one state": lambda store: store.jobs.page(state=(JobState.DONE,)),
    "page by final states": lambda store: store.jobs.page(state=tuple(FINAL)),
    "page by live states": lambda store: store.jobs.page(state=LIVE),
    "page by kind and one state": lambda store: store.jobs.page(state=(JobState.FAILED,), kind="shell"),
    "page by kind and final states": lambda store: store.jobs.page(state=tuple(FINAL), kind="shell"),
    "page by user and live states": lambda store: store.jobs.page(state=LIVE, user="ann"),
    "page of some": lambda store: store.jobs.page(jobs=("j", "a")),
    "page of some live": lambda store: store.jobs.page(jobs=("j", "a"), state=LIVE, before="j"),
    "search of text": lambda store: store.job_search.search(JobFilter(text="j", user="ann", state=(JobState.DONE,))),
    "search of a phone": lambda store: store.job_search.search(JobFilter(device="pixel", kind="bench"), before="j"),
    "search of a selector": lambda store: store.job_search.search(JobFilter(selector="soc=sm8550")),
    "events by subject": lambda store: store.events.since(5, subject="j"),
    "events of subjects": lambda store: store.events.about(("j", "k"), 5, 10),
    "latest events": lambda store: store.events.latest(("j", "k"), ("job.done",)),
    "lease": lambda store: store.leases.get("l"),
    "open leases": lambda store: store.leases.open(),
    "usage": lambda store: store.leases.usage(NOW, NOW),
    "leases of a time": lambda store: store.leases.between(NOW, NOW, 10),
    "measured models": lambda store: store.measurements.models("a" * 64),
    "measurements": lambda store: store.measurements.page("a" * 64, before=5),
    "measurements of a phone": lambda store: store.measurements.page("a" * 64, device="pixel"),
    "nominal speeds": lambda store: store.measurements.nominal_s("pixel", "x/y:14", "ann"),
    "agreed nominal": lambda store: store.measurements.agreed_nominal_s("pixel", "x/y:14", "k", "ann"),
    "jobs of usage": lambda store: store.leases.jobs(NOW, NOW, "user"),
}
UNSORTED = [name for name in ASKED if name.startswith("page") and "live" not in name]  # few jobs live


def statements(engine):
    """The statements that an engine executes from now on, with their parameters."""
    executed = []
    event.listen(engine, "before_cursor_execute", lambda *given: executed.append(given[2:4]))
    return executed


@pytest.fixture
def plan_of(opened, tmp_path):
    """The plan (SQLite's words) of every statement that a call asks."""
    store = opened(tmp_path / "farm.db")
    asyncio.run(store.jobs.add([job("j")]))  # a search of nothing asks no further
    asked = statements(store.database.engine)

    def plan_of(ask):
        ask(store)
        assert asked
        with store.database.reading() as connection:
            return [
                row[-1]
                for statement, parameters in tuple(asked)
                if statement.startswith(("SELECT", "WITH"))
                for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            ]

    return plan_of


@pytest.mark.parametrize("name", ASKED)
def test_no_table_is_read_through(plan_of, name):
    plan = plan_of(ASKED[name])
    tables = ("job", "attempt", "lease", "event", "result", "submission", "measurement")
    assert not [step for step in plan if step.startswith("SCAN") and step.split()[1] in tables], plan


@pytest.mark.parametrize("name", UNSORTED)
def test_a_page_comes_in_order_out_of_its_index(plan_of, name):
    assert not [step for step in plan_of(ASKED[name]) if "TEMP B-TREE" in step]


def test_the_plans_are_told_as_expected(plan_of):
    """SQLite still says SCAN for what these tests forbid."""
    assert "SCAN lease" in plan_of(lambda store: store.database.engine.connect().execute(text("SELECT * FROM lease")))


@pytest.mark.parametrize(
    ("key", "change", "values"),
    [
        ("job_id_key", jobs.CLAIM, {"of": "j", "attempts_before": 0, "state": JobState.RUNNING}),
        ("job_id_key", jobs.LIVE, {"of": "j", "state": JobState.DONE}),
        ("attempt_fence_key", jobs.RUNNING, {"of": "j.1", "under": 1, "facts": {}}),
        ("lease_pkey", leases.OPEN, {"of": "l", "reason": "done"}),
        ("lease_pkey", leases.UNARMED, {"of": "l", "armed_at": NOW}),
    ],
)
def test_a_new_servers_rows_are_changed_by_their_key(opened, new_database, key, change, values):
    """PostgreSQL takes a table that it has not analyzed for empty, and any partial index for short."""
    engine = opened(new_database()).database.engine
    executed = statements(engine)
    with engine.connect() as connection:
        connection.execute(change, values)
        statement, parameters = executed[-1]
        plan = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)]
    assert any(key in step for step in plan), plan
