"""The life cycle driven at random, its invariants checked: any order of events, answers of any age."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.lifecycle import STABLE_S, Lifecycle
from farm.devices.lifecycle.recovery import DAY_S, RETURN_S, RULE_OF, RecoveryAction, RecoveryContext
from farm.devices.lifecycle.state import LINK_DOWN, SERVED, WORKING
from farm.model.device import Life, Service
from farm.model.health import DeviceFault, ReleaseRule

numbers = st.integers(min_value=-3, max_value=0)  # how old the number is that an answer carries
reasons = st.sampled_from(["signal 11", "timeout"])
faults = st.sampled_from([*DeviceFault, None])
PER_DAY = {
    RecoveryAction.RESTART: 5,
    RecoveryAction.REPUSH: 4,
    RecoveryAction.RECONNECT: 3,
    RecoveryAction.REBOOT: 2,
    RecoveryAction.POWER_CYCLE: 1,
}


class RandomLife(RuleBasedStateMachine):
    """Any order of events, answers of any age: the state stays sound and no step is illegal."""

    def __init__(self):
        super().__init__()
        self.machine = Lifecycle()
        self.now = 0.0
        self.awaited = None
        self.context = RecoveryContext(per_day=PER_DAY)
        self.taken = []  # with a budget, and not ordered

    def on_event(self, event):
        before = self.machine.state
        given = self.machine.handle(event, self.now, self.context)
        after = self.machine.state
        begun = after.progress.under_way
        if begun is not None and begun is not before.progress.under_way:
            assert begun.action is not RecoveryAction.QUARANTINE
            if begun.fault is not DeviceFault.ORDER and RULE_OF[begun.action].per_day is not None:
                self.taken.append((begun.action, self.now))
        if before.progress.under_way is not None and begun is not before.progress.under_way:
            assert after.progress.last is not None
            assert after.progress.last.taken == before.progress.under_way  # no action ends without a word
        work = [each for each in given if isinstance(each, m.Work)]
        assert len(work) <= 1
        assert after.generation >= before.generation
        if work:
            assert work[0].generation == after.generation > before.generation
            self.awaited = work[0]
        elif after.generation != before.generation:
            self.awaited = None
        if isinstance(event, m.WorkEnded) and event.generation != before.generation:
            assert after == before
            assert given == ()
        if after.life is Life.READY and before.life is not Life.READY:
            assert isinstance(event, m.CheckPassed)

    @rule(seconds=st.sampled_from([0.1, STABLE_S, DAY_S / 3]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(holder=st.sampled_from(["", "ann"]), no_power=st.sampled_from(["", "no switch"]), hurt=st.booleans())
    def the_world_changes(self, holder, no_power, hurt):
        self.context = RecoveryContext(
            holder, bool(holder) and hurt, no_power, "bob's lease" if hurt else "", per_day=PER_DAY
        )

    @rule(fault=st.sampled_from(DeviceFault), reason=reasons)
    def probe_finds(self, fault, reason):
        held = self.context.holder and self.machine.state.life is Life.READY
        self.on_event(m.FaultFound(fault, reason))
        assert not held or self.machine.state.life is Life.READY

    @rule(fault=st.sampled_from(DeviceFault))
    def probe_finds_well(self, fault):
        self.on_event(m.FaultCleared(fault))

    @rule(action=st.sampled_from([RecoveryAction.REBOOT, RecoveryAction.POWER_CYCLE]))
    def ordered(self, action):
        self.on_event(m.ActionOrdered(action, "ordered by ann"))

    @rule()
    def distrusted(self):
        self.on_event(m.QuarantineOrdered("screen cracked"))
        assert not self.machine.state.adopted or self.machine.state.quarantine is not None

    @rule(link=st.sampled_from(m.LinkState), reconnectable=st.booleans())
    def listed(self, link, reconnectable):
        self.on_event(
            m.Listed(link) if link is m.LinkState.USABLE else m.Listed(link, "why", "replug it", reconnectable)
        )

    @rule()
    def unlisted(self):
        self.on_event(m.PlainEvent.UNLISTED)

    @rule(
        event=st.sampled_from(
            [
                m.PlainEvent.ADOPTED,
                m.PlainEvent.RELEASED,
                m.PlainEvent.BUNDLES_CHANGED,
                m.Unadopted(True),
                m.Unadopted(False),
            ]
        )
    )
    def operator(self, event):
        self.on_event(event)

    @rule(service=st.sampled_from(Service))
    def service(self, service):
        self.on_event(m.ServiceChanged(service))
        assert self.machine.state.service is service

    @rule(age=numbers, reason=reasons, kind=st.sampled_from([m.ServerDied, m.LinkLost]))
    def server_in_doubt(self, age, reason, kind):
        self.on_event(kind(self.machine.state.follow + age, reason))

    @rule(reason=reasons)
    def bug_found(self, reason):
        self.on_event(m.BugFound(reason))
        assert self.machine.state.life is Life.QUARANTINED

    @rule(reason=reasons)
    def left_by_person(self, reason):
        self.on_event(m.LeftByPerson(reason))
        assert self.machine.state.life is not Life.READY or not self.machine.state.adopted

    @rule(bundle=st.sampled_from(["", "b1", "b2"]))
    def bundle_wanted(self, bundle):
        self.on_event(m.BundleWanted(bundle))
        assert self.machine.state.bundle_override in ("", bundle)

    @rule(reason=reasons)
    def session_broke(self, reason):
        self.on_event(m.SessionBroke(reason))

    @precondition(lambda self: self.awaited is not None)
    @rule(age=numbers, good=st.booleans(), flag=st.booleans(), reason=reasons, fault=faults)
    def answered(self, age, good, flag, reason, fault):
        assert self.awaited is not None
        number = self.machine.state.generation + age
        good_answer: m.DeviceEvent
        bad_answer: m.DeviceEvent
        match self.awaited:
            case m.Identify():
                good_answer, bad_answer = (
                    m.Identified(number, adopted=flag, same_boot=not flag),
                    m.WorkFailed(number, reason, fault=fault),
                )
            case m.Provision():
                good_answer = m.Provisioned(number, "b", adoptable=flag, untidy=not flag)
                bad_answer = m.WorkFailed(number, reason, fault=DeviceFault.BUNDLE if flag else fault)
            case m.StartServer() | m.AdoptServer():
                good_answer, bad_answer = m.ServerStarted(number), m.WorkFailed(number, reason, fault=fault)
            case m.RunCheck():
                good_answer, bad_answer = (
                    m.CheckPassed(number),
                    m.WorkFailed(number, reason, fault=DeviceFault.WRONG if flag else fault),
                )
            case m.Reap(tidy=tidy):
                good_answer = m.RecoveryFinished(number, server_alive=flag and not tidy, tidied=tidy)
                bad_answer = m.WorkFailed(number, reason, fault=fault)
            case m.RetryLater():
                good_answer = bad_answer = m.WaitEnded(number)
            case m.Pause():
                good_answer = bad_answer = m.WaitEnded(number)
            case m.TakeAction():
                good_answer, bad_answer = m.ActionDone(number), m.ActionFailed(number, reason)
        self.on_event(good_answer if good else bad_answer)

    @invariant()
    def exactly_the_working_lives_await_an_answer(self):
        state = self.machine.state
        if state.life in WORKING:
            assert self.awaited is not None
        elif self.awaited is not None:
            assert state.life in LINK_DOWN
            assert isinstance(self.awaited, m.Pause | m.TakeAction)
        if self.awaited is not None:
            assert self.awaited.generation == state.generation

    @invariant()
    def a_server_is_followed_only_where_one_is_used(self):
        state = self.machine.state
        if state.life in {Life.READY, Life.CHECKING}:
            assert state.follow
        if state.follow:
            assert state.life in SERVED

    @invariant()
    def only_adopted_phones_are_written_to(self):
        state = self.machine.state
        if state.life in {Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.READY}:
            assert state.adopted
            assert state.identified

    @invariant()
    def only_what_is_or_will_be_ready_is_lent(self):
        state = self.machine.state
        assert not state.bundle_override or state.life in {*WORKING, Life.READY}

    @invariant()
    def whoever_is_not_ready_says_why(self):
        state = self.machine.state
        assert state.life in {Life.READY, Life.GONE} or state.reason
        if state.life is Life.READY:
            assert state.bundle
            assert not state.untidy
            assert not state.reason
            assert state.progress.under_way is None

    @invariant()
    def strangers_are_left_alone(self):
        state = self.machine.state
        assert state.adopted or state.progress.under_way is None

    @invariant()
    def no_budget_is_exceeded(self):
        for action, budget in PER_DAY.items():
            assert sum(taken is action and at > self.now - DAY_S for taken, at in self.taken) <= budget

    @invariant()
    def a_quarantine_ends_only_by_its_rule(self):
        state = self.machine.state
        if state.quarantine is None:
            assert state.life is not Life.QUARANTINED
        else:
            assert state.life in {Life.QUARANTINED, Life.IDENTIFYING, Life.RECOVERING, *LINK_DOWN}
            assert state.quarantine.hint or state.quarantine.rule is not ReleaseRule.PERSON

    @invariant()
    def whoever_is_not_ready_is_worked_on_or_waits_for_something_or_somebody(self):
        state = self.machine.state
        if state.life in {Life.READY, *WORKING}:
            return
        expected = state.progress.under_way is not None and state.progress.under_way.action in RETURN_S
        if state.life is Life.GONE:
            assert not expected or self.awaited is not None  # ours to wait for; else whoever took it brings it back
        elif state.life is Life.QUARANTINED:
            assert state.quarantine is not None  # the invariant above: its rule, or a person's hint
        else:
            assert self.awaited is not None or state.hint


RandomLife.TestCase.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)
TestRandomLife = RandomLife.TestCase
