"""Whatever happens to a phone: it leaves service at once, says why, and comes back by itself."""

import pytest

from tests.support.whole_farm import ON_PHONE, Story, phones, until

USE = "session = connect().request({key!r}); tell(add_one(session)); close(session)"
HOLD = """
session = connect().request({key!r}); tell(add_one(session)); wait()
tell(outcome(add_one, session))
"""

pytestmark = pytest.mark.farm("oneplus-5t", "huawei-mate-20")


@pytest.fixture(autouse=True)
def the_other_phone_hears_nothing_of_it(farm, phone):
    other = phones(farm)[1].name
    story = Story(farm)
    yield
    story.read()
    assert [kind for kind in story.kinds(other) if kind.startswith("device.")] == []


def usable(phone, clients):
    return clients.result(USE.format(key=phone.name))


def test_a_crashed_server_is_started_again(farm, phone, clients):
    story = Story(farm)
    assert farm.lab.server_crash(phone.nickname) == 1
    died = story.until("device.starting")
    assert "server" in died["data"]["reason"]
    story.until("device.ready")
    assert story.kinds(phone.name, rooms="device") == ["device.starting", "device.checking", "device.ready"]
    assert usable(phone, clients)


def test_a_server_that_hangs_is_found_out_by_its_next_session_and_replaced(farm, phone, clients):
    story, before = Story(farm), phone.server()
    assert farm.lab.server_hang(phone.nickname) == 1
    assert usable(phone, clients)  # the stock client asks again when its first session does not open
    story.until("device.ready")
    story.order("lease.granted", "device.recovering", "device.starting", "device.ready", device=phone.name)
    assert phone.server() != before


def test_a_phone_that_computes_wrong_is_not_handed_out_and_says_why(farm, phone, clients):
    story = Story(farm)
    farm.lab.fault(phone.nickname, "wrong_numbers")
    farm.lab.server_crash(phone.nickname)
    stopped = story.until("device.quarantined")
    assert "device.ready" not in story.kinds(phone.name)
    assert "wrong" in stopped["data"]["reason"] or "expected" in stopped["data"]["reason"]
    assert stopped["data"]["reason"] in farm.farm("explain", "device", phone.name).stdout
    row = phone.row
    assert (row["state"], row["reason"]) == ("quarantined", stopped["data"]["reason"])
    assert phone.name not in [key["key"] for key in farm.status()["keys"] if key["free"]]
    farm.lab.good_kernels(phone.nickname)
    assert farm.farm("device", "release", phone.name).returncode == 0
    story.until("device.ready")
    assert usable(phone, clients)


def test_an_unplug_ends_the_session_and_a_replug_finds_the_same_server(farm, phone, clients):
    story, before, name = Story(farm), phone.server(), phone.name
    with clients.running(HOLD.format(key=name)) as client:
        assert client.hear() is True
        farm.lab.unplug(phone.nickname)
        story.until("device.gone")
        client.go()
        assert client.hear()
    story.order("session.opened", "session.ended", "lease.released", device=name)
    farm.lab.plug(phone.nickname)
    story.until("device.ready")
    story.order("device.gone", "device.identifying", "device.checking", "device.ready", device=name)
    assert phone.server() == before
    assert "device.pushing" not in [event["kind"] for event in story.events]
    assert usable(phone, clients)


def test_a_reboot_ends_the_session_and_starts_a_new_server(farm, phone, clients):
    story = Story(farm)
    with clients.running(HOLD.format(key=phone.name)) as client:
        assert client.hear() is True
        farm.lab.reboot(phone.nickname)
        client.go()
        assert client.hear()
        story.until("device.ready")
    story.order("session.opened", "session.ended", "lease.released", device=phone.name)
    story.order("device.identifying", "device.starting", "device.checking", "device.ready", device=phone.name)
    assert usable(phone, clients)


