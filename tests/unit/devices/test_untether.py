"""Phones that are sent away without power: what is refused before, and how they come back, or do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from farm.common.errors import Code, PhoneError
from farm.devices import untether as module
from farm.devices.power import power
from farm.devices.power.power import PowerError
from farm.devices.untether import Untether
from farm.model.device import Life, UsbPlace
from tests.support.errors import raises_code

PLACE = UsbPlace("1-4", 2, "1-4.2")


@dataclass
class Lab:
    """A fleet of one phone, and the switch of its port: the phone goes and comes with its power."""

    place: UsbPlace | None = PLACE
    refusal: str = ""
    others: tuple[str, ...] = ()
    returns: Life = Life.READY
    broken: bool = False
    done: list[str] = field(default_factory=list)
    life: Life = Life.READY
    listening: list[Callable[[Any], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agent = SimpleNamespace(place=self.place, device=object(), untethered=False)
        self.recovery = SimpleNamespace(neighbours=lambda _: [SimpleNamespace(name=each) for each in self.others])

    def find(self, _name: str) -> Any:
        return self.agent

    def view(self, name: str) -> Any:
        return SimpleNamespace(name=name, life=self.life)

    def subscribe(self, callback: Callable[[Any], None]) -> Callable[[], None]:
        self.listening.append(callback)
        return lambda: self.listening.remove(callback)

    def why_not(self, _place: UsbPlace | None, *, ordered: bool) -> str:
        assert ordered
        return self.refusal

    async def off(self, place: UsbPlace) -> None:
        assert self.agent.untethered
        self.done.append(f"off {place.path}")
        self.agent.device, self.life = None, Life.GONE

    async def on(self, place: UsbPlace) -> None:
        self.done.append(f"on {place.path}")
        if self.broken:
            raise PowerError("the port stays off")
        asyncio.get_running_loop().call_soon(self._back)

    def _back(self) -> None:
        self.agent.device, self.life = object(), self.returns
        for callback in self.listening:
            callback(SimpleNamespace(name="unit"))


def untether(lab: Lab) -> Untether:
    return Untether(lab, lab)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "_POLL_S", 0.001)


async def test_the_phone_is_back_and_ready_when_its_power_is() -> None:
    lab = Lab()
    await untether(lab).cut("unit", 0.01)
    assert lab.done == ["off 1-4.2", "on 1-4.2"]
    assert lab.life is Life.READY
    assert not lab.agent.untethered
    assert not lab.listening


@pytest.mark.parametrize(
    ("lab", "why"),
    [
        (Lab(refusal="uhubctl is not installed"), "unit cannot be untethered: uhubctl is not installed"),
        (Lab(others=("left", "right")), "left, right would lose power, too"),
    ],
    ids=["switch", "neighbours"],
)
async def test_a_port_that_cannot_be_cut_is_refused_before(lab: Lab, why: str) -> None:
    with raises_code(Code.POWER_NOT_MEASURABLE, match=why):
        await untether(lab).cut("unit", 0.01)
    assert lab.done == []


async def test_a_farm_without_a_switch_is_refused() -> None:
    lab = Lab()
    with raises_code(Code.POWER_NOT_MEASURABLE, match="no power switch is configured"):
        Untether(lab, None).check("unit")  # type: ignore[arg-type]


async def test_a_port_that_does_not_come_back_is_one_error() -> None:
    lab = Lab(broken=True)
    with pytest.raises(PowerError, match="stays off"):
        await untether(lab).cut("unit", 0.01)
    assert not lab.agent.untethered


@pytest.mark.parametrize("life", [Life.GONE, Life.QUARANTINED])
async def test_a_phone_that_does_not_come_back_is_one_error(monkeypatch: pytest.MonkeyPatch, life: Life) -> None:
    monkeypatch.setattr(module, "RETURN_S", 0.02)
    with pytest.raises(PhoneError, match=f"unit is {life} and not ready"):
        await untether(Lab(returns=life)).cut("unit", 0.01)
