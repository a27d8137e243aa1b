"""The life cycle under recovery: reboots, dead links, quarantine that stays, orders."""

import pytest

from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.lifecycle import STABLE_S
from farm.devices.lifecycle.recovery import DAY_S, FOUND_STABLE_S, ActionOutcome, RecoveryAction, RecoveryContext
from farm.model.device import Life
from farm.model.health import DeviceFault, ReleaseRule
from tests.support.lifecycle_story import USABLE, Story

OFFLINE = m.Listed(m.LinkState.OFFLINE, "its adb transport does not answer", "replug it", reconnectable=True)
POWER = RecoveryContext(no_power="")


def under_way(story):
    taken = story.state.progress.under_way
    return taken.action if taken else None


def last(story):
    ended = story.state.progress.last
    assert ended is not None
    return ended.taken.action, ended.outcome


def back_to_ready(story):
    """From IDENTIFYING on."""
    story.on_event(m.Identified(story.number, adopted=True))
    story.on_event(m.Provisioned(story.number, "b" * 64))
    story.on_event(m.ServerStarted(story.number))
    story.on_event(m.CheckPassed(story.number))
    assert story.state.life is Life.READY


def stuck(story):
    story.on_event(m.SessionBroke("cut: timeout"))
    story.on_event(m.PlainEvent.PHONE_AT_FAULT)
    return story.on_event(m.WorkFailed(story.number, "pid 7 survives SIGKILL", fault=DeviceFault.STUCK))


def test_a_reap_is_an_action_that_ends_with_ready():
    story = Story().until_ready()
    story.on_event(m.SessionBroke("cut"))
    story.on_event(m.PlainEvent.PHONE_AT_FAULT)
    assert under_way(story) is RecoveryAction.REAP
    story.on_event(m.RecoveryFinished(story.number, server_alive=True))
    story.on_event(m.CheckPassed(story.number))
    assert last(story) == (RecoveryAction.REAP, ActionOutcome.REPAIRED)


def test_a_process_that_survives_sigkill_is_rebooted_away():
    story = Story().until_ready()
    assert stuck(story) == (m.TakeAction(story.number, RecoveryAction.REBOOT),)
    assert (story.state.life, under_way(story), last(story)) == (
        Life.RECOVERING,
        RecoveryAction.REBOOT,
        (RecoveryAction.REAP, ActionOutcome.FAILED),
    )
    assert isinstance(story.on_event(m.PlainEvent.UNLISTED)[0], m.Pause)
    assert "reboot under way: pid 7" in story.state.reason
    story.now += 40.0
    assert isinstance(story.on_event(USABLE)[0], m.Identify)
    back_to_ready(story)
    assert last(story) == (RecoveryAction.REBOOT, ActionOutcome.REPAIRED)
    assert story.state.progress.last is not None
    assert story.state.progress.last.took_s == 40.0


def test_a_phone_that_does_not_come_back_says_so_and_asks_for_a_look():
    story = Story().until_ready()
    stuck(story)
    story.on_event(m.PlainEvent.UNLISTED)
    assert story.on_event(m.WaitEnded(story.number)) == ()
    assert "has not come back in 300 s" in story.state.reason
    assert "look at the phone" in story.state.hint
    assert last(story) == (RecoveryAction.REBOOT, ActionOutcome.FAILED)


def test_a_phone_that_came_back_without_a_reboot_has_not_been_mended_by_one():
    story = Story().until_ready()
    stuck(story)
    story.on_event(m.PlainEvent.UNLISTED)
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=True, same_boot=True))
    assert last(story) == (RecoveryAction.REBOOT, ActionOutcome.FAILED)
    assert story.state.life is Life.PROVISIONING


def test_a_second_reboot_in_a_row_is_a_persons_business():
    story = Story().until_ready()
    stuck(story)
    story.on_event(m.PlainEvent.UNLISTED)
    story.on_event(USABLE)
    back_to_ready(story)
    assert stuck(story) == (m.EndServer(),)
    kept = story.state.quarantine
    assert kept is not None
    assert (story.state.life, kept.rule) == (Life.QUARANTINED, ReleaseRule.PERSON)
    assert "WorkFailed" in kept.evidence


