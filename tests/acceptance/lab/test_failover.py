"""A farm on PostgreSQL whose server dies, freezes or hands over to its standby: work continues, each end is kept."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from farm.model.requests import NoSuchLeaseError
from farm.simulation.postgres import PostgresServer, new_server, server_folder
from tests.support import postgres
from tests.support.stock_client import Clients
from tests.support.whole_farm import phones, until
from tests.support.whole_lab import JUDGED, WAIT, whole_lab

HOLD = "session = connect().request({key!r}); tell(add_one(session)); wait(); tell(outcome(add_one, session)); wait()"
LIMIT_S = 120.0

RULES = {
    **JUDGED,
    "an attempt has not ended": "SELECT id FROM attempt WHERE ended_at IS NULL AND job <> %(kept)s",
    "a job has not ended": "SELECT id FROM job WHERE ended_at IS NULL AND id <> %(kept)s",
    "a job was tried twice": "SELECT id FROM job WHERE attempts > 1",
    "overlapping leases that were held": (
        "SELECT a.id FROM lease a JOIN lease b ON a.device = b.device AND a.fence < b.fence "
        "AND (a.ended_at IS NULL OR a.ended_at > b.granted_at + 0.5)"
    ),
}
ENDS = """
SELECT count(*) FILTER (WHERE kind = 'attempt.ended'), count(*) FILTER (WHERE kind = 'lease.released') FROM event
"""


@pytest.fixture
def primary():
    postgres.need()
    with new_server() as server:
        yield server


@pytest.fixture
def standby(primary):
    """A synchronous one."""
    with server_folder() as folder:
        standby = PostgresServer(folder)
        primary.copy_to(standby)
        standby.start()
        try:
            with psycopg.connect(primary.url.replace("+psycopg", ""), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
                connection.execute("SELECT pg_reload_conf()")
            yield standby
        finally:
            standby.stop()


@contextmanager
def farm_on(*servers):
    """A lab of one host with three phones on a new database of the first server, and the others as its standbys."""
    hosts = "&".join(f"host={server.folder}" for server in servers)
    with whole_lab(servers[0]) as lab:
        database = lab.url.partition("?")[0].rpartition("/")[2]
        lab.url = f"postgresql://farm@/{database}?{hosts}"
        lab.head().decides()
        yield lab.host("one", "galaxy-a55", "galaxy-note20", "galaxy-s9"), database


class Work:
    """A running job, a person's lease and a stock client's session, one on each phone."""

    def __init__(self, farm, clients, stack):
        self.farm, self.clients = farm, clients
        worked, leased, used = phones(farm)
        self.on = worked
        self.job = submit(farm, kind="shell", on=worked.name, command=WAIT, max_attempts=1)
        self.lease = submit(farm, kind="lease", on=leased.name, seconds=3600.0)
        for job in (self.job, self.lease):
            until(lambda job=job: state(farm, job) == "running")
        until(lambda: handed_over(farm, self.lease))  # and stored: a hand-over without a database fails
        self.key = used.name
        self.client = stack.enter_context(clients.running(HOLD.format(key=self.key)))
        assert self.client.hear() is True

    def goes_on_without_a_database(self):
        """The session answers, the job ends, the person keeps the phone; the daemon answers all the while."""
        self.client.go()
        assert self.client.hear() == ""
        self.on.shell("touch /data/local/tmp/go")
        log = self.farm.daemon.log
        until(lambda: f"attempt {self.job}.1: kept in memory" in log.read_text())
        self.client.finish()
        held = {row["holder"]: row["state"] for row in self.farm.status()["devices"] if row["holder"]}
        assert held

    def is_kept(self):
        """What ended meanwhile is written; a new session and a new job get their phones."""
        until(lambda: not database_problems(self.farm))
        until(lambda: state(self.farm, self.job) == "done")
        assert self.clients.result(f"tell(add_one(connect().request({self.key!r})))") is True
        after = submit(self.farm, kind="shell", on=self.on.name, command="echo new", max_attempts=1)
        until(lambda: state(self.farm, after) == "done")
        assert state(self.farm, self.lease) == "running"


def submit(farm, **spec):
    (row,) = farm.client.call("job.submit", spec=spec)["jobs"]
    return row["id"]


def state(farm, job):
    return farm.client.call("job.show", job=job)["job"]["state"]


def handed_over(farm, lease):
    try:
        return farm.client.call("lease.show", lease=lease)
    except NoSuchLeaseError:
        return False


def database_problems(farm):
    return [each for each in farm.status()["problems"] if "database" in each]


def judge(server, database, kept):
    with psycopg.connect(f"postgresql://farm@/{database}?host={server.folder}") as connection:
        ends = connection.execute(ENDS).fetchone()
        found = {what: connection.execute(sql, {"kept": kept}).fetchall() for what, sql in RULES.items()}
    assert all(ends), ends  # there is something to judge
    return {what: rows for what, rows in found.items() if rows}


def test_the_standby_takes_over(primary, standby, kernel):
    with farm_on(primary, standby) as (farm, database), ExitStack() as stack:
        work = Work(farm, Clients(farm, kernel), stack)
        primary.stop()
        until(lambda: database_problems(farm))
        work.goes_on_without_a_database()
        standby.promote()
        work.is_kept()
        until(lambda: not judge(standby, database, work.lease))
        seq = farm.status()["seq"]
        farm.daemon.stop()  # the next one knows all of it
        farm.daemon.start().close()
        assert farm.status()["seq"] > seq
        assert state(farm, work.lease) == "running"


def test_a_server_that_freezes_holds_up_nothing_but_the_database(primary, kernel):
    with farm_on(primary) as (farm, database), ExitStack() as stack:
        work = Work(farm, Clients(farm, kernel), stack)
        frozen = [primary.pid, *children(primary.pid)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            work.client.go()
            assert work.client.hear() == ""
            for _ in range(20):
                assert farm.status()["devices"]
            until(lambda: database_problems(farm))
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        work.on.shell("touch /data/local/tmp/go")
        work.client.finish()
        work.is_kept()
        until(lambda: not judge(primary, database, work.lease))


def children(pid):
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]
