"""Faults in the middle of something else: in the end the phone is ready. test_soak.py has many of them, and leaks."""

import pytest

from tests.support.stock_client import Clients
from tests.support.whole_farm import ON_PHONE, Story, until_ready

USE = "session = connect().request('android'); tell(add_one(session)); close(session)"
pytestmark = pytest.mark.farm("huawei-mate-20")


def unplug(farm, phone):
    farm.lab.unplug(phone.nickname)
    farm.lab.plug(phone.nickname)


def reboot(farm, phone):
    farm.lab.reboot(phone.nickname)


def crash(farm, phone):
    farm.lab.server_crash(phone.nickname)


def kill_adb(farm, phone):
    assert farm.adb("kill-server").returncode == 0


def erase(farm, phone):
    """Everything of ours on the phone goes; the server dies of it or continues."""
    farm.adb("-s", phone.serial, "shell", f"rm -rf {ON_PHONE}/farm")


@pytest.mark.parametrize("fault", [unplug, reboot, crash, kill_adb, erase], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("step", ["identifying", "provisioning", "pushing", "starting", "checking"])
def test_a_fault_at_any_step_ends_in_a_phone_that_works(farm, phone, kernel, step, fault):
    story, name = Story(farm), phone.name
    phone.shell(f"rm -rf {ON_PHONE}/farm/bundles")  # so that there is a push
    farm.lab.reboot(phone.nickname)
    story.until("device.gone", subject=name)
    story.until(f"device.{step}", subject=name)
    fault(farm, phone)
    story.read()
    until_ready(farm)
    assert Clients(farm, kernel).result(USE) is True
    phone.server()
