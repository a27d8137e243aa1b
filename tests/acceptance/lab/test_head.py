"""Two hosts and their `farm head`: jobs run on phones of either, and continue whatever stops or is away."""

from __future__ import annotations

import secrets

import pytest

from farm.common.errors import HostError
from farm.simulation.postgres import new_server
from tests.support import postgres
from tests.support.small_disk import tables_on_small_disk
from tests.support.whole_farm import until
from tests.support.whole_lab import GO, TwoHosts, whole_lab

pytestmark = pytest.mark.timeout(240.0)


def has_head(lab):
    """Whether a head answers."""
    try:
        lab.one.client.call("reservation.list")
    except HostError:
        return False
    return True


def submit_until_refused(lab):
    """Submit jobs while the tables have room in the pages that are there; their ids, and the refusal."""
    taken = []
    try:
        while True:
            taken.append(lab.shell(lab.there.name, f": {secrets.token_hex(2000)}"))
    except HostError as error:
        return taken, error.message


def losses(lab):
    """How many hosts a head has lost so far."""
    return lab.lab.rows("SELECT count(*) FROM event WHERE kind = 'host.lost'")


@pytest.fixture(scope="module")
def lab():
    postgres.need()
    with new_server() as server, tables_on_small_disk(server, "100m") as disk, whole_lab(server) as whole:
        whole.head(), whole.head()  # one of which decides
        lab = TwoHosts(whole)
        lab.disk = disk  # of the database's tables; None: it is not small
        yield lab
        until(lambda: not whole.judged())


def test_jobs_run_on_phones_of_either_host_wherever_they_are_submitted(lab):
    on = [phone.name for phone in (lab.here, lab.there)]
    jobs = [(phone, lab.shell(phone, "echo done", farm)) for farm in (lab.one, lab.two) for phone in on]
    for phone, job in jobs:
        lab.until(job, "done")
        assert lab.attempts(job) == [(phone, "done")]


def test_a_host_that_is_stopped_hands_its_job_over_and_is_not_lost(lab):
    lost = losses(lab)
    job = lab.shell(lab.there.name, max_attempts=2)
    lab.until(job, "running")
    lab.two.daemon.stop()
    until(lambda: "two" in lab.lab.rows("SELECT name FROM host WHERE beat_at IS NULL")[0])
    assert [state for _, state in lab.attempts(job)] == ["failed"]
    lab.two.daemon.start().close()
    until(lambda: lab.attempts(job)[-1] == (lab.there.name, "running"))
    lab.there.shell(f"touch {GO}")
    lab.until(job, "done")
    assert losses(lab) == lost


def test_nothing_is_lost_while_the_databases_disk_is_full(lab):
    if lab.disk is None:
        pytest.skip("this host lets us mount no tmpfs, so the database's disk cannot be full")
    lost = losses(lab)
    runs = lab.shell(lab.here.name, at=lab.two, max_attempts=1)
    lab.until(runs, "running")
    lab.disk.fill()
    taken, refusal = submit_until_refused(lab)
    assert "disk is full" in refusal
    lab.here.shell(f"touch {GO}")
    until(lambda: GO not in lab.here.ours())  # its work is over
    lab.disk.free()
    until(lambda: has_head(lab))
    for job in (runs, *taken, lab.shell(lab.here.name, "echo done")):
        lab.until(job, "done")
    assert lab.attempts(runs) == [(lab.here.name, "done")]
    assert losses(lab) == lost


def test_a_job_runs_on_while_the_database_is_away(lab):
    runs = lab.shell(lab.here.name, at=lab.two, max_attempts=1)
    lab.until(runs, "running")
    lab.lab.server.stop()
    until(lambda: any("database" in each for each in lab.one.status()["problems"]))
    lab.here.shell(f"touch {GO}")
    lab.lab.server.start()
    lab.until(runs, "done")  # its host writes that without a head
    until(lambda: has_head(lab))
    after = lab.shell(lab.there.name, "echo done")
    lab.until(after, "done")
    assert lab.attempts(runs) == [(lab.here.name, "done")]
