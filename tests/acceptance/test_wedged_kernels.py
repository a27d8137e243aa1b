"""Kernels that do not end: the phone is free of them before anybody else gets it, whatever that takes."""

import os

import pytest

from farm.zoo.small_cnn import build
from tests.support.whole_farm import Story, phones, running_farm, until_ready

LIMIT = "3s"  # of the job whose kernel never ends


@pytest.fixture(scope="module")
def farm():
    with running_farm("galaxy-s9") as farm:
        yield farm


@pytest.fixture
def phone(farm):
    until_ready(farm)
    [phone] = phones(farm)
    yield phone
    farm.lab.good_kernels(phone.nickname)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small_cnn.onnx"
    path.write_bytes(build().SerializeToString(deterministic=True))
    return str(path)


def run_until_its_limit(farm, phone, model):
    done = farm.farm("run", model, "--on", phone.name, "--timeout", LIMIT, "--max-attempts", "1", timeout_s=90.0)
    assert done.returncode == 1, done
    assert "3 s" in done.stderr


def test_a_kernel_that_ignores_sigterm_is_killed_and_the_phone_is_checked(farm, phone, model):
    story, name = Story(farm), phone.name
    farm.lab.ignore_sigterm(phone.nickname)
    run_until_its_limit(farm, phone, model)
    story.until("device.recovering", subject=name)
    farm.lab.good_kernels(phone.nickname)
    story.until("device.checking", subject=name)
    story.until("device.ready", subject=name)
    story.order("session.opened", "device.recovering", "device.checking", "device.ready", device=name)
    again = farm.farm("run", model, "--on", name)
    assert again.returncode == 0, again


@pytest.mark.skipif(os.geteuid() != 0, reason="only a lab of root has processes that its phones cannot kill")
def test_a_kernel_that_outlives_sigkill_costs_a_reboot(farm, phone, model):
    story, name = Story(farm), phone.name
    farm.lab.fault(phone.nickname, "unkillable", seconds=60.0)
    run_until_its_limit(farm, phone, model)
    rung = story.until("recovery.rung", subject=name, rung="reboot")
    assert "do not die" in rung["data"]["cause"]
    farm.lab.good_kernels(phone.nickname)
    story.until("device.ready", subject=name)
    story.until("recovery.ended", subject=name, rung="reboot", outcome="mended")
