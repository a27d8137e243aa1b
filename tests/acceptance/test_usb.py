"""Hubs on a whole farm: who is blamed when one vanishes, and a port's power cut for real by the lab's uhubctl."""

from __future__ import annotations

import pytest

from farm.cli import doctor
from farm.client import Client
from farm.common.doctor_findings import DoctorVerdict
from farm.simulation.virtual_farm import VirtualFarm
from tests.support.whole_farm import Phone, Story, phones, until_ready, until_status

HUB = "1-4"
PLACES = {"left": "1-4.1", "right": "1-4.2", "far": "2-1.3"}

pytestmark = pytest.mark.farm(named={"left": "oneplus-12", "right": "galaxy-s9", "far": "galaxy-a55"}, places=PLACES)


def by_nickname(farm: VirtualFarm) -> dict[str, Phone]:
    return {phone.nickname: phone for phone in phones(farm)}


def test_where_phones_are_plugged_in(farm: VirtualFarm) -> None:
    found = {name: phone.row["usb"] for name, phone in by_nickname(farm).items()}
    assert found == PLACES


def test_a_hub_that_vanishes_is_one_piece_of_news_and_costs_no_phone_an_action(farm: VirtualFarm) -> None:
    named = {nickname: phone.name for nickname, phone in by_nickname(farm).items()}
    on_hub = sorted([named["left"], named["right"]])
    story = Story(farm)
    with Client(farm.socket) as client, client.lease(on=named["far"]):
        farm.lab.unplug_hub(HUB)
        lost = story.until("hub.lost", subject=HUB)
        assert sorted(lost["data"]["devices"]) == on_hub
        rows = {row["name"]: row for row in farm.status()["devices"]}
        for name in on_hub:
            assert "its hub 1-4 vanished with 2 phones" in rows[name]["reason"]
        assert any("hub 1-4 vanished" in problem for problem in farm.status()["problems"])
        farm.lab.plug_hub(HUB)
        story.until("hub.back", subject=HUB)
        until_status(farm, lambda status: all(row["life"] == "ready" for row in status["devices"]))
        story.read()
        kinds = story.kinds()
        assert kinds.count("hub.lost") == kinds.count("hub.back") == 1
        assert "recovery.action" not in kinds
        assert "lease.released" not in story.kinds(named["far"])  # it is still its holder's
        assert not any("vanished" in problem for problem in farm.status()["problems"])
    until_ready(farm)


def test_a_ports_power_is_cut_and_given_back(farm: VirtualFarm) -> None:
    phone = by_nickname(farm)["right"]
    name, story = phone.name, Story(farm)
    answer = farm.client.call("device.power_cycle", device=name, force=False)
    assert answer["beside"] == []  # its hub switches each port by itself
    story.until("device.gone", subject=name)
    story.until("device.ready", subject=name)
    ended = story.until("recovery.ended", subject=name)
    assert (ended["data"]["action"], ended["data"]["outcome"]) == ("power-cycle", "repaired")
    story.order("recovery.action", "device.gone", "device.ready", device=name)
    assert "hub.lost" not in story.kinds()


def test_the_doctor_proves_that_a_port_can_be_cut(farm: VirtualFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_SOCKET", str(farm.socket))
    phone = by_nickname(farm)["left"]
    found = doctor._cut(phone.row["serial"])
    assert (found.verdict, found.detail.partition(" ")[0]) == (DoctorVerdict.OK, phone.name)


def test_the_doctor_says_which_hubs_can_be_switched(farm: VirtualFarm) -> None:
    found = [each for each in farm.client.call("doctor")["findings"] if each["check"].startswith("usb")]
    assert [each["verdict"] for each in found] == ["ok"]
    assert "uhubctl switches 1-4 (4 ports), 2-1 (4 ports)" in found[0]["detail"]
