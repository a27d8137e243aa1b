"""The life cycle as told stories: the way to ready, stale answers, what breaks and how it is answered."""

from __future__ import annotations

import pytest

from farm.core import lifecycle_messages as m
from farm.core.device import Life
from farm.core.lifecycle import STABLE_S, IllegalTransitionError, decide
from farm.core.lifecycle_state import MEANING, TRANSITIONS, DeviceState
from tests.support.lifecycle_story import USABLE, Story


def test_a_phone_becomes_ready_step_by_step() -> None:
    story = Story()
    assert story.tell(USABLE) == (m.Identify(1),)
    assert story.tell(m.Identified(1, adopted=True)) == (m.Provision(2),)
    assert story.tell(m.Provisioned(2, "b1")) == (m.StartServer(3),)
    assert story.tell(m.ServerStarted(3)) == (m.FollowServer(4), m.Check(4))
    assert story.tell(m.CheckPassed(4)) == (m.DropOldBundles(),)
    assert (story.state.life, story.state.reason, story.state.bundle) == (Life.READY, "", "b1")


def test_an_unadopted_phone_gets_nothing_but_identity() -> None:
    story = Story()
    story.tell(USABLE)
    assert story.tell(m.Identified(story.number, adopted=False)) == ()
    assert story.state.life is Life.NEW
    assert story.tell(m.BundlesChanged()) == ()
    assert story.tell(m.Adopted()) == (m.Provision(story.number),)


def test_a_living_server_is_taken_over() -> None:
    story = Story().until_ready()
    story.tell(m.Unlisted())
    assert story.state.life is Life.GONE
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    assert story.tell(m.Provisioned(story.number, "b", adoptable=True)) == (m.AdoptServer(story.number),)


@pytest.mark.parametrize("life", ["unauthorized", "offline"])
def test_a_useless_link_ends_everything_and_says_why(life: str) -> None:
    story = Story().until_ready()
    story.tell(m.Listed(m.Link(life), "why", "what next"))
    assert (story.state.life, story.state.reason, story.state.hint) == (Life(life), "why", "what next")
    assert story.state.follow == 0
    assert isinstance(story.tell(USABLE)[0], m.Identify)


def test_answers_from_before_the_link_was_lost_are_ignored() -> None:
    story = Story()
    story.tell(USABLE)
    old = story.number
    story.tell(m.Unlisted())
    story.tell(USABLE)
    before = story.state
    assert story.tell(m.Identified(old, adopted=True)) == ()
    assert story.state == before


def test_the_death_of_an_older_server_is_not_news() -> None:
    story = Story().until_ready()
    old = story.state.follow
    story.tell(m.ServerDied(old, "signal 11"))
    story.tell(m.ServerStarted(story.number))
    story.tell(m.CheckPassed(story.number))
    assert story.tell(m.ServerDied(old, "signal 11")) == ()
    assert story.state.life is Life.READY


def test_the_first_death_restarts_at_once_and_the_second_waits() -> None:
    story = Story().until_ready()
    assert isinstance(story.tell(m.ServerDied(story.state.follow, "exit 1"))[0], m.StartServer)
    assert story.state.reason == "exit 1"
    story.tell(m.ServerStarted(story.number))
    assert story.tell(m.ServerDied(story.state.follow, "exit 1")) == (m.BackOff(story.number, 2),)
    assert story.state.life is Life.RECOVERING
    assert story.tell(m.BackedOff(story.number)) == (m.Provision(story.number),)


@pytest.mark.parametrize(("ready_for_s", "expected"), [(STABLE_S, m.StartServer), (STABLE_S / 2, m.BackOff)])
def test_only_a_stable_server_clears_the_record(ready_for_s: float, expected: type) -> None:
    story = Story().until_ready()
    story.tell(m.ServerDied(story.state.follow, "exit 1"))
    story.tell(m.ServerStarted(story.number))
    story.tell(m.CheckPassed(story.number))
    story.now += ready_for_s
    assert isinstance(story.tell(m.ServerDied(story.state.follow, "exit 1"))[0], expected)