def test_after_a_stable_time_the_mildest_action_comes_first():
    story = Story().until_ready()
    stuck(story)
    story.on_event(m.PlainEvent.UNLISTED)
    story.on_event(USABLE)
    back_to_ready(story)
    story.now += STABLE_S
    assert stuck(story) == (m.TakeAction(story.number, RecoveryAction.REBOOT),)


def test_a_holder_is_not_rebooted_under_while_the_phone_is_of_use():
    story = Story().until_ready()
    story.context = RecoveryContext(holder="ann", in_hands=True)
    assert isinstance(stuck(story)[0], m.RetryLater)
    assert "reboot waits: ann has the phone" in story.state.reason
    assert under_way(story) is None


@pytest.mark.parametrize("context", [RecoveryContext(), RecoveryContext(holder="ann")])
def test_what_a_probe_finds_waits_for_the_holder(context):
    story = Story().until_ready()
    story.context = context
    told = story.on_event(m.FaultFound(DeviceFault.GPU, "kgsl: gpu fault"))
    assert told == (() if context.holder else (m.StartServer(story.number),))
    assert story.on_event(m.FaultFound(DeviceFault.GPU, "kgsl: gpu fault")) == ()


def _gpu_fault(story, *, used=False):
    """Seen by a probe 30 s after the phone was ready."""
    story.now += 30.0
    return story.on_event(m.FaultFound(DeviceFault.GPU, "kgsl: gpu fault", used=used))


def _checked(story):
    """From STARTING on."""
    story.on_event(m.ServerStarted(story.number))
    story.on_event(m.CheckPassed(story.number))
    assert story.state.life is Life.READY


def test_what_probes_find_again_and_again_gets_stronger_actions():
    story = Story().until_ready()
    assert _gpu_fault(story) == (m.StartServer(story.number),)
    _checked(story)
    story.now += STABLE_S
    story.on_event(m.ServerDied(story.state.follow, "signal 11"))  # another fault in between
    _checked(story)
    assert _gpu_fault(story) == (m.TakeAction(story.number, RecoveryAction.REBOOT),)
    story.on_event(m.PlainEvent.UNLISTED)
    story.on_event(USABLE)
    back_to_ready(story)
    assert _gpu_fault(story) == (m.EndServer(),)
    assert story.state.life is Life.QUARANTINED


def test_what_was_not_found_for_long_begins_at_the_foot():
    story = Story().until_ready()
    for _ in range(6):
        assert _gpu_fault(story) == (m.StartServer(story.number),)
        _checked(story)
        story.now += FOUND_STABLE_S


def test_faults_that_users_may_have_made_say_nothing_about_the_phone():
    story = Story().until_ready()
    for _ in range(6):
        assert _gpu_fault(story, used=True) == (m.StartServer(story.number),)
        _checked(story)


def wrong(story):
    story.until_due_check()
    return story.on_event(m.WorkFailed(story.number, "relu gives wrong numbers", fault=DeviceFault.WRONG))


def test_numbers_that_are_wrong_now_and_then_are_a_persons_business():
    story = Story().until_ready()
    assert wrong(story) == (m.StartServer(story.number),)
    _checked(story)
    story.now += DAY_S / 2
    assert wrong(story) == (m.EndServer(),)
    kept = story.state.quarantine
    assert kept is not None
    assert kept.rule is ReleaseRule.PERSON
    assert kept.cause == "relu gives wrong numbers"
    assert kept.evidence.startswith("for the second time in 24 h\n")


def test_wrong_numbers_of_two_days_are_answered_from_the_foot():
    story = Story().until_ready()
    for _ in range(3):
        assert wrong(story) == (m.StartServer(story.number),)
        _checked(story)
        story.now += DAY_S


def test_numbers_that_stay_wrong_are_answered_action_by_action():
    story = Story().until_ready()
    assert wrong(story) == (m.StartServer(story.number),)
    story.on_event(m.ServerStarted(story.number))
    again = m.WorkFailed(story.number, "wrong", fault=DeviceFault.WRONG)
    assert story.on_event(again) == (m.Provision(story.number, deep=True),)
    story.on_event(m.Provisioned(story.number, "b" * 64))
    story.on_event(m.ServerStarted(story.number))
    story.on_event(m.WorkFailed(story.number, "wrong", fault=DeviceFault.WRONG))
    assert story.state.life is Life.QUARANTINED


