"""Hubs on a whole farm, whose ports the lab's uhubctl switches for real."""

from __future__ import annotations

import pytest

from farm.cli import doctor
from farm.common.doctor_findings import DoctorVerdict
from farm.simulation.virtual_farm import VirtualFarm
from tests.support.whole_farm import Phone, Story, phones

PLACES = {"left": "1-4.1", "right": "1-4.2", "far": "2-1.3"}

pytestmark = pytest.mark.farm(named={"left": "oneplus-12", "right": "galaxy-s9", "far": "galaxy-a55"}, places=PLACES)


def by_nickname(farm: VirtualFarm) -> dict[str, Phone]:
    return {phone.nickname: phone for phone in phones(farm)}


def test_where_phones_are_plugged_in(farm: VirtualFarm) -> None:
    found = {name: phone.row["usb"] for name, phone in by_nickname(farm).items()}
    assert found == PLACES


def test_a_wedged_adbd_comes_back_by_cutting_its_ports_power(farm: VirtualFarm) -> None:
    phone, story = by_nickname(farm)["right"], Story(farm)
    name = phone.name
    farm.lab.fault(phone.nickname, "offline", mode="silent")
    story.until("recovery.action", subject=name, action="power-cycle")
    story.until("device.ready", subject=name)


def test_the_doctor_proves_that_a_port_can_be_cut(farm: VirtualFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_SOCKET", str(farm.socket))
    phone = by_nickname(farm)["left"]
    found = doctor._cut(phone.row["serial"])
    assert (found.verdict, found.detail.partition(" ")[0]) == (DoctorVerdict.OK, phone.name)


def test_the_doctor_says_which_hubs_can_be_switched(farm: VirtualFarm) -> None:
    found = [each for each in farm.client.call("doctor")["findings"] if each["check"].startswith("usb")]
    assert [each["verdict"] for each in found] == ["ok"]
    assert "uhubctl switches 1-4 (4 ports), 2-1 (4 ports)" in found[0]["detail"]
