"""Phones that are sent away without power: what is refused before, and how they come back, or do not."""

from types import SimpleNamespace

import pytest

from farm.common.errors import Code, PhoneError
from farm.devices.power.power import PowerError
from farm.devices.untether import Untether
from farm.model.device import Life, UsbPlace
from tests.support.errors import raises_code
from tests.support.fake_phone import FakeSwitch, StubAgent


class Lab(FakeSwitch):
    """A fleet of one phone, and the switch of its port: the phone goes and comes with its power."""

    def __init__(self, *, refusal="", others=(), returns=Life.READY, **fails):
        super().__init__(**fails)
        self.agent = StubAgent("S1", "unit", place=UsbPlace("1-4", 2, "1-4.2"))
        self.listening = []
        self.recovery = SimpleNamespace(neighbours=lambda _: [SimpleNamespace(name=each) for each in others])
        self.returns = returns
        self.find = self.view = lambda _: self.agent
        self.why_not = lambda place, *, ordered: refusal
        self.untether = Untether(self, self)

    def subscribe(self, callback):
        self.listening.append(callback)
        return lambda: self.listening.remove(callback)

    async def off(self, place):
        assert self.agent.untethered
        self._lives(Life.GONE, None)
        await super().off(place)

    async def on(self, place):
        await super().on(place)
        self._lives(self.returns, object())

    def _lives(self, life, device):
        self.agent.life, self.agent.device = life, device
        for callback in self.listening:
            callback(self.agent)


@pytest.mark.looptime
async def test_the_phone_is_back_and_ready_when_its_power_is():
    lab = Lab()
    await lab.untether.cut("unit", 300.0)
    assert lab.done == ["off 1-4.2", "on 1-4.2"]
    assert (lab.agent.life, lab.agent.untethered, lab.listening) == (Life.READY, False, [])


@pytest.mark.parametrize(
    ("lab", "why"),
    [
        ({"refusal": "uhubctl is not installed"}, "unit cannot be untethered: uhubctl is not installed"),
        ({"others": ("left", "right")}, "left, right would lose power, too"),
    ],
)
async def test_a_port_that_cannot_be_cut_is_refused_before(lab, why):
    lab = Lab(**lab)
    with raises_code(Code.POWER_NOT_MEASURABLE, match=why):
        await lab.untether.cut("unit", 0.01)
    assert lab.done == []


def test_a_farm_without_a_switch_is_refused():
    with raises_code(Code.POWER_NOT_MEASURABLE):
        Untether(Lab(), None).check("unit")


@pytest.mark.looptime
async def test_a_port_that_does_not_come_back_is_one_error():
    lab = Lab(on_fails=PowerError("the port stays off"))
    with pytest.raises(PowerError, match="stays off"):
        await lab.untether.cut("unit", 300.0)
    assert not lab.agent.untethered


@pytest.mark.parametrize("life", [Life.GONE, Life.QUARANTINED])
@pytest.mark.looptime
async def test_a_phone_that_does_not_come_back_is_one_error(life):
    with pytest.raises(PhoneError, match=f"unit is {life} and not ready"):
        await Lab(returns=life).untether.cut("unit", 300.0)
