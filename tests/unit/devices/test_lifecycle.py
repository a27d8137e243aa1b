"""The life cycle as told stories: the way to ready, stale answers, what breaks and how it is answered."""

import pytest

from farm.common.errors import Code, HostError, error_from_wire, error_to_wire
from farm.devices.agent_work import failed
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.lifecycle import STABLE_S, decide
from farm.devices.lifecycle.state import TRANSITIONS, LifecycleState
from farm.model.device import MEANING, Life
from farm.model.health import DeviceFault
from tests.support.errors import raises_code
from tests.support.lifecycle_story import USABLE, Story


def test_a_phone_becomes_ready_step_by_step():
    story = Story()
    assert story.on_event(USABLE) == (m.Identify(1),)
    assert story.on_event(m.Identified(1, adopted=True)) == (m.Provision(2),)
    assert story.on_event(m.Provisioned(2, "b1")) == (m.StartServer(3),)
    assert story.on_event(m.ServerStarted(3)) == (m.FollowServer(4), m.RunCheck(4))
    assert story.on_event(m.CheckPassed(4)) == (m.DropOldBundles(),)
    assert (story.state.life, story.state.reason, story.state.bundle) == (Life.READY, "", "b1")


def test_an_unadopted_phone_gets_nothing_but_identity():
    story = Story()
    story.on_event(USABLE)
    assert story.on_event(m.Identified(story.number, adopted=False)) == ()
    assert story.state.life is Life.NEW
    assert story.on_event(m.PlainEvent.BUNDLES_CHANGED) == ()
    assert story.on_event(m.PlainEvent.ADOPTED) == (m.Provision(story.number),)


def test_a_phone_that_was_given_back_is_identified_again_and_nothing_more():
    story = Story().until_ready()
    story.on_event(m.Unadopted(clean=True))
    story.on_event(m.BugFound("signal 11"))
    story.on_event(m.PlainEvent.RELEASED)
    story.on_event(m.WorkFailed(story.number, "it did not answer"))
    assert story.on_event(m.WaitEnded(story.number)) == (m.Identify(story.number),)


def test_a_living_server_is_taken_over():
    story = Story().until_ready()
    story.on_event(m.PlainEvent.UNLISTED)
    assert story.state.life is Life.GONE
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=True))
    assert story.on_event(m.Provisioned(story.number, "b", adoptable=True)) == (m.AdoptServer(story.number),)


@pytest.mark.parametrize("life", ["unauthorized", "offline"])
def test_a_useless_link_ends_everything_and_says_why(life):
    story = Story().until_ready()
    story.on_event(m.Listed(m.LinkState(life), "why", "what next"))
    assert (story.state.life, story.state.reason, story.state.hint) == (Life(life), "why", "what next")
    assert story.state.follow == 0
    assert isinstance(story.on_event(USABLE)[0], m.Identify)


def test_answers_from_before_the_link_was_lost_are_ignored():
    story = Story()
    story.on_event(USABLE)
    old = story.number
    story.on_event(m.PlainEvent.UNLISTED)
    story.on_event(USABLE)
    before = story.state
    assert story.on_event(m.Identified(old, adopted=True)) == ()
    assert story.state == before


def test_the_death_of_an_older_server_is_not_news():
    story = Story().until_ready()
    old = story.state.follow
    story.on_event(m.ServerDied(old, "signal 11"))
    story.on_event(m.ServerStarted(story.number))
    story.on_event(m.CheckPassed(story.number))
    assert story.on_event(m.ServerDied(old, "signal 11")) == ()
    assert story.state.life is Life.READY


def test_the_first_death_restarts_at_once_and_the_second_waits():
    story = Story().until_ready()
    assert isinstance(story.on_event(m.ServerDied(story.state.follow, "exit 1"))[0], m.StartServer)
    assert story.state.reason == "exit 1"
    story.on_event(m.ServerStarted(story.number))
    assert story.on_event(m.ServerDied(story.state.follow, "exit 1")) == (m.RetryLater(story.number, 2),)
    assert story.state.life is Life.RECOVERING
    assert story.on_event(m.WaitEnded(story.number)) == (m.Provision(story.number),)


@pytest.mark.parametrize(("ready_for_s", "expected"), [(STABLE_S, m.StartServer), (STABLE_S / 2, m.RetryLater)])
def test_only_a_stable_server_clears_the_record(ready_for_s, expected):
    story = Story().until_ready()
    story.on_event(m.ServerDied(story.state.follow, "exit 1"))
    story.on_event(m.ServerStarted(story.number))
    story.on_event(m.CheckPassed(story.number))
    story.now += ready_for_s
    assert isinstance(story.on_event(m.ServerDied(story.state.follow, "exit 1"))[0], expected)


