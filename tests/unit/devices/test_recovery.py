"""Recovery actions: which action comes next, what it costs, what it waits for."""

from pathlib import Path

import pytest

from farm.devices.lifecycle.recovery import (
    ACTION_RULES,
    ANY_NUMBER,
    DAY_S,
    RULE_OF,
    ActionOutcome,
    Impact,
    RecoveryAction,
    RecoveryContext,
    RecoveryProgress,
    budgets_left,
    next_action,
)
from farm.model.health import DeviceFault

POWER = RecoveryContext(no_power="")


def recovery_changed(fault, context=POWER, *, proven=True, progress=None):
    """Every action that is taken, one after the other, when nothing helps."""
    progress, taken = progress or RecoveryProgress(), list[RecoveryAction]()
    while (action := next_action(progress, fault, 0.0, context, proven=proven).action) and len(taken) < 20:
        taken.append(action)
        progress = progress.begin(action, fault, "why", 0.0).end(ActionOutcome.FAILED, "why", 0.0)
    return taken


@pytest.mark.parametrize(
    ("fault", "actions"),
    [
        (
            DeviceFault.SERVER,
            [*[RecoveryAction.RESTART] * 3, RecoveryAction.REPUSH, RecoveryAction.REBOOT, RecoveryAction.QUARANTINE],
        ),
        (DeviceFault.START, [*[RecoveryAction.REPUSH] * 3, RecoveryAction.REBOOT, RecoveryAction.QUARANTINE]),
        (
            DeviceFault.CHECK,
            [
                RecoveryAction.RESTART,
                RecoveryAction.REPUSH,
                RecoveryAction.REPUSH,
                RecoveryAction.REBOOT,
                RecoveryAction.QUARANTINE,
            ],
        ),
        (DeviceFault.WRONG, [RecoveryAction.RESTART, RecoveryAction.REPUSH, RecoveryAction.QUARANTINE]),
        (DeviceFault.STUCK, [RecoveryAction.REBOOT, RecoveryAction.QUARANTINE]),
        (DeviceFault.GPU, [RecoveryAction.RESTART, RecoveryAction.REBOOT, RecoveryAction.QUARANTINE]),
        (DeviceFault.MUTE, [RecoveryAction.RECONNECT, RecoveryAction.RECONNECT, RecoveryAction.POWER_CYCLE]),
        (DeviceFault.OFFLINE, [RecoveryAction.RECONNECT, RecoveryAction.RECONNECT, RecoveryAction.POWER_CYCLE]),
        (DeviceFault.UNAUTHORIZED, [RecoveryAction.RECONNECT]),
        (DeviceFault.HOT, [RecoveryAction.QUARANTINE]),
    ],
)
def test_what_is_tried_when_nothing_helps(fault, actions):
    assert recovery_changed(fault) == actions


def test_a_link_that_is_down_never_costs_a_reboot():
    for fault in (DeviceFault.MUTE, DeviceFault.OFFLINE, DeviceFault.UNAUTHORIZED):
        assert fault not in RULE_OF[RecoveryAction.REBOOT].helps


@pytest.mark.parametrize("fault", [DeviceFault.SERVER, DeviceFault.START, DeviceFault.CHECK])
def test_a_bundle_that_never_worked_is_suspected_before_the_phone(fault):
    assert RecoveryAction.REBOOT not in recovery_changed(fault, proven=False)
    assert recovery_changed(fault, proven=False)[-1] is RecoveryAction.QUARANTINE


def test_users_kernels_may_hang_as_often_as_they_like():
    progress = RecoveryProgress()
    for second in range(1000):
        assert next_action(progress, DeviceFault.SESSION, float(second), POWER).action is RecoveryAction.REAP
        progress = progress.begin(RecoveryAction.REAP, DeviceFault.SESSION, "hangs", float(second)).end(
            ActionOutcome.REPAIRED, "", second + 0.5
        )
    assert (progress.tried, progress.spent) == ((), ())


def test_a_budget_is_for_any_24_hours_and_is_not_given_back_by_success():
    progress = RecoveryProgress()
    for hour in range(3):
        now_s = hour * 3600.0
        assert next_action(progress, DeviceFault.STUCK, now_s, POWER).action is RecoveryAction.REBOOT
        progress = (
            progress.begin(RecoveryAction.REBOOT, DeviceFault.STUCK, "stuck", now_s)
            .end(ActionOutcome.REPAIRED, "", now_s)
            .settled()
        )
    refused = next_action(progress, DeviceFault.STUCK, 3 * 3600.0, POWER)
    assert (refused.action, refused.skipped) == (RecoveryAction.QUARANTINE, ("reboot: its 3 in 24 h are used up",))
    assert next_action(progress, DeviceFault.STUCK, DAY_S + 1.0, POWER).action is RecoveryAction.REBOOT


