"""`explain device` in values and sentences."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from farm.common.durations import format_duration
from farm.control.verbs.explain_device import DeviceFacts, as_lines, as_values, repeats_state, steps_before
from farm.control.verbs.fleet import device_row
from farm.devices.lifecycle.recovery import RecoveryAction, RecoveryContext, RecoveryProgress
from farm.devices.lifecycle.state import LifecycleState
from farm.model.device import Closed, DeviceView, Heat, Life, Service, UsbPlace
from farm.model.health import (
    Battery,
    DeviceFault,
    Finding,
    FindingKind,
    Health,
    Quarantine,
    ReleaseRule,
    SensorGroup,
    Temperature,
    ThrottleStatus,
)
from farm.model.requests import LeaseClass
from farm.store.devices import RecoveryRecord

AT = datetime(2026, 11, 22, 12, tzinfo=UTC)
READY = DeviceFacts(
    view=DeviceView("pixel", "S1", Life.READY, adopted=True, place=UsbPlace("1-4", 2, "1-4.2")),
    state=LifecycleState(Life.READY, adopted=True),
    context=RecoveryContext(),
    holder="",
    findings=(),
    probed_s_ago=None,
    beside=("nexus",),
    busy_beside={},
    actions=(),
    quarantined_at=None,
    transitions=("1.0 Listed",),
    now_s=100.0,
)
REBOOT = RecoveryRecord("r1", "S1", "pixel", "reboot", "stuck", "pid 7 survives SIGKILL", AT, 41.5, "failed", "again")


def text(facts):
    return "\n".join(as_lines(facts))


def test_a_ready_phone_is_open_to_all_and_says_where_it_is():
    said = text(READY)
    assert said.startswith("pixel: ready\n")
    assert [f"{each}: open" in said for each in LeaseClass] == [True] * 3
    assert "plugged in at hub 1-4, port 2, beside nexus" in said


def test_a_closed_class_says_why_and_until_when():
    shut = {LeaseClass.BENCH: Closed("skin 41.2 °C is above 38 °C for bench", 180.0)}
    facts = replace(READY, view=replace(READY.view, closed=shut))
    assert "bench: closed: skin 41.2 °C is above 38 °C for bench, about 3 min" in text(facts)
    classes = as_values(facts)["classes"]
    assert (classes["bench"]["open"], classes["bench"]["opens_in_s"], classes["tune"]["open"]) == (False, 180.0, True)


def test_a_phone_out_of_service_says_by_whose_order():
    view = replace(READY.view, service=Service.DRAINING)
    said = text(replace(READY, view=view, holder="ann"))
    assert said.startswith("pixel: busy, draining, leased by ann\n")
    assert "out of service by an operator's order (draining), undo: farm device release pixel" in said
    said = text(replace(READY, view=view, ordered="bob at 12:00"))
    assert "an operator's order (draining, bob at 12:00)" in said


def test_recovery_tells_what_was_tried_and_what_is_left():
    progress = RecoveryProgress().begin(RecoveryAction.REBOOT, DeviceFault.STUCK, "pid 7 survives SIGKILL", 90.0)
    progress = replace(progress, skipped=("power-cycle: no power switch is configured",))
    facts = replace(READY, state=replace(READY.state, progress=progress), actions=(REBOOT,) * 12)
    said = text(facts)
    assert "recovery: reboot under way for 10s: pid 7 survives SIGKILL" in said
    assert "recovery: not taken: power-cycle: no power switch" in said
    assert said.count("reboot failed in 41.5 s (pid 7 survives SIGKILL), then: again") == 10
    assert "... 2 before these" in said
    assert "automatic repairs left: reboot 2, power-cycle 3" in said
    values = as_values(facts)["recovery"]
    assert (values["under_way"], values["since_s"], len(values["last_day"])) == ("reboot", 10.0, 12)
    assert values["left_today"]["reboot"] == 2


def test_a_quarantine_has_reason_rule_and_evidence():
    kept = Quarantine("battery 52 °C", "", DeviceFault.HOT, ReleaseRule.WELL, "1.0 Listed\n2.0 FaultFound")
    state = LifecycleState(Life.QUARANTINED, adopted=True, cause="battery 52 °C", quarantine=kept)
    view = replace(READY.view, life=Life.QUARANTINED, reason=state.reason)
    facts = replace(READY, view=view, state=state, quarantined_at=AT)
    said = text(facts)
    assert said.startswith("pixel: quarantined since 2026-11-22 12:00:00 UTC: battery 52 °C\n")
    assert "until a probe finds it well, or farm device release pixel" in said
    assert "    2.0 FaultFound" in said
    assert "service" not in said
    assert "cooling" not in said
    assert as_values(facts)["quarantine"]["evidence"] == ["1.0 Listed", "2.0 FaultFound"]


def test_the_probe_tells_readings_and_findings():
    hot = Temperature("skin-therm", 41.2, SensorGroup.SKIN, "thermalservice")
    health = Health(
        battery=Battery(percent=80, celsius=31.5),
        temperatures=(hot,),
        throttle=ThrottleStatus.LIGHT,
        data_free_bytes=3 * 10**9,
    )
    finding = Finding(FindingKind.DATA_LOW, "/data has 3 GB left", "farm device show NAME")
    view = replace(READY.view, health=health, temperature_c=36.0, temperature_of="cpu-1")
    facts = replace(READY, view=view, findings=(finding,), probed_s_ago=8.0)
    said = text(facts)
    assert "ago: TEMP 36.0 °C (cpu-1), battery 80 %, battery 31.5 °C, hottest skin-therm 41.2 °C, throttle" in said
    assert "/data 3.0 GB free" in said
    assert "/data has 3 GB left (farm device show pixel)" in said


def test_all_of_it_is_json():
    assert json.loads(json.dumps(as_values(READY)))["transitions"] == ["1.0 Listed"]


def test_the_steps_before_a_quarantine_are_told_by_the_clock_and_in_words():
    evidence = (
        "14632.500 CheckPassed(generation=8) : checking -> ready []\n"
        "14640.500 ActionFailed(generation=9, fault=wrong, reason=wrong numbers on cpu: 3 of 4) : "
        "recovering -> quarantined [EndServer]"
    )
    kept = Quarantine("wrong numbers on cpu: 3 of 4", "", DeviceFault.WRONG, ReleaseRule.PERSON, evidence)
    facts = replace(READY, state=LifecycleState(Life.QUARANTINED, quarantine=kept), quarantined_at=AT)
    assert steps_before(facts) == [
        "11:59:52 checking -> ready: check passed",
        "12:00:00 recovering -> quarantined: action failed",
    ]
    assert steps_before(READY) == []


def test_a_quarantine_says_each_fact_once():
    cause = "wrong numbers on cpu: matmul is off by 15.5"
    way_out = "find the cause, then: farm device release pixel"
    evidence = f"at most 0.1 allowed\n14632.500 WorkFailed(generation=8, reason={cause}) : checking -> quarantined []"
    kept = Quarantine(cause, way_out.replace("pixel", "NAME"), DeviceFault.WRONG, ReleaseRule.PERSON, evidence)
    state = LifecycleState(Life.QUARANTINED, adopted=True, cause=cause, quarantine=kept)
    actions = (
        RecoveryRecord("r1", "S1", "pixel", "re-push", "wrong", cause, AT, 2.0, "failed", cause),
        RecoveryRecord("r2", "S1", "pixel", "quarantine", "wrong", cause, AT, None, None, ""),
    )
    shut = {each: Closed("skin 50.0 °C is above 48 °C for any lease") for each in LeaseClass}
    view = replace(READY.view, life=Life.QUARANTINED, reason=cause, hint=way_out, closed=shut)
    wrong = Finding(FindingKind.DATA_LOW, cause, way_out)
    facts = replace(
        READY, view=view, state=state, quarantined_at=AT, actions=actions, findings=(wrong,), probed_s_ago=1.0
    )
    lines = [*as_lines(facts), *steps_before(facts)]
    assert lines[:4] == [
        f"pixel: quarantined since 2026-11-22 12:00:00 UTC: {cause}",
        f"  what to do: {way_out}",
        "    at most 0.1 allowed",
        "recovery and orders in the last 24 h (1; UTC):",
    ]
    said = "\n".join(lines)
    assert [said.count(each) for each in (cause, "farm device release", "at most 0.1", "re-push failed")] == [1] * 4
    assert repeats_state(view, f"quarantined: {cause}")
    assert not repeats_state(view, "reserved for ci for another 2 h")


@pytest.mark.parametrize(
    ("facts", "holder", "word"),
    [
        ({}, "", "ready"),
        ({}, "ann", "busy"),
        ({"heat": Heat.COOLING}, "", "cooling"),
        ({"service": Service.MAINTENANCE}, "", "maintenance"),
        ({"life": Life.OFFLINE}, "", "offline"),
    ],
)
def test_a_phone_s_state_has_the_word_of_farm_status(facts, holder, word):
    view = replace(READY.view, **facts)
    line = as_lines(replace(READY, view=view, holder=holder))[0]
    assert line == f"pixel: {word}" + (f", leased by {holder}" if holder else "")
    assert device_row(view, holder, AT)["state"] == word


def test_a_long_reason_stands_once_in_full_and_orders_are_no_mending():
    cause = "wrong numbers on cpu: " + "conv2d differs by 3.1 of 0.01 allowed, " * 8
    actions = (
        RecoveryRecord("r1", "S1", "pixel", "restart-server", "wrong", cause, AT, 2.0, "failed", cause),
        RecoveryRecord("r2", "S1", "pixel", "reboot", "order", "ann wants it rebooted", AT, 41.5, "repaired", ""),
        RecoveryRecord("r3", "S1", "pixel", "quarantine", "order", "cracked", AT, 363.0, "repaired", "released"),
    )
    view = replace(READY.view, life=Life.QUARANTINED, reason=cause)
    said = text(replace(READY, view=view, actions=actions))
    assert said.count(cause.strip()) == 1
    assert "restart-server failed in 2.0 s\n" in said
    assert "reboot by order, 41.5 s (ann wants it rebooted)\n" in said
    assert f"quarantine lasted {format_duration(363.0)} (cracked), then: released" in said


def test_a_warm_phone_does_not_call_its_heat_ok_and_small_sizes_are_no_zero():
    shut = {LeaseClass.BENCH: Closed("skin 43.1 °C is above 38 °C for bench", 180.0)}
    health = Health(data_free_bytes=50 * 10**6)
    view = replace(READY.view, closed=shut, health=health)
    said = text(replace(READY, view=view, probed_s_ago=1.0, busy_beside={"nexus": "ann"}))
    assert said.startswith("pixel: ready\n  interactive: open\n  bench: closed: skin 43.1 °C is above 38 °C for bench")
    assert "thermal status not known, /data 50 MB free" in said
    assert "ann has nexus: with --quiet-hub a bench waits" in said
