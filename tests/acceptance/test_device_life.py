"""A phone's way through the farm, by the commands a person types: listed, adopted, named, used, drained, given back."""

import getpass
import re
import tempfile
from pathlib import Path

import pytest

from farm.devices.identity.identity import READ_COMMAND
from farm.simulation.control import running_lab
from farm.simulation.runtime import is_launcher
from tests.support.whole_farm import Story, answer, phones, refused, running_farm, until

USE_TWICE = "session = connect().request({!r}); tell(add_one(session)); wait(); tell(add_one(session))"
USE = "session = connect().request({!r}); tell(add_one(session)); close(session)"


@pytest.fixture(scope="module")
def whole():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FARM_ADOPT", "[]")  # without the rule of virtual farms
        with running_farm("oneplus-12", "galaxy-s9", ready=False) as farm:
            yield farm


@pytest.fixture
def phone(farm):
    """The first phone, adopted."""
    phone = phones(farm)[0]
    if not phone.row["adopted"]:
        story = Story(farm)
        assert farm.farm("device", "adopt", phone.name).returncode == 0
        story.until("device.ready", serial=phone.serial)
    return phone


def test_a_phone_is_only_listed_until_somebody_adopts_it(farm):
    until(lambda: [row["state"] for row in farm.status()["devices"]] == ["new", "new"])
    for phone in phones(farm):
        # `true` is asked of whoever is there while no phone was heard: whether the adb server itself works.
        asked = set(farm.lab.services(phone.nickname)) - {"shell,v2,raw:true"}
        assert asked == {f"shell,v2,raw:{READ_COMMAND}"}
        assert phone.ours() == []
        assert "adopt" in farm.farm("explain", "device", phone.name).stdout
    assert farm.status()["keys"] == []
    shown = farm.farm("status")
    assert "new" in shown.stdout
    assert "no keys" in shown.stdout


def test_reading_who_a_phone_is_writes_nothing():
    for word in (">", "rm ", "mkdir", "setprop", "settings put", "am ", "pm ", "kill", "su "):
        assert word not in READ_COMMAND.replace("2>/dev/null", "")


def test_adoption_names_it_puts_it_into_a_pool_and_hands_it_out(farm, clients):
    phone, story = phones(farm)[1], Story(farm)
    adopted = answer(farm.farm("device", "adopt", phone.name, "--pool", "Lab 2", "--as", "bench-7", "--json"))
    assert adopted == {"name": "bench-7", "pool": "lab-2"}
    story.until("device.ready", serial=phone.serial)
    story.order("device.provisioning", "device.starting", "device.checking", "device.ready", device="bench-7")
    assert clients.result(USE.format("bench-7")) is True
    assert clients.result(USE.format("pool=lab-2")) is True
    assert phones(farm)[0].row["state"] == "new"


def test_a_new_name_is_a_new_key_and_the_old_one_is_none(farm, phone, clients):
    before = phone.name
    assert farm.farm("device", "set", phone.name, "--name", "renamed").returncode == 0
    assert phone.name == "renamed"
    assert clients.result(USE.format("renamed")) is True
    keys = {row["key"] for row in farm.status()["keys"]}
    assert "renamed" in keys
    assert before not in keys
    refused(farm.farm("device", "show", "renamd"), 2, "renamd", "did you mean renamed?")
    assert "no phone matches renamd: nearest is renamed" in farm.farm("explain", "key", "renamd").stdout


def test_labels_select_phones(farm, phone, clients):
    changed = farm.farm("device", "set", phone.name, "--label", "rack=R 3")
    assert (changed.returncode, changed.stdout) == (0, f"name {phone.name}, pool (none), label rack=r-3\n")
    assert answer(farm.farm("device", "show", phone.name, "--json"))["labels"]["rack"] == "r-3"
    assert clients.result(USE.format("rack=r-3")) is True
    assert "label rack removed" in farm.farm("device", "set", phone.name, "--label", "rack=").stdout
    assert "rack" not in answer(farm.farm("device", "show", phone.name, "--json"))["labels"]


def test_an_alias_of_ones_own_is_a_key_for_stock_clients_until_it_is_removed(farm, phone, clients):
    assert answer(farm.farm("alias", "set", "fast", "soc=sm8650", "--json"))["devices"] == [phone.name]
    assert clients.result(USE.format("fast")) is True
    rows = {row["alias"]: row for row in answer(farm.farm("alias", "list", "--json"))["aliases"]}
    assert rows["fast"] == {"alias": "fast", "devices": [phone.name], "selector": "soc=sm8650"}
    assert farm.farm("alias", "remove", "fast").returncode == 0
    assert "fast" not in {row["key"] for row in farm.status()["keys"]}
    refused(farm.farm("alias", "set", "::", "soc=sm8650"), 2)
    refused(farm.farm("alias", "set", "fast", "soc=="), 2)


