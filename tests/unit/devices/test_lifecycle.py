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
from tests.support.lifecycle_story import GONE, USABLE, Story

BUNDLES = m.PlainEvent.BUNDLES_CHANGED
RELEASED = m.PlainEvent.RELEASED
WRONG, CHECK = DeviceFault.WRONG, DeviceFault.CHECK


def asks(asked, *kinds):
    """Whether it is asked for instructions of these kinds."""
    return [type(each) for each in asked] == list(kinds)


def test_a_phone_becomes_ready_step_by_step():
    story = Story()
    assert story.on(USABLE) == (m.Identify(1),)
    assert story.answers(m.Identified, adopted=True) == (m.Provision(2),)
    assert story.answers(m.Provisioned, "b1") == (m.StartServer(3),)
    assert story.answers(m.ServerStarted) == (m.FollowServer(4), m.RunCheck(4))
    assert story.answers(m.CheckPassed) == (m.DropOldBundles(),)
    assert (story.life, story.state.reason, story.state.bundle) == (Life.READY, "", "b1")


def test_an_unadopted_phone_gets_nothing_but_identity():
    story = Story(Life.IDENTIFYING)
    assert story.answers(m.Identified, adopted=False) == ()
    assert story.life is Life.NEW
    assert story.on(BUNDLES) == ()
    assert story.on(m.PlainEvent.ADOPTED) == (m.Provision(story.number),)


def test_a_phone_that_was_given_back_is_identified_again_and_nothing_more():
    story = Story(Life.READY)
    story.on(m.Unadopted(clean=True), m.BugFound("signal 11"), RELEASED)
    story.fails("it did not answer")
    assert story.waits() == (m.Identify(story.number),)


def test_a_living_server_is_taken_over():
    story = Story(Life.READY)
    story.on(GONE)
    assert story.life is Life.GONE
    story.on(USABLE)
    story.until(Life.PROVISIONING)
    assert story.answers(m.Provisioned, "b", adoptable=True) == (m.AdoptServer(story.number),)


def test_a_server_with_a_session_of_the_time_before_is_taken_over_as_it_is():
    story = Story(Life.PROVISIONING)
    assert story.answers(m.Provisioned, "b", adoptable=True) == (m.AdoptServer(story.number),)
    asked = story.number
    assert story.answers(m.ServerStarted, in_use=True) == (m.FollowServer(story.state.follow),)
    assert (story.life, story.state.reason) == (Life.READY, "")
    assert story.state.follow == story.number > asked
    assert story.on(m.SessionBroke("the client vanished")) == (m.Reap(story.number),)
    assert story.answers(m.RecoveryFinished, server_alive=True) == (m.RunCheck(story.number),)


@pytest.mark.parametrize("life", [Life.UNAUTHORIZED, Life.OFFLINE])
def test_a_useless_link_ends_everything_and_says_why(life):
    story = Story(Life.READY)
    story.on(m.Listed(m.LinkState(life), "why", "what next"))
    assert (story.life, story.state.reason, story.state.hint) == (life, "why", "what next")
    assert story.state.follow == 0
    assert asks(story.on(USABLE), m.Identify)


def test_answers_from_before_the_link_was_lost_are_ignored():
    story = Story(Life.IDENTIFYING)
    old = story.number
    story.on(GONE, USABLE)
    before = story.state
    assert story.on(m.Identified(old, adopted=True)) == ()
    assert story.state == before


def test_the_death_of_an_older_server_is_not_news():
    story = Story(Life.READY)
    old = story.state.follow
    story.dies()
    story.until(Life.READY)
    assert story.on(m.ServerDied(old, "signal 11")) == ()
    assert story.life is Life.READY


def test_the_first_death_restarts_at_once_and_the_second_waits():
    story = Story(Life.READY)
    assert asks(story.dies("exit 1"), m.StartServer)
    assert story.state.reason == "exit 1"
    story.answers(m.ServerStarted)
    assert story.dies("exit 1") == (m.RetryLater(story.number, 2),)
    assert story.life is Life.RECOVERING
    assert story.waits() == (m.Provision(story.number),)