def test_a_broken_session_is_reaped_then_checked_again() -> None:
    story = Story().until_ready()
    followed = story.state.follow
    assert story.tell(m.SessionBroke("cut: timeout 10 s")) == (m.Reap(story.number),)
    assert story.state.life is Life.RECOVERING
    assert story.state.follow == followed
    assert story.tell(m.RecoveryFinished(story.number, server_alive=True)) == (m.Check(story.number),)
    assert story.state.follow == followed


def test_a_server_that_failed_a_check_is_replaced_not_taken_over() -> None:
    story = Story().until_ready()
    story.tell(m.SessionBroke("cut"))
    story.tell(m.RecoveryFinished(story.number, server_alive=True))
    assert isinstance(story.tell(m.CheckFailed(story.number, "timeout"))[0], m.StartServer)
    story.tell(m.ServerStarted(story.number))
    assert isinstance(story.tell(m.CheckFailed(story.number, "timeout"))[0], m.BackOff)
    story.tell(m.Unlisted())
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    assert isinstance(story.tell(m.Provisioned(story.number, "b", adoptable=True))[0], m.StartServer)


def test_what_broke_is_told_until_it_is_ready_again() -> None:
    story = Story().until_ready()
    story.tell(m.ServerDied(story.state.follow, "signal 11"))
    story.tell(m.ServerStarted(story.number))
    assert story.state.reason == "signal 11"
    story.tell(m.CheckPassed(story.number))
    assert story.state.reason == ""
    story.tell(m.ServerDied(story.state.follow, "exit 1"))
    story.tell(m.Unlisted())
    assert story.state.reason == MEANING[Life.GONE]


def test_a_broken_session_whose_server_died_too_starts_another() -> None:
    story = Story().until_ready()
    story.tell(m.SessionBroke("cut"))
    assert isinstance(story.tell(m.RecoveryFinished(story.number, server_alive=False))[0], m.StartServer)


def test_wrong_numbers_restart_then_compare_hashes_then_need_a_person() -> None:
    story = Story().until_ready()
    story.tell(m.SessionBroke("cut"))
    story.tell(m.RecoveryFinished(story.number, server_alive=True))
    assert isinstance(story.tell(m.CheckFailed(story.number, "off by 3", wrong=True))[0], m.StartServer)
    story.tell(m.ServerStarted(story.number))
    assert story.tell(m.CheckFailed(story.number, "off by 3", wrong=True)) == (m.Provision(story.number, deep=True),)
    story.tell(m.Provisioned(story.number, "b"))
    story.tell(m.ServerStarted(story.number))
    assert story.tell(m.CheckFailed(story.number, "off by 3", wrong=True)) == (m.StopServer(),)
    assert (story.state.life, story.state.reason) == (Life.QUARANTINED, "off by 3")
    assert isinstance(story.tell(m.Released())[0], m.Identify)


def test_a_server_that_does_not_start_has_its_files_compared() -> None:
    story = Story().until_ready()
    story.tell(m.ServerDied(story.state.follow, "exit 1"))
    assert isinstance(story.tell(m.StartFailed(story.number, "no such file"))[0], m.BackOff)
    assert story.tell(m.BackedOff(story.number)) == (m.Provision(story.number, deep=True),)
    story.tell(m.Provisioned(story.number, "b"))
    story.tell(m.ServerStarted(story.number))
    assert not story.state.suspect


def test_no_bundle_needs_a_person_until_one_is_added() -> None:
    story = Story()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    story.tell(m.ProvisionFailed(story.number, "no bundle for arm64-v8a", "farm bundle add", person=True))
    assert story.state.life is Life.QUARANTINED
    assert isinstance(story.tell(m.BundlesChanged())[0], m.Provision)


def test_adopting_a_quarantined_phone_again_keeps_the_reason() -> None:
    story = Story()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    story.tell(m.ProvisionFailed(story.number, "no bundle for arm64-v8a", "farm bundle add", person=True))
    assert story.tell(m.Adopted()) == ()
    assert (story.state.reason, story.state.hint) == ("no bundle for arm64-v8a", "farm bundle add")


