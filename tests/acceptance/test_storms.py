"""Faults in the middle of something else, and many of them: in the end the phone is ready and nothing has leaked."""

import psutil
import pytest

from tests.support.stock_client import Clients
from tests.support.whole_farm import ON_PHONE, Story, until, until_ready

USE = "session = connect().request('android'); tell(add_one(session)); close(session)"
MANY = 12

pytestmark = pytest.mark.farm("huawei-mate-20")


def descriptors(farm):
    return psutil.Process(farm.daemon.process.pid).num_fds()


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


def test_many_replugs_leak_no_descriptor(farm, phone):
    story = Story(farm)
    for turn in range(MANY):
        farm.lab.unplug(phone.nickname)
        story.until("device.gone")
        farm.lab.plug(phone.nickname)
        story.until("device.ready")
        if turn == 1:
            before = descriptors(farm)
    until(lambda: descriptors(farm) <= before)


def test_many_clients_that_die_leak_nothing_anywhere(farm, phone, kernel):
    clients, story, server = Clients(farm, kernel), Story(farm), phone.server()
    for turn in range(MANY):
        with clients.running("session = connect().request('android'); tell(add_one(session)); wait()") as client:
            assert client.hear() is True
            client.kill()
        story.until("lease.released")
        if turn == 1:
            before = descriptors(farm)
    until_ready(farm)
    until(lambda: descriptors(farm) <= before)
    assert phone.server() == server


def test_crashes_in_a_row_are_answered_more_and_more_slowly_and_end_well(farm, phone, kernel):
    story = Story(farm)
    for _ in range(4):
        farm.lab.server_crash(phone.nickname)
        story.until("device.ready")
    story.order("device.starting", "device.recovering", "device.ready", device=phone.name)
    assert Clients(farm, kernel).result(USE) is True
