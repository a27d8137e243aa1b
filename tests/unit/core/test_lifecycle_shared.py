"""The life cycle of a phone that people borrow: tidied after them, and lent with another bundle than its own."""

from __future__ import annotations

import pytest

from farm.core import lifecycle_messages as m
from farm.core.device import Life
from farm.core.lifecycle_state import MEANING
from farm.core.recovery import Ailment
from tests.support.lifecycle_story import USABLE, Story


def test_a_phone_that_a_person_had_is_tidied_before_its_check() -> None:
    story = Story().until_ready()
    assert story.tell(m.LeftByPerson("the lease ended")) == (m.Reap(story.number, tidy=True),)
    assert (story.state.life, story.state.reason) == (Life.RECOVERING, "the lease ended")
    assert through_tidying(story) == (m.Check(story.number),)
    story.tell(m.CheckPassed(story.number))
    assert not story.state.untidy


def through_tidying(story: Story) -> tuple[m.Instruction, ...]:
    """What a person may have changed is compared by hash, and no server is kept whose secret they know."""
    tidied = m.RecoveryFinished(story.number, server_alive=False, tidied=True)
    assert story.tell(tidied) == (m.Provision(story.number, deep=True),)
    # Notes that somebody goes on writing are not believed now: it would be tidied for ever.
    provisioned = m.Provisioned(story.number, "b" * 64, adoptable=True, untidy=True)
    assert story.tell(provisioned) == (m.StartServer(story.number),)
    return story.tell(m.ServerStarted(story.number))[1:]


def test_a_clean_up_that_began_before_a_person_left_does_not_count_as_theirs() -> None:
    story = Story().until_ready()
    story.tell(m.ServerDied(story.state.follow, "crashed"))
    story.tell(m.ServerStarted(story.number))
    story.tell(m.SessionBroke("cut"))
    story.tell(m.RecoveryFailed(story.number, "stuck", ailment=Ailment.SESSION))
    story.tell(m.BackedOff(story.number))
    story.tell(m.LeftByPerson("the lease ended"))
    assert story.tell(m.Provisioned(story.number, "b")) == (m.Reap(story.number, tidy=True),)
    assert story.tell(m.RecoveryFinished(story.number, server_alive=True)) == (m.Reap(story.number, tidy=True),)


def test_a_session_that_broke_first_does_not_save_it_from_tidying() -> None:
    story = Story().until_ready()
    assert story.tell(m.SessionBroke("cut")) == (m.Reap(story.number),)
    stale = story.number
    assert story.tell(m.LeftByPerson("kicked")) == (m.Reap(story.number, tidy=True),)
    assert story.tell(m.RecoveryFinished(stale, server_alive=True)) == ()
    story.tell(m.RecoveryFailed(story.number, "the phone is slow"))
    story.tell(m.BackedOff(story.number))
    assert story.tell(m.Provisioned(story.number, "b")) == (m.Reap(story.number, tidy=True),)


def test_what_was_pulled_out_is_tidied_when_it_is_back() -> None:
    story = Story().until_ready()
    story.tell(m.Unlisted())
    assert story.tell(m.LeftByPerson("its phone was lost")) == ()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    assert story.tell(m.Provisioned(story.number, "b")) == (m.Reap(story.number, tidy=True),)
    assert through_tidying(story) == (m.Check(story.number),)


def test_a_lease_that_nobody_remembers_is_tidied_too() -> None:
    story = Story()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    provisioned = m.Provisioned(story.number, "b", adoptable=True, untidy=True)
    assert story.tell(provisioned) == (m.Reap(story.number, tidy=True),)


def test_what_is_left_while_its_server_starts_is_tidied_before_the_check() -> None:
    story = Story()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    story.tell(m.Provisioned(story.number, "b"))
    assert story.tell(m.LeftByPerson("kicked")) == ()
    assert story.tell(m.ServerStarted(story.number)) == (m.Reap(story.number, tidy=True),)


def test_a_stranger_is_not_tidied() -> None:
    story = Story()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=False))
    assert story.tell(m.LeftByPerson("whoever")) == ()
    assert not story.state.untidy


def borrowed() -> Story:
    """Ready with the bundle "b2", which somebody wanted."""
    story = Story().until_ready()
    assert story.tell(m.BundleWanted("b2")) == (m.Provision(story.number),)
    assert (story.state.life, story.state.lent) == (Life.PROVISIONING, "b2")
    assert story.state.reason == "its runtime bundle is changed"
    assert story.tell(m.Provisioned(story.number, "b2")) == (m.StartServer(story.number),)
    story.tell(m.ServerStarted(story.number))
    assert story.tell(m.CheckPassed(story.number)) == ()  # its own bundle stays where it is
    assert (story.state.life, story.state.bundle) == (Life.READY, "b2")
    return story


def test_a_lent_bundle_is_exchanged_for_its_own_before_it_is_ready_again() -> None:
    story = borrowed()
    assert story.tell(m.BundleWanted("b2")) == ()
    assert story.tell(m.BundleWanted("")) == (m.Provision(story.number),)
    assert (story.state.life, story.state.lent) == (Life.PROVISIONING, "")
    story.tell(m.Provisioned(story.number, "b"))
    story.tell(m.ServerStarted(story.number))
    assert story.tell(m.CheckPassed(story.number)) == (m.DropOldBundles(),)
    assert story.tell(m.BundleWanted("")) == ()


@pytest.mark.parametrize("life", [Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING])
def test_its_own_bundle_comes_back_whatever_was_under_way(life: Life) -> None:
    story = borrowed()
    story.tell(m.SessionBroke("cut"))
    for event in (
        m.RecoveryFinished(story.number, server_alive=False),
        m.ServerStarted(story.number + 1),
        m.SessionBroke("cut"),
        m.RecoveryFailed(story.number + 3, "stuck"),
        m.BackedOff(story.number + 4),
    ):
        if story.state.life is life:
            break
        story.tell(event)
    assert story.state.life is life
    assert story.state.lent == "b2"
    assert story.tell(m.BundleWanted("")) == (m.Provision(story.number),)
    assert story.state.lent == ""


@pytest.mark.parametrize("kind", ["provision", "start", "check", "wrong", "death"])
def test_a_lent_bundle_that_fails_gives_way_to_its_own_and_quarantines_nothing(kind: str) -> None:
    story = Story().until_ready()
    story.tell(m.BundleWanted("b2"))
    if kind != "provision":
        story.tell(m.Provisioned(story.number, "b2"))
    if kind in ("check", "wrong", "death"):
        story.tell(m.ServerStarted(story.number))
    failed: dict[str, m.Event] = {
        "provision": m.ProvisionFailed(story.number, "no room"),
        "start": m.StartFailed(story.number, "no room"),
        "check": m.CheckFailed(story.number, "no room"),
        "wrong": m.CheckFailed(story.number, "no room", wrong=True),
        "death": m.ServerDied(story.state.follow, "no room"),
    }
    assert story.tell(failed[kind]) == (m.Provision(story.number, deep=True),)
    assert (story.state.lent, story.state.refusal, story.state.climb.tried) == ("", "no room", ())
    assert "no room" in story.state.reason


def test_a_phone_that_goes_away_is_lent_no_more_and_takes_only_what_is_its_own() -> None:
    story = borrowed()
    story.tell(m.Unlisted())
    assert (story.state.lent, bool(story.state.refusal)) == ("", True)
    assert story.tell(m.BundleWanted("b2")) == ()
    assert (story.state.lent, story.state.refusal) == ("", MEANING[Life.GONE])