def test_a_broken_session_is_reaped_then_checked_again():
    story = Story().until_ready()
    followed = story.state.follow
    assert story.on_event(m.SessionBroke("cut: timeout 10 s")) == (m.Reap(story.number),)
    assert story.state.life is Life.RECOVERING
    assert story.state.follow == followed
    assert story.on_event(m.RecoveryFinished(story.number, server_alive=True)) == (m.RunCheck(story.number),)
    assert story.state.follow == followed


def test_a_bundle_whose_golden_kernels_are_damaged_waits_for_a_sound_one_without_a_server():
    story = Story().until_ready()
    story.on_event(m.SessionBroke("cut"))
    story.on_event(m.RecoveryFinished(story.number, server_alive=True))
    error = HostError("the golden kernels are damaged", Code.BUNDLE_DAMAGED, hint="farm bundle verify")
    answer = failed(m.RunCheck(story.number), error_from_wire(error_to_wire(error)))
    assert story.on_event(answer) == (m.EndServer(),)
    assert (story.state.life, story.state.reason) == (Life.QUARANTINED, "the golden kernels are damaged")
    assert isinstance(story.on_event(m.PlainEvent.BUNDLES_CHANGED)[0], m.Provision)


def test_a_server_that_failed_a_check_is_replaced_not_taken_over():
    story = Story().until_ready()
    story.on_event(m.SessionBroke("cut"))
    story.on_event(m.RecoveryFinished(story.number, server_alive=True))
    assert isinstance(story.on_event(m.WorkFailed(story.number, "timeout", fault=DeviceFault.CHECK))[0], m.StartServer)
    story.on_event(m.ServerStarted(story.number))
    assert isinstance(story.on_event(m.WorkFailed(story.number, "timeout", fault=DeviceFault.CHECK))[0], m.RetryLater)
    story.on_event(m.PlainEvent.UNLISTED)
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=True))
    assert isinstance(story.on_event(m.Provisioned(story.number, "b", adoptable=True))[0], m.StartServer)


def test_what_broke_is_told_until_it_is_ready_again():
    story = Story().until_ready()
    story.on_event(m.ServerDied(story.state.follow, "signal 11"))
    story.on_event(m.ServerStarted(story.number))
    assert story.state.reason == "signal 11"
    story.on_event(m.CheckPassed(story.number))
    assert story.state.reason == ""
    story.on_event(m.ServerDied(story.state.follow, "exit 1"))
    story.on_event(m.PlainEvent.UNLISTED)
    assert story.state.reason == MEANING[Life.GONE]


def test_a_broken_session_whose_server_died_too_starts_another():
    story = Story().until_ready()
    story.on_event(m.SessionBroke("cut"))
    assert isinstance(story.on_event(m.RecoveryFinished(story.number, server_alive=False))[0], m.StartServer)


def test_wrong_numbers_restart_then_compare_hashes_then_need_a_person():
    story = Story().until_ready()
    story.on_event(m.SessionBroke("cut"))
    story.on_event(m.RecoveryFinished(story.number, server_alive=True))
    assert isinstance(story.on_event(m.WorkFailed(story.number, "off by 3", fault=DeviceFault.WRONG))[0], m.StartServer)
    story.on_event(m.ServerStarted(story.number))
    assert story.on_event(m.WorkFailed(story.number, "off by 3", fault=DeviceFault.WRONG)) == (
        m.Provision(story.number, deep=True),
    )
    story.on_event(m.Provisioned(story.number, "b"))
    story.on_event(m.ServerStarted(story.number))
    assert story.on_event(m.WorkFailed(story.number, "off by 3", fault=DeviceFault.WRONG)) == (m.EndServer(),)
    assert (story.state.life, story.state.reason) == (Life.QUARANTINED, "off by 3")
    assert isinstance(story.on_event(m.PlainEvent.RELEASED)[0], m.Identify)


def test_a_server_that_does_not_start_has_its_files_compared():
    story = Story().until_ready()
    story.on_event(m.ServerDied(story.state.follow, "exit 1"))
    assert isinstance(
        story.on_event(m.WorkFailed(story.number, "no such file", fault=DeviceFault.START))[0], m.RetryLater
    )
    assert story.on_event(m.WaitEnded(story.number)) == (m.Provision(story.number, deep=True),)
    story.on_event(m.Provisioned(story.number, "b"))
    story.on_event(m.ServerStarted(story.number))
    assert not story.state.suspect


def test_no_bundle_needs_a_person_until_one_is_added():
    story = Story()
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=True))
    story.on_event(m.WorkFailed(story.number, "no bundle for arm64-v8a", "farm bundle add", DeviceFault.BUNDLE))
    assert story.state.life is Life.QUARANTINED
    assert isinstance(story.on_event(m.PlainEvent.BUNDLES_CHANGED)[0], m.Provision)


