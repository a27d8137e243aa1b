"""The life cycle on the recovery ladder: reboots, dead links, quarantine that stays, orders."""

from __future__ import annotations

import pytest

from farm.core import lifecycle_messages as m
from farm.core.device import Life
from farm.core.lifecycle import STABLE_S
from farm.core.recovery import DAY_S, FOUND_STABLE_S, Ailment, Around, Outcome, ReleaseRule, Rung
from tests.support.lifecycle_story import USABLE, Story

OFFLINE = m.Listed(m.Link.OFFLINE, "its adb transport does not answer", "replug it", mendable=True)
POWER = Around(no_power="")


def under_way(story: Story) -> Rung | None:
    taken = story.state.climb.under_way
    return taken.rung if taken else None


def last(story: Story) -> tuple[Rung, Outcome]:
    ended = story.state.climb.last
    assert ended is not None
    return ended.taken.rung, ended.outcome


def back_to_ready(story: Story) -> None:
    """From IDENTIFYING on."""
    story.tell(m.Identified(story.number, adopted=True))
    story.tell(m.Provisioned(story.number, "b" * 64))
    story.tell(m.ServerStarted(story.number))
    story.tell(m.CheckPassed(story.number))
    assert story.state.life is Life.READY


def stuck(story: Story) -> tuple[m.Instruction, ...]:
    story.tell(m.SessionBroke("cut: timeout"))
    return story.tell(m.RecoveryFailed(story.number, "pid 7 survives SIGKILL", ailment=Ailment.STUCK))


def test_a_reap_is_a_rung_that_ends_with_ready() -> None:
    story = Story().until_ready()
    story.tell(m.SessionBroke("cut"))
    assert under_way(story) is Rung.REAP
    story.tell(m.RecoveryFinished(story.number, server_alive=True))
    story.tell(m.CheckPassed(story.number))
    assert last(story) == (Rung.REAP, Outcome.MENDED)


def test_a_process_that_survives_sigkill_is_rebooted_away() -> None:
    story = Story().until_ready()
    assert stuck(story) == (m.Reboot(story.number),)
    assert (story.state.life, under_way(story), last(story)) == (
        Life.RECOVERING,
        Rung.REBOOT,
        (Rung.REAP, Outcome.FAILED),
    )
    assert isinstance(story.tell(m.Unlisted())[0], m.Pause)
    assert "reboot under way: pid 7" in story.state.reason
    story.now += 40.0
    assert isinstance(story.tell(USABLE)[0], m.Identify)
    back_to_ready(story)
    assert last(story) == (Rung.REBOOT, Outcome.MENDED)
    assert story.state.climb.last is not None
    assert story.state.climb.last.took_s == 40.0


def test_a_phone_that_does_not_come_back_says_so_and_asks_for_a_look() -> None:
    story = Story().until_ready()
    stuck(story)
    story.tell(m.Unlisted())
    assert story.tell(m.Paused(story.number)) == ()
    assert "has not come back in 300 s" in story.state.reason
    assert "look at the phone" in story.state.hint
    assert last(story) == (Rung.REBOOT, Outcome.FAILED)


def test_a_phone_that_came_back_without_a_reboot_has_not_been_mended_by_one() -> None:
    story = Story().until_ready()
    stuck(story)
    story.tell(m.Unlisted())
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True, same_boot=True))
    assert last(story) == (Rung.REBOOT, Outcome.FAILED)
    assert story.state.life is Life.PROVISIONING


def test_a_second_reboot_in_a_row_is_a_persons_business() -> None:
    story = Story().until_ready()
    stuck(story)
    story.tell(m.Unlisted())
    story.tell(USABLE)
    back_to_ready(story)
    assert stuck(story) == (m.StopServer(),)
    kept = story.state.quarantine
    assert kept is not None
    assert (story.state.life, kept.rule) == (Life.QUARANTINED, ReleaseRule.PERSON)
    assert "RecoveryFailed" in kept.evidence


def test_after_a_stable_time_the_ladder_begins_at_its_foot() -> None:
    story = Story().until_ready()
    stuck(story)
    story.tell(m.Unlisted())
    story.tell(USABLE)
    back_to_ready(story)
    story.now += STABLE_S
    assert stuck(story) == (m.Reboot(story.number),)


