"""Sessions whose phone goes away or is taken from them; `benchmarks/fault_table.py` has the other faults."""

import pytest

from tests.support.whole_farm import Story, until

HOLD = """
session = connect().request({key!r}); tell(add_one(session)); wait()
tell(outcome(add_one, session))
"""
USE = "session = connect().request({key!r}); tell(add_one(session)); close(session)"
SPIN = "session = connect().request({key!r}); tell('open'); wait(); tell(outcome(add_one, session))"

pytestmark = pytest.mark.farm("oneplus-5t")


@pytest.mark.parametrize("fault", ["unplug", "reboot"])
def test_a_phone_that_goes_ends_its_session_and_serves_the_next_one(farm, phone, clients, fault):
    story, before, name = Story(farm), phone.server(), phone.name
    with clients.running(HOLD.format(key=name)) as client:
        assert client.hear() is True
        farm.lab.fault(phone.nickname, fault)
        story.until("device.gone")
        client.go()
        assert client.hear()
    story.order("session.opened", "session.ended", "lease.released", device=name)
    if fault == "unplug":
        farm.lab.plug(phone.nickname)
    story.until("device.ready")
    story.order("device.gone", "device.identifying", "device.checking", "device.ready", device=name)
    assert (phone.server() == before) is (fault == "unplug")
    assert "device.pushing" not in [event["kind"] for event in story.events]
    assert clients.result(USE.format(key=name)) is True


def test_the_next_client_waits_until_the_phone_is_clean(farm, phone, clients):
    story, name = Story(farm), phone.name
    with clients.running(SPIN.format(key=name)) as hung:
        assert hung.hear() == "open"
        with clients.running(USE.format(key=name)) as patient:
            until(lambda: farm.client.call("lease.list")["waiting"])
            farm.lab.ignore_sigterm(phone.nickname)
            hung.go()
            until(phone.spins)
            farm.lab.good_kernels(phone.nickname)
            assert farm.farm("lease", "kick", name).returncode == 0
            assert hung.hear()
            assert patient.hear() is True
    story.until("device.ready")
    story.until("lease.granted")
    story.order("lease.revoked", "session.cut", "session.ended", device=name)
    story.order("session.cut", "device.recovering", "device.checking", "device.ready", "lease.granted", device=name)


def test_a_phone_whose_services_do_not_answer_is_probed_all_the_same_and_stays_in_service(farm, phone):
    farm.lab.fault(phone.nickname, "dumpsys_hangs")
    try:
        farm.lab.battery(phone.nickname, 11)
        until(lambda: phone.row["battery_percent"] == 11)  # its gauge in /sys, read after both services were given up
        assert phone.row["life"] == "ready"
        assert phone.row["temperature_c"] is not None  # of a thermal zone
    finally:
        farm.lab.fault(phone.nickname, "dumpsys_hangs", on=False)
