"""The life cycle of a phone that people borrow: tidied after them, and used with another bundle than its own."""

import pytest

from farm.devices.lifecycle import messages as m
from farm.model.device import MEANING, Life
from farm.model.health import DeviceFault
from tests.support.lifecycle_story import USABLE, Story


def test_a_phone_that_a_person_had_is_tidied_before_its_check():
    story = Story().until_ready()
    assert story.on_event(m.LeftByPerson("the lease ended")) == (m.Reap(story.number, tidy=True),)
    assert (story.state.life, story.state.reason) == (Life.RECOVERING, "the lease ended")
    assert through_tidying(story) == (m.RunCheck(story.number),)
    story.on_event(m.CheckPassed(story.number))
    assert not story.state.untidy


def through_tidying(story):
    """What a person may have changed is compared by hash, and no server is kept whose secret they know."""
    tidied = m.RecoveryFinished(story.number, server_alive=False, tidied=True)
    assert story.on_event(tidied) == (m.Provision(story.number, deep=True),)
    # Notes that somebody goes on writing are not believed now: it would be tidied for ever.
    provisioned = m.Provisioned(story.number, "b" * 64, adoptable=True, untidy=True)
    assert story.on_event(provisioned) == (m.StartServer(story.number),)
    return story.on_event(m.ServerStarted(story.number))[1:]


def test_a_clean_up_that_began_before_a_person_left_does_not_count_as_theirs():
    story = Story().until_ready()
    story.on_event(m.ServerDied(story.state.follow, "crashed"))
    story.on_event(m.ServerStarted(story.number))
    story.on_event(m.SessionBroke("cut"))
    story.on_event(m.WorkFailed(story.number, "stuck", fault=DeviceFault.SESSION))
    story.on_event(m.WaitEnded(story.number))
    story.on_event(m.LeftByPerson("the lease ended"))
    assert story.on_event(m.Provisioned(story.number, "b")) == (m.Reap(story.number, tidy=True),)
    assert story.on_event(m.RecoveryFinished(story.number, server_alive=True)) == (m.Reap(story.number, tidy=True),)


def test_a_session_that_broke_first_does_not_save_it_from_tidying():
    story = Story().until_ready()
    assert story.on_event(m.SessionBroke("cut")) == (m.Reap(story.number),)
    stale = story.number
    assert story.on_event(m.LeftByPerson("kicked")) == (m.Reap(story.number, tidy=True),)
    assert story.on_event(m.RecoveryFinished(stale, server_alive=True)) == ()
    story.on_event(m.WorkFailed(story.number, "the phone is slow"))
    story.on_event(m.WaitEnded(story.number))
    assert story.on_event(m.Provisioned(story.number, "b")) == (m.Reap(story.number, tidy=True),)


def test_what_was_pulled_out_is_tidied_when_it_is_back():
    story = Story().until_ready()
    story.on_event(m.PlainEvent.UNLISTED)
    assert story.on_event(m.LeftByPerson("its phone was lost")) == ()
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=True))
    assert story.on_event(m.Provisioned(story.number, "b")) == (m.Reap(story.number, tidy=True),)
    assert through_tidying(story) == (m.RunCheck(story.number),)


def test_a_lease_that_nobody_remembers_is_tidied_too():
    story = Story()
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=True))
    provisioned = m.Provisioned(story.number, "b", adoptable=True, untidy=True)
    assert story.on_event(provisioned) == (m.Reap(story.number, tidy=True),)


def test_what_is_left_while_its_server_starts_is_tidied_before_the_check():
    story = Story()
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=True))
    story.on_event(m.Provisioned(story.number, "b"))
    assert story.on_event(m.LeftByPerson("kicked")) == ()
    assert story.on_event(m.ServerStarted(story.number)) == (m.Reap(story.number, tidy=True),)


def test_an_unadopted_phone_is_not_tidied():
    story = Story()
    story.on_event(USABLE)
    story.on_event(m.Identified(story.number, adopted=False))
    assert story.on_event(m.LeftByPerson("whoever")) == ()
    assert not story.state.untidy


def borrowed():
    """Ready with the bundle "b2", which somebody wanted."""
    story = Story().until_ready()
    assert story.on_event(m.BundleWanted("b2")) == (m.Provision(story.number),)
    assert (story.state.life, story.state.bundle_override) == (Life.PROVISIONING, "b2")
    assert story.state.reason == "its runtime bundle is changed"
    assert story.on_event(m.Provisioned(story.number, "b2")) == (m.StartServer(story.number),)
    story.on_event(m.ServerStarted(story.number))
    assert story.on_event(m.CheckPassed(story.number)) == ()  # its own bundle stays where it is
    assert (story.state.life, story.state.bundle) == (Life.READY, "b2")
    return story


def test_a_lent_bundle_is_exchanged_for_its_own_before_it_is_ready_again():
    story = borrowed()
    assert story.on_event(m.BundleWanted("b2")) == ()
    assert story.on_event(m.BundleWanted("")) == (m.Provision(story.number),)
    assert (story.state.life, story.state.bundle_override) == (Life.PROVISIONING, "")
    story.on_event(m.Provisioned(story.number, "b"))
    story.on_event(m.ServerStarted(story.number))
    assert story.on_event(m.CheckPassed(story.number)) == (m.DropOldBundles(),)
    assert story.on_event(m.BundleWanted("")) == ()


@pytest.mark.parametrize("life", [Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING])
def test_its_own_bundle_comes_back_whatever_was_under_way(life):
    story = borrowed()
    story.on_event(m.SessionBroke("cut"))
    for event in (
        m.RecoveryFinished(story.number, server_alive=False),
        m.ServerStarted(story.number + 1),
        m.SessionBroke("cut"),
        m.WorkFailed(story.number + 3, "stuck"),
        m.WaitEnded(story.number + 4),
    ):
        if story.state.life is life:
            break
        story.on_event(event)
    assert story.state.life is life
    assert story.state.bundle_override == "b2"
    assert story.on_event(m.BundleWanted("")) == (m.Provision(story.number),)
    assert story.state.bundle_override == ""


@pytest.mark.parametrize("kind", ["provision", "start", "check", "wrong", "death"])
def test_a_lent_bundle_that_fails_gives_way_to_its_own_and_quarantines_nothing(kind):
    story = Story().until_ready()
    story.on_event(m.BundleWanted("b2"))
    if kind != "provision":
        story.on_event(m.Provisioned(story.number, "b2"))
    if kind in ("check", "wrong", "death"):
        story.on_event(m.ServerStarted(story.number))
    failed = {
        "provision": m.WorkFailed(story.number, "no room"),
        "start": m.WorkFailed(story.number, "no room", fault=DeviceFault.START),
        "check": m.WorkFailed(story.number, "no room", fault=DeviceFault.CHECK),
        "wrong": m.WorkFailed(story.number, "no room", fault=DeviceFault.WRONG),
        "death": m.ServerDied(story.state.follow, "no room"),
    }
    assert story.on_event(failed[kind]) == (m.Provision(story.number, deep=True),)
    assert (story.state.bundle_override, story.state.refusal, story.state.progress.tried) == ("", "no room", ())
    assert "no room" in story.state.reason


def test_a_phone_that_goes_away_is_lent_no_more_and_takes_only_what_is_its_own():
    story = borrowed()
    story.on_event(m.PlainEvent.UNLISTED)
    assert (story.state.bundle_override, bool(story.state.refusal)) == ("", True)
    assert story.on_event(m.BundleWanted("b2")) == ()
    assert (story.state.bundle_override, story.state.refusal) == ("", MEANING[Life.GONE])