def test_a_holder_is_not_rebooted_under_while_the_phone_is_of_use() -> None:
    story = Story().until_ready()
    story.around = Around(holder="ann", in_hands=True)
    assert isinstance(stuck(story)[0], m.BackOff)
    assert "reboot waits: ann has the phone" in story.state.reason
    assert under_way(story) is None


@pytest.mark.parametrize("around", [Around(), Around(holder="ann")])
def test_what_a_probe_finds_waits_for_the_holder(around: Around) -> None:
    story = Story().until_ready()
    story.around = around
    told = story.tell(m.Ailing(Ailment.GPU, "kgsl: gpu fault"))
    assert told == (() if around.holder else (m.StartServer(story.number),))
    assert story.tell(m.Ailing(Ailment.GPU, "kgsl: gpu fault")) == ()


def _gpu_fault(story: Story, *, used: bool = False) -> tuple[m.Instruction, ...]:
    """Seen by a probe 30 s after the phone was ready."""
    story.now += 30.0
    return story.tell(m.Ailing(Ailment.GPU, "kgsl: gpu fault", used=used))


def _checked(story: Story) -> None:
    """From STARTING on."""
    story.tell(m.ServerStarted(story.number))
    story.tell(m.CheckPassed(story.number))
    assert story.state.life is Life.READY


def test_what_probes_find_again_and_again_climbs_the_ladder() -> None:
    story = Story().until_ready()
    assert _gpu_fault(story) == (m.StartServer(story.number),)
    _checked(story)
    story.now += STABLE_S
    story.tell(m.ServerDied(story.state.follow, "signal 11"))  # another ailment in between
    _checked(story)
    assert _gpu_fault(story) == (m.Reboot(story.number),)
    story.tell(m.Unlisted())
    story.tell(USABLE)
    back_to_ready(story)
    assert _gpu_fault(story) == (m.StopServer(),)
    assert story.state.life is Life.QUARANTINED


def test_what_was_not_found_for_long_begins_at_the_foot() -> None:
    story = Story().until_ready()
    for _ in range(6):
        assert _gpu_fault(story) == (m.StartServer(story.number),)
        _checked(story)
        story.now += FOUND_STABLE_S


def test_faults_that_users_may_have_made_say_nothing_about_the_phone() -> None:
    story = Story().until_ready()
    for _ in range(6):
        assert _gpu_fault(story, used=True) == (m.StartServer(story.number),)
        _checked(story)


def wrong(story: Story) -> tuple[m.Instruction, ...]:
    story.until_due_check()
    return story.tell(m.CheckFailed(story.number, "relu gives wrong numbers", wrong=True))


def test_numbers_that_are_wrong_now_and_then_are_a_persons_business() -> None:
    story = Story().until_ready()
    assert wrong(story) == (m.StartServer(story.number),)
    _checked(story)
    story.now += DAY_S / 2
    assert wrong(story) == (m.StopServer(),)
    kept = story.state.quarantine
    assert kept is not None
    assert kept.rule is ReleaseRule.PERSON
    assert kept.reason == "relu gives wrong numbers (for the second time in 24 h)"


def test_wrong_numbers_of_two_days_are_answered_from_the_foot() -> None:
    story = Story().until_ready()
    for _ in range(3):
        assert wrong(story) == (m.StartServer(story.number),)
        _checked(story)
        story.now += DAY_S


def test_numbers_that_stay_wrong_are_answered_rung_by_rung() -> None:
    story = Story().until_ready()
    assert wrong(story) == (m.StartServer(story.number),)
    story.tell(m.ServerStarted(story.number))
    again = m.CheckFailed(story.number, "wrong", wrong=True)
    assert story.tell(again) == (m.Provision(story.number, deep=True),)
    story.tell(m.Provisioned(story.number, "b" * 64))
    story.tell(m.ServerStarted(story.number))
    story.tell(m.CheckFailed(story.number, "wrong", wrong=True))
    assert story.state.life is Life.QUARANTINED


def test_what_looks_stuck_is_killed_before_anything_harder() -> None:
    story = Story().until_ready()
    assert story.tell(m.Ailing(Ailment.STUCK, "pid 7 in state D")) == (m.Reap(story.number),)


