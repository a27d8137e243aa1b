"""The life cycle driven at random, its invariants checked: any order of events, answers of any age."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farm.core import lifecycle_messages as m
from farm.core.device import Life, Service
from farm.core.lifecycle import SERVED, STABLE_S, WORKING, Lifecycle

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
