"""The life cycle under recovery: reboots, dead links, quarantine that stays, orders."""

import pytest

from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.lifecycle import STABLE_S
from farm.devices.lifecycle.recovery import DAY_S, FOUND_STABLE_S, ActionOutcome, RecoveryAction, RecoveryContext
from farm.model.device import Life
from farm.model.health import DeviceFault, ReleaseRule
from tests.support.lifecycle_story import GONE, USABLE, Story

OFFLINE = m.Listed(m.LinkState.OFFLINE, "its adb transport does not answer", "replug it", reconnectable=True)
POWER = RecoveryContext(no_power="")
RELEASED = m.PlainEvent.RELEASED
CRACKED = m.QuarantineOrdered("screen cracked")
REAP, RECONNECT, REBOOT = RecoveryAction.REAP, RecoveryAction.RECONNECT, RecoveryAction.REBOOT
POWER_CYCLE = RecoveryAction.POWER_CYCLE
FAILED, REPAIRED = ActionOutcome.FAILED, ActionOutcome.REPAIRED


def taking(story, action):
    """What asks for that action."""
    return (m.TakeAction(story.number, action),)


def broken(story):
    """The phone's side of a session broke."""
    return story.on(m.SessionBroke("cut"), m.PlainEvent.PHONE_AT_FAULT)


def stuck(story):
    broken(story)
    return story.fails("pid 7 survives SIGKILL", DeviceFault.STUCK)


def rebooting():
    """A ready phone had a stuck process; it is away."""
    story = Story(Life.READY)
    assert stuck(story) == taking(story, REBOOT)
    assert (story.life, story.under_way, story.ended) == (Life.RECOVERING, REBOOT, (REAP, FAILED))
    assert isinstance(story.on(GONE)[0], m.Pause)
    assert "reboot under way: pid 7" in story.state.reason
    return story


def rebooted():
    """It came back as it should."""
    story = rebooting()
    assert isinstance(story.on(USABLE)[0], m.Identify)
    story.until(Life.READY)
    return story


def quarantined():
    """By an operator."""
    story = Story(Life.READY)
    assert story.on(CRACKED) == (m.EndServer(),)
    assert story.life is Life.QUARANTINED
    return story


def test_a_reap_is_an_action_that_ends_with_ready():
    story = Story(Life.READY)
    broken(story)
    assert story.under_way is REAP
    story.answers(m.RecoveryFinished, server_alive=True)
    story.answers(m.CheckPassed)
    assert story.ended == (REAP, REPAIRED)


def test_a_process_that_survives_sigkill_is_rebooted_away():
    story = rebooting()
    story.now += 40.0
    story.on(USABLE)
    story.until(Life.READY)
    assert (story.ended, story.state.progress.last.took_s) == ((REBOOT, REPAIRED), 40.0)


def test_a_phone_that_does_not_come_back_says_so_and_asks_for_a_look():
    story = rebooting()
    assert story.waits() == ()
    assert "has not come back in 300 s" in story.state.reason
    assert "look at the phone" in story.state.hint
    assert story.ended == (REBOOT, FAILED)


def test_a_phone_that_came_back_without_a_reboot_has_not_been_mended_by_one():
    story = rebooting()
    story.on(USABLE)
    story.answers(m.Identified, adopted=True, same_boot=True)
    assert (story.ended, story.life) == ((REBOOT, FAILED), Life.PROVISIONING)


def test_a_second_reboot_in_a_row_is_a_persons_business():
    story = rebooted()
    assert stuck(story) == (m.EndServer(),)
    kept = story.state.quarantine
    assert (story.life, kept.rule) == (Life.QUARANTINED, ReleaseRule.PERSON)
    assert "WorkFailed" in kept.evidence


def test_after_a_stable_time_the_mildest_action_comes_first():
    story = rebooted()
    story.now += STABLE_S
    assert stuck(story) == taking(story, REBOOT)


