"""A phone that is away at the daemon's start keeps its identity, labels, keys and last health, and is waited for."""

import json

import pytest

from farm.common.errors import ExitCode
from tests.support.whole_farm import answer, phones, refused, until

pytestmark = pytest.mark.farm("galaxy-s9")


@pytest.fixture
def away(farm):
    """The phone, unplugged while the daemon restarts."""
    (phone,) = phones(farm)
    assert farm.farm("device", "set", phone.name, "--label", "rack=3").returncode == 0
    until(lambda: phone.row["battery_percent"] is not None)
    before = farm.client.call("device.show", device=phone.name)
    farm.lab.unplug(phone.nickname)
    until(lambda: phone.row["life"] == "gone")
    farm.daemon.stop()
    farm.daemon.start().close()
    yield phone, before
    farm.lab.plug(phone.nickname)
    farm.wait_ready(1)


def test_a_phone_that_is_away_is_known_and_waited_for(farm, away):
    phone, before = away
    shown = farm.client.call("device.show", device=phone.name)
    same = ("soc", "gpu", "model", "labels", "aliases", "targets", "alike", "identity", "battery_percent")
    assert {name: shown[name] for name in same} == {name: before[name] for name in same}
    assert shown["life"] == "gone"
    assert shown["read_at"] >= before["read_at"]
    assert "probed" in farm.farm("device", "show", phone.name).stdout
    assert json.loads(farm.farm("explain", "device", phone.name, "--json").stdout)["device"]["probe"]["age_s"] > 0
    assert farm.farm("explain", "key", "android").returncode == 0
    jobs = []
    for on in ("android", f"soc={shown['soc'].lower()}", "rack=3", f"alike={shown['labels']['alike']}", phone.name):
        done = farm.farm("shell", "--on", on, "--detach", "--json", "--", "true")
        jobs += [each["id"] for each in answer(done)["jobs"]]
        assert f"available, the job waits ({phone.name}: gone" in done.stderr
    refused(farm.farm("shell", "--on", "soc=sm8999", "--detach", "--", "true"), ExitCode.NO_PHONE, "sm8999")
    farm.lab.plug(phone.nickname)
    assert farm.farm("watch", *jobs).returncode == 0


def test_every_command_that_waits_has_a_bound(farm, tmp_path):
    (phone,) = phones(farm)
    assert farm.farm("device", "quarantine", phone.name, "--reason", "screen cracked").returncode == 0
    spec = tmp_path / "jobs.toml"
    spec.write_text('kind = "shell"\non = "android"\ncommand = "true"\n')
    for command in (
        ("shell", "--on", "android", "--wait", "1s", "--json", "--", "true"),
        ("shell", "--on", "android", "--wait", "1", "--devices", "all", "--", "true"),
        ("lease", "acquire", "--on", phone.name, "--wait", "1s"),
        ("lease", "run", "--on", phone.name, "--wait", "1s", "--", "true"),
        ("submit", str(spec), "--wait", "1s"),
    ):
        refused(farm.farm(*command), ExitCode.NO_PHONE, "no phone within 1s", "screen cracked")
    refused(farm.farm("device", "adopt", phone.name, "--wait", "1s"), ExitCode.NO_PHONE, "not ready within 1s")
    refused(farm.farm("shell", "--on", "android", "--wait", "1s", "--detach", "--", "true"), ExitCode.USAGE, "--wait")
    assert farm.client.call("lease.list")["waiting"] == []
    assert farm.farm("device", "release", phone.name).returncode == 0
    assert farm.farm("submit", str(spec), "--wait").returncode == 0
    assert farm.farm("shell", "--on", "android", "--wait", "5m", "--", "true").returncode == 0