def test_adopting_a_quarantined_phone_again_keeps_the_reason():
    story = Story()
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=True))
    story.on_event(m.WorkFailed(story.number, "no bundle for arm64-v8a", "farm bundle add", DeviceFault.BUNDLE))
    assert story.on_event(m.PlainEvent.ADOPTED) == ()
    assert (story.state.reason, story.state.hint) == ("no bundle for arm64-v8a", "farm bundle add")


def test_a_bug_of_farm_needs_a_person_wherever_it_happens():
    story = Story()
    story.on_event(USABLE)
    for adopted in (True, False):
        assert story.on_event(m.BugFound("a bug in farm", "report it")) == ()
        assert (story.state.life, story.state.reason) == (Life.QUARANTINED, "a bug in farm")
        assert story.on_event(m.PlainEvent.RELEASED) == (m.Identify(story.number),)
        story.on_event(m.Identified(story.number, adopted=adopted))
    story.on_event(m.BugFound("a bug in farm", "report it"))
    assert story.on_event(m.PlainEvent.BUNDLES_CHANGED) == ()  # it was never adopted: nothing may be put there


@pytest.mark.parametrize(("clean", "farewell"), [(True, m.EndServer(clean=True)), (False, m.EndServer())])
def test_giving_a_phone_back(clean, farewell):
    story = Story().until_ready()
    assert story.on_event(m.Unadopted(clean)) == (farewell,)
    assert (story.state.life, story.state.adopted, story.state.follow) == (Life.NEW, False, 0)


def test_an_illegal_step_tells_its_story(monkeypatch):
    story = Story()
    story.on_event(USABLE)
    monkeypatch.setattr("farm.devices.lifecycle.lifecycle.TRANSITIONS", {life: frozenset() for life in Life})
    with raises_code(Code.ILLEGAL_TRANSITION, match="cannot go from identifying to new") as caught:
        story.on_event(m.Identified(story.number, adopted=False))
    assert "Listed" in caught.value.evidence
    assert story.state.life is Life.IDENTIFYING


def test_every_life_has_a_meaning_and_a_way_out():
    assert set(MEANING) == set(TRANSITIONS) == set(Life)
    for life, following in TRANSITIONS.items():
        assert following - {life}
        assert all("\n" not in MEANING[each] for each in following)


def test_no_phone_becomes_ready_but_by_a_check():
    """After a crash, a timeout, a reboot, a replug, an order: whatever it was. A session that goes on is left alone."""
    before = [life for life, following in TRANSITIONS.items() if Life.READY in following]
    assert before == [Life.STARTING, Life.CHECKING]
    story = Story()
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=True))
    story.on_event(m.Provisioned(story.number, "b"))
    _, checked = story.on_event(m.ServerStarted(story.number))
    assert (story.state.life, checked) == (Life.CHECKING, m.RunCheck(story.number))


def test_a_server_with_a_session_of_the_time_before_is_taken_over_as_it_is():
    story = Story()
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=True))
    assert story.on_event(m.Provisioned(story.number, "b", adoptable=True)) == (m.AdoptServer(story.number),)
    asked = story.number
    assert story.on_event(m.ServerStarted(asked, in_use=True)) == (m.FollowServer(story.state.follow),)
    assert (story.state.life, story.state.reason) == (Life.READY, "")
    assert story.state.follow == story.number > asked
    assert story.on_event(m.SessionBroke("the client vanished")) == (m.Reap(story.number),)
    assert story.on_event(m.RecoveryFinished(story.number, server_alive=True)) == (m.RunCheck(story.number),)


def test_deciding_changes_nothing_it_was_given():
    state = LifecycleState()
    after, _ = decide(state, USABLE, 0.0)
    assert state == LifecycleState()
    assert after.life is Life.IDENTIFYING


def test_a_check_that_is_due_takes_an_idle_phone_and_compares_its_files():
    story = Story().until_ready()
    assert story.on_event(m.PlainEvent.PROVISIONING_DUE) == (m.Provision(story.number, deep=True),)
    assert story.state.life is Life.PROVISIONING
    assert story.on_event(m.PlainEvent.PROVISIONING_DUE) == ()
    assert story.on_event(m.Provisioned(story.number, "b", adoptable=True)) == (m.StartServer(story.number),)
    assert story.on_event(m.ServerStarted(story.number))[1:] == (m.RunCheck(story.number),)
    story.on_event(m.CheckPassed(story.number))
    assert story.state.life is Life.READY


def test_a_check_that_is_due_finds_wrong_numbers():
    story = Story().until_ready()
    story.until_due_check()
    story.on_event(m.WorkFailed(story.number, "exp_sum is off by 3", fault=DeviceFault.WRONG))
    assert (story.state.life, story.state.cause) == (Life.STARTING, "exp_sum is off by 3")