def test_an_operator_reboots_a_phone_that_nobody_holds(farm, phone, clients):
    story, boots = Story(farm), farm.lab.phone(phone.nickname).boots
    assert farm.farm("device", "reboot", phone.name).returncode == 0
    story.until("device.ready")
    assert farm.lab.phone(phone.nickname).boots == boots + 1
    with clients.running(HOLD.format(key=phone.name)) as client:
        assert client.hear() is True
        held = farm.farm("device", "reboot", phone.name)
        assert held.returncode == 2
        assert "farm lease kick" in held.stderr


def test_an_offline_phone_is_named_so_and_comes_back(farm, phone, clients):
    story, name = Story(farm), phone.name
    farm.lab.offline(phone.nickname)
    told = story.until("device.offline", subject=name)
    assert told["data"]["reason"]
    farm.lab.plug(phone.nickname)
    story.until("device.ready", subject=name)
    assert usable(phone, clients)


def test_an_unauthorized_phone_says_what_to_do_and_works_once_accepted(farm, phone, clients):
    story, name = Story(farm), phone.name
    farm.lab.fault(phone.nickname, "unauthorized")
    story.until("device.unauthorized", subject=name)
    explained = farm.farm("explain", "device", name).stdout
    assert "Allow USB debugging?" in explained
    assert "adbkey.pub" in explained
    farm.lab.wait(phone.nickname, "key_shown")
    farm.lab.accept(phone.nickname)
    story.until("device.ready", subject=name)
    assert usable(phone, clients)


def test_a_push_that_is_cut_leaves_nothing_half_installed_and_goes_on(farm, phone):
    story, name = Story(farm), phone.name
    bundle = phone.row["bundle"]
    phone.shell(f"rm -rf {ON_PHONE}/farm/bundles/{bundle}")
    farm.lab.cut_push(phone.nickname, 500_000)
    farm.lab.server_crash(phone.nickname)
    story.until("device.gone", subject=name)
    farm.lab.full_disk(phone.nickname, 0)  # nothing can be pushed: what is there is what the cut left
    farm.lab.plug(phone.nickname)
    story.until("device.recovering", subject=name)
    assert not [path for path in phone.ours() if path.endswith((f"/{bundle}", "tvm_rpc")) and ".incoming" not in path]
    farm.lab.free_disk(phone.nickname)
    story.until("device.ready", subject=name)
    assert [path for path in phone.ours() if ".incoming" in path] == []


def test_a_full_phone_says_what_is_needed_and_what_is_free(farm, phone):
    story, name = Story(farm), phone.name
    bundle = phone.row["bundle"]
    farm.lab.full_disk(phone.nickname, 1_000_000)
    phone.shell(f"rm -rf {ON_PHONE}/farm/bundles/{bundle}")
    farm.lab.server_crash(phone.nickname)
    told = story.until("device.recovering", subject=name)
    while "MiB are needed" not in told["data"]["reason"]:
        told = story.until("device.recovering", subject=name)
    assert "MiB free" in told["data"]["reason"]
    assert told["data"]["reason"] in farm.farm("device", "list").stdout
    farm.lab.free_disk(phone.nickname)
    story.until("device.ready", subject=name)


def test_heat_and_battery_show_in_status(farm, phone):
    farm.lab.battery(phone.nickname, 9)
    farm.lab.heat(phone.nickname, 44, cpu_c=71.5)
    until(lambda: phone.row["temperature_c"] > 70)  # read every 10 s; a temperature is no event
    assert phone.row["battery_percent"] == 9
    shown = farm.farm("status").stdout
    assert f"{phone.row['temperature_c']:.1f}C" in shown
    assert "9%" in shown
    farm.lab.cool(phone.nickname)


def test_a_phone_whose_services_do_not_answer_is_probed_all_the_same_and_stays_in_service(farm, phone):
    farm.lab.fault(phone.nickname, "dumpsys_hangs")
    try:
        farm.lab.battery(phone.nickname, 11)
        until(lambda: phone.row["battery_percent"] == 11)  # its gauge in /sys, read after both services were given up
        assert phone.row["life"] == "ready"
        assert phone.row["temperature_c"] is not None  # of a thermal zone
    finally:
        farm.lab.fault(phone.nickname, "dumpsys_hangs", on=False)
