"""A bench on a farm with real leasing: what ends it from outside is named, at once, and leaves a clean phone."""

import os
import sys
from subprocess import PIPE, Popen

import pytest

from tests.support.whole_farm import Story

FOREVER = ("--repeat", "20000", "--number", "1000000")  # times longer than any test runs

pytestmark = pytest.mark.farm("galaxy-s9")


class Bench:
    """A running `farm bench`."""

    def __init__(self, child):
        self.child = child
        self.said = ""

    def until(self, words):
        while words not in self.said:
            line = self.child.stderr.readline()
            assert line, f"it ended before it said {words!r}: {self.said}"
            self.said += line

    def result(self):
        """Its exit code and everything it said."""
        out, errors = self.child.communicate(timeout=60)
        return self.child.returncode, self.said + errors + out


@pytest.fixture
def tries():
    """How often the bench may try: an attempt that failed is not the end of its job."""
    return 1


@pytest.fixture
def timing(farm, phone, model, tries):
    """A bench in the middle of its timing loop, and the story from before it."""
    story = Story(farm)
    command = [sys.executable, "-m", "farm", "bench", str(model), "--on", phone.name, *FOREVER]
    command += ["--max-attempts", str(tries)]
    environment = {**os.environ, "FARM_SOCKET": str(farm.socket)}
    with Popen(command, env=environment, stdout=PIPE, stderr=PIPE, text=True) as child:
        try:
            bench = Bench(child)
            bench.until(": timing")
            yield story, bench
        finally:
            child.kill()


def test_an_unplugged_phone_is_named_as_the_cause(farm, phone, timing):
    story, bench = timing
    name = phone.name
    farm.lab.unplug(phone.nickname)
    code, said = bench.result()
    assert code == 1, said
    assert f"{name} is gone" in said
    assert "Traceback" not in said
    story.until("lease.released", device=name)
    leased = farm.client.call("lease.list")
    assert (leased["leases"], leased["waiting"]) == ([], [])  # nobody waits for it to come back
    farm.lab.plug(phone.nickname)
    story.until("device.ready", subject=name)
    story.order("device.checking", "device.ready", device=name)


@pytest.mark.parametrize("tries", [2])
def test_a_job_waits_for_its_unplugged_phone_and_goes_on(farm, phone, timing):
    story, bench = timing
    name = phone.name
    farm.lab.unplug(phone.nickname)
    bench.until(f"{name} waits")
    assert f"{name} is gone" in bench.said
    bench.said = ""
    farm.lab.plug(phone.nickname)
    bench.until(": timing")
    story.until("attempt.ended", device=name)
    job = story.until("attempt.started", device=name)["data"]["job"]
    farm.client.call("job.cancel", job=job)
    code, said = bench.result()
    assert code == 1, said
    attempts = farm.client.call("job.show", job=job)["attempts"]
    assert [attempt["state"] for attempt in attempts] == ["failed", "cancelled"]


def test_a_phone_that_computes_wrong_is_checked_before_anybody_gets_it(farm, phone, model):
    story, name = Story(farm), phone.name
    farm.lab.fault(phone.nickname, "wrong_numbers")
    done = farm.farm("bench", str(model), "--on", name, "--repeat", "3", "--max-attempts", "1")
    assert done.returncode == 1, done
    story.until("device.quarantined", subject=name)
    for first in ("session.ended", "device.recovering"):  # in either order: the worker tells before it closes
        story.order(first, "device.checking", "device.quarantined", device=name)
    farm.lab.good_kernels(phone.nickname)
    assert farm.farm("device", "release", name).returncode == 0
