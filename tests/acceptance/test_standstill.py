"""A daemon that stands still, as in a host that swaps or a virtual machine that is moved: work continues afterwards."""

import os
import signal
import time

import pytest

from farm.jobs.attempt import SILENCE_LIMIT_S
from tests.support.long_bench import workers
from tests.support.whole_farm import Story, answer, phones, running_farm, until, until_ready

STANDSTILL_S = SILENCE_LIMIT_S + 1.0  # longer than the daemon waits for a word of a worker that it listens to
LIMIT_S = 100.0


@pytest.fixture(scope="module")
def farm():
    with running_farm("galaxy-a55") as farm:
        until_ready(farm)
        yield farm


def stop_for(process, seconds):
    os.kill(process, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(process, signal.SIGCONT)


@pytest.mark.parametrize("seconds_of_work", [3, 25], ids=["ends-meanwhile", "goes-on"])
def test_a_daemon_that_stood_still_costs_a_job_no_attempt(farm, seconds_of_work):
    (phone,) = phones(farm)
    story = Story(farm)
    command = f"sleep {seconds_of_work}; echo over"
    (job,) = farm.client.call(
        "job.submit", spec={"kind": "shell", "command": command, "on": phone.name, "timeout_s": LIMIT_S}
    )["jobs"]
    until(lambda: workers(farm))
    stop_for(farm.daemon.process.pid, STANDSTILL_S)
    for _ in farm.client.stream("job.watch", LIMIT_S, jobs=[job["id"]]):
        pass
    shown = answer(farm.farm("job", "show", job["id"], "--json"))
    assert shown["job"]["state"] == "done", shown["job"]
    assert len(shown["attempts"]) == 1, shown["attempts"]
    story.read()
    assert "device.gone" not in story.kinds()
    assert "recovery.action" not in story.kinds()