def test_what_looks_stuck_is_killed_before_anything_harder():
    story = Story().until_ready()
    assert story.on_event(m.FaultFound(DeviceFault.STUCK, "pid 7 in state D")) == (m.Reap(story.number),)


def test_a_hot_battery_is_quarantined_until_a_probe_finds_it_well():
    story = Story().until_ready()
    story.on_event(m.FaultFound(DeviceFault.HOT, "battery 52 C"))
    assert (story.state.life, story.state.reason) == (Life.QUARANTINED, "battery 52 C")
    assert story.on_event(m.FaultCleared(DeviceFault.STORAGE)) == ()
    assert story.on_event(m.FaultCleared(DeviceFault.HOT)) == (m.Identify(story.number),)


def test_an_offline_link_is_reconnected_and_only_then_power_cycled():
    story = Story().until_ready()
    story.context = POWER
    taken = []
    assert story.on_event(OFFLINE) == (m.Pause(story.number, 5.0),)
    assert story.on_event(OFFLINE) == ()  # no news
    for _ in range(3):
        (work,) = story.on_event(m.WaitEnded(story.number))
        assert isinstance(work, m.TakeAction)
        taken.append(work.action)
        assert isinstance(story.on_event(m.ActionDone(story.number))[0], m.Pause)
    assert taken == [RecoveryAction.RECONNECT, RecoveryAction.RECONNECT, RecoveryAction.POWER_CYCLE]
    assert story.on_event(m.WaitEnded(story.number)) == ()
    assert story.state.reason == "its adb transport does not answer; the power-cycle did not help"
    assert (story.state.life, story.state.hint) == (Life.OFFLINE, "replug it")


def test_a_link_that_comes_back_from_a_reconnect_was_mended_by_it():
    story = Story().until_ready()
    story.on_event(OFFLINE)
    story.on_event(m.WaitEnded(story.number))
    story.on_event(m.PlainEvent.UNLISTED)  # adb opens it anew
    story.on_event(USABLE)
    back_to_ready(story)
    assert last(story) == (RecoveryAction.RECONNECT, ActionOutcome.REPAIRED)


@pytest.mark.parametrize("reconnectable", [True, False])
def test_unadopted_phones_and_bootloaders_are_left_alone(reconnectable):
    story = Story()
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=not reconnectable))
    assert story.on_event(m.Listed(m.LinkState.OFFLINE, "why", "do", reconnectable=reconnectable)) == ()


def test_a_server_that_leaves_a_stuck_process_is_not_just_started_again():
    story = Story().until_ready()
    story.on_event(m.SessionBroke("the phone's side ended"))
    story.on_event(m.PlainEvent.PHONE_AT_FAULT)
    died = m.ServerDied(story.state.follow, "died of signal 9; processes do not die: 218", stuck=True)
    assert story.on_event(died) == (m.TakeAction(story.number, RecoveryAction.REBOOT),)
    assert (under_way(story), last(story)) == (RecoveryAction.REBOOT, (RecoveryAction.REAP, ActionOutcome.FAILED))


def test_an_unadopted_phones_silence_is_waited_out():
    story = Story()
    story.on_event(USABLE)
    for _ in range(5):
        told = story.on_event(m.WorkFailed(story.number, "it did not answer", fault=DeviceFault.MUTE))
        assert isinstance(told[0], m.RetryLater)
        story.on_event(m.WaitEnded(story.number))


def test_an_unplugged_phone_costs_no_action():
    story = Story().until_ready()
    for _ in range(50):
        assert story.on_event(m.PlainEvent.UNLISTED) == ()
        story.on_event(USABLE)
        story.on_event(m.WorkFailed(story.number, "link lost"))
    assert story.state.progress.spent == ()