def test_a_holder_is_not_rebooted_under_while_the_phone_is_of_use():
    story = Story(Life.READY, holder="ann", in_hands=True)
    assert isinstance(stuck(story)[0], m.RetryLater)
    assert "reboot waits: ann has the phone" in story.state.reason
    assert story.under_way is None


def gpu_fault(story, **fields):
    """Seen by a probe 30 s after the phone was ready."""
    story.now += 30.0
    return story.on(m.FaultFound(DeviceFault.GPU, "kgsl: gpu fault", **fields))


@pytest.mark.parametrize("holder", ["", "ann"])
def test_what_a_probe_finds_waits_for_the_holder(holder):
    story = Story(Life.READY, holder=holder)
    assert gpu_fault(story) == (() if holder else (m.StartServer(story.number),))
    assert gpu_fault(story) == ()


def test_what_probes_find_again_and_again_gets_stronger_actions():
    story = Story(Life.READY)
    assert gpu_fault(story) == (m.StartServer(story.number),)
    story.until(Life.READY)
    story.now += STABLE_S
    story.dies()  # another fault in between
    story.until(Life.READY)
    assert gpu_fault(story) == taking(story, REBOOT)
    story.on(GONE, USABLE)
    story.until(Life.READY)
    assert gpu_fault(story) == (m.EndServer(),)
    assert story.life is Life.QUARANTINED


@pytest.mark.parametrize(("used", "between_s"), [(False, FOUND_STABLE_S), (True, 0.0)])
def test_what_was_not_found_for_long_or_users_may_have_made_begins_at_the_foot(used, between_s):
    story = Story(Life.READY)
    for _ in range(6):
        assert gpu_fault(story, used=used) == (m.StartServer(story.number),)
        story.until(Life.READY)
        story.now += between_s


def wrong(story):
    story.until_due_check()
    return story.fails("relu gives wrong numbers", DeviceFault.WRONG)


def test_numbers_that_are_wrong_now_and_then_are_a_persons_business():
    story = Story(Life.READY)
    assert wrong(story) == (m.StartServer(story.number),)
    story.until(Life.READY)
    story.now += DAY_S / 2
    assert wrong(story) == (m.EndServer(),)
    kept = story.state.quarantine
    assert (kept.rule, kept.cause) == (ReleaseRule.PERSON, "relu gives wrong numbers")
    assert kept.evidence.startswith("for the second time in 24 h\n")


def test_wrong_numbers_of_two_days_are_answered_from_the_foot():
    story = Story(Life.READY)
    for _ in range(3):
        assert wrong(story) == (m.StartServer(story.number),)
        story.until(Life.READY)
        story.now += DAY_S


def test_numbers_that_stay_wrong_are_answered_action_by_action():
    story = Story(Life.READY)
    assert wrong(story) == (m.StartServer(story.number),)
    story.until(Life.CHECKING)
    assert story.fails("wrong", DeviceFault.WRONG) == (m.Provision(story.number, deep=True),)
    story.until(Life.CHECKING)
    story.fails("wrong", DeviceFault.WRONG)
    assert story.life is Life.QUARANTINED


def test_what_looks_stuck_is_killed_before_anything_harder():
    story = Story(Life.READY)
    assert story.on(m.FaultFound(DeviceFault.STUCK, "pid 7 in state D")) == (m.Reap(story.number),)


def test_a_hot_battery_is_quarantined_until_a_probe_finds_it_well():
    story = Story(Life.READY)
    story.on(m.FaultFound(DeviceFault.HOT, "battery 52 C"))
    assert (story.life, story.state.reason) == (Life.QUARANTINED, "battery 52 C")
    assert story.on(m.FaultCleared(DeviceFault.STORAGE)) == ()
    assert story.on(m.FaultCleared(DeviceFault.HOT)) == (m.Identify(story.number),)


