"""One tuning on identical phones of two hosts: the worker of one host uses a phone of the other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import postgres
from tests.support.whole_farm import until
from tests.support.whole_lab import GO, JOB_LIMIT_S, LISTEN, TwoHosts, whole_lab

WORKER = Path(__file__).parents[1] / "pool_worker"
pytestmark = pytest.mark.timeout(600.0)


class TuningOfHosts(TwoHosts):
    """A tune job at the first of two hosts, whose worker does what it is told."""

    def __init__(self, lab, path):
        super().__init__(lab, LISTEN, "", profiles=("oneplus-12", "oneplus-12"))  # the second one dials back
        self.orders = path / "orders"

    def begin(self):
        """A new job; its first phone is the first host's."""
        self.orders.write_text("")
        self.orders.chmod(0o644)
        busy = self.shell(self.there.name)
        self.until(busy, "running")
        model = self.one.client.put_artifact(b"a model")
        on = {"on": "sm8650", "devices": 2, "model": model, "trials": 1, "name": str(self.orders)}
        self.tuning = self.submit(kind="tune", timeout_s=JOB_LIMIT_S, **on)
        until(lambda: self.steps("used"))
        self.there.shell(f"touch {GO}")
        self.until(busy, "done")

    def tell(self, line):
        with self.orders.open("a") as file:
            file.write(line + "\n")

    def steps(self, wanted):
        """Lines of the worker's log with that step."""
        tail = self.one.client.call("job.log_tail", job=self.tuning, limit=1000)
        return [line["text"] for line in tail["lines"] if line["text"].startswith(wanted)]

    def open_leases(self):
        """Phones under open leases of the job, with their hosts."""
        return self.lab.rows(
            f"SELECT device, host FROM lease WHERE job = '{self.tuning}' AND ended_at IS NULL ORDER BY host"
        )

    def has_both(self):
        return self.open_leases() == [(self.here.name, "one"), (self.there.name, "two")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    postgres.need()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(WORKER), prepend=os.pathsep)
        with whole_lab() as whole:
            tuning = TuningOfHosts(whole, tmp_path_factory.mktemp("orders"))
            yield tuning
            tuning.tell("end")  # also of a test that failed
            until(lambda: not whole.judged())


def test_a_worker_measures_on_the_phone_of_another_host_which_goes_and_comes(lab):
    lab.begin()
    until(lab.has_both)
    until(lambda: len(lab.steps("used")) == 2)
    lab.tell(f"abort {lab.there.name}")
    lab.tell(f"give {lab.there.name}")  # it comes again behind others, of whom there are none
    until(lambda: len(lab.steps("used")) == 3)
    lab.two.lab.unplug(lab.there.nickname)
    until(lambda: lab.open_leases() == [(lab.here.name, "one")])
    lab.two.lab.plug(lab.there.nickname)
    until(lambda: len(lab.steps("used")) == 4)
    lab.tell("end")
    lab.until(lab.tuning, "done")
    assert sorted(lab.job(lab.tuning)["result"]["devices"]) == sorted([lab.here.name, lab.there.name])
    until(lambda: lab.open_leases() == [])


def test_the_job_of_a_host_that_is_killed_leaves_the_phones_of_others_free(lab):
    lab.begin()
    until(lambda: len(lab.steps("used")) == 2)
    lab.two.daemon.kill()
    until(lambda: any("host two was lost" in line for line in lab.steps("1 of 2")))
    lab.two.daemon.start().close()
    until(lab.has_both)
    lab.tell("end")
    lab.until(lab.tuning, "done")