def test_budgets_are_operators_to_set():
    never = RecoveryContext(per_day={RecoveryAction.REBOOT: 0})
    assert recovery_changed(DeviceFault.STUCK, never) == [RecoveryAction.QUARANTINE]
    assert budgets_left(RecoveryProgress(), 0.0, never)[RecoveryAction.REBOOT] == 0


def test_what_a_person_ordered_costs_no_budget():
    progress = RecoveryProgress().begin(RecoveryAction.REBOOT, DeviceFault.ORDER, "ann wants it", 0.0, free=True)
    assert budgets_left(progress, 0.0, POWER)[RecoveryAction.REBOOT] == RULE_OF[RecoveryAction.REBOOT].per_day


def test_a_reboot_waits_for_the_holder_while_the_phone_is_of_use():
    held = RecoveryContext(holder="ann", in_hands=True)
    choice = next_action(RecoveryProgress(), DeviceFault.STUCK, 0.0, held)
    assert (choice.action, choice.waits) == (None, "reboot waits: ann has the phone")
    assert (
        next_action(RecoveryProgress(), DeviceFault.STUCK, 0.0, RecoveryContext(holder="a job")).action
        is RecoveryAction.REBOOT
    )
    dead = RecoveryProgress(tried=((RecoveryAction.REPUSH, DeviceFault.START),) * 3)
    assert next_action(dead, DeviceFault.START, 0.0, held).action is RecoveryAction.REBOOT


def test_a_power_cycle_waits_for_the_neighbours_and_is_skipped_without_a_switch():
    tried = RecoveryProgress(tried=((RecoveryAction.RECONNECT, DeviceFault.OFFLINE),) * 2)
    waits = next_action(
        tried, DeviceFault.OFFLINE, 0.0, RecoveryContext(no_power="", neighbours="bob's lease on pixel-2")
    )
    assert (waits.action, waits.waits) == (None, "power-cycle waits: it would hurt bob's lease on pixel-2")
    skipped = next_action(tried, DeviceFault.OFFLINE, 0.0, RecoveryContext())
    assert (skipped.action, skipped.skipped) == (None, ("power-cycle: no power switch is configured",))


def test_what_is_not_the_phones_fault_burns_nothing_on_the_phone():
    hub = RecoveryContext(no_power="", external_cause="3 phones on hub 1-4 went together: it is the hub")
    assert all(recovery_changed(fault, hub) == [] for fault in DeviceFault)
    assert next_action(RecoveryProgress(), DeviceFault.MUTE, 0.0, hub).waits == hub.external_cause


def test_harder_actions_count_whatever_they_were_tried_for():
    progress = RecoveryProgress().begin(RecoveryAction.REBOOT, DeviceFault.STUCK, "stuck", 0.0)
    assert next_action(progress, DeviceFault.GPU, 0.0, POWER).action is RecoveryAction.RESTART
    tried = progress.begin(RecoveryAction.RESTART, DeviceFault.GPU, "faults", 0.0)
    assert next_action(tried, DeviceFault.GPU, 0.0, POWER).action is RecoveryAction.QUARANTINE


def test_an_action_tells_how_long_it_took_and_what_came_of_it():
    progress = (
        RecoveryProgress()
        .begin(RecoveryAction.REBOOT, DeviceFault.STUCK, "pid 7 survives SIGKILL", 10.0)
        .end(ActionOutcome.REPAIRED, "", 52.5)
    )
    assert progress.under_way is None
    assert progress.last is not None
    assert (progress.last.taken.action, progress.last.outcome, progress.last.took_s) == (
        RecoveryAction.REBOOT,
        ActionOutcome.REPAIRED,
        42.5,
    )
    assert progress.end(ActionOutcome.FAILED, "again", 60.0) == progress


def test_every_fault_has_an_answer_and_every_action_says_whom_it_hurts():
    repaired = {fault for rule in ACTION_RULES for fault in rule.helps}
    assert repaired | {DeviceFault.ORDER} == set(DeviceFault)
    assert [rule.action for rule in ACTION_RULES] == list(RecoveryAction)
    hurts = [list(Impact).index(rule.impact) for rule in ACTION_RULES if rule.action is not RecoveryAction.QUARANTINE]
    assert hurts == sorted(hurts)


def test_the_document_has_every_rule():
    text = (Path(__file__).parents[3] / "docs" / "recovery.md").read_text()
    for rule in ACTION_RULES:
        repairs = ", ".join(
            f"{each} {most}" if 1 < most < ANY_NUMBER else str(each) for each, most in rule.helps.items()
        )
        per_day = "as needed" if rule.per_day is None else rule.per_day
        assert f"| `{rule.action}` | {rule.what} | {rule.impact} | {per_day} | {repairs} |" in text