@pytest.mark.parametrize(("ready_for_s", "expected"), [(STABLE_S, m.StartServer), (STABLE_S / 2, m.RetryLater)])
def test_only_a_stable_server_clears_the_record(ready_for_s, expected):
    story = Story(Life.READY)
    story.dies()
    story.until(Life.READY)
    story.now += ready_for_s
    assert asks(story.dies(), expected)


def broken_session(alive=True):
    """A phone whose session broke and was reaped; its server is alive or not."""
    story = Story(Life.READY)
    story.on(m.SessionBroke("cut"))
    story.answers(m.RecoveryFinished, server_alive=alive)
    return story


def test_a_broken_session_is_reaped_then_checked_again():
    story = Story(Life.READY)
    followed = story.state.follow
    assert story.on(m.SessionBroke("cut: timeout 10 s")) == (m.Reap(story.number),)
    assert (story.life, story.state.follow) == (Life.RECOVERING, followed)
    assert story.answers(m.RecoveryFinished, server_alive=True) == (m.RunCheck(story.number),)
    assert story.state.follow == followed
    assert asks(broken_session(alive=False).last, m.StartServer)


def test_a_bundle_whose_golden_kernels_are_damaged_waits_for_a_sound_one_without_a_server():
    story = broken_session()
    error = HostError("the golden kernels are damaged", Code.BUNDLE_DAMAGED, hint="farm bundle verify")
    assert story.on(failed(m.RunCheck(story.number), error_from_wire(error_to_wire(error)))) == (m.EndServer(),)
    assert (story.life, story.state.reason) == (Life.QUARANTINED, "the golden kernels are damaged")
    assert asks(story.on(BUNDLES), m.Provision)


def test_a_server_that_failed_a_check_is_replaced_not_taken_over():
    story = broken_session()
    assert asks(story.fails("timeout", CHECK), m.StartServer)
    story.answers(m.ServerStarted)
    assert asks(story.fails("timeout", CHECK), m.RetryLater)
    story.on(GONE, USABLE)
    story.until(Life.PROVISIONING)
    assert asks(story.answers(m.Provisioned, "b", adoptable=True), m.StartServer)


def test_what_broke_is_told_until_it_is_ready_again():
    story = Story(Life.READY)
    story.dies()
    story.answers(m.ServerStarted)
    assert story.state.reason == "signal 11"
    story.until(Life.READY)
    assert story.state.reason == ""
    story.dies("exit 1")
    story.on(GONE)
    assert story.state.reason == MEANING[Life.GONE]


def test_wrong_numbers_restart_then_compare_hashes_then_need_a_person():
    story = broken_session()
    assert asks(story.fails("off by 3", WRONG), m.StartServer)
    story.answers(m.ServerStarted)
    assert story.fails("off by 3", WRONG) == (m.Provision(story.number, deep=True),)
    story.until(Life.CHECKING)
    assert story.fails("off by 3", WRONG) == (m.EndServer(),)
    assert (story.life, story.state.reason) == (Life.QUARANTINED, "off by 3")
    assert asks(story.on(RELEASED), m.Identify)


def test_a_server_that_does_not_start_has_its_files_compared():
    story = Story(Life.READY)
    story.dies("exit 1")
    assert asks(story.fails("no such file", DeviceFault.START), m.RetryLater)
    assert story.waits() == (m.Provision(story.number, deep=True),)
    story.until(Life.CHECKING)
    assert not story.state.suspect


def test_no_bundle_needs_a_person_until_one_is_added():
    story = Story(Life.PROVISIONING)
    story.fails("no bundle for arm64-v8a", DeviceFault.BUNDLE, "farm bundle add")
    assert story.on(m.PlainEvent.ADOPTED) == ()  # again: the reason stays
    assert story.life is Life.QUARANTINED
    assert (story.state.reason, story.state.hint) == ("no bundle for arm64-v8a", "farm bundle add")
    assert asks(story.on(BUNDLES), m.Provision)


def test_a_bug_of_farm_needs_a_person_wherever_it_happens():
    story = Story(Life.IDENTIFYING)
    for adopted in (True, False):
        assert story.on(m.BugFound("a bug in farm", "report it")) == ()
        assert (story.life, story.state.reason) == (Life.QUARANTINED, "a bug in farm")
        assert story.on(RELEASED) == (m.Identify(story.number),)
        story.answers(m.Identified, adopted=adopted)
    story.on(m.BugFound("a bug in farm", "report it"))
    assert story.on(BUNDLES) == ()  # it was never adopted: nothing may be put there


