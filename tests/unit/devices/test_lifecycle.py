"""The life cycle as told stories: the way to ready, what breaks, how it is answered, and what recovery does.

What comes of each event is in lifecycle_stories.json (`tests.support.golden`): the changed state and the next work.
"""

from functools import partial
from pathlib import Path

import pytest

from farm.common.errors import Code, HostError, error_from_wire, error_to_wire
from farm.devices.agent_work import failed
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.lifecycle import STABLE_S
from farm.devices.lifecycle.recovery import DAY_S, FOUND_STABLE_S, RecoveryAction, RecoveryContext
from farm.devices.lifecycle.state import TRANSITIONS
from farm.model.device import MEANING, Life
from farm.model.health import DeviceFault as F
from tests.support.errors import raises_code
from tests.support.golden import as_json, golden
from tests.support.lifecycle_story import GONE, USABLE, Story

BUNDLES, RELEASED, DUE = m.PlainEvent.BUNDLES_CHANGED, m.PlainEvent.RELEASED, m.PlainEvent.PROVISIONING_DUE
BROKE, AT_FAULT, LEFT = m.SessionBroke("cut"), m.PlainEvent.PHONE_AT_FAULT, m.LeftByPerson("the lease ended")
CRACKED, BUG = m.QuarantineOrdered("screen cracked"), m.BugFound("a bug in farm", "report it")
OFFLINE = m.Listed(m.LinkState.OFFLINE, "its adb transport does not answer", "replug it", reconnectable=True)
REBOOT = m.ActionOrdered(RecoveryAction.REBOOT, "ordered by ann")
IDENTIFYING, PROVISIONING, STARTING, CHECKING = Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING
READY = Life.READY


# --- steps of a story, beside events


def answer(kind, *values, **fields):
    return lambda story: story.answers(kind, *values, **fields)


def fail(reason="it failed", fault=None, hint=""):
    return lambda story: story.fails(reason, fault, hint)


def stale(kind, *values, **fields):
    """An answer to the work before the last."""
    return lambda story: story.on(kind(story.number - 1, *values, **fields))


def die(reason="signal 11", **fields):
    return lambda story: story.dies(reason, **fields)


def mute(story):
    story.on(m.LinkLost(story.state.follow, "it answers no command", mute=True))


def to(life, **options):
    return lambda story: story.until(life, **options)


def later(seconds):
    def pass_time(story):
        story.now += seconds

    return pass_time


def context(**fields):
    def change(story):
        story.context = RecoveryContext(**fields)

    return change


ok, wait = Story.step, Story.waits
reaped, dead = answer(m.RecoveryFinished, server_alive=True), answer(m.RecoveryFinished, server_alive=False)
tidied = answer(m.RecoveryFinished, server_alive=False, tidied=True)
living, notes = answer(m.Provisioned, "b", adoptable=True), answer(m.Provisioned, "b", adoptable=True, untidy=True)
done, wrong, silent = answer(m.ActionDone), fail("off by 3", F.WRONG), fail("it did not answer", F.MUTE)
stuck = (BROKE, AT_FAULT, fail("pid 7 survives SIGKILL", F.STUCK))
rebooted = (*stuck, GONE, USABLE, to(READY))
gpu_fault = (later(30.0), m.FaultFound(F.GPU, "kgsl: gpu fault"))
due_wrong = (DUE, to(CHECKING), wrong)
bad_start = (answer(m.Provisioned, "bad"), fail("cannot link", F.START))


def damaged(story):
    error = HostError("the golden kernels are damaged", Code.BUNDLE_DAMAGED, hint="farm bundle verify")
    story.on(failed(m.RunCheck(story.number), error_from_wire(error_to_wire(error))))