def test_a_mute_phone_is_reconnected_after_a_second_silence():
    story = Story().until_ready()
    story.on_event(m.PlainEvent.UNLISTED)
    story.on_event(USABLE)
    silence = "it did not answer"
    assert isinstance(story.on_event(m.WorkFailed(story.number, silence, fault=DeviceFault.MUTE))[0], m.RetryLater)
    story.on_event(m.WaitEnded(story.number))
    assert story.on_event(m.WorkFailed(story.number, silence, fault=DeviceFault.MUTE)) == (
        m.TakeAction(story.number, RecoveryAction.RECONNECT),
    )


def test_a_phone_that_a_probe_finds_mute_is_reconnected_at_once():
    story = Story().until_ready()
    told = story.on_event(m.LinkLost(story.state.follow, "it answers no command", mute=True))
    assert told == (m.TakeAction(story.number, RecoveryAction.RECONNECT),)
    assert (story.state.life, story.state.reason) == (Life.RECOVERING, "it answers no command")


@pytest.mark.parametrize(("wired", "patience_s"), [(True, 5.0), (False, 15.0)])
def test_a_reconnected_phone_is_waited_for_as_long_as_adb_may_take(wired, patience_s):
    story = Story().until_ready()
    story.context = RecoveryContext(no_power="", wired=wired)
    story.on_event(m.LinkLost(story.state.follow, "it answers no command", mute=True))
    waits = story.on_event(OFFLINE)
    assert waits == (m.Pause(story.number, patience_s),)
    assert story.on_event(m.WaitEnded(story.number)) == (m.TakeAction(story.number, RecoveryAction.RECONNECT),)
    story.on_event(m.ActionDone(story.number))
    assert story.on_event(m.WaitEnded(story.number)) == (m.TakeAction(story.number, RecoveryAction.POWER_CYCLE),)


def test_the_hosts_faults_are_waited_out():
    story = Story().until_ready()
    story.on_event(m.SessionBroke("cut"))
    story.on_event(m.PlainEvent.PHONE_AT_FAULT)
    story.on_event(m.RecoveryFinished(story.number, server_alive=True))
    for _ in range(20):
        told = story.on_event(m.WorkFailed(story.number, "no worker"))
        assert isinstance(told[-1], m.RetryLater)
        story.on_event(m.WaitEnded(story.number))
        story.on_event(m.Provisioned(story.number, "b" * 64, adoptable=True))
        story.on_event(m.ServerStarted(story.number))
    assert story.state.progress.spent == ()


def test_a_quarantine_outlives_the_cable():
    story = Story().until_ready()
    story.on_event(m.QuarantineOrdered("screen cracked"))
    assert (story.state.life, story.last) == (Life.QUARANTINED, (m.EndServer(),))
    story.on_event(m.PlainEvent.UNLISTED)
    assert story.state.reason.startswith("quarantined: screen cracked; ")
    story.on_event(USABLE)
    assert story.on_event(m.Identified(story.number, adopted=True)) == ()
    assert (story.state.life, story.state.reason) == (Life.QUARANTINED, "screen cracked")
    assert story.on_event(m.PlainEvent.RELEASED) == (m.Identify(story.number),)
    story.on_event(m.Identified(story.number, adopted=True))
    assert story.state.life is Life.PROVISIONING


def test_other_bundles_release_only_whom_a_bundle_put_there():
    story = Story().until_ready()
    story.on_event(m.QuarantineOrdered("screen cracked"))
    assert story.on_event(m.PlainEvent.BUNDLES_CHANGED) == ()
    assert story.state.life is Life.QUARANTINED


def test_a_released_phone_that_is_away_is_free_when_it_returns():
    story = Story().until_ready()
    story.on_event(m.QuarantineOrdered("screen cracked"))
    story.on_event(m.PlainEvent.UNLISTED)
    story.on_event(m.PlainEvent.RELEASED)
    story.on_event(USABLE)
    back_to_ready(story)


def test_an_unadopted_phone_is_not_kept_in_a_quarantine_that_nobody_could_end():
    story = Story()
    story.on_event(USABLE)
    story.on_event(m.BugFound("a bug in farm", "report it"))
    story.on_event(m.PlainEvent.UNLISTED)
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=False))
    assert (story.state.life, story.state.quarantine) == (Life.NEW, None)