@pytest.mark.parametrize("clean", [True, False])
def test_giving_a_phone_back(clean):
    story = Story(Life.READY)
    assert story.on(m.Unadopted(clean)) == (m.EndServer(clean=clean),)
    assert (story.life, story.state.adopted, story.state.follow) == (Life.NEW, False, 0)


def test_an_illegal_step_tells_its_story(monkeypatch):
    story = Story(Life.IDENTIFYING)
    monkeypatch.setattr("farm.devices.lifecycle.lifecycle.TRANSITIONS", {life: frozenset() for life in Life})
    with raises_code(Code.ILLEGAL_TRANSITION, match="cannot go from identifying to new") as caught:
        story.answers(m.Identified, adopted=False)
    assert "Listed" in caught.value.evidence
    assert story.life is Life.IDENTIFYING


def test_every_life_has_a_meaning_and_a_way_out_and_only_a_check_leads_to_ready():
    assert set(MEANING) == set(TRANSITIONS) == set(Life)
    for life, following in TRANSITIONS.items():
        assert following - {life}
        assert all("\n" not in MEANING[each] for each in following)
    # STARTING: a server with a session that goes on is left alone.
    assert [each for each in TRANSITIONS if Life.READY in TRANSITIONS[each]] == [Life.STARTING, Life.CHECKING]


def test_deciding_changes_nothing_it_was_given():
    state = LifecycleState()
    after, _ = decide(state, USABLE, 0.0)
    assert (state, after.life) == (LifecycleState(), Life.IDENTIFYING)


def test_a_check_that_is_due_takes_an_idle_phone_and_compares_its_files():
    story = Story(Life.READY)
    assert story.on(m.PlainEvent.PROVISIONING_DUE) == (m.Provision(story.number, deep=True),)
    assert story.life is Life.PROVISIONING
    assert story.on(m.PlainEvent.PROVISIONING_DUE) == ()
    assert story.answers(m.Provisioned, "b", adoptable=True) == (m.StartServer(story.number),)
    assert story.answers(m.ServerStarted)[1:] == (m.RunCheck(story.number),)
    story.until(Life.READY)
    story.until_due_check()
    story.fails("exp_sum is off by 3", WRONG)
    assert (story.life, story.state.cause) == (Life.STARTING, "exp_sum is off by 3")


# --- a phone that people borrow: tidied after them, and used with another bundle than its own

LEFT = m.LeftByPerson("the lease ended")


def tidying(story):
    """Whether it is being tidied."""
    return story.last == (m.Reap(story.number, tidy=True),)


def through_tidying(story):
    """What a person may have changed is compared by hash, and no server is kept whose secret they know."""
    tidied = story.answers(m.RecoveryFinished, server_alive=False, tidied=True)
    assert tidied == (m.Provision(story.number, deep=True),)
    # Notes that somebody goes on writing are not believed now: it would be tidied for ever.
    provisioned = story.answers(m.Provisioned, "b" * 64, adoptable=True, untidy=True)
    assert provisioned == (m.StartServer(story.number),)
    assert story.answers(m.ServerStarted)[1:] == (m.RunCheck(story.number),)


def test_a_phone_that_a_person_had_is_tidied_before_its_check():
    story = Story(Life.READY)
    story.on(LEFT)
    assert tidying(story)
    assert (story.life, story.state.reason) == (Life.RECOVERING, "the lease ended")
    through_tidying(story)
    story.until(Life.READY)
    assert not story.state.untidy


def test_a_clean_up_that_began_before_a_person_left_does_not_count_as_theirs():
    story = Story(Life.READY)
    story.dies("crashed")
    story.answers(m.ServerStarted)
    story.on(m.SessionBroke("cut"))
    story.fails("stuck", DeviceFault.SESSION)
    story.waits()
    story.on(LEFT)
    story.answers(m.Provisioned, "b")
    assert tidying(story)
    story.answers(m.RecoveryFinished, server_alive=True)
    assert tidying(story)