STORIES = {
    "a phone becomes ready step by step": (USABLE, ok, ok, ok, ok),
    "an unadopted phone gets nothing but identity":
        (USABLE, answer(m.Identified, adopted=False), BUNDLES, LEFT, m.PlainEvent.ADOPTED),
    "a phone that was given back is identified again and nothing more":
        (to(READY), m.Unadopted(clean=True), BUG, RELEASED, fail("it did not answer"), wait),
    "a phone is given back as it is": (to(READY), m.Unadopted(clean=False)),
    "a living server is taken over": (to(READY), GONE, USABLE, ok, living),
    "a server with a session of the time before is taken over as it is":
        (to(PROVISIONING), living, answer(m.ServerStarted, in_use=True), BROKE, reaped),
    "a phone whose keys are not accepted ends everything and says why":
        (to(READY), m.Listed(m.LinkState.UNAUTHORIZED, "why", "what next"), USABLE),
    "a useless link ends everything and says why":
        (to(READY), m.Listed(m.LinkState.OFFLINE, "why", "what next"), USABLE),
    "answers from before the link was lost are ignored": (to(IDENTIFYING), GONE, USABLE, stale(m.Identified, True)),
    "the death of an older server is not news": (to(READY), die(), to(READY), m.ServerDied(4, "signal 11")),
    "the first death restarts at once and the second waits": (to(READY), die("exit 1"), ok, die("exit 1"), wait),
    "a stable server clears the record": (to(READY), die(), to(READY), later(STABLE_S), die()),
    "a server that was not stable does not": (to(READY), die(), to(READY), later(STABLE_S / 2), die()),
    "a broken session is reaped then checked again": (to(READY), BROKE, reaped),
    "a broken session whose server died too starts another": (to(READY), BROKE, dead),
    "a bundle whose golden kernels are damaged waits for a sound one without a server":
        (to(READY), BROKE, reaped, damaged, BUNDLES),
    "a server that failed a check is replaced not taken over": (
        to(READY), BROKE, reaped, fail("timeout", F.CHECK), ok, fail("timeout", F.CHECK), GONE, USABLE, ok, living,
    ),
    "what broke is told until it is ready again": (to(READY), die(), to(READY), die("exit 1"), GONE),
    "wrong numbers restart then compare hashes then need a person":
        (to(READY), BROKE, reaped, wrong, ok, wrong, ok, ok, wrong, RELEASED),
    "a server that does not start has its files compared":
        (to(READY), die("exit 1"), fail("no such file", F.START), wait, ok, ok),
    "no bundle needs a person until one is added": (
        to(PROVISIONING), fail("no bundle for arm64-v8a", F.BUNDLE, "farm bundle add"), m.PlainEvent.ADOPTED, BUNDLES,
    ),
    "a bug of farm needs a person, and of a phone that was never adopted nothing may be put there":
        (to(IDENTIFYING), BUG, RELEASED, ok, BUG, RELEASED, answer(m.Identified, adopted=False), BUG, BUNDLES),
    "a check that is due takes an idle phone, compares its files and finds wrong numbers":
        (to(READY), DUE, DUE, living, ok, ok, *due_wrong),
    # A phone that people borrow: tidied after them; no server is kept whose secret they know.
    "a phone that a person had is tidied before its check": (to(READY), LEFT, tidied, notes, ok, ok),
    "a clean-up that began before a person left does not count as theirs": (
        to(READY), die("crashed"), ok, BROKE, fail("stuck", F.SESSION), wait, LEFT, answer(m.Provisioned, "b"), reaped,
    ),
    "a session that broke first does not save it from tidying": (
        to(READY), BROKE, LEFT, stale(m.RecoveryFinished, server_alive=True), fail("the phone is slow"), wait, ok,
    ),
    "what was pulled out is tidied when it is back": (to(READY), GONE, LEFT, USABLE, ok, ok, tidied, notes, ok),
    "a lease that nobody remembers is tidied too": (to(PROVISIONING), notes),
    "what is left while its server starts is tidied before the check": (to(STARTING), LEFT, ok),
    # A bundle that somebody wants is lent.
    "a lent bundle is exchanged for its own before it is ready again": (
        to(READY), m.BundleWanted("b2"), answer(m.Provisioned, "b2"), ok, ok, m.BundleWanted("b2"), m.BundleWanted(""),
        to(READY), m.BundleWanted(""),
    ),
    **{
        f"its own bundle comes back though it was {name}":
            (to(READY), m.BundleWanted("b2"), to(READY, bundle="b2"), BROKE, *steps, m.BundleWanted(""))
        for name, steps in {
            "recovering": (), "starting": (dead,), "checking": (dead, ok), "provisioning": (fail("stuck"), wait),
        }.items()
    },
    **{
        f"a lent bundle that fails while {life} ({name}) gives way to its own and quarantines nothing":
            (to(READY), m.BundleWanted("b2"), to(life, bundle="b2"), failing)
        for life, name, failing in (
            (PROVISIONING, "push", fail("no room")), (STARTING, "start", fail("no room", F.START)),
            (CHECKING, "check", fail("no room", F.CHECK)), (CHECKING, "wrong", fail("no room", F.WRONG)),
            (CHECKING, "death", die("no room")),
        )
    },
    "a phone that goes away is lent no more and takes only what is its own":
        (to(READY), m.BundleWanted("b2"), to(READY, bundle="b2"), GONE, m.BundleWanted("b2")),
    # Recovery: reboots, dead links, quarantine that stays, orders.
    "a reap is an action that ends with ready": (to(READY), BROKE, AT_FAULT, reaped, ok),
    "a process that survives SIGKILL is rebooted away":
        (to(READY), *stuck, GONE, later(40.0), USABLE, to(READY)),
    "a phone that does not come back says so and asks for a look": (to(READY), *stuck, GONE, wait),
    "a phone that came back without a reboot has not been mended by one":
        (to(READY), *stuck, GONE, USABLE, answer(m.Identified, adopted=True, same_boot=True)),
    "a second reboot in a row is a person's business": (to(READY), *rebooted, *stuck),
    "after a stable time the mildest action comes first": (to(READY), *rebooted, later(STABLE_S), *stuck),
    "a holder is not rebooted under while the phone is of use":
        (to(READY), context(holder="ann", in_hands=True), *stuck),
    "what a probe finds restarts its server once": (to(READY), *gpu_fault, *gpu_fault),
    "what a probe finds waits for the holder": (to(READY), context(holder="ann"), *gpu_fault, *gpu_fault),
    "what probes find again and again gets stronger actions, another fault in between": (
        to(READY), *gpu_fault, to(READY), later(STABLE_S), die(), to(READY), *gpu_fault, GONE, USABLE, to(READY),
        *gpu_fault,
    ),
    "numbers that are wrong now and then are a person's business":
        (to(READY), *due_wrong, to(READY), later(DAY_S / 2), *due_wrong),
    "numbers that stay wrong are answered action by action":
        (to(READY), *due_wrong, ok, wrong, to(CHECKING), wrong),
    "what looks stuck is killed before anything harder": (to(READY), m.FaultFound(F.STUCK, "pid 7 in state D")),
    "a hot battery is quarantined until a probe finds it well":
        (to(READY), m.FaultFound(F.HOT, "battery 52 C"), m.FaultCleared(F.STORAGE), m.FaultCleared(F.HOT)),
    "an offline link is reconnected and only then power-cycled":
        (to(READY), context(no_power=""), OFFLINE, OFFLINE, wait, done, wait, done, wait, done, wait),
    "a link that comes back from a reconnect was mended by it": (to(READY), OFFLINE, wait, GONE, USABLE, to(READY)),
    "an unadopted phone is left alone": (USABLE, answer(m.Identified, adopted=False), OFFLINE),
    "a boot loader is left alone": (USABLE, ok, m.Listed(m.LinkState.OFFLINE, "why", "do", reconnectable=False)),
    "a server that leaves a stuck process is not just started again": (
        to(READY), BROKE, AT_FAULT, die("died of signal 9; processes do not die: 218", stuck=True),
    ),
    "a mute phone is reconnected after a second silence": (to(READY), GONE, USABLE, silent, wait, silent),
    "a phone that a probe finds mute is reconnected at once and waited for":
        (to(READY), context(no_power="", wired=True), mute, OFFLINE, wait, done, wait),
    "a phone of the network is waited for longer": (to(READY), context(no_power="", wired=False), mute, OFFLINE, wait),
    "a quarantine outlives the cable": (to(READY), CRACKED, GONE, USABLE, ok, BUNDLES, RELEASED, ok),
    "a released phone that is away is free when it returns": (to(READY), CRACKED, GONE, RELEASED, USABLE, to(READY)),
    "an unadopted phone is not kept in a quarantine that nobody could end":
        (to(IDENTIFYING), BUG, GONE, USABLE, answer(m.Identified, adopted=False)),
    "an ordered reboot waits for the return and leaves a quarantine alone": (to(READY), CRACKED, REBOOT, done, ok),
    "an ordered reboot that fails leads back to work":
        (to(READY), REBOOT, answer(m.ActionFailed, "it did not go down")),
    "a bundle that never worked waits for another one":
        (to(PROVISIONING), *bad_start, wait, *bad_start, wait, *bad_start, wait, *bad_start, BUNDLES),
    "what the host did costs the phone nothing, and one slow answer is no fault of the transport": (
        to(READY), context(no_power="", external_cause="the adb server does not answer"), mute, wait, silent, wait,
        silent, context(no_power=""), wait, silent,
    ),
    "dead transports of a hub are made again without an action, until the hub is back and this phone is not": (
        to(READY), context(no_power="", external_cause="its hub 1-4 went silent with 2 phones"), OFFLINE, wait, done,
        later(60.0), wait, done, later(60.0), context(no_power=""), wait,
    ),
    "a session that the host cut is reaped without an action":
        (to(READY), context(external_cause="the adb server went away"), BROKE, AT_FAULT),
    "a quarantined phone that an operator reboots takes no other bundle":
        (to(READY), BUG, REBOOT, m.BundleWanted("b2")),
}  # fmt: skip


