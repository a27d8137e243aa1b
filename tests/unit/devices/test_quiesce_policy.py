"""Which level a job gets, which links airplane mode would cut, and what a certificate says."""

import pytest

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
