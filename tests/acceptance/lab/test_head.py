"""Two hosts and their `farm head`: jobs run on phones of either, and continue whatever is killed, frozen or away."""

from __future__ import annotations

import secrets
import signal

import pytest

from farm.common.errors import HostError
from farm.simulation.postgres import new_server
from tests.support import postgres
from tests.support.small_disk import tables_on_small_disk
from tests.support.whole_farm import phones, until, until_ready
from tests.support.whole_lab import whole_lab

GO = "/data/local/tmp/go"
WAIT = f"until [ -e {GO} ]; do sleep 0.2; done; rm {GO}; echo done"
LIMIT_S = 240.0
pytestmark = pytest.mark.timeout(LIMIT_S)


class Lab:
    """Two heads, one of which decides, and two hosts with a phone each."""

    def __init__(self, lab, disk):
        self.lab = lab
        self.disk = disk  # of the database's tables; None: it is not small
        self.decides, self.waits = lab.head(), lab.head()
        until(lambda: self.decides.terms + self.waits.terms)
        if self.waits.terms:
            self._swap()
        self.one, self.two = lab.host("one", "galaxy-s9"), lab.host("two", "galaxy-a55")
        self.here, self.there = phones(self.one)[0], phones(self.two)[0]

    def _swap(self):
        self.decides, self.waits = self.waits, self.decides

    def taken_over(self):
        """Return when the standby decides."""
        self.waits.decides(self.waits.terms + 1)
        self._swap()

    def has_head(self):
        """Whether a head answers."""
        try:
            self.one.client.call("reservation.list")
        except HostError:
            return False
        return True

    def submit(self, farm, on, command=WAIT, **spec):
        """Submit a job at that host for a phone of any; its id."""
        fields = {"kind": "shell", "on": on, "command": command, "timeout_s": LIMIT_S, **spec}
        [row] = farm.client.call("job.submit", spec=fields)["jobs"]
        return str(row["id"])

    def submit_until_refused(self):
        """Submit jobs while the tables have room in the pages that are there; their ids, and the refusal."""
        taken = []
        try:
            while True:
                taken.append(self.submit(self.one, self.there.name, f": {secrets.token_hex(2000)}"))
        except HostError as error:
            return taken, error.message

    def submit_again(self, farm, on, command):
        """Submit a job as soon as that is possible; its id."""
        until(self.has_head)
        return self.submit(farm, on, command)

    def events(self, kind):
        """What the head has said about hosts."""
        return self.lab.rows(f"SELECT subject FROM event WHERE kind = '{kind}' ORDER BY seq")

    def job(self, job):
        return self.one.client.call("job.show", job=job)

    def until(self, job, wanted):
        until(lambda: self.job(job)["job"]["state"] == wanted)

    def attempts(self, job):
        """The phones and ends of its attempts."""
        return [(each["device"], each["state"]) for each in self.job(job)["attempts"]]


@pytest.fixture(scope="module")
def lab():
    postgres.need()
    with new_server() as server, tables_on_small_disk(server, "100m") as disk, whole_lab(server) as whole:
        yield Lab(whole, disk)
        until(lambda: not whole.judged())


def test_jobs_run_on_phones_of_either_host_wherever_they_are_submitted(lab):
    on = [phone.name for phone in (lab.here, lab.there)]
    jobs = [(phone, lab.submit(farm, phone, "echo done")) for farm in (lab.one, lab.two) for phone in on]
    for phone, job in jobs:
        lab.until(job, "done")
        assert lab.attempts(job) == [(phone, "done")]


def test_the_standby_takes_over_while_one_job_runs_and_another_waits(lab):
    runs = lab.submit(lab.one, lab.there.name, max_attempts=1)
    waits = lab.submit(lab.one, lab.there.name, "echo done")
    lab.until(runs, "running")
    lab.decides.kill()
    lab.taken_over()
    lab.there.shell(f"touch {GO}")
    for job in (runs, waits):
        lab.until(job, "done")
        assert lab.attempts(job) == [(lab.there.name, "done")]
    lab.waits = lab.lab.head()


