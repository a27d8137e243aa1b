"""The life cycle driven at random, its invariants checked: any order of events, answers of any age."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farm.core import lifecycle_messages as m
from farm.core.device import Life, Service
from farm.core.lifecycle import STABLE_S, Lifecycle
from farm.core.lifecycle_state import LINK_DOWN, SERVED, WORKING
from farm.core.recovery import DAY_S, RETURN_S, STEPS, Ailment, Around, ReleaseRule, Rung

numbers = st.integers(min_value=-3, max_value=0)  # how old the number is that an answer carries
reasons = st.sampled_from(["signal 11", "timeout"])
ailments = st.sampled_from([*Ailment, None])
PER_DAY = {Rung.RESTART: 5, Rung.REPUSH: 4, Rung.RECONNECT: 3, Rung.REBOOT: 2, Rung.POWER_CYCLE: 1}


class RandomLife(RuleBasedStateMachine):
    """Any order of events, answers of any age: the state stays sound and no step is illegal."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Lifecycle()
        self.now = 0.0
        self.awaited: m.Work | None = None
        self.around = Around(per_day=PER_DAY)
        self.taken: list[tuple[Rung, float]] = []  # with a budget, and not ordered

    def tell(self, event: m.Event) -> None:
        before = self.machine.state
        given = self.machine.handle(event, self.now, self.around)
        after = self.machine.state
        begun = after.climb.under_way
        if begun is not None and begun is not before.climb.under_way:
            assert begun.rung is not Rung.QUARANTINE
            if begun.ailment is not Ailment.ORDER and STEPS[begun.rung].per_day is not None:
                self.taken.append((begun.rung, self.now))
        if before.climb.under_way is not None and begun is not before.climb.under_way:
            assert after.climb.last is not None
            assert after.climb.last.taken == before.climb.under_way  # no rung ends without a word
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

    @rule(seconds=st.sampled_from([0.1, STABLE_S, DAY_S / 3]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(holder=st.sampled_from(["", "ann"]), no_power=st.sampled_from(["", "no switch"]), hurt=st.booleans())
    def the_world_changes(self, holder: str, no_power: str, hurt: bool) -> None:
        self.around = Around(holder, bool(holder) and hurt, no_power, "bob's lease" if hurt else "", per_day=PER_DAY)

    @rule(ailment=st.sampled_from(Ailment), reason=reasons)
    def probe_finds(self, ailment: Ailment, reason: str) -> None:
        held = self.around.holder and self.machine.state.life is Life.READY
        self.tell(m.Ailing(ailment, reason))
        assert not held or self.machine.state.life is Life.READY

    @rule(ailment=st.sampled_from(Ailment))
    def probe_finds_well(self, ailment: Ailment) -> None:
        self.tell(m.Well(ailment))

    @rule(rung=st.sampled_from([Rung.REBOOT, Rung.POWER_CYCLE]))
    def ordered(self, rung: Rung) -> None:
        self.tell(m.Ordered(rung, "ordered by ann"))

    @rule()
    def distrusted(self) -> None:
        self.tell(m.Distrusted("screen cracked"))
        assert not self.machine.state.adopted or self.machine.state.quarantine is not None

    @rule(link=st.sampled_from(m.Link), mendable=st.booleans())
    def listed(self, link: m.Link, mendable: bool) -> None:
        self.tell(m.Listed(link) if link is m.Link.USABLE else m.Listed(link, "why", "replug it", mendable))

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
    @rule(age=numbers, good=st.booleans(), flag=st.booleans(), reason=reasons, ailment=ailments)
    def answered(self, age: int, good: bool, flag: bool, reason: str, ailment: Ailment | None) -> None:
        assert self.awaited is not None
        number = self.machine.state.generation + age
        good_answer: m.Event
        bad_answer: m.Event
        match self.awaited:
            case m.Identify():
                good_answer, bad_answer = (
                    m.Identified(number, adopted=flag, same_boot=not flag),
                    m.IdentifyFailed(number, reason, ailment=ailment),
                )
            case m.Provision():
                good_answer = m.Provisioned(number, "b", adoptable=flag, untidy=not flag)
                bad_answer = m.ProvisionFailed(number, reason, person=flag, ailment=ailment)
            case m.StartServer() | m.AdoptServer():
                good_answer, bad_answer = m.ServerStarted(number), m.StartFailed(number, reason, ailment=ailment)
            case m.Check():
                good_answer, bad_answer = (
                    m.CheckPassed(number),
                    m.CheckFailed(number, reason, wrong=flag, ailment=ailment),
                )
            case m.Reap(tidy=tidy):
                good_answer = m.RecoveryFinished(number, server_alive=flag and not tidy, tidied=tidy)
                bad_answer = m.RecoveryFailed(number, reason, ailment=ailment)
            case m.BackOff():
                good_answer = bad_answer = m.BackedOff(number)
            case m.Pause():
                good_answer = bad_answer = m.Paused(number)
            case m.Reconnect() | m.Reboot() | m.PowerCycle():
                good_answer, bad_answer = m.RungDone(number), m.RungFailed(number, reason)
        self.tell(good_answer if good else bad_answer)

    @invariant()
    def exactly_the_working_lives_await_an_answer(self) -> None:
        state = self.machine.state
        if state.life in WORKING:
            assert self.awaited is not None
        elif self.awaited is not None:
            assert state.life in LINK_DOWN
            assert isinstance(self.awaited, m.Pause | m.Reconnect | m.PowerCycle)
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
            assert state.climb.under_way is None

    @invariant()
    def strangers_are_left_alone(self) -> None:
        state = self.machine.state
        assert state.adopted or state.climb.under_way is None

    @invariant()
    def no_budget_is_exceeded(self) -> None:
        for rung, budget in PER_DAY.items():
            assert sum(taken is rung and at > self.now - DAY_S for taken, at in self.taken) <= budget

    @invariant()
    def a_quarantine_ends_only_by_its_rule(self) -> None:
        state = self.machine.state
        if state.quarantine is None:
            assert state.life is not Life.QUARANTINED
        else:
            assert state.life in {Life.QUARANTINED, Life.IDENTIFYING, Life.RECOVERING, *LINK_DOWN}
            assert state.quarantine.hint or state.quarantine.rule is not ReleaseRule.PERSON

    @invariant()
    def whoever_is_not_ready_is_worked_on_or_waits_for_something_or_somebody(self) -> None:
        state = self.machine.state
        if state.life in {Life.READY, *WORKING}:
            return
        expected = state.climb.under_way is not None and state.climb.under_way.rung in RETURN_S
        if state.life is Life.GONE:
            assert not expected or self.awaited is not None  # ours to wait for; else whoever took it brings it back
        elif state.life is Life.QUARANTINED:
            assert state.quarantine is not None  # the invariant above: its rule, or a person's hint
        else:
            assert self.awaited is not None or state.hint


RandomLife.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRandomLife = RandomLife.TestCase