def test_an_offline_link_is_reconnected_and_only_then_power_cycled():
    story = Story(Life.READY, no_power="")
    assert story.on(OFFLINE) == (m.Pause(story.number, 5.0),)
    assert story.on(OFFLINE) == ()  # no news
    for action in (RECONNECT, RECONNECT, POWER_CYCLE):
        assert story.waits() == taking(story, action)
        assert isinstance(story.answers(m.ActionDone)[0], m.Pause)
    assert story.waits() == ()
    assert story.state.reason == "its adb transport does not answer; the power-cycle did not help"
    assert (story.life, story.state.hint) == (Life.OFFLINE, "replug it")


def test_a_link_that_comes_back_from_a_reconnect_was_mended_by_it():
    story = Story(Life.READY)
    story.on(OFFLINE)
    story.waits()
    story.on(GONE, USABLE)  # adb opens it anew
    story.until(Life.READY)
    assert story.ended == (RECONNECT, REPAIRED)


@pytest.mark.parametrize("reconnectable", [True, False])
def test_unadopted_phones_and_bootloaders_are_left_alone(reconnectable):
    story = Story(Life.IDENTIFYING)
    story.answers(m.Identified, adopted=not reconnectable)
    assert story.on(m.Listed(m.LinkState.OFFLINE, "why", "do", reconnectable=reconnectable)) == ()


def test_a_server_that_leaves_a_stuck_process_is_not_just_started_again():
    story = Story(Life.READY)
    broken(story)
    assert story.dies("died of signal 9; processes do not die: 218", stuck=True) == taking(story, REBOOT)
    assert (story.under_way, story.ended) == (REBOOT, (REAP, FAILED))


def test_an_unadopted_phones_silence_is_waited_out():
    story = Story(Life.IDENTIFYING)
    for _ in range(5):
        assert isinstance(story.fails("it did not answer", DeviceFault.MUTE)[0], m.RetryLater)
        story.waits()


def test_an_unplugged_phone_costs_no_action():
    story = Story(Life.READY)
    for _ in range(50):
        assert story.on(GONE) == ()
        story.on(USABLE)
        story.fails("link lost")
    assert story.state.progress.spent == ()


def test_a_mute_phone_is_reconnected_after_a_second_silence():
    story = Story(Life.READY)
    story.on(GONE, USABLE)
    assert isinstance(story.fails("it did not answer", DeviceFault.MUTE)[0], m.RetryLater)
    story.waits()
    assert story.fails("it did not answer", DeviceFault.MUTE) == taking(story, RECONNECT)


@pytest.mark.parametrize(("wired", "patience_s"), [(True, 5.0), (False, 15.0)])
def test_a_phone_that_a_probe_finds_mute_is_reconnected_at_once_and_waited_for(wired, patience_s):
    """As long as adb may take."""
    story = Story(Life.READY, no_power="", wired=wired)
    assert story.on(m.LinkLost(story.state.follow, "it is mute", mute=True)) == taking(story, RECONNECT)
    assert (story.life, story.state.reason) == (Life.RECOVERING, "it is mute")
    assert story.on(OFFLINE) == (m.Pause(story.number, patience_s),)
    assert story.waits() == taking(story, RECONNECT)
    story.answers(m.ActionDone)
    assert story.waits() == taking(story, POWER_CYCLE)


def test_the_hosts_faults_are_waited_out():
    story = Story(Life.READY)
    broken(story)
    story.answers(m.RecoveryFinished, server_alive=True)
    for _ in range(20):
        assert isinstance(story.fails("no worker")[-1], m.RetryLater)
        story.waits()
        story.answers(m.Provisioned, "b" * 64, adoptable=True)
        story.answers(m.ServerStarted)
    assert story.state.progress.spent == ()


def test_a_quarantine_outlives_the_cable():
    story = quarantined()
    story.on(GONE)
    assert story.state.reason.startswith("quarantined: screen cracked; ")
    story.on(USABLE)
    assert story.answers(m.Identified, adopted=True) == ()
    assert (story.life, story.state.reason) == (Life.QUARANTINED, "screen cracked")
    assert story.on(m.PlainEvent.BUNDLES_CHANGED) == ()  # they release only whom a bundle put there
    assert story.on(RELEASED) == (m.Identify(story.number),)
    story.until(Life.PROVISIONING)