def told(steps):
    """What becomes of each event; of the way to where a story begins only the end."""
    story = Story()
    for number, step in enumerate(steps):
        if number == 0 and step is not USABLE:
            story.on(USABLE)
        step(story) if callable(step) else story.on(step)
        story.told = story.told[-1:] if number == 0 else story.told
    return story.told


STORED = Path(__file__).with_name("lifecycle_stories")


@pytest.mark.parametrize(("steps", "wanted"), golden(STORED, told, captures=STORIES))
def test_a_story(steps, wanted):
    assert as_json(told(steps)) == wanted


@pytest.mark.parametrize(
    ("steps", "times"),
    [
        ((GONE, USABLE, fail("link lost")), 50),  # unplugged again and again
        ((BROKE, AT_FAULT, reaped, fail("no worker"), wait, living, ok, to(READY)), 20),  # the host's faults
    ],
)
def test_what_is_not_the_phones_fault_costs_no_action(steps, times):
    story = Story(READY)
    for _ in range(times):
        for step in steps:
            step(story) if callable(step) else story.on(step)
        assert not any(isinstance(each, m.TakeAction) for each in story.last)
    assert story.state.progress.spent == ()


def test_an_unadopted_phones_silence_is_waited_out():
    story = Story(IDENTIFYING)
    for _ in range(5):
        silent(story)
        assert isinstance(story.last[0], m.RetryLater)
        story.waits()