def test_a_hot_battery_is_quarantined_until_a_probe_finds_it_well() -> None:
    story = Story().until_ready()
    story.tell(m.Ailing(Ailment.HOT, "battery 52 C"))
    assert (story.state.life, story.state.reason) == (Life.QUARANTINED, "battery 52 C")
    assert story.tell(m.Well(Ailment.STORAGE)) == ()
    assert story.tell(m.Well(Ailment.HOT)) == (m.Identify(story.number),)


def test_an_offline_link_is_reconnected_and_only_then_power_cycled() -> None:
    story = Story().until_ready()
    story.around = POWER
    taken: list[type] = []
    assert story.tell(OFFLINE) == (m.Pause(story.number, 5.0),)
    assert story.tell(OFFLINE) == ()  # no news
    for _ in range(3):
        (work,) = story.tell(m.Paused(story.number))
        taken.append(type(work))
        assert isinstance(story.tell(m.RungDone(story.number))[0], m.Pause)
    assert taken == [m.Reconnect, m.Reconnect, m.PowerCycle]
    assert story.tell(m.Paused(story.number)) == ()
    assert story.state.reason == "its adb transport does not answer; the power-cycle did not help"
    assert (story.state.life, story.state.hint) == (Life.OFFLINE, "replug it")


def test_a_link_that_comes_back_from_a_reconnect_was_mended_by_it() -> None:
    story = Story().until_ready()
    story.tell(OFFLINE)
    story.tell(m.Paused(story.number))
    story.tell(m.Unlisted())  # adb opens it anew
    story.tell(USABLE)
    back_to_ready(story)
    assert last(story) == (Rung.RECONNECT, Outcome.MENDED)


@pytest.mark.parametrize("mendable", [True, False])
def test_strangers_and_bootloaders_are_left_alone(mendable: bool) -> None:
    story = Story()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=not mendable))
    assert story.tell(m.Listed(m.Link.OFFLINE, "why", "do", mendable=mendable)) == ()


def test_a_server_that_leaves_a_stuck_process_is_not_just_started_again() -> None:
    story = Story().until_ready()
    story.tell(m.SessionBroke("the phone's side ended"))
    died = m.ServerDied(story.state.follow, "died of signal 9; processes do not die: 218", stuck=True)
    assert story.tell(died) == (m.Reboot(story.number),)
    assert (under_way(story), last(story)) == (Rung.REBOOT, (Rung.REAP, Outcome.FAILED))


def test_a_strangers_silence_is_waited_out() -> None:
    story = Story()
    story.tell(USABLE)
    for _ in range(5):
        told = story.tell(m.IdentifyFailed(story.number, "it did not answer", ailment=Ailment.MUTE))
        assert isinstance(told[0], m.BackOff)
        story.tell(m.BackedOff(story.number))


def test_an_unplugged_phone_costs_no_rung() -> None:
    story = Story().until_ready()
    for _ in range(50):
        assert story.tell(m.Unlisted()) == ()
        story.tell(USABLE)
        story.tell(m.IdentifyFailed(story.number, "link lost"))
    assert story.state.climb.spent == ()


def test_a_mute_phone_is_reconnected_after_a_second_silence() -> None:
    story = Story().until_ready()
    story.tell(m.Unlisted())
    story.tell(USABLE)
    silence = "it did not answer"
    assert isinstance(story.tell(m.IdentifyFailed(story.number, silence, ailment=Ailment.MUTE))[0], m.BackOff)
    story.tell(m.BackedOff(story.number))
    assert story.tell(m.IdentifyFailed(story.number, silence, ailment=Ailment.MUTE)) == (m.Reconnect(story.number),)


def test_a_phone_that_a_probe_finds_mute_is_reconnected_at_once() -> None:
    story = Story().until_ready()
    told = story.tell(m.LinkLost(story.state.follow, "it answers no command", mute=True))
    assert told == (m.Reconnect(story.number),)
    assert (story.state.life, story.state.reason) == (Life.RECOVERING, "it answers no command")


@pytest.mark.parametrize(("wired", "patience_s"), [(True, 5.0), (False, 15.0)])
def test_a_reconnected_phone_is_waited_for_as_long_as_adb_may_take(wired: bool, patience_s: float) -> None:
    story = Story().until_ready()
    story.around = Around(no_power="", wired=wired)
    story.tell(m.LinkLost(story.state.follow, "it answers no command", mute=True))
    waits = story.tell(OFFLINE)
    assert waits == (m.Pause(story.number, patience_s),)
    assert story.tell(m.Paused(story.number)) == (m.Reconnect(story.number),)
    story.tell(m.RungDone(story.number))
    assert story.tell(m.Paused(story.number)) == (m.PowerCycle(story.number),)


