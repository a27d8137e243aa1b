"""The life cycle: told stories, stale answers, and a machine driven at random with its invariants checked."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farm.core import lifecycle_messages as m
from farm.core.device import Life, Service
from farm.core.lifecycle import (
    MEANING,
    SERVED,
    STABLE_S,
    TRANSITIONS,
    WORKING,
    DeviceState,
    IllegalTransitionError,
    Lifecycle,
    decide,
)

USABLE = m.Listed(m.Link.USABLE)


class Story:
    """A life driven by a script: answers carry the number of the work last asked for."""

    def __init__(self) -> None:
        self.machine = Lifecycle()
        self.now = 0.0
        self.last: tuple[m.Instruction, ...] = ()

    @property
    def state(self) -> DeviceState:
        return self.machine.state

    @property
    def number(self) -> int:
        return self.state.generation

    def tell(self, event: m.Event) -> tuple[m.Instruction, ...]:
        self.last = self.machine.handle(event, self.now)
        return self.last

    def until_ready(self) -> Story:
        self.tell(USABLE)
        self.tell(m.Identified(self.number, adopted=True))
        self.tell(m.Provisioned(self.number, "b" * 64))
        self.tell(m.ServerStarted(self.number))
        self.tell(m.CheckPassed(self.number))
        assert self.state.life is Life.READY
        return self


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


def test_a_phone_that_a_person_had_is_tidied_before_its_check() -> None:
    story = Story().until_ready()
    assert story.tell(m.LeftByPerson("the lease ended")) == (m.Reap(story.number, tidy=True),)
    assert (story.state.life, story.state.reason) == (Life.RECOVERING, "the lease ended")
    assert story.tell(m.RecoveryFinished(story.number, server_alive=True)) == (m.Check(story.number),)
    story.tell(m.CheckPassed(story.number))
    assert not story.state.untidy


def test_a_session_that_broke_first_does_not_save_it_from_tidying() -> None:
    story = Story().until_ready()
    assert story.tell(m.SessionBroke("cut")) == (m.Reap(story.number),)
    stale = story.number
    assert story.tell(m.LeftByPerson("kicked")) == (m.Reap(story.number, tidy=True),)
    assert story.tell(m.RecoveryFinished(stale, server_alive=True)) == ()
    story.tell(m.RecoveryFailed(story.number, "the phone is slow"))
    story.tell(m.BackedOff(story.number))
    story.tell(m.Provisioned(story.number, "b"))
    following, tidying = story.tell(m.ServerStarted(story.number))
    assert (following, tidying) == (m.FollowServer(story.state.follow), m.Reap(story.number, tidy=True))


def test_what_was_pulled_out_is_tidied_when_it_is_back() -> None:
    story = Story().until_ready()
    story.tell(m.Unlisted())
    assert story.tell(m.LeftByPerson("its phone was lost")) == ()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    story.tell(m.Provisioned(story.number, "b"))
    following, tidying = story.tell(m.ServerStarted(story.number))
    assert (following, tidying) == (m.FollowServer(story.state.follow), m.Reap(story.number, tidy=True))
    assert story.tell(m.RecoveryFinished(story.number, server_alive=True)) == (m.Check(story.number),)


def test_a_lease_that_nobody_remembers_is_tidied_too() -> None:
    story = Story()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=True))
    story.tell(m.Provisioned(story.number, "b", adoptable=True, untidy=True))
    assert story.tell(m.ServerStarted(story.number))[1] == m.Reap(story.number, tidy=True)


def test_a_stranger_is_not_tidied() -> None:
    story = Story()
    story.tell(USABLE)
    story.tell(m.Identified(story.number, adopted=False))
    assert story.tell(m.LeftByPerson("whoever")) == ()
    assert not story.state.untidy


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


numbers = st.integers(min_value=-3, max_value=0)  # how old the number is that an answer carries
reasons = st.sampled_from(["signal 11", "timeout"])


class RandomLife(RuleBasedStateMachine):
    """Any order of events, answers of any age: the state stays sound and no step is illegal."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Lifecycle()
        self.now = 0.0
        self.awaited: m.Work | None = None

    def tell(self, event: m.Event) -> None:
        before = self.machine.state
        given = self.machine.handle(event, self.now)
        after = self.machine.state
        work = [each for each in given if isinstance(each, m.Work)]
        assert len(work) <= 1
        assert after.generation >= before.generation
        if work:
            assert work[0].generation == after.generation > before.generation
            self.awaited = work[0]
        elif after.generation != before.generation:
            self.awaited = None
        if isinstance(event, m.Answer) and event.generation != before.generation:
            assert after == before
            assert given == ()
        if after.life is Life.READY and before.life is not Life.READY:
            assert isinstance(event, m.CheckPassed)

    @rule(seconds=st.sampled_from([0.1, STABLE_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(link=st.sampled_from(m.Link))
    def listed(self, link: m.Link) -> None:
        self.tell(m.Listed(link, "" if link is m.Link.USABLE else "why"))

    @rule()
    def unlisted(self) -> None:
        self.tell(m.Unlisted())

    @rule(event=st.sampled_from([m.Adopted(), m.Released(), m.BundlesChanged(), m.Unadopted(True), m.Unadopted(False)]))
    def operator(self, event: m.Event) -> None:
        self.tell(event)

    @rule(service=st.sampled_from(Service))
    def service(self, service: Service) -> None:
        self.tell(m.ServiceChanged(service))
        assert self.machine.state.service is service

    @rule(age=numbers, reason=reasons, kind=st.sampled_from([m.ServerDied, m.LinkLost]))
    def server_in_doubt(self, age: int, reason: str, kind: type[m.ServerDied | m.LinkLost]) -> None:
        self.tell(kind(self.machine.state.follow + age, reason))

    @rule(reason=reasons)
    def bug_found(self, reason: str) -> None:
        self.tell(m.BugFound(reason))
        assert self.machine.state.life is Life.QUARANTINED

    @rule(reason=reasons)
    def left_by_person(self, reason: str) -> None:
        self.tell(m.LeftByPerson(reason))
        assert self.machine.state.life is not Life.READY or not self.machine.state.adopted

    @rule(bundle=st.sampled_from(["", "b1", "b2"]))
    def bundle_wanted(self, bundle: str) -> None:
        self.tell(m.BundleWanted(bundle))
        assert self.machine.state.lent in ("", bundle)

    @rule(reason=reasons)
    def session_broke(self, reason: str) -> None:
        self.tell(m.SessionBroke(reason))

    @precondition(lambda self: self.awaited is not None)
    @rule(age=numbers, good=st.booleans(), flag=st.booleans(), reason=reasons)
    def answered(self, age: int, good: bool, flag: bool, reason: str) -> None:
        assert self.awaited is not None
        number = self.machine.state.generation + age
        good_answer: m.Event
        bad_answer: m.Event
        match self.awaited:
            case m.Identify():
                good_answer, bad_answer = m.Identified(number, adopted=flag), m.IdentifyFailed(number, reason)
            case m.Provision():
                good_answer = m.Provisioned(number, "b", adoptable=flag, untidy=not flag)
                bad_answer = m.ProvisionFailed(number, reason, person=flag)
            case m.StartServer() | m.AdoptServer():
                good_answer, bad_answer = m.ServerStarted(number), m.StartFailed(number, reason)
            case m.Check():
                good_answer, bad_answer = m.CheckPassed(number), m.CheckFailed(number, reason, wrong=flag)
            case m.Reap():
                good_answer = m.RecoveryFinished(number, server_alive=flag)
                bad_answer = m.RecoveryFailed(number, reason)
            case m.BackOff():
                good_answer = bad_answer = m.BackedOff(number)
        self.tell(good_answer if good else bad_answer)

    @invariant()
    def exactly_the_working_lives_await_an_answer(self) -> None:
        state = self.machine.state
        assert (self.awaited is not None) == (state.life in WORKING)
        if self.awaited is not None:
            assert self.awaited.generation == state.generation

    @invariant()
    def a_server_is_followed_only_where_one_is_used(self) -> None:
        state = self.machine.state
        if state.life in {Life.READY, Life.CHECKING}:
            assert state.follow
        if state.follow:
            assert state.life in SERVED

    @invariant()
    def only_adopted_phones_are_written_to(self) -> None:
        state = self.machine.state
        if state.life in {Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.READY}:
            assert state.adopted
            assert state.identified

    @invariant()
    def only_what_is_or_will_be_ready_is_lent(self) -> None:
        state = self.machine.state
        assert not state.lent or state.life in {*WORKING, Life.READY}

    @invariant()
    def whoever_is_not_ready_says_why(self) -> None:
        state = self.machine.state
        assert state.life in {Life.READY, Life.GONE} or state.reason
        if state.life is Life.READY:
            assert state.bundle
            assert not state.untidy
            assert not state.reason


RandomLife.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRandomLife = RandomLife.TestCase


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
    assert (story.state.lent, story.state.refusal, story.state.wrong) == ("", "no room", 0)
    assert "no room" in story.state.reason


def test_a_phone_that_goes_away_is_lent_no_more_and_takes_only_what_is_its_own() -> None:
    story = borrowed()
    story.tell(m.Unlisted())
    assert (story.state.lent, bool(story.state.refusal)) == ("", True)
    assert story.tell(m.BundleWanted("b2")) == ()
    assert (story.state.lent, story.state.refusal) == ("", MEANING[Life.GONE])


def test_deciding_changes_nothing_it_was_given() -> None:
    state = DeviceState()
    after, _ = decide(state, USABLE, 0.0)
    assert state == DeviceState()
    assert after.life is Life.IDENTIFYING
