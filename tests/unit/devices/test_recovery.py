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
RESTART, REPUSH, RECONNECT = RecoveryAction.RESTART, RecoveryAction.REPUSH, RecoveryAction.RECONNECT
REBOOT, POWER_CYCLE, QUARANTINE = RecoveryAction.REBOOT, RecoveryAction.POWER_CYCLE, RecoveryAction.QUARANTINE
STUCK, OFFLINE = DeviceFault.STUCK, DeviceFault.OFFLINE
NEW = RecoveryProgress()


def taken(fault, context=POWER, **options):
    """Every action that is taken, one after the other, when nothing helps."""
    progress, actions = NEW, []
    while (action := next_action(progress, fault, 0.0, context, **options).action) and len(actions) < 20:
        actions.append(action)
        progress = progress.begin(action, fault, "why", 0.0).end(ActionOutcome.FAILED, "why", 0.0)
    return actions


@pytest.mark.parametrize(
    ("fault", "actions"),
    [
        (DeviceFault.SERVER, [RESTART, RESTART, RESTART, REPUSH, REBOOT, QUARANTINE]),
        (DeviceFault.START, [REPUSH, REPUSH, REPUSH, REBOOT, QUARANTINE]),
        (DeviceFault.CHECK, [RESTART, REPUSH, REPUSH, REBOOT, QUARANTINE]),
        (DeviceFault.WRONG, [RESTART, REPUSH, QUARANTINE]),
        (STUCK, [REBOOT, QUARANTINE]),
        (DeviceFault.GPU, [RESTART, REBOOT, QUARANTINE]),
        # A link that is down never costs a reboot.
        (DeviceFault.MUTE, [RECONNECT, RECONNECT, POWER_CYCLE]),
        (OFFLINE, [RECONNECT, RECONNECT, POWER_CYCLE]),
        (DeviceFault.UNAUTHORIZED, [RECONNECT]),
        (DeviceFault.HOT, [QUARANTINE]),
    ],
)
def test_what_is_tried_when_nothing_helps(fault, actions):
    assert taken(fault) == actions


@pytest.mark.parametrize("fault", [DeviceFault.SERVER, DeviceFault.START, DeviceFault.CHECK])
def test_a_bundle_that_never_worked_is_suspected_before_the_phone(fault):
    assert REBOOT not in taken(fault, proven=False)
    assert taken(fault, proven=False)[-1] is QUARANTINE


def test_users_kernels_may_hang_as_often_as_they_like():
    progress = NEW
    for second in range(1000):
        choice = next_action(progress, DeviceFault.SESSION, float(second), POWER)
        assert choice.action is RecoveryAction.REAP
        progress = progress.begin(choice.action, DeviceFault.SESSION, "hangs", float(second))
        progress = progress.end(ActionOutcome.REPAIRED, "", second + 0.5)
    assert (progress.tried, progress.spent) == ((), ())


def test_a_budget_is_for_any_24_hours_and_is_not_given_back_by_success():
    progress = NEW
    for now_s in (0.0, 3600.0, 7200.0):
        assert next_action(progress, STUCK, now_s, POWER).action is REBOOT
        progress = progress.begin(REBOOT, STUCK, "stuck", now_s).end(ActionOutcome.REPAIRED, "", now_s).settled()
    refused = next_action(progress, STUCK, 3 * 3600.0, POWER)
    assert (refused.action, refused.skipped) == (QUARANTINE, ("reboot: its 3 in 24 h are used up",))
    assert next_action(progress, STUCK, DAY_S + 1.0, POWER).action is REBOOT


def test_budgets_are_operators_to_set():
    never = RecoveryContext(per_day={REBOOT: 0})
    assert taken(STUCK, never) == [QUARANTINE]
    assert budgets_left(NEW, 0.0, never)[REBOOT] == 0


def test_what_a_person_ordered_costs_no_budget():
    progress = NEW.begin(REBOOT, DeviceFault.ORDER, "ann wants it", 0.0, free=True)
    assert budgets_left(progress, 0.0, POWER)[REBOOT] == RULE_OF[REBOOT].per_day


def test_a_reboot_waits_for_the_holder_while_the_phone_is_of_use():
    held = RecoveryContext(holder="ann", in_hands=True)
    choice = next_action(NEW, STUCK, 0.0, held)
    assert (choice.action, choice.waits) == (None, "reboot waits: ann has the phone")
    assert next_action(NEW, STUCK, 0.0, RecoveryContext(holder="a job")).action is REBOOT
    dead = RecoveryProgress(tried=((REPUSH, DeviceFault.START),) * 3)
    assert next_action(dead, DeviceFault.START, 0.0, held).action is REBOOT


def test_a_power_cycle_waits_for_the_neighbours_and_is_skipped_without_a_switch():
    tried = RecoveryProgress(tried=((RECONNECT, OFFLINE),) * 2)
    waits = next_action(tried, OFFLINE, 0.0, RecoveryContext(no_power="", neighbours="bob's lease on pixel-2"))
    assert (waits.action, waits.waits) == (None, "power-cycle waits: it would hurt bob's lease on pixel-2")
    skipped = next_action(tried, OFFLINE, 0.0, RecoveryContext())
    assert (skipped.action, skipped.skipped) == (None, ("power-cycle: no power switch is configured",))


def test_what_is_not_the_phones_fault_burns_nothing_on_the_phone():
    hub = RecoveryContext(no_power="", external_cause="3 phones on hub 1-4 went together: it is the hub")
    assert all(taken(fault, hub) == [] for fault in DeviceFault)
    assert next_action(NEW, DeviceFault.MUTE, 0.0, hub).waits == hub.external_cause


def test_harder_actions_count_whatever_they_were_tried_for():
    progress = NEW.begin(REBOOT, STUCK, "stuck", 0.0)
    assert next_action(progress, DeviceFault.GPU, 0.0, POWER).action is RESTART
    tried = progress.begin(RESTART, DeviceFault.GPU, "faults", 0.0)
    assert next_action(tried, DeviceFault.GPU, 0.0, POWER).action is QUARANTINE


def test_an_action_tells_how_long_it_took_and_what_came_of_it():
    progress = NEW.begin(REBOOT, STUCK, "pid 7 survives SIGKILL", 10.0).end(ActionOutcome.REPAIRED, "", 52.5)
    assert progress.under_way is None
    last = progress.last
    assert (last.taken.action, last.outcome, last.took_s) == (REBOOT, ActionOutcome.REPAIRED, 42.5)
    assert progress.end(ActionOutcome.FAILED, "again", 60.0) == progress


def test_every_fault_has_an_answer_and_every_action_says_whom_it_hurts():
    repaired = {fault for rule in ACTION_RULES for fault in rule.helps}
    assert repaired | {DeviceFault.ORDER} == set(DeviceFault)
    assert [rule.action for rule in ACTION_RULES] == list(RecoveryAction)
    hurts = [list(Impact).index(rule.impact) for rule in ACTION_RULES if rule.action is not QUARANTINE]
    assert hurts == sorted(hurts)


def test_the_document_has_every_rule():
    text = (Path(__file__).parents[3] / "docs" / "health.md").read_text()
    for rule in ACTION_RULES:
        repairs = ", ".join(
            f"{each} {most}" if 1 < most < ANY_NUMBER else str(each) for each, most in rule.helps.items()
        )
        per_day = "as needed" if rule.per_day is None else rule.per_day
        assert f"| `{rule.action}` | {rule.what} | {rule.impact} | {per_day} | {repairs} |" in text