def test_a_drained_phone_finishes_its_lease_and_is_handed_out_no_more(farm, phone, clients):
    with clients.running(USE_TWICE.format(phone.name)) as client:
        assert client.hear() is True
        assert farm.farm("device", "drain", phone.name).returncode == 0
        assert phone.row["state"] == "busy, draining"
        refused(farm.farm("device", "forget", phone.name), 2, " holds ", f"farm lease kick {phone.name}")
        assert phone.row["adopted"]
        client.go()
        assert client.hear() is True
    until(lambda: phone.row["state"] == "draining")
    with clients.running(USE.format(phone.name)) as waiter:
        until(lambda: farm.client.call("lease.list")["waiting"])
        assert "drain" in farm.farm("explain", "key", phone.name).stdout
        assert farm.farm("device", "release", phone.name).returncode == 0
        assert waiter.hear() is True


def test_a_phone_in_maintenance_is_out_of_service_until_released(farm, phone):
    assert farm.farm("device", "maintain", phone.name).returncode == 0
    said = f"farm device release {phone.name}"
    order = next(line for line in farm.farm("explain", "device", phone.name).stdout.splitlines() if said in line)
    assert re.search(rf"\(maintenance, {getpass.getuser()} at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)", order), order
    farm.daemon.stop()
    farm.daemon.start().close()
    assert order in farm.farm("explain", "device", phone.name).stdout  # the next daemon knows it too
    until(lambda: phone.row["life"] == "ready")
    assert phone.row["state"] == "maintenance"
    assert phone.name not in {row["key"] for row in farm.status()["keys"]}
    assert farm.farm("device", "release", phone.name).returncode == 0
    assert phone.row["state"] == "ready"


def test_a_phone_that_is_forgotten_and_cleaned_has_nothing_of_ours_left(farm, phone):
    assert phone.ours() != []
    name, story = phone.name, Story(farm)
    assert farm.farm("device", "forget", name, "--clean").returncode == 0
    assert phone.ours() == []
    assert phone.programs() == []
    assert phone.row["adopted"] is False
    assert farm.farm("device", "adopt", phone.name, "--as", name).returncode == 0
    story.until("device.ready", serial=phone.serial)


def test_a_phone_that_is_only_forgotten_keeps_its_files_and_runs_no_server(farm, phone):
    story, serial = Story(farm), phone.serial
    assert farm.farm("device", "forget", phone.name).returncode == 0
    assert phone.programs() == []
    assert phone.row["state"] == "new"
    assert farm.farm("device", "adopt", phone.name).returncode == 0
    story.until("device.ready", serial=serial)
    assert "device.pushing" not in [event["kind"] for event in story.events]


def test_a_held_phone_can_be_forgotten_by_force(farm, phone, clients):
    story, name, serial = Story(farm), phone.name, phone.serial
    with clients.running(USE_TWICE.format(name)) as client:
        assert client.hear() is True
        assert farm.farm("device", "forget", name, "--force").returncode == 0
        story.until("lease.released", device=name)
    refused(farm.farm("device", "drain", serial), 2, "not adopted", "farm device adopt")
    assert farm.farm("device", "adopt", serial, "--as", name).returncode == 0
    story.until("device.ready", serial=serial)


def test_a_network_phone_is_connected_again_however_long_it_was_away(farm, clients):
    folder = Path(tempfile.mkdtemp(prefix="wifi-", dir=farm.folder))  # short: it holds a socket
    launcher = is_launcher(farm.folder / "bundle" / "tvm_rpc")
    with running_lab(folder, {"wireless": "realme-gt-neo3"}, expose_python=launcher) as lab:
        story, address = Story(farm), lab.phone("wireless").address
        assert farm.farm("device", "add", address).returncode == 0
        story.until("device.new", serial=address)
        assert farm.farm("device", "adopt", address, "--as", "wireless").returncode == 0
        story.until("device.ready", serial=address)
        assert clients.result(USE.format("wireless")) is True
        lab.unplug("wireless")
        assert farm.adb("disconnect", address).returncode == 0  # what adb does by itself after 60 s
        story.until("device.gone", subject="wireless")
        story.until("network.lost", subject=address)
        lab.plug("wireless")
        story.until("network.back", subject=address)
        story.until("device.ready", subject="wireless")
        assert clients.result(USE.format("wireless")) is True
        assert farm.farm("device", "forget", "wireless", "--clean").returncode == 0
        story.until("device.gone", subject="wireless")
        assert address not in farm.adb("devices").stdout
    refused(farm.farm("device", "add", "no port:here"), 2, "no port:here")


def test_uninstall_leaves_nothing_on_any_phone(farm, phone):
    held = answer(farm.farm("lease", "acquire", "--on", "android", "--json"))
    refused(farm.farm("uninstall"), 2, "--yes", f"root on {held['device']}")
    done = farm.farm("uninstall", "--yes")
    assert f"ended {held['lease']}: root on {held['device']}" in done.stdout
    assert done.returncode == 0, done
    assert [line for line in done.stdout.splitlines() if line.startswith("cleaned ")] != []
    for each in phones(farm):
        assert each.ours() == []
        assert each.programs() == []
    assert {row["state"] for row in farm.status()["devices"]} == {"new"}
