"""What `farm device drain|maintain|release` say of what they changed, and what the daemon refuses."""

from types import SimpleNamespace

import pytest

from farm.cli.device import service_lines
from farm.common.errors import UserError
from farm.control.verbs.device import DeviceOrderVerbs
from farm.devices.lifecycle.recovery import RecoveryAction, RecoveryProgress
from farm.model.device import DeviceView, Life
from farm.model.health import DeviceFault, Finding, FindingKind, Quarantine, ReleaseRule

FULL = Finding(FindingKind.DATA_FULL, "/data has 50 MB left, 200 MB are needed", "remove files", DeviceFault.STORAGE)
DEAD = Finding(FindingKind.BATTERY_BAD, "the phone says of its battery: dead", "look at it", DeviceFault.BATTERY)
VIEW = DeviceView("pixel", "S1", Life.QUARANTINED)
ORDERS = [
    {},
    {"before": "maintenance"},
    {"before": "draining", "quarantine": "screen cracked", "released": True, "life": "identifying"},
    {"before": "draining", "life": "gone"},
    {"released": True, "quarantine": "dead", "still": ["the battery is dead"]},
    {"service": "draining", "before": "maintenance"},
    {"service": "draining", "before": "draining"},
    {"service": "maintenance", "quarantine": "dead", "life": "quarantined"},
    {"service": "draining", "holder": "ann"},
]


def test_an_order_says_what_it_did_what_it_undid_and_what_it_did_not(snapshot):
    plain = {
        "name": "pixel", "service": "in", "before": "in", "life": "ready", "quarantine": "", "holder": "",
        "released": False, "still": [],
    }  # fmt: skip
    snapshot("\n".join(f"{order}\n  " + "\n  ".join(service_lines(plain | order)) for order in ORDERS))


def verbs(finding, progress=None):
    care = SimpleNamespace(state=lambda _: SimpleNamespace(progress=progress or RecoveryProgress()))
    return DeviceOrderVerbs(SimpleNamespace(recovery=care, find=lambda _: SimpleNamespace(findings=(finding,))))


def test_a_cause_that_the_next_probe_finds_again_is_named_instead_of_a_release():
    with pytest.raises(UserError, match="stays in quarantine: /data has 50 MB left") as caught:
        verbs(FULL)._still(VIEW, Quarantine("full", fault=DeviceFault.STORAGE, rule=ReleaseRule.WELL))
    assert 'ignore = ["data-full"]' in caught.value.hint
    assert verbs(FULL)._still(VIEW, Quarantine("hot", fault=DeviceFault.HOT, rule=ReleaseRule.WELL)) == []
    dead = Quarantine("dead", fault=DeviceFault.BATTERY, rule=ReleaseRule.PERSON)
    assert verbs(DEAD)._still(VIEW, dead) == [DEAD.cause]


def test_what_is_under_way_is_not_ordered_again():
    care = verbs(FULL, RecoveryProgress().begin(RecoveryAction.REBOOT, DeviceFault.ORDER, "ann wants it rebooted", 0.0))
    with pytest.raises(UserError, match="a reboot of pixel is already under way"):
        care._none_under_way("pixel", RecoveryAction.REBOOT)
    care._none_under_way("pixel", RecoveryAction.POWER_CYCLE)