def test_a_released_phone_that_is_away_is_free_when_it_returns():
    story = quarantined()
    story.on(GONE, RELEASED, USABLE)
    story.until(Life.READY)


def test_an_unadopted_phone_is_not_kept_in_a_quarantine_that_nobody_could_end():
    story = Story(Life.IDENTIFYING)
    story.on(m.BugFound("a bug in farm", "report it"), GONE, USABLE)
    story.answers(m.Identified, adopted=False)
    assert (story.life, story.state.quarantine) == (Life.NEW, None)


def test_an_ordered_reboot_waits_for_the_return_and_leaves_a_quarantine_alone():
    story = quarantined()
    assert story.on(m.ActionOrdered(REBOOT, "ordered by ann")) == taking(story, REBOOT)
    assert story.answers(m.ActionDone) == (m.Identify(story.number),)
    story.answers(m.Identified, adopted=True)
    assert (story.life, story.ended) == (Life.QUARANTINED, (REBOOT, REPAIRED))
    assert story.state.progress.spent == ()


def test_an_ordered_reboot_that_fails_leads_back_to_work():
    story = Story(Life.READY)
    story.on(m.ActionOrdered(REBOOT, "ordered by ann"))
    assert isinstance(story.answers(m.ActionFailed, "it did not go down")[0], m.RetryLater)
    assert story.ended == (REBOOT, FAILED)


def test_a_bundle_that_never_worked_waits_for_another_one():
    story = Story(Life.PROVISIONING)
    for _ in range(3):
        story.answers(m.Provisioned, "bad")
        story.fails("cannot link", DeviceFault.START)
        story.waits()
    story.answers(m.Provisioned, "bad")
    story.fails("cannot link", DeviceFault.START)
    assert (story.life, story.state.quarantine.rule) == (Life.QUARANTINED, ReleaseRule.BUNDLES)
    assert isinstance(story.on(m.PlainEvent.BUNDLES_CHANGED)[0], m.Provision)


def test_what_the_host_or_the_hub_did_costs_the_phone_nothing():
    story = Story(Life.READY, no_power="", external_cause="the adb server does not answer")
    before = story.state.progress
    assert isinstance(story.on(m.LinkLost(story.state.follow, "it is silent", mute=True))[0], m.RetryLater)
    for _ in range(5):
        story.waits()
        assert isinstance(story.fails("no answer", DeviceFault.MUTE)[0], m.RetryLater)
    assert (story.state.progress, story.state.failures) == (before, 0)
    assert story.state.reason == "the adb server does not answer; no answer"
    story.context = POWER
    story.waits()
    # One slow answer is no fault of the transport.
    assert isinstance(story.fails("no answer", DeviceFault.MUTE)[0], m.RetryLater)


def test_dead_transports_of_a_hub_are_made_anew_without_an_action():
    story = Story(Life.READY, no_power="", external_cause="its hub 1-4 went silent with 2 phones")
    story.on(OFFLINE)
    for _ in range(3):
        story.now += 60.0
        assert story.waits() == taking(story, RECONNECT)
        assert isinstance(story.answers(m.ActionDone)[0], m.Pause)
    assert (story.under_way, story.state.progress.spent, story.state.progress.tried) == (None, (), ())
    story.context = POWER
    assert story.waits() == taking(story, RECONNECT)
    assert story.under_way is RECONNECT  # the hub is back, this phone is not: now it is the phone's


def test_a_session_that_the_host_cut_is_reaped_without_an_action():
    story = Story(Life.READY, external_cause="the adb server went away")
    (asked,) = story.on(m.SessionBroke("cut"))
    assert isinstance(asked, m.Reap)
    assert (asked.doubted, story.under_way) == (True, None)
    assert story.on(m.PlainEvent.PHONE_AT_FAULT) == ()
    assert story.under_way is None
