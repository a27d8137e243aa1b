"""The rolling upgrade: which phone changes when, what a failure means; a restart or a removal loses nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.bundle.rollout_rules import (
    RETRY,
    Rollout,
    RolloutConfig,
    RolloutPhone,
    TrialState,
    added,
    advance,
    assigned,
    named,
    news,
    progress,
    promoted,
    released,
    rolled_back,
    trial_failed,
)
from farm.common.errors import UserError

OLD, NEW, NEWER = "old", "new", "newer"
CONFIG = RolloutConfig(share=0.5, soak_s=10.0)


class Lab:
    """Phones that carry out what is decided, a step at a time; `add` and `steps` are what happened before the test."""

    def __init__(self, count=4, config=CONFIG, *, add="", steps=0, broken=()):
        self.config = config
        self.now_s = 1000.0
        self.stored = {OLD}
        self.proven = {f"S{number}": OLD for number in range(count)}
        self.phones = {
            serial: RolloutPhone(serial, serial.lower(), OLD, 100.0, idle=True, reachable=True, counted=True)
            for serial in self.proven
        }
        self.broken = set(broken)  # serial, bundle
        self.rollout = named(Rollout(), OLD, self.stored, [*self.proven.values()])
        self.most_out = 0
        self.golden_s = {}  # bundle -> time of golden kernels on each phone
        self.kept = {}
        self.touched = set()  # phones that try, or are kept for it
        if add:
            self.add(add)
        for _ in range(steps):
            self.step()

    def add(self, bundle):
        self.stored.add(bundle)
        self.rollout = named(added(self.rollout, bundle), bundle, self.stored, [*self.proven.values()])

    def change(self, serial, **values):
        self.phones[serial] = replace(self.phones[serial], **values)

    def step(self, seconds=11.0):
        """Time passes, then the next step is taken; phones provision what they are assigned at once."""
        self.now_s += seconds
        for serial, phone in self.phones.items():
            if phone.ready_s is not None:
                self.change(serial, ready_s=phone.ready_s + seconds)
        before = self.rollout
        self.rollout, exchange, self.kept = advance(self.rollout, [*self.phones.values()], self.config, self.now_s)
        trying = {serial for serial, trial in self.rollout.trials.items() if trial.state is TrialState.TRYING}
        self.touched = trying | self.kept.keys()
        if before.candidate and self.rollout.current == before.candidate:
            self.proven |= {each: before.candidate for each, p in self.phones.items() if p.bundle == before.candidate}
        self.most_out = max(self.most_out, len(exchange))
        for serial in exchange:
            self.provision(serial)
        return exchange

    def fail(self, serial, bundle, why, *, at_fault):
        self.rollout = trial_failed(self.rollout, serial, bundle, why, at_fault=at_fault, now_s=self.now_s)

    def provision(self, serial):
        bundle = assigned(self.rollout, serial, self.proven[serial])
        if (serial, bundle) in self.broken:
            self.fail(serial, bundle, "it exits with 3", at_fault=True)
            bundle = assigned(self.rollout, serial, self.proven[serial])
        if bundle != self.rollout.candidate:
            self.proven[serial] = bundle
        self.change(serial, bundle=bundle, ready_s=0.0, golden_s=self.golden_s.get(bundle, {}))

    def on(self):
        return [phone.bundle for phone in self.phones.values()]

    def bundles(self):
        return self.rollout.current, self.rollout.previous, self.rollout.candidate

    def trying(self, bundle):
        return {serial: trial for serial, trial in self.rollout.trials.items() if trial.bundle == bundle}


def test_the_first_bundle_goes_to_all_phones_at_once():
    first = named(Rollout(), OLD, {OLD}, [])
    assert (first.current, first.candidate, assigned(first, "S1", "")) == (OLD, "", OLD)
    # Nothing is proven: another one replaces it, as does one that is named while the first is still being pushed.
    second = named(first, NEW, {OLD, NEW}, [])
    assert (second.current, second.candidate) == (NEW, "")


def test_one_phone_tries_then_waves_of_the_share_then_it_is_current():
    lab = Lab(6, add=NEW)
    assert (lab.rollout.candidate, lab.on()) == (NEW, [OLD] * 6)
    assert lab.step() == ("S0",)
    assert lab.step(5.0) == ()  # not ready for long enough
    assert lab.step(5.0) == ("S1", "S2", "S3")  # half of six
    assert progress(lab.rollout, tuple(lab.phones.values())) == (1, 6)
    assert lab.step() == ("S4", "S5")
    lab.step()
    assert lab.bundles() == (NEW, OLD, "")
    assert lab.on() == [NEW] * 6
    assert lab.step() == ()


def test_a_bundle_that_fails_on_the_canary_is_refused_when_the_phone_is_well_with_its_old_one():
    lab = Lab(add=NEW, broken={(f"S{number}", NEW) for number in range(4)}, steps=1)
    assert (lab.rollout.candidate, lab.on()) == (NEW, [OLD] * 4)
    assert lab.step() == ()
    assert lab.rollout.refused == {NEW: "on s0: it exits with 3"}
    assert (*lab.bundles(), lab.rollout.trials) == (OLD, "", "", {})
    assert lab.step() == ()
    # The library still names it; that changes nothing, nor does a restart.
    assert named(lab.rollout, NEW, lab.stored, [OLD] * 4) == lab.rollout


def test_a_phone_that_fails_with_its_old_bundle_too_is_no_verdict():
    lab = Lab(add=NEW, broken={("S0", NEW)}, steps=1)
    lab.change("S0", ready_s=None, idle=False, reachable=False, counted=False)  # in quarantine
    assert lab.step() == ("S1",)
    assert lab.rollout.refused == {}
    for _ in range(4):
        lab.step()
    assert lab.rollout.current == NEW


def timed(*, old, new):
    """A lab whose canary has the new bundle, in which golden kernels take so long."""
    lab = Lab(6, add=NEW)
    lab.golden_s = {OLD: old, NEW: new}
    for serial in lab.phones:
        lab.change(serial, golden_s=old)
    lab.step()
    return lab


def test_a_bundle_that_is_slower_is_refused_when_the_phone_is_quick_again_with_its_old_one():
    lab = timed(old={"cpu": 1e-4, "opencl": 1e-3}, new={"cpu": 1e-4, "opencl": 1.45e-3})
    assert lab.step() == ("S0",)
    why = "golden kernels take 1.45 times as long on opencl as with the previous bundle"
    assert (lab.trying(NEW)["S0"].reason, lab.on()) == (why, [OLD] * 6)
    lab.step()
    assert (lab.rollout.refused, lab.bundles()) == ({NEW: f"on s0: {why}"}, (OLD, "", ""))


def test_a_phone_that_became_slow_meanwhile_tries_the_bundle_again_later():
    lab = timed(old={"cpu": 1e-4}, new={"cpu": 1.45e-4})
    lab.golden_s[OLD] = {"cpu": 1.4e-4}
    lab.step()
    lab.step()
    assert (lab.rollout.refused, lab.rollout.candidate, lab.trying(NEW)["S0"].state) == ({}, NEW, TrialState.PUT_OFF)
    assert "slow with the previous bundle, too" in lab.trying(NEW)["S0"].reason


def test_a_virtual_phone_is_as_quick_as_its_host_and_tells_gross_differences_only():
    lab = timed(old={"cpu": 1e-4}, new={"cpu": 1.9e-4})
    lab.change("S0", virtual=True)
    assert lab.step() == ("S1", "S2", "S3")


def test_a_leased_phone_leaves_a_slower_bundle_after_its_lease():
    lab = timed(old={"cpu": 1e-4}, new={"cpu": 2e-4})
    lab.change("S0", idle=False)
    assert (lab.step(), lab.kept) == ((), {"S0": OLD})
    lab.change("S0", idle=True)
    assert lab.step() == ("S0",)


@pytest.mark.parametrize(
    ("old", "new"),
    [({"cpu": 1e-4}, {"cpu": 1.2e-4}), ({"cpu": 1e-4}, {}), ({}, {"cpu": 1.0}), ({"cpu": 0}, {"cpu": 1})],
)
def test_a_bundle_whose_speed_is_alike_or_unknown_goes_to_the_next_phones(old, new):
    lab = timed(old=old, new=new)
    assert lab.step() == ("S1", "S2", "S3")


def test_a_late_failure_takes_the_bundle_from_those_that_have_it():
    lab = Lab(add=NEW, broken={("S3", NEW)})
    while NEW not in lab.rollout.refused:
        lab.step()
    assert lab.on() == [OLD, OLD, NEW, OLD]  # in waves, too
    assert lab.step() == ("S2",)
    assert lab.on() == [OLD] * 4
    lab.step()
    assert lab.rollout.trials == {}


def test_a_failure_that_is_not_the_bundles_puts_the_phone_off_for_longer_each_time():
    lab = Lab(1, add=NEW, steps=1)
    for pauses in ((RETRY.first_s / 2,) * 2, (RETRY.first_s,) * 2):
        lab.fail("S0", NEW, "the disk is full", at_fault=False)
        lab.provision("S0")
        assert lab.on() == [OLD]
        assert lab.step(pauses[0]) == ()
        assert lab.rollout.refused == {}
        assert lab.step(pauses[1]) == ("S0",)


def test_a_phone_that_leaves_meanwhile_is_waited_for_and_tried_again():
    lab = Lab(2, add=NEW, steps=1)
    lab.change("S0", ready_s=None, idle=False, reachable=False)
    assert lab.step() == ("S1",)
    lab.step()
    assert lab.rollout.candidate == NEW
    lab.change("S0", ready_s=0.0, idle=True, reachable=True, bundle=OLD)
    assert lab.step() == ("S0",)
    lab.step()
    assert lab.rollout.current == NEW


def test_a_phone_that_is_always_leased_is_kept_for_the_canary_and_then_for_its_wave():
    lab = Lab(4, add=NEW)
    for serial in lab.phones:
        lab.change(serial, idle=False)
    lab.change("S0", with_person=True)
    assert (lab.step(), lab.kept) == ((), {"S1": NEW})  # one, and none that a person has for hours
    lab.change("S1", ready_s=None)  # its lease has ended: it is cleaned
    assert (lab.step(), lab.kept) == ((), {"S1": NEW})
    lab.change("S1", ready_s=0.0, idle=True)
    assert (lab.step(), lab.kept) == (("S1",), {})
    lab.change("S1", idle=False)  # leased at once again: that is no matter to it now
    assert (lab.step(), lab.kept) == ((), {"S2": NEW, "S3": NEW})  # half of four
    lab.change("S3", idle=True)
    assert (lab.step(), lab.kept) == (("S3",), {"S2": NEW})
    lab.rollout = promoted(lab.rollout, NEW)
    assert (lab.step(), lab.kept) == ((), {"S0": NEW, "S2": NEW})


def test_an_idle_phone_comes_before_a_kept_one_and_none_is_kept_for_what_it_has():
    lab = Lab(2, add=NEW)
    lab.change("S0", idle=False)
    assert (lab.step(), lab.kept) == (("S1",), {})
    lab.step()
    assert lab.kept == {"S0": NEW}
    for changed in (
        {"reachable": False, "ready_s": None},
        {"reachable": True, "bundle": ""},  # it starts, and gets its bundle with that
    ):
        lab.change("S0", **changed)
        lab.step()
        assert lab.kept == {}


def test_a_phone_that_is_leased_before_its_exchange_is_kept_for_it():
    lab = Lab(1, add=NEW)
    lab.rollout, exchange, kept = advance(lab.rollout, [*lab.phones.values()], lab.config, lab.now_s)
    assert (exchange, kept) == (("S0",), {})
    lab.change("S0", idle=False)  # a daemon that died meanwhile finds its session open
    assert (lab.step(), lab.kept) == ((), {"S0": NEW})
    lab.change("S0", idle=True)
    assert lab.step() == ("S0",)


def test_a_phone_on_which_the_current_bundle_fails_keeps_its_last_proven_one_until_it_is_released():
    lab = Lab(2, add=NEW)
    lab.change("S1", ready_s=None, idle=False, reachable=False, counted=False)
    lab.step()
    lab.step()
    assert lab.rollout.current == NEW
    lab.broken = {("S1", NEW)}
    lab.change("S1", reachable=True, idle=True, counted=True)
    lab.provision("S1")
    assert lab.on() == [NEW, OLD]
    assert lab.step() == ()
    assert (lab.rollout.current, lab.rollout.refused) == (NEW, {})
    lab.broken = set()
    lab.rollout = released(lab.rollout, "S1")
    assert lab.step() == ("S1",)
    assert lab.on() == [NEW, NEW]


def test_a_refused_bundle_has_another_chance_when_it_is_added_again_and_is_forgotten_when_it_is_removed():
    lab = Lab(add=NEW, broken={("S0", NEW)}, steps=2)
    assert NEW in lab.rollout.refused
    assert named(lab.rollout, OLD, {OLD}, [OLD] * 4) == Rollout(OLD, "", "", OLD)
    gone = named(lab.rollout, "", set(), [OLD] * 4)
    assert (gone.current, gone.candidate) == ("", "")
    lab.broken = set()
    lab.add(NEW)
    assert (lab.rollout.candidate, lab.rollout.refused) == (NEW, {})
    assert lab.step() == ("S0",)


@pytest.mark.parametrize(("then", "candidate"), [(NEWER, NEWER), (OLD, "")])
def test_a_newer_candidate_or_the_current_bundle_named_again_replaces_the_candidate(then, candidate):
    lab = Lab(2, add=NEW, steps=1)
    assert lab.on() == [NEW, OLD]
    lab.add(then)
    assert lab.rollout.candidate == candidate
    assert lab.step() == ("S0",)
    assert lab.on() == [then, OLD]


DAMAGED = {NEW: "manifest.json is damaged"}


def test_a_candidate_whose_manifest_became_unreadable_is_refused_with_the_reason_until_it_is_added_again():
    lab = Lab(add=NEW, steps=1)
    lab.rollout = named(lab.rollout, OLD, {OLD}, [OLD] * 4, DAMAGED)
    assert (*lab.bundles(), lab.rollout.refused) == (OLD, "", "", DAMAGED)
    assert lab.step() == ("S0",)  # back to the old one
    assert lab.on() == [OLD] * 4
    assert named(lab.rollout, OLD, {OLD}, [OLD] * 4, DAMAGED).refused == DAMAGED
    lab.add(NEW)
    assert (lab.rollout.candidate, lab.rollout.refused) == (NEW, {})


def test_a_current_bundle_that_became_unreadable_is_refused_with_the_reason_while_phones_have_another():
    found = named(Rollout(current=NEW, wanted=NEW), OLD, {OLD}, [NEW] * 3 + [OLD], DAMAGED)
    assert (found.current, found.refused) == (OLD, DAMAGED)


def test_a_store_without_a_record_begins_with_what_most_phones_have_proven():
    found = named(Rollout(), NEW, {OLD, NEW}, [OLD, OLD, "unknown"])
    assert (found.current, found.candidate) == (OLD, NEW)
    assert named(Rollout(), NEW, {OLD, NEW}, [OLD, OLD, NEW]).current == NEW


@pytest.fixture
def promoted_lab():
    """The new bundle is current without a canary."""
    lab = Lab(add=NEW)
    lab.rollout = promoted(lab.rollout, NEW)
    return lab


def test_promote_skips_the_canary_and_rollback_goes_to_the_bundle_before(promoted_lab):
    lab = promoted_lab
    assert lab.bundles() == (NEW, OLD, "")
    assert [lab.step(), lab.step()] == [("S0", "S1"), ("S2", "S3")]
    lab.rollout = rolled_back(lab.rollout, NEW, "rolled back by ann")
    assert (lab.rollout.current, lab.rollout.refused) == (OLD, {NEW: "rolled back by ann"})
    # The library still names it, and it is the last proven one of every phone.
    assert named(lab.rollout, NEW, lab.stored, [NEW] * 4).current == OLD
    lab.step()
    lab.step()
    assert lab.on() == [OLD] * 4
    for change, why in (
        (lambda: promoted(lab.rollout, OLD), "current already"),
        (lambda: rolled_back(lab.rollout, NEWER, ""), "neither a candidate nor current"),
        (lambda: rolled_back(lab.rollout, OLD, ""), "no bundle to go back to"),
    ):
        with pytest.raises(UserError, match=why):
            change()
    assert promoted(lab.rollout, NEW).refused == {}


def test_rollback_goes_to_no_refused_bundle_and_a_current_one_that_is_refused_can_be_promoted(promoted_lab):
    lab = promoted_lab
    lab.add(OLD)
    lab.rollout = rolled_back(lab.rollout, OLD, "rolled back by ana")
    with pytest.raises(UserError, match="the bundle before is refused: rolled back by ana"):
        rolled_back(lab.rollout, NEW, "broken")
    assert lab.bundles() == (NEW, OLD, "")
    assert promoted(replace(lab.rollout, refused=DAMAGED), NEW).refused == {}


def test_rollback_and_promotion_of_another_bundle_keep_the_candidate_and_its_trials(promoted_lab):
    lab = promoted_lab
    lab.add(NEWER)
    lab.step()
    assert lab.trying(NEWER)
    after = rolled_back(lab.rollout, NEW, "broken")
    assert (after.current, after.candidate, after.trials) == (OLD, NEWER, lab.trying(NEWER))
    after = promoted(lab.rollout, OLD)
    assert (after.current, after.previous, after.candidate, after.trials) == (OLD, NEW, NEWER, lab.trying(NEWER))
    withdrawn = promoted(lab.rollout, NEW)
    assert (withdrawn.current, withdrawn.candidate, withdrawn.trials) == (NEW, "", {})


def test_a_candidate_is_withdrawn_by_rollback():
    lab = Lab(add=NEW, steps=1)
    lab.rollout = rolled_back(lab.rollout, NEW, "rolled back by ann")
    assert (*lab.bundles(), lab.rollout.trials) == (OLD, "", "", {})
    assert lab.step() == ("S0",)
    assert lab.on() == [OLD] * 4


def test_every_change_is_told_once():
    lab = Lab(2)
    told, before = [], lab.rollout
    lab.add(NEW)
    for _ in range(5):
        told += [(kind, data.get("serial", "")) for kind, _, data in news(before, lab.rollout)]
        before = lab.rollout
        lab.step()
    assert told == [
        ("bundle.candidate", ""), ("bundle.canary", "S0"), ("bundle.trying", "S1"), ("bundle.current", "")
    ]  # fmt: skip


@given(
    broken=st.sets(st.tuples(st.sampled_from([f"S{number}" for number in range(5)]), st.sampled_from([NEW, NEWER]))),
    steps=st.lists(
        st.sampled_from(["step", "add", "newer", "leave", "return", "lease", "end", "restart"]), max_size=40
    ),
    share=st.floats(min_value=0.05, max_value=1.0),
)
def test_whatever_happens_few_phones_change_at_once_and_a_broken_bundle_stays_nowhere(broken, steps, share):
    lab = Lab(5, RolloutConfig(share=share, soak_s=10.0))
    lab.broken = broken
    for number, what in enumerate(steps):
        serial = f"S{number % 5}"
        if what in ("add", "newer"):
            lab.add(NEW if what == "add" else NEWER)
        elif what == "leave":
            lab.change(serial, ready_s=None, idle=False, reachable=False)
        elif what == "return":
            lab.change(serial, reachable=True, idle=True)
            lab.provision(serial)
        elif what in ("lease", "end") and lab.phones[serial].ready_s is not None:
            lab.change(serial, idle=what == "end")
        elif what == "restart":
            lab.rollout = named(lab.rollout, lab.rollout.wanted, lab.stored, [*lab.proven.values()])
        lab.step()
        assert lab.most_out <= max(1, int(share * 5))
        assert len(lab.touched) <= max(1, int(share * 5))
        assert not any(lab.phones[each].idle for each in lab.kept)
        for phone in lab.phones.values():
            assert (phone.serial, phone.bundle) not in broken
            assert lab.proven[phone.serial] in lab.stored
        assert lab.rollout.current
        assert lab.rollout.current not in lab.rollout.refused
        assert lab.rollout.candidate not in lab.rollout.refused
        assert not lab.rollout.candidate or lab.rollout.candidate != lab.rollout.current