def test_a_session_that_broke_first_does_not_save_it_from_tidying():
    story = Story(Life.READY)
    assert story.on(m.SessionBroke("cut")) == (m.Reap(story.number),)
    stale = story.number
    story.on(LEFT)
    assert tidying(story)
    assert story.on(m.RecoveryFinished(stale, server_alive=True)) == ()
    story.fails("the phone is slow")
    story.waits()
    story.answers(m.Provisioned, "b")
    assert tidying(story)


def test_what_was_pulled_out_is_tidied_when_it_is_back():
    story = Story(Life.READY)
    story.on(GONE)
    assert story.on(LEFT) == ()
    story.on(USABLE)
    story.until(Life.PROVISIONING)
    story.answers(m.Provisioned, "b")
    assert tidying(story)
    through_tidying(story)


def test_a_lease_that_nobody_remembers_is_tidied_too():
    story = Story(Life.PROVISIONING)
    story.answers(m.Provisioned, "b", adoptable=True, untidy=True)
    assert tidying(story)


def test_what_is_left_while_its_server_starts_is_tidied_before_the_check():
    story = Story(Life.STARTING)
    assert story.on(LEFT) == ()
    story.answers(m.ServerStarted)
    assert tidying(story)


def test_an_unadopted_phone_is_not_tidied():
    story = Story(Life.NEW, adopted=False)
    assert story.on(LEFT) == ()
    assert not story.state.untidy


def borrowed():
    """Ready with the bundle "b2", which somebody wanted."""
    story = Story(Life.READY)
    assert story.on(m.BundleWanted("b2")) == (m.Provision(story.number),)
    assert (story.life, story.state.bundle_override) == (Life.PROVISIONING, "b2")
    assert story.state.reason == "its runtime bundle is changed"
    assert story.answers(m.Provisioned, "b2") == (m.StartServer(story.number),)
    assert story.until(Life.READY) == ()  # its own bundle stays where it is
    assert story.state.bundle == "b2"
    return story


def test_a_lent_bundle_is_exchanged_for_its_own_before_it_is_ready_again():
    story = borrowed()
    assert story.on(m.BundleWanted("b2")) == ()
    assert story.on(m.BundleWanted("")) == (m.Provision(story.number),)
    assert (story.life, story.state.bundle_override) == (Life.PROVISIONING, "")
    assert story.until(Life.READY) == (m.DropOldBundles(),)
    assert story.on(m.BundleWanted("")) == ()


@pytest.mark.parametrize("life", [Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING])
def test_its_own_bundle_comes_back_whatever_was_under_way(life):
    story = borrowed()
    story.on(m.SessionBroke("cut"))
    if life in (Life.STARTING, Life.CHECKING):
        story.answers(m.RecoveryFinished, server_alive=False)
        story.until(life)
    elif life is Life.PROVISIONING:
        story.fails("stuck")
        story.waits()
    assert (story.life, story.state.bundle_override) == (life, "b2")
    assert story.on(m.BundleWanted("")) == (m.Provision(story.number),)
    assert story.state.bundle_override == ""


@pytest.mark.parametrize(
    ("life", "fault"),
    [
        (Life.PROVISIONING, None),
        (Life.STARTING, DeviceFault.START),
        (Life.CHECKING, CHECK),
        (Life.CHECKING, WRONG),
        (Life.CHECKING, "death"),
    ],
)
def test_a_lent_bundle_that_fails_gives_way_to_its_own_and_quarantines_nothing(life, fault):
    story = Story(Life.READY)
    story.on(m.BundleWanted("b2"))
    story.until(life, bundle="b2")
    asked = story.dies("no room") if fault == "death" else story.fails("no room", fault)
    assert asked == (m.Provision(story.number, deep=True),)
    assert (story.state.bundle_override, story.state.refusal, story.state.progress.tried) == ("", "no room", ())
    assert "no room" in story.state.reason


def test_a_phone_that_goes_away_is_lent_no_more_and_takes_only_what_is_its_own():
    story = borrowed()
    story.on(GONE)
    assert (story.state.bundle_override, bool(story.state.refusal)) == ("", True)
    assert story.on(m.BundleWanted("b2")) == ()
    assert (story.state.bundle_override, story.state.refusal) == ("", MEANING[Life.GONE])
