"""Clocks that are an hour off, of a host and of a head: no deadline, no lease and no host suffers by them."""

from __future__ import annotations

import pytest

from benchmarks.lab_chaos import shifted_clock
from tests.support import postgres
from tests.support.needs import need
from tests.support.whole_farm import phones, until
from tests.support.whole_lab import whole_lab

LIMIT_S = 240.0
HOUR_S = 3600
GO = "/data/local/tmp/go"
WAIT = f"until [ -e {GO} ]; do sleep 0.2; done; rm {GO}; echo done"
pytestmark = pytest.mark.timeout(LIMIT_S)


class Lab:
    """A head, a host with right clocks, and a host whose clock `restart` sets."""

    def __init__(self, lab, clock):
        self.lab, self.clock = lab, clock
        self.right_head = lab.head()
        self.one, self.two = lab.host("one", "galaxy-s9"), lab.host("two", "galaxy-a55")
        self.here, self.there = phones(self.one)[0], phones(self.two)[0]
        until(lambda: self.there.row["state"] == "ready")

    def shifted(self, seconds):
        return "env", f"LD_PRELOAD={self.clock}", f"SKEW_S={seconds}"

    def submit(self, **spec):
        (row,) = self.one.client.call("job.submit", spec=spec)["jobs"]
        return str(row["id"])

    def state(self, job):
        return self.one.client.call("job.show", job=job)["job"]["state"]

    def restart(self, farm, seconds):
        farm.daemon.stop()
        farm.client.close()
        farm.daemon.wrapper = self.shifted(seconds)
        farm.daemon.start().close()

    def lost_hosts(self):
        return self.lab.rows("SELECT subject FROM event WHERE kind = 'host.lost'")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    need("g++", "mksh", "toybox", "cc")
    postgres.need()
    with whole_lab() as whole:
        yield Lab(whole, shifted_clock(tmp_path_factory.mktemp("clock")))


def test_a_lease_outlives_a_restart_under_another_clock_and_the_clock_is_reported(lab):
    lease = lab.submit(kind="lease", on=lab.there.name, seconds=HOUR_S / 2)
    until(lambda: lab.state(lease) == "running")
    expiry = (
        "SELECT round(expires_at - extract(epoch FROM now())) BETWEEN 1000 AND 1801 FROM lease WHERE ended_at IS NULL"
    )
    until(lambda: lab.lab.rows(expiry) == [(True,)])
    lab.restart(lab.two, HOUR_S)
    until(lambda: [each for each in lab.two.status()["problems"] if "clock is 3600" in each])
    until(lambda: lab.there.row["holder"])
    assert lab.state(lease) == "running"
    assert lab.lab.rows(expiry) == [(True,)]
    lab.one.client.call("job.cancel", job=lease)
    until(lambda: lab.state(lease) == "cancelled")
    job = lab.submit(kind="shell", on=lab.there.name, command="echo done")
    until(lambda: lab.state(job) == "done")
    assert lab.lost_hosts() == []


def test_a_head_whose_clock_is_wrong_misses_no_deadline(lab):
    runs = lab.submit(kind="shell", on=lab.here.name, command=WAIT)
    until(lambda: lab.state(runs) == "running")
    waits = lab.submit(kind="shell", on=lab.here.name, command="echo done", deadline_s=HOUR_S / 2)
    wrong = lab.lab.head(*lab.shifted(HOUR_S))
    lab.right_head.kill()
    wrong.decides()
    later = lab.submit(kind="shell", on=lab.here.name, command="echo done", deadline_s=60.0)
    lab.here.shell(f"touch {GO}")
    for job in (runs, waits, later):
        until(lambda job=job: lab.state(job) == "done")
    begun = "SELECT max(abs(started_at - extract(epoch FROM now()))) < 600 FROM attempt"
    assert lab.lab.rows(begun) == [(True,)]
    assert lab.lost_hosts() == []
    until(lambda: not lab.lab.judged())