def test_an_ordered_reboot_waits_for_the_return_and_leaves_a_quarantine_alone():
    story = Story().until_ready()
    story.on_event(m.QuarantineOrdered("screen cracked"))
    order = m.ActionOrdered(RecoveryAction.REBOOT, "ordered by ann")
    assert story.on_event(order) == (m.TakeAction(story.number, RecoveryAction.REBOOT),)
    assert story.on_event(m.ActionDone(story.number)) == (m.Identify(story.number),)
    story.on_event(m.Identified(story.number, adopted=True))
    assert (story.state.life, last(story)) == (Life.QUARANTINED, (RecoveryAction.REBOOT, ActionOutcome.REPAIRED))
    assert story.state.progress.spent == ()


def test_an_ordered_reboot_that_fails_leads_back_to_work():
    story = Story().until_ready()
    story.on_event(m.ActionOrdered(RecoveryAction.REBOOT, "ordered by ann"))
    assert isinstance(story.on_event(m.ActionFailed(story.number, "it did not go down"))[0], m.RetryLater)
    assert last(story) == (RecoveryAction.REBOOT, ActionOutcome.FAILED)


def test_a_bundle_that_never_worked_waits_for_another_one():
    story = Story()
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=True))
    for _ in range(3):
        story.on_event(m.Provisioned(story.number, "bad"))
        story.on_event(m.WorkFailed(story.number, "cannot link", fault=DeviceFault.START))
        story.on_event(m.WaitEnded(story.number))
    story.on_event(m.Provisioned(story.number, "bad"))
    story.on_event(m.WorkFailed(story.number, "cannot link", fault=DeviceFault.START))
    assert story.state.quarantine is not None
    assert (story.state.life, story.state.quarantine.rule) == (Life.QUARANTINED, ReleaseRule.BUNDLES)
    assert isinstance(story.on_event(m.PlainEvent.BUNDLES_CHANGED)[0], m.Provision)


def test_what_the_host_or_the_hub_did_costs_the_phone_nothing():
    story = Story().until_ready()
    story.context = RecoveryContext(no_power="", external_cause="the adb server does not answer")
    before = story.state.progress
    assert isinstance(story.on_event(m.LinkLost(story.state.follow, "it is silent", mute=True))[0], m.RetryLater)
    for _ in range(5):
        story.on_event(m.WaitEnded(story.number))
        again = m.WorkFailed(story.number, "no answer", fault=DeviceFault.MUTE)
        assert isinstance(story.on_event(again)[0], m.RetryLater)
    assert (story.state.progress, story.state.failures) == (before, 0)
    assert story.state.reason == "the adb server does not answer; no answer"
    story.context = RecoveryContext(no_power="")
    story.on_event(m.WaitEnded(story.number))
    first = story.on_event(m.WorkFailed(story.number, "no answer", fault=DeviceFault.MUTE))
    assert isinstance(first[0], m.RetryLater)  # one slow answer is no fault of the transport


def test_dead_transports_of_a_hub_are_made_anew_without_an_action():
    story = Story().until_ready()
    story.context = RecoveryContext(no_power="", external_cause="its hub 1-4 went silent with 2 phones")
    story.on_event(OFFLINE)
    for _ in range(3):
        story.now += 60.0
        asked = story.on_event(m.WaitEnded(story.number))
        assert asked == (m.TakeAction(story.number, RecoveryAction.RECONNECT),)
        assert isinstance(story.on_event(m.ActionDone(story.number))[0], m.Pause)
    assert (under_way(story), story.state.progress.spent, story.state.progress.tried) == (None, (), ())
    story.context = POWER
    assert story.on_event(m.WaitEnded(story.number)) == (m.TakeAction(story.number, RecoveryAction.RECONNECT),)
    assert under_way(story) is RecoveryAction.RECONNECT  # the hub is back, this phone is not: now it is the phone's


def test_a_session_that_the_host_cut_is_reaped_without_an_action():
    story = Story().until_ready()
    story.context = RecoveryContext(external_cause="the adb server went away")
    (asked,) = story.on_event(m.SessionBroke("cut"))
    assert isinstance(asked, m.Reap)
    assert asked.doubted
    assert under_way(story) is None
    assert story.on_event(m.PlainEvent.PHONE_AT_FAULT) == ()
    assert under_way(story) is None
