"""Kernels that do not end: the phone is free of them before anybody else gets it, whatever that takes."""

import os
from pathlib import Path

import pytest

from tests.support.whole_farm import Story, phones, running_farm, until, until_ready

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only a lab of root has processes that its phones cannot kill"
)
LIMIT = "12s"  # of the job whose kernel never ends; the good job before has warmed compiler and worker


@pytest.fixture
def farm():  # one for each: a phone that was rebooted a moment ago is quarantined for the next stuck process
    with running_farm("galaxy-s9") as farm:
        yield farm


@pytest.fixture
def phone(farm):
    until_ready(farm)
    [phone] = phones(farm)
    return phone


@pytest.fixture
def model(farm, model):
    """One that has run there already."""
    done = farm.farm("run", str(model), "--on", "android")
    assert done.returncode == 0, done
    return str(model)


def run_until_its_limit(farm, phone, model):
    done = farm.farm("run", model, "--on", phone.name, "--timeout", LIMIT, "--max-attempts", "1")
    assert done.returncode == 1, done
    assert "no result after 12 s; it was at: running" in done.stderr


@needs_root
def test_a_kernel_that_outlives_sigkill_costs_a_reboot(farm, phone, model):
    story, name = Story(farm), phone.name
    farm.lab.fault(phone.nickname, "unkillable", seconds=60.0)
    run_until_its_limit(farm, phone, model)
    action = story.until("recovery.action", subject=name, action="reboot")
    assert "do not die" in action["data"]["cause"]
    farm.lab.good_kernels(phone.nickname)
    story.until("device.ready", subject=name)
    story.until("recovery.ended", subject=name, action="reboot", outcome="repaired")


@needs_root
def test_a_server_that_dies_and_leaves_a_stuck_process_costs_a_reboot_and_the_job_is_tried_again(farm, phone, model):
    story, name = Story(farm), phone.name
    farm.lab.fault(phone.nickname, "unkillable", seconds=60.0)
    digest = farm.client.put_artifact(Path(model).read_bytes())
    farm.client.call("job.submit", spec={"kind": "run", "model": digest, "name": "small", "on": name})
    story.until("session.opened", device=name)
    until(lambda: "stuck_driver" in phone.shell("ps -A -o ARGS"))
    farm.lab.good_kernels(phone.nickname)
    farm.lab.server_crash(phone.nickname)
    story.until("job.done")
    actions = [event["data"]["action"] for event in story.events if event["kind"] == "recovery.action"]
    assert actions == ["reap", "reboot"]
    attempts = [event["data"] for event in story.events if event["kind"] == "attempt.ended"]
    assert [each["state"] for each in attempts] == ["failed", "done"]
    assert attempts[0]["error"]["fault"] == "phone"
    story.order("session.ended", "device.recovering", "device.checking", "device.ready", device=name)
    assert "stuck_driver" not in phone.shell("ps -A -o ARGS")
