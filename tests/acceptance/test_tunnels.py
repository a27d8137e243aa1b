"""`farm forward`: entries survive what makes adb forget them, and foreign entries are left alone."""

import json

import pytest

from tests.support.tvm import free_port

pytestmark = pytest.mark.farm("galaxy-s9")


@pytest.fixture
def device(farm):
    return farm.status()["devices"][0]["name"]


def forwards(farm):
    return [tuple(line.split()[1:]) for line in farm.adb("forward", "--list").stdout.splitlines() if line]


def test_a_forward_comes_back_after_a_replug_and_goes_when_given_up(farm, device):
    listen = f"tcp:{free_port()}"
    assert "farm's own RPC server" in farm.farm("forward", "add", device, listen, "tcp:5000").stderr
    assert farm.farm("forward", "add", device, listen, "tcp:6000").returncode == 0
    assert forwards(farm) == [(listen, "tcp:6000")]
    farm.lab.unplug("virtual-1")
    *_, gone = until(farm, 0, "device.gone")
    assert forwards(farm) == []
    farm.lab.plug("virtual-1")
    *_, ready = until(farm, gone["seq"], "device.ready")
    assert ready["kind"] == "device.ready"
    assert forwards(farm) == [(listen, "tcp:6000")]
    assert farm.farm("forward", "remove", device, listen).returncode == 0
    assert forwards(farm) == []
    assert json.loads(farm.farm("forward", "list", "--json").stdout) == {"tunnels": []}


def until(farm, since, kind):
    for event in farm.events(since):
        yield event
        if event["kind"] == kind:
            return


def test_somebody_elses_forward_is_named_and_left_alone(farm, device):
    listen = f"tcp:{free_port()}"
    assert farm.adb("forward", listen, "tcp:7777").returncode == 0
    refused = farm.farm("forward", "add", device, listen, "tcp:6000")
    assert refused.returncode == 1
    assert f"{listen} is taken" in refused.stderr
    assert forwards(farm) == [(listen, "tcp:7777")]
    assert farm.adb("forward", "--remove", listen).returncode == 0


def test_a_reverse_is_removed_only_once_nothing_dials_it(farm, device):
    host = f"tcp:{free_port()}"
    assert farm.farm("forward", "add", device, "tcp:6100", host, "--reverse").returncode == 0
    assert "tcp:6100" in farm.adb("reverse", "--list").stdout
    waits = farm.farm("forward", "remove", device, "tcp:6100")
    assert "may still dial it" in waits.stdout
    assert "tcp:6100" in farm.adb("reverse", "--list").stdout
    assert farm.farm("forward", "remove", device, "tcp:6100", "--dialler-stopped").returncode == 0
    assert "tcp:6100" not in farm.adb("reverse", "--list").stdout
