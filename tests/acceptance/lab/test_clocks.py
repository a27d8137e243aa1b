"""Clocks that are an hour off, of a host and of a head: no deadline, no lease and no host suffers by them."""

from __future__ import annotations

import pytest

from benchmarks.lab_chaos import shifted_clock
from tests.support import postgres
from tests.support.needs import need
from tests.support.whole_farm import until
from tests.support.whole_lab import GO, TwoHosts, whole_lab

HOUR_S = 3600
pytestmark = pytest.mark.timeout(240.0)


class Clocks(TwoHosts):
    """A head, a host with right clocks, and a host whose clock `restart` sets."""

    def __init__(self, lab, clock):
        super().__init__(lab)
        self.clock = clock

    def shifted(self, seconds):
        return "env", f"LD_PRELOAD={self.clock}", f"SKEW_S={seconds}"

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
        yield Clocks(whole, shifted_clock(tmp_path_factory.mktemp("clock")))


def test_a_lease_outlives_a_restart_under_another_clock_and_the_clock_is_reported(lab):
    lease = lab.submit(kind="lease", on=lab.there.name, seconds=HOUR_S / 2)
    lab.until(lease, "running")
    expiry = (
        "SELECT round(expires_at - extract(epoch FROM now())) BETWEEN 1000 AND 1801 FROM lease WHERE ended_at IS NULL"
    )
    until(lambda: lab.lab.rows(expiry) == [(True,)])
    lab.restart(lab.two, HOUR_S)
    until(lambda: [each for each in lab.two.status()["problems"] if "clock is 3600" in each])
    until(lambda: lab.there.row["holder"])
    lab.until(lease, "running")
    assert lab.lab.rows(expiry) == [(True,)]
    lab.one.client.call("job.cancel", job=lease)
    lab.until(lease, "cancelled")
    lab.until(lab.shell(lab.there.name, "echo done"), "done")
    assert lab.lost_hosts() == []


def test_a_head_whose_clock_is_wrong_misses_no_deadline(lab):
    runs = lab.shell(lab.here.name)
    lab.until(runs, "running")
    waits = lab.shell(lab.here.name, "echo done", deadline_s=HOUR_S / 2)
    wrong = lab.lab.head(*lab.shifted(HOUR_S))
    lab.lab.heads[0].kill()
    wrong.decides()
    later = lab.shell(lab.here.name, "echo done", deadline_s=60.0)
    lab.here.shell(f"touch {GO}")
    for job in (runs, waits, later):
        lab.until(job, "done")
    begun = "SELECT max(abs(started_at - extract(epoch FROM now()))) < 600 FROM attempt"
    assert lab.lab.rows(begun) == [(True,)]
    assert lab.lost_hosts() == []
    until(lambda: not lab.lab.judged())