@pytest.mark.parametrize(
    ("finds", "between_s"),
    [
        (partial(m.FaultFound, F.GPU, "kgsl: gpu fault"), FOUND_STABLE_S),
        (partial(m.FaultFound, F.GPU, "kgsl: gpu fault", used=True), 30.0),
        (None, DAY_S),
    ],
    ids=["not found for long", "users may have made it", "wrong numbers of two days"],
)
def test_what_says_little_about_the_phone_begins_at_the_foot_again(finds, between_s):
    story = Story(READY)
    for _ in range(6):
        if finds:
            story.on(finds())
        else:
            story.until_due_check()
            wrong(story)
        assert story.last == (m.StartServer(story.number),)
        story.until(READY)
        story.now += between_s


def test_an_illegal_step_tells_its_story(monkeypatch):
    story = Story(IDENTIFYING)
    monkeypatch.setattr("farm.devices.lifecycle.lifecycle.TRANSITIONS", {life: frozenset() for life in Life})
    with raises_code(Code.ILLEGAL_TRANSITION, match="cannot go from identifying to new") as caught:
        story.answers(m.Identified, adopted=False)
    assert "Listed" in caught.value.evidence
    assert story.life is IDENTIFYING


def test_every_life_has_a_meaning_and_a_way_out_and_only_a_check_leads_to_ready():
    assert set(MEANING) == set(TRANSITIONS) == set(Life)
    for life, following in TRANSITIONS.items():
        assert following - {life}
        assert all("\n" not in MEANING[each] for each in following)
    # STARTING: a server with a session that continues is left alone.
    assert [each for each in TRANSITIONS if READY in TRANSITIONS[each]] == [STARTING, CHECKING]