def test_a_bug_of_farm_needs_a_person_wherever_it_happens() -> None:
    story = Story()
    story.tell(USABLE)
    for adopted in (True, False):
        assert story.tell(m.BugFound("a bug in farm", "report it")) == ()
        assert (story.state.life, story.state.reason) == (Life.QUARANTINED, "a bug in farm")
        assert story.tell(m.Released()) == (m.Identify(story.number),)
        story.tell(m.Identified(story.number, adopted=adopted))
    story.tell(m.BugFound("a bug in farm", "report it"))
    assert story.tell(m.BundlesChanged()) == ()  # it was never adopted: nothing may be put there


@pytest.mark.parametrize(("clean", "farewell"), [(True, m.Clean()), (False, m.StopServer())])
def test_giving_a_phone_back(clean: bool, farewell: m.Instruction) -> None:
    story = Story().until_ready()
    assert story.tell(m.Unadopted(clean)) == (farewell,)
    assert (story.state.life, story.state.adopted, story.state.follow) == (Life.NEW, False, 0)


def test_an_illegal_step_tells_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    story.tell(USABLE)
    monkeypatch.setattr("farm.core.lifecycle.TRANSITIONS", {life: frozenset() for life in Life})
    with pytest.raises(IllegalTransitionError, match="cannot go from identifying to new") as caught:
        story.tell(m.Identified(story.number, adopted=False))
    assert "Listed" in caught.value.evidence
    assert story.state.life is Life.IDENTIFYING


def test_every_life_has_a_meaning_and_a_way_out() -> None:
    assert set(MEANING) == set(TRANSITIONS) == set(Life)
    for life, following in TRANSITIONS.items():
        assert following - {life}
        assert all("\n" not in MEANING[each] for each in following)


def test_no_phone_becomes_ready_but_by_a_check() -> None:
    """After a crash, a timeout, a reboot, a replug, an order: whatever it was. A session that goes on is left alone."""
    before = [life for life, following in TRANSITIONS.items() if Life.READY in following]
    assert before == [Life.STARTING, Life.CHECKING]
    story = Story()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    story.tell(m.Provisioned(story.number, "b"))
    _, checked = story.tell(m.ServerStarted(story.number))
    assert (story.state.life, checked) == (Life.CHECKING, m.Check(story.number))


def test_a_server_with_a_session_of_the_time_before_is_taken_over_as_it_is() -> None:
    story = Story()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    assert story.tell(m.Provisioned(story.number, "b", adoptable=True)) == (m.AdoptServer(story.number),)
    asked = story.number
    assert story.tell(m.ServerStarted(asked, in_use=True)) == (m.FollowServer(story.state.follow),)
    assert (story.state.life, story.state.reason) == (Life.READY, "")
    assert story.state.follow == story.number > asked
    assert story.tell(m.SessionBroke("the client vanished")) == (m.Reap(story.number),)
    assert story.tell(m.RecoveryFinished(story.number, server_alive=True)) == (m.Check(story.number),)


def test_deciding_changes_nothing_it_was_given() -> None:
    state = DeviceState()
    after, _ = decide(state, USABLE, 0.0)
    assert state == DeviceState()
    assert after.life is Life.IDENTIFYING


def test_a_check_that_is_due_takes_an_idle_phone_and_compares_its_files() -> None:
    story = Story().until_ready()
    assert story.tell(m.CheckDue()) == (m.Provision(story.number, deep=True),)
    assert story.state.life is Life.PROVISIONING
    assert story.tell(m.CheckDue()) == ()
    assert story.tell(m.Provisioned(story.number, "b", adoptable=True)) == (m.StartServer(story.number),)
    assert story.tell(m.ServerStarted(story.number))[1:] == (m.Check(story.number),)
    story.tell(m.CheckPassed(story.number))
    assert story.state.life is Life.READY


def test_a_check_that_is_due_finds_wrong_numbers() -> None:
    story = Story().until_ready()
    story.until_due_check()
    story.tell(m.CheckFailed(story.number, "exp_sum is off by 3", wrong=True))
    assert (story.state.life, story.state.trouble) == (Life.STARTING, "exp_sum is off by 3")
