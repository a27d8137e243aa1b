"""Which level a job gets and what a certificate says; who is known to have made a phone quiet, and for how long."""

from types import SimpleNamespace

import pytest

from farm.common.errors import NoSuchDeviceError
from farm.devices.quiesce import QuiesceController, parse_restored
from farm.devices.quiesce_policy import (
    Level,
    QuiesceConfig,
    QuiesceResult,
    QuiesceStep,
    describe,
    not_quiet,
    over_network,
)
from farm.model.requests import LeaseClass
from tests.support.fake_phone import FakeClient
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("serial", "devpath", "network"),
    [
        ("58db5c20", "1-4.2", False),
        ("emulator-5554", "", False),
        ("192.168.1.5:5555", "", True),
        ("192.168.1.5:5555", "1-4.2", True),
        ("[fe80::1]:5555", "", True),
        ("adb-58db5c20-Xy1._adb-tls-connect._tcp", "", True),
        ("adb-58db5c20._adb._tcp.", "", True),
        ("58db5c20", "", True),  # this host's adb does not tell: airplane mode is not worth a lost phone
    ],
)
def test_in_doubt_a_phone_is_reached_by_its_radio(serial, devpath, network):
    assert over_network(serial, devpath) is network


def test_a_jobs_own_option_goes_before_what_is_configured():
    config = QuiesceConfig(level=Level.FULL, tune=Level.GENTLE)
    assert [config.level_of(each, None) for each in (LeaseClass.BENCH, LeaseClass.TUNE)] == [Level.FULL, Level.GENTLE]
    assert config.level_of(LeaseClass.BENCH, "off") is Level.OFF
    assert config.level_of(LeaseClass.TUNE, "full") is Level.FULL


def test_by_default_nobodys_connection_is_cut_and_no_clock_is_pinned():
    assert QuiesceConfig().level_of(LeaseClass.BENCH, None) is Level.GENTLE
    assert QuiesceConfig().level_of(LeaseClass.TUNE, None) is Level.OFF


def test_a_failure_without_a_name_is_one_all_the_same():
    restored = parse_restored("failed\nrestored screen\nfailed \nunfinished\n")
    assert (restored.complete, restored.failed, restored.restored) == (False, (), ("screen",))


def test_a_certificate_names_what_took_effect_and_what_was_refused_and_why():
    steps = (
        QuiesceStep("screen", "display=Asleep", True),
        QuiesceStep("cpu", "policy0/scaling_governor=performance", True),
        QuiesceStep("cpu", "policy4/scaling_governor: it needs root", False),
    )
    quiet = QuiesceResult(Level.FULL, steps)
    assert quiet.to_wire() == {
        "level": "full",
        "took": {"screen": ["display=Asleep"], "cpu": ["policy0/scaling_governor=performance"]},
        "refused": {"cpu": ["policy4/scaling_governor: it needs root"]},
        "pinned": [],
    }
    assert describe(quiet.to_wire()) == (
        "quiesce full; in force: screen, cpu; refused: cpu (policy4/scaling_governor: it needs root)"
    )


def test_clocks_are_pinned_only_where_nothing_of_them_was_refused():
    assert QuiesceResult(Level.FULL, (QuiesceStep("gpu", "min_pwrlevel=0", True),)).to_wire()["pinned"] == ["gpu"]


def test_a_phone_that_could_not_be_made_quiet_says_why():
    assert describe(not_quiet("its settings do not answer")) == "quiesce off; refused: all (its settings do not answer)"
    assert not_quiet("")["refused"] == {}


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