def test_the_job_of_a_host_that_is_killed_runs_elsewhere(lab):
    job = lab.submit(lab.one, "android", max_attempts=2)
    lab.until(job, "running")
    [(began_on, _)] = lab.attempts(job)
    killed, goes_on = (lab.one, lab.there) if began_on == lab.here.name else (lab.two, lab.here)
    killed.daemon.kill()
    lab.one = goes_on.farm  # the one to ask
    until(lambda: (goes_on.name, "running") in lab.attempts(job))
    goes_on.shell(f"touch {GO}")
    lab.until(job, "done")
    assert lab.attempts(job) == [(began_on, "failed"), (goes_on.name, "done")]
    killed.daemon.start().close()
    until_ready(killed)
    lab.one, lab.two = lab.here.farm, lab.there.farm


def test_a_host_that_is_stopped_hands_its_job_over_and_is_not_lost(lab):
    lost = lab.lab.rows("SELECT count(*) FROM event WHERE kind = 'host.lost'")
    job = lab.submit(lab.one, lab.there.name, max_attempts=2)
    lab.until(job, "running")
    lab.two.daemon.stop()
    until(lambda: "two" in lab.lab.rows("SELECT name FROM host WHERE beat_at IS NULL")[0])
    assert [state for _, state in lab.attempts(job)] == ["failed"]
    lab.two.daemon.start().close()
    until(lambda: lab.attempts(job)[-1] == (lab.there.name, "running"))
    lab.there.shell(f"touch {GO}")
    lab.until(job, "done")
    assert lab.lab.rows("SELECT count(*) FROM event WHERE kind = 'host.lost'") == lost


def test_a_head_that_was_frozen_decides_no_more_when_it_wakes(lab):
    frozen = lab.decides
    frozen.freeze()
    lab.taken_over()
    frozen.wake()
    job = lab.submit(lab.two, lab.here.name, "echo done")
    lab.until(job, "done")
    until(lambda: "this head decides no more" in frozen.log.read_text())


def test_a_host_that_was_frozen_for_longer_than_it_is_waited_for_ends_nothing_twice(lab):
    there, here, losses = lab.there.name, lab.here.name, len(lab.events("host.lost"))
    on_it, kept = lab.submit(lab.one, there, max_attempts=2), lab.submit(lab.one, here)
    for job in (on_it, kept):
        lab.until(job, "running")
    lab.two.daemon.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: len(lab.events("host.lost")) > losses)
        until(lambda: lab.attempts(on_it) == [(there, "failed")])
        lab.here.shell(f"touch {GO}")
        lab.until(kept, "done")
    finally:
        lab.two.daemon.process.send_signal(signal.SIGCONT)
    until(lambda: lab.attempts(on_it)[1:] == [(there, "running")])
    lab.there.shell(f"touch {GO}")
    lab.until(on_it, "done")
    assert lab.attempts(on_it) == [(there, "failed"), (there, "done")]
    assert lab.attempts(kept) == [(here, "done")]
    until(lambda: len(lab.events("host.back")) == len(lab.events("host.lost")) > losses)


def test_nothing_is_lost_while_the_databases_disk_is_full(lab):
    if lab.disk is None:
        pytest.skip("this host lets us mount no tmpfs, so the database's disk cannot be full")
    losses = lab.events("host.lost")
    runs = lab.submit(lab.two, lab.here.name, max_attempts=1)
    lab.until(runs, "running")
    lab.disk.fill()
    taken, refusal = lab.submit_until_refused()
    assert "disk is full" in refusal
    lab.here.shell(f"touch {GO}")
    until(lambda: GO not in lab.here.ours())  # its work is over
    lab.disk.free()
    for job in (runs, *taken, lab.submit_again(lab.one, lab.here.name, "echo done")):
        lab.until(job, "done")
    assert lab.attempts(runs) == [(lab.here.name, "done")]
    assert lab.events("host.lost") == losses


def test_a_job_runs_on_while_the_database_is_away(lab):
    runs = lab.submit(lab.two, lab.here.name, max_attempts=1)
    lab.until(runs, "running")
    lab.lab.server.stop()
    until(lambda: any("database" in each for each in lab.one.status()["problems"]))
    lab.here.shell(f"touch {GO}")
    lab.lab.server.start()
    lab.until(runs, "done")  # its host writes that without a head
    until(lab.has_head)
    after = lab.submit(lab.one, lab.there.name, "echo done")
    lab.until(after, "done")
    assert lab.attempts(runs) == [(lab.here.name, "done")]