def test_the_hosts_faults_are_waited_out() -> None:
    story = Story().until_ready()
    story.tell(m.SessionBroke("cut"))
    story.tell(m.RecoveryFinished(story.number, server_alive=True))
    for _ in range(20):
        told = story.tell(m.CheckFailed(story.number, "no worker", ailment=None))
        assert isinstance(told[-1], m.BackOff)
        story.tell(m.BackedOff(story.number))
        story.tell(m.Provisioned(story.number, "b" * 64, adoptable=True))
        story.tell(m.ServerStarted(story.number))
    assert story.state.climb.spent == ()


def test_a_quarantine_outlives_the_cable() -> None:
    story = Story().until_ready()
    story.tell(m.Distrusted("screen cracked"))
    assert (story.state.life, story.last) == (Life.QUARANTINED, (m.StopServer(),))
    story.tell(m.Unlisted())
    assert story.state.reason.startswith("quarantined: screen cracked; ")
    story.tell(USABLE)
    assert story.tell(m.Identified(story.number, adopted=True)) == ()
    assert (story.state.life, story.state.reason) == (Life.QUARANTINED, "screen cracked")
    assert story.tell(m.Released()) == (m.Identify(story.number),)
    story.tell(m.Identified(story.number, adopted=True))
    assert story.state.life is Life.PROVISIONING


def test_other_bundles_release_only_whom_a_bundle_put_there() -> None:
    story = Story().until_ready()
    story.tell(m.Distrusted("screen cracked"))
    assert story.tell(m.BundlesChanged()) == ()
    assert story.state.life is Life.QUARANTINED


def test_a_released_phone_that_is_away_is_free_when_it_returns() -> None:
    story = Story().until_ready()
    story.tell(m.Distrusted("screen cracked"))
    story.tell(m.Unlisted())
    story.tell(m.Released())
    story.tell(USABLE)
    back_to_ready(story)


def test_a_stranger_is_not_kept_in_a_quarantine_that_nobody_could_end() -> None:
    story = Story()
    story.tell(USABLE)
    story.tell(m.BugFound("a bug in farm", "report it"))
    story.tell(m.Unlisted())
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=False))
    assert (story.state.life, story.state.quarantine) == (Life.NEW, None)


def test_an_ordered_reboot_waits_for_the_return_and_leaves_a_quarantine_alone() -> None:
    story = Story().until_ready()
    story.tell(m.Distrusted("screen cracked"))
    order = m.Ordered(Rung.REBOOT, "ordered by ann")
    assert story.tell(order) == (m.Reboot(story.number),)
    assert story.tell(m.RungDone(story.number)) == (m.Identify(story.number),)
    story.tell(m.Identified(story.number, adopted=True))
    assert (story.state.life, last(story)) == (Life.QUARANTINED, (Rung.REBOOT, Outcome.MENDED))
    assert story.state.climb.spent == ()


def test_an_ordered_reboot_that_fails_leads_back_to_work() -> None:
    story = Story().until_ready()
    story.tell(m.Ordered(Rung.REBOOT, "ordered by ann"))
    assert isinstance(story.tell(m.RungFailed(story.number, "it did not go down"))[0], m.BackOff)
    assert last(story) == (Rung.REBOOT, Outcome.FAILED)


def test_a_bundle_that_never_worked_waits_for_another_one() -> None:
    story = Story()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    for _ in range(3):
        story.tell(m.Provisioned(story.number, "bad"))
        story.tell(m.StartFailed(story.number, "cannot link"))
        story.tell(m.BackedOff(story.number))
    story.tell(m.Provisioned(story.number, "bad"))
    story.tell(m.StartFailed(story.number, "cannot link"))
    assert story.state.quarantine is not None
    assert (story.state.life, story.state.quarantine.rule) == (Life.QUARANTINED, ReleaseRule.BUNDLES)
    assert isinstance(story.tell(m.BundlesChanged())[0], m.Provision)
