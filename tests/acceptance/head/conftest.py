"""A real PostgreSQL for heads, judged after each test."""

import psycopg
import pytest

from benchmarks.lab_judge import RULES
from tests.support import postgres
from tests.support.head_processes import Heads
from tests.support.whole_lab import OVERLAPS


@pytest.fixture(scope="module")
def server():
    postgres.need()
    with postgres.running_server() as url:
        yield url


@pytest.fixture
def heads(server):
    heads = Heads(postgres.new_database(server))
    yield heads
    heads.close()
    rules = {**RULES, "overlapping leases that were held": OVERLAPS}
    del rules["an attempt has not ended"], rules["an attempt ended without an event"]  # a `LabHost` has no events
    with psycopg.connect(heads.url.replace("+psycopg", "")) as connection:
        found = {what: connection.execute(query).fetchall() for what, query in rules.items()}
    assert {what: rows for what, rows in found.items() if rows} == {}
