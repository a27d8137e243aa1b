"""What `farm device drain|maintain|release` say of what they changed, and what the daemon refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farm.cli.device import service_lines
from farm.common.errors import UserError
from farm.control.verbs.device import DeviceOrderVerbs
from farm.devices.lifecycle.recovery import RecoveryAction, RecoveryProgress
from farm.model.device import DeviceView, Life
from farm.model.health import DeviceFault, Finding, FindingKind, Quarantine, ReleaseRule

FULL = Finding(FindingKind.DATA_FULL, "/data has 50 MB left, 200 MB are needed", "remove files", DeviceFault.STORAGE)
NOWHERE = RecoveryProgress()
DEAD = Finding(FindingKind.BATTERY_BAD, "the phone says of its battery: dead", "look at it", DeviceFault.BATTERY)


def said(**answer: Any) -> str:
    plain = {
        "name": "pixel", "service": "in", "before": "in", "life": "ready", "quarantine": "", "holder": "",
        "released": False, "still": [],
    }  # fmt: skip
    return "\n".join(service_lines({**plain, **answer}))


def test_a_release_says_what_it_undid_and_what_it_did_not() -> None:
    assert said() == "pixel was not out of service: nothing to release"
    assert said(before="maintenance") == "pixel is back in service: maintenance is over"
    both = said(before="draining", quarantine="screen cracked", released=True, life="identifying")
    assert "draining is over and its quarantine is over (screen cracked)" in both
    assert "checked before its next lease" in both
    assert "it is gone: farm explain device pixel" in said(before="draining", life="gone")
    assert "warning: the battery is dead" in said(released=True, quarantine="dead", still=["the battery is dead"])


def test_an_order_beside_another_one_names_it() -> None:
    assert said(service="draining", before="maintenance") == "pixel is draining (it was in maintenance before)"
    assert said(service="draining", before="draining") == "pixel is draining already"
    assert "also stays in quarantine: dead" in said(service="maintenance", quarantine="dead", life="quarantined")
    assert "ann still has it" in said(service="draining", holder="ann")


def verbs(finding: Finding, progress: RecoveryProgress = NOWHERE) -> tuple[DeviceOrderVerbs, DeviceView]:
    care = SimpleNamespace(state=lambda _: SimpleNamespace(progress=progress))
    fleet: Any = SimpleNamespace(recovery=care, find=lambda _: SimpleNamespace(findings=(finding,)))
    return DeviceOrderVerbs(fleet), DeviceView("pixel", "S1", Life.QUARANTINED)


def test_a_cause_that_the_next_probe_finds_again_is_named_instead_of_a_release() -> None:
    care, view = verbs(FULL)
    with pytest.raises(UserError, match="stays in quarantine: /data has 50 MB left") as caught:
        care._still(view, Quarantine("full", fault=DeviceFault.STORAGE, rule=ReleaseRule.WELL))
    assert 'ignore = ["data-full"]' in caught.value.hint
    assert care._still(view, Quarantine("hot", fault=DeviceFault.HOT, rule=ReleaseRule.WELL)) == []
    care, view = verbs(DEAD)
    assert care._still(view, Quarantine("dead", fault=DeviceFault.BATTERY, rule=ReleaseRule.PERSON)) == [DEAD.cause]


def test_what_is_under_way_is_not_ordered_again() -> None:
    progress = RecoveryProgress().begin(RecoveryAction.REBOOT, DeviceFault.ORDER, "ann wants it rebooted", 0.0)
    care, view = verbs(FULL, progress)
    with pytest.raises(UserError, match="a reboot of pixel is already under way"):
        care._none_under_way(view.name, RecoveryAction.REBOOT)
    care._none_under_way(view.name, RecoveryAction.POWER_CYCLE)
