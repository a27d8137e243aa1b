"""Taking a phone out and back by command: quarantine that stays, who is in the way, what is said of it."""

import json

import pytest

from farm.common.errors import ExitCode
from tests.support.whole_farm import phones, refused, until

pytestmark = pytest.mark.farm("galaxy-s9")


@pytest.fixture
def held(farm):
    """The phone's name while a person has it."""
    name = phones(farm)[0].name
    assert farm.farm("lease", "acquire", "--on", name, "--for", "5m").returncode == 0
    yield name
    farm.farm("lease", "kick", name)
    farm.farm("device", "release", name)
    farm.wait_ready(1)
    until(lambda: not farm.client.call("lease.list")["leases"])


def explained(farm, name):
    return json.loads(farm.farm("explain", "device", name, "--json").stdout)["device"]


def test_a_quarantine_outlives_the_cable_and_the_daemon(farm):
    phone = phones(farm)[0]
    done = farm.farm("device", "quarantine", phone.name, "--reason", "screen cracked")
    assert done.stdout == f"{phone.name} is in quarantine: screen cracked\n"
    farm.lab.unplug(phone.nickname)
    until(lambda: phone.row["life"] == "gone")
    assert phone.row["reason"].startswith("quarantined: screen cracked")
    farm.lab.plug(phone.nickname)
    until(lambda: phone.row["life"] == "quarantined")
    farm.daemon.stop()
    farm.daemon.start().close()
    until(lambda: phone.row["life"] == "quarantined")
    kept = explained(farm, phone.name)["quarantine"]
    assert kept["cause"].startswith("screen cracked")
    assert kept["rule"] == "person"
    assert any("quarantine ordered" in line for line in kept["evidence"])
    said = farm.farm("device", "release", phone.name).stdout
    assert "back in service" in said
    assert "its quarantine is over (screen cracked" in said
    farm.wait_ready(1)
    (action,) = [each for each in explained(farm, phone.name)["recovery"]["last_day"] if each["action"] == "quarantine"]
    assert action["outcome"] == "repaired"


def test_a_held_phone_is_taken_only_by_force_and_the_holder_is_named(farm, held):
    refused(farm.farm("device", "reboot", held), ExitCode.USAGE, f"holds {held}", "--force", "farm lease kick")
    refused(farm.farm("device", "quarantine", held, "--reason", "x"), ExitCode.USAGE, f"holds {held}", "--force")
    assert "still has it" in farm.farm("device", "drain", held).stdout
    assert farm.farm("device", "quarantine", held, "--reason", "smells", "--force").returncode == 0
    until(lambda: phones(farm)[0].row["life"] == "quarantined")


def test_a_holder_may_be_rebooted_under_by_force(farm, held):
    boots = farm.lab.phone(phones(farm)[0].nickname).boots
    assert farm.farm("device", "reboot", held, "--force").returncode == 0
    until(lambda: farm.lab.phone(phones(farm)[0].nickname).boots == boots + 1)


def test_what_cannot_be_done_says_why(farm):
    name = phones(farm)[0].name
    refused(farm.farm("lease", "kick", name), ExitCode.USAGE, "is not leased")
    refused(farm.farm("lease", "kick", "lease-1-77"), ExitCode.USAGE, "lease-1-77")
    refused(farm.farm("device", "power-cycle", name), ExitCode.FAILED, "cannot be cut", "[power]")
    refused(farm.farm("device", "quarantine", name + "x", "--reason", "y"), ExitCode.USAGE, f"did you mean {name}?")
    refused(farm.farm("device", "quarantine", name, "--reason", " "), ExitCode.USAGE, "reason is missing")
