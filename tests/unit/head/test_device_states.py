"""What a host sends the head of its phones: no readings, and not with every probe."""

from dataclasses import fields, replace

import pytest
from pydantic import TypeAdapter

from farm.head.messages import DeviceChanged
from farm.leasing.leases import FIGURES_EVERY_S
from farm.model.device import Closed, DeviceState, DeviceView, Heat, Life, Service, parse_place
from farm.model.requests import LeaseClass
from tests.support.leasing_lab import Clocks, Lab
from tests.support.local_head import requests_of

WARM = {LeaseClass.BENCH: Closed("skin 41.2 °C is above 38 °C for bench", 300.0)}
PHONE = DeviceView(
    "pixel", "R5", Life.READY, adopted=True, labels={"gpu": "adreno-740"}, aliases=("android",), bundle="b1",
    place=parse_place("1-4.2"), closed=WARM,
)  # fmt: skip


def test_a_state_travels_as_json_and_has_no_reading():
    state, adapter = PHONE.state(), TypeAdapter(DeviceState)
    assert adapter.validate_json(adapter.dump_json(state)) == state
    assert type(state) is DeviceState
    readings = {"temperature_c", "temperature_of", "battery_percent", "health", "read_at", "findings", "checked"}
    assert readings <= {each.name for each in fields(DeviceView)} - {each.name for each in fields(DeviceState)}
    assert replace(PHONE, temperature_c=40.0, battery_percent=80, checked="well").state() == state


@pytest.mark.parametrize(
    "change",
    [
        {"life": Life.OFFLINE}, {"service": Service.DRAINING}, {"labels": {}}, {"bundle": "b2"}, {"place": None},
        {"heat": Heat.COOLING}, {"closed": {}}, {"closed": {LeaseClass.BENCH: Closed("busy hub", heat=False)}},
    ],
)  # fmt: skip
def test_what_decisions_need_is_more_than_a_figure(change):
    assert not replace(PHONE, **change).state().same_but_figures(PHONE.state())
    assert PHONE.state().same_but_figures(PHONE.state())
    warmer = {LeaseClass.BENCH: Closed("skin 42.0 °C is above 38 °C for bench", 360.0)}
    assert replace(PHONE, closed=warmer).state().same_but_figures(PHONE.state())


async def test_probes_alone_are_not_sent_and_figures_once_a_minute(monkeypatch):
    clocks, sent = Clocks(), []
    lab = Lab("a", clocks=clocks)
    requests = requests_of(lab.leasing)
    receive = requests.receive
    monkeypatch.setattr(requests, "receive", lambda message: sent.append(message) or receive(message))

    def probed(celsius):
        closed = {LeaseClass.BENCH: Closed(f"skin {celsius} °C is above 38 °C for bench", 300.0)}
        lab.devices.become("a", Life.READY, temperature_c=celsius, closed=closed if celsius > 38 else {})

    probed(30.0)
    assert sent == []
    for celsius in (41.2, 41.3, 41.4):
        probed(celsius)
        clocks.pass_(10.0)
    assert [type(each) for each in sent] == [DeviceChanged]
    clocks.pass_(FIGURES_EVERY_S)
    probed(40.0)
    assert sent[1:] == [DeviceChanged(lab.devices.view("a").state())]
    probed(30.0)
    lab.devices.become("a", Life.OFFLINE, "unplugged")
    assert [each.state.life for each in sent[2:]] == [Life.READY, Life.OFFLINE]
    await lab.leasing.close()
