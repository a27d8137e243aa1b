"""Who is known to have made a phone quiet, and how long its watch is told so."""

from types import SimpleNamespace

import pytest

from farm.common.errors import NoSuchDeviceError
from farm.devices.quiesce import QuiesceController
from farm.devices.quiesce_policy import Level
from tests.support.fake_phone import FakeClient
from tests.support.waiting import until


class Phone(FakeClient):
    """It may be renamed; its script answers."""

    def __init__(self):
        begun = lambda command: f"begun {command.split()[3]}\n"  # noqa: E731
        super().__init__({" begin ": begun, " renew ": "renewed\n", " end": "restored display=Asleep\nended\n"})
        self.name = "pixel"
        self.quiet = QuiesceController(self, self.find)

    def find(self, name):
        if name != self.name:
            raise NoSuchDeviceError(f"there is no device {name!r}")
        return SimpleNamespace(name=name, serial="58db5c20", device=None)

    def asked(self):
        """Each order with its last word."""
        words = [command.partition("quiesce.sh ")[2].split() for command in self.commands]
        return [(each[0], each[-1]) for each in words]


async def test_a_phone_that_is_renamed_while_it_is_quiet_stays_so_and_is_changed_back():
    phone = Phone()
    await phone.quiet.begin("pixel", Level.GENTLE, "lease-1", restore_after_s=0.03)
    assert set(phone.quiet.owners) == {"58db5c20"}
    phone.name, before = "pixel-2", len(phone.commands)
    await until(lambda: len(phone.commands) > before)
    assert phone.asked()[-1][0] == "renew"
    assert (await phone.quiet.end("pixel", "lease-1")).restored == ("display=Asleep",)
    assert not phone.quiet.owners


async def test_a_phone_that_left_its_lease_under_another_name_is_nobodys():
    phone = Phone()
    await phone.quiet.begin("pixel", Level.GENTLE, "lease-1", restore_after_s=300)
    phone.name = "pixel-2"
    phone.quiet.leave("pixel")
    assert not phone.quiet.owners
    phone.quiet.close()
    assert phone.asked() == [("begin", "300")]


@pytest.mark.parametrize(
    ("level", "asked"), [(Level.GENTLE, [("begin", "300")]), (Level.FULL, [("begin", "60"), ("renew", "300")])]
)
async def test_a_level_that_may_cut_the_link_lasts_only_if_farm_still_reaches_the_phone(level, asked):
    phone = Phone()
    await phone.quiet.begin("pixel", level, "lease-1", restore_after_s=300)
    phone.quiet.close()
    assert phone.asked() == asked
