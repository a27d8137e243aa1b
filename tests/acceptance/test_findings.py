"""What probes find wrong on a whole farm: told, shown, repaired or kept away from users; and traces of probes."""

import json

import pytest

from farm.common.errors import ExitCode
from tests.support.whole_farm import Story, refused, running_farm, until

PHONE = "virtual-1"  # its name in the lab
CONFIG = """
[probe]
every_s = 0.2
[battery]
window = "phone"
"""

pytestmark = pytest.mark.farm("oneplus-12+root", config=CONFIG)


@pytest.fixture
def name(farm):
    farm.wait_ready(1)
    (device,) = farm.status()["devices"]
    return device["name"]


def row(farm):
    (device,) = farm.status()["devices"]
    return device


def kinds(farm):
    return {each["kind"] for each in row(farm)["findings"]}


def test_a_full_phone_is_kept_away_until_it_has_space(farm, name):
    story = Story(farm)
    done = farm.farm("demo", "fault", name, "full_disk", "free_bytes=50000000")
    assert done.stdout == f"{name}: full_disk free_bytes=50000000\n", done
    told = story.until("device.finding", subject=name, finding="data-full")
    assert "/data has 50 MB left" in told["data"]["cause"]
    story.until("device.quarantined", subject=name)
    assert "data-full" in kinds(farm)
    assert "finding" in farm.farm("device", "show", name).stdout
    refused(farm.farm("device", "release", name), ExitCode.USAGE, "stays in quarantine: /data has 50 MB left", "ignore")
    farm.lab.fault(PHONE, "free_disk")
    story.until("device.finding_over", subject=name, finding="data-full")
    story.until("device.ready", subject=name)


def test_charging_stops_at_the_top_of_the_window_and_goes_on_at_its_bottom(farm, name):
    story = Story(farm)
    farm.lab.fault(PHONE, "battery", level=30, charging=True)
    until(lambda: row(farm)["battery_percent"] == 30)
    until(lambda: farm.client.call("device.battery", device=name)["held"] == "")  # it was, at the level it began with
    story.read()
    farm.lab.fault(PHONE, "battery", level=81, charging=True)
    held = story.until("battery.held", subject=name)
    assert held["data"] == {"percent": 81, "node": "/sys/class/power_supply/battery/charging_enabled"}
    answer = farm.client.call("device.battery", device=name)
    assert answer["battery"]["status"] in {"not-charging", "charging"}
    assert answer["days"][-1]["percent_max"] >= 81
    assert "held back by" in farm.farm("device", "battery", name).stdout
    farm.lab.fault(PHONE, "battery", level=40, charging=True)
    story.until("battery.charges", subject=name)
    assert farm.client.call("device.battery", device=name)["held"] == ""


def test_a_trace_is_recorded_shown_and_played(farm, name, tmp_path):
    file = tmp_path / "trace.jsonl"
    done = farm.farm("trace", "record", name, "--out", str(file), "--for", "1s", "--every", "0.5s", "--json")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert json.loads(done.stdout) == {"out": str(file), "probes": len(lines), "failed": 0}
    assert len(lines) in (2, 3)  # a slow host has time for fewer
    assert len({line["health"]["boot_id"] for line in lines}) == 1
    assert "GHz" in farm.farm("trace", "show", str(file)).stdout
    recorded = lines[0]["health"]["battery"]["percent"]
    farm.lab.fault(PHONE, "battery", level=17)
    until(lambda: row(farm)["battery_percent"] == 17)
    farm.lab.fault(PHONE, "replay", path=str(file))
    until(lambda: row(farm)["battery_percent"] == recorded)
    farm.lab.fault(PHONE, "replay_end")


def test_a_phone_that_idles_is_checked_now_and_then_and_wrong_numbers_are_kept_away():
    with running_farm("oneplus-12", config="[health]\ncheck_every_h = 0.0003") as farm:
        story = Story(farm)
        story.until("device.checking")
        story.until("device.ready")
        shown = farm.client.call("device.show", device=row(farm)["name"])
        assert "golden kernels right on cpu" in shown["checked"]
        assert shown["checked"].endswith("; its bundle has none for OpenCL")
        farm.lab.fault(PHONE, "wrong_numbers")
        quarantined = story.until("device.quarantined")
        assert quarantined["data"]["reason"].startswith("wrong numbers on cpu: ")
