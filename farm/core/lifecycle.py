"""The life of one device as a state machine: events in, instructions out, nothing else.

Rules of this file:
- `decide` is a pure function of (state, event, now); `Lifecycle` only remembers the story and guards the table.
- Work is numbered. A work instruction carries `generation`; its answer carries it back. Whatever makes outstanding work
  moot (unplugged, server died, operator spoke) moves on to the next number, so a late answer is recognised and ignored.
- A followed server has a number too (`follow`): its death counts only while that very server is followed.
- The runner (farm.fleet.agent) cancels work whose generation, and following whose number, is no longer current.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import fields, replace

from farm.core.device import Life
from farm.core.errors import FarmError
from farm.core.lifecycle_messages import (
    Adopted,
    AdoptServer,
    Ailing,
    Answer,
    BackedOff,
    BugFound,
    BundlesChanged,
    BundleWanted,
    CheckDue,
    CheckFailed,
    CheckPassed,
    Clean,
    Distrusted,
    DropOldBundles,
    Event,
    FollowServer,
    Identified,
    IdentifyFailed,
    Instruction,
    LeftByPerson,
    Link,
    LinkLost,
    Listed,
    Ordered,
    Paused,
    Provisioned,
    ProvisionFailed,
    RecoveryFailed,
    RecoveryFinished,
    Released,
    RungDone,
    RungFailed,
    ServerDied,
    ServerStarted,
    ServiceChanged,
    SessionBroke,
    StartFailed,
    StartServer,
    StopServer,
    Unadopted,
    Unlisted,
    Well,
)
from farm.core.lifecycle_recovery import (
    IMMEDIATE_RESTARTS,
    MUTE_TRIES,
    found,
    link_down,
    link_up,
    mend,
    ordered,
    quarantine,
    released,
    rung_answered,
)
from farm.core.lifecycle_state import (
    AWAITING,
    CHANGING,
    LINK_DOWN,
    SERVED,
    TRANSITIONS,
    Decision,
    DeviceState,
    back_off,
    reap,
    rest,
    work,
)
from farm.core.recovery import Ailment, Around, Outcome, ReleaseRule, Rung

STABLE_S = 10.0  # a device that stayed ready this long starts with a clean record when something breaks
KEPT_STEPS = 50  # length of the story an illegal transition tells
EVIDENCE_STEPS = 8  # of the story, that a quarantine keeps
_HASH = re.compile("[0-9a-f]{64}")
_ADOPT = "farm device adopt NAME"


class IllegalTransitionError(FarmError):
    """A device was about to make a step that its table of transitions does not have (a bug in farm)."""

    code = "illegal_transition"


class Lifecycle:
    """One device's state, its guard and its story."""

    def __init__(self, state: DeviceState | None = None) -> None:
        self.state = state or DeviceState()
        self._story: deque[str] = deque(maxlen=KEPT_STEPS)

    @property
    def story(self) -> tuple[str, ...]:
        """The last steps, oldest first, one line each."""
        return tuple(self._story)

    def handle(self, event: Event, now: float, around: Around = Around()) -> tuple[Instruction, ...]:  # noqa: B008 - frozen
        """Take one event at monotonic second `now`.

        Raises:
            IllegalTransitionError: the table does not allow the step; `evidence` is the story.
        """
        before = self.state
        after, instructions = decide(before, event, now, around)
        names = ", ".join(type(instruction).__name__ for instruction in instructions)
        self._story.append(f"{now:.3f} {brief(event)} : {before.life} -> {after.life} [{names}]")
        legal = after.life in TRANSITIONS[before.life] or isinstance(event, BugFound)
        if after.life is not before.life and not legal:
            raise IllegalTransitionError(
                f"a device cannot go from {before.life} to {after.life}", evidence="\n".join(self._story)
            )
        if after.quarantine is not None and after.quarantine is not before.quarantine:
            evidence = "\n".join(list(self._story)[-EVIDENCE_STEPS:])
            after = replace(after, quarantine=replace(after.quarantine, evidence=evidence))
        self.state = after
        return instructions

    def inherit(self, former: DeviceState) -> None:
        """It is the device that had another serial: what was tried on it, and why it is kept away, go on."""
        self.state = replace(
            self.state, climb=former.climb, quarantine=former.quarantine, proven=former.proven, untidy=former.untidy
        )


def brief(event: Event) -> str:
    """An event for a story: what is empty or false is left out, of a hash the beginning is enough."""
    values = ((each.name, getattr(event, each.name)) for each in fields(event))
    said = (f"{name}={value[:12] if _HASH.fullmatch(str(value)) else value}" for name, value in values if value)
    return f"{type(event).__name__}({', '.join(said)})"


def decide(state: DeviceState, event: Event, now: float, around: Around = Around()) -> Decision:  # noqa: B008 - frozen
    """The next state and what to do, for one event. Events that do not matter in a state change nothing."""
    if isinstance(event, Answer) and (event.generation != state.generation or state.life not in AWAITING):
        return state, ()
    match event:
        case Listed() | Unlisted():
            return _link_changed(state, event, now, around)
        case Adopted() | Unadopted() | ServiceChanged() | Released() | BundlesChanged():
            return _operator_spoke(state, event, now)
        case Ordered() | Distrusted():
            return ordered(state, event, now)
        case CheckDue():
            if state.life is not Life.READY or around.holder or state.lent:
                return state, ()
            # What sessions have run there may have changed its files, and nobody has compared them since.
            return work(replace(_settled(state, now), suspect=True), Life.PROVISIONING)
        case Ailing() | Well():
            return found(_settled(state, now), event, now, around)
        case BundleWanted(bundle=bundle):
            return _bundle_wanted(state, bundle)
        case ServerDied() | LinkLost() | SessionBroke():
            return _server_in_doubt(state, event, now, around)
        case LeftByPerson(reason=reason):
            return _left_by_person(state, reason)
        case BugFound(reason=reason, hint=hint):
            distrusted, _ = quarantine(_ended(state, Outcome.CUT, reason, now), Ailment.BUG, reason, hint)
            return rest(distrusted, Life.QUARANTINED, reason, hint), ()
        case Paused() | RungDone() | RungFailed():
            return rung_answered(state, event, now, around)
        case _:
            return _work_answered(state, event, now, around)


def _link_changed(state: DeviceState, event: Listed | Unlisted, now: float, around: Around) -> Decision:
    if isinstance(event, Unlisted) or event.link is not Link.USABLE:
        return link_down(state, event, now, around)
    return link_up(state, now) if state.life in LINK_DOWN else (state, ())


def _operator_spoke(
    state: DeviceState, event: Adopted | Unadopted | ServiceChanged | Released | BundlesChanged, now: float
) -> Decision:
    match event:
        case ServiceChanged(service=service):
            return replace(state, service=service), ()
        case Adopted():
            adopted = replace(state, adopted=True)
            if state.life is not Life.NEW:
                return adopted, ()
            return work(replace(adopted, trouble="", hint=""), Life.PROVISIONING)
        case Unadopted(clean=clean):
            farewell: Instruction = Clean() if clean else StopServer()
            ended = _ended(state, Outcome.CUT, "it was given back", now)
            given_back = replace(ended, adopted=False, untidy=False, proven="", climb=ended.climb.settled())
            if state.life is Life.QUARANTINED and not state.identified:
                return given_back, ()  # a bug in farm keeps it there
            given_back = replace(given_back, quarantine=None)
            if state.life in LINK_DOWN or not state.identified:
                return given_back, ()
            return replace(rest(given_back, Life.NEW, hint=_ADOPT), failures=0, bundle=""), (farewell,)
        case Released():
            return released(state)
        case BundlesChanged():
            if state.quarantine is None or state.quarantine.rule is not ReleaseRule.BUNDLES:
                return state, ()
            free, instructions = released(state)
            if state.life is not Life.QUARANTINED or not state.adopted or not state.identified:
                return free, instructions
            return work(replace(free, generation=state.generation, suspect=False), Life.PROVISIONING)


def _settled(state: DeviceState, now: float) -> DeviceState:
    """With a clean record, if it has been ready for long enough."""
    if state.life is Life.READY and now - state.ready_at >= STABLE_S:
        return replace(state, failures=0, climb=state.climb.settled(now))
    return state


def _ended(state: DeviceState, outcome: Outcome, detail: str, now: float) -> DeviceState:
    """With the rung under way, if any, over."""
    return replace(state, climb=state.climb.end(outcome, detail, now))


def _server_in_doubt(
    state: DeviceState, event: ServerDied | LinkLost | SessionBroke, now: float, around: Around
) -> Decision:
    state = _settled(state, now)
    match event:
        case SessionBroke(reason=reason):
            if not state.follow or state.life not in {Life.READY, Life.CHECKING}:
                return state, ()
            failures = state.failures + (state.life is Life.CHECKING)
            climb = state.climb.end(Outcome.FAILED, reason, now).begin(Rung.REAP, Ailment.SESSION, reason, now)
            return reap(replace(state, failures=failures, trouble=reason, climb=climb))
        case ServerDied(follow=follow, reason=reason, stuck=stuck):
            if follow != state.follow or not follow:
                return state, ()
            if stuck:
                return mend(replace(state, follow=0), Ailment.STUCK, reason, "", now, around)
            if state.lent and state.life is Life.CHECKING:
                return _unlent(state, reason)
            return mend(replace(state, follow=0), Ailment.SERVER, reason, "", now, around)
        case LinkLost(follow=follow, reason=reason, mute=mute):
            if follow != state.follow or not follow:
                return state, ()
            if mute:  # whoever tells has asked twice
                silent = replace(state, follow=0, failures=max(state.failures, MUTE_TRIES - 1))
                return mend(silent, Ailment.MUTE, reason, "", now, around)
            return _look_again(replace(state, follow=0), reason)


def _bundle_wanted(state: DeviceState, bundle: str) -> Decision:
    """Provision anew, whatever was under way; a device that is not on its way to ready takes only its own."""
    if bundle == state.lent:
        return state, ()
    wanted = replace(state, lent=bundle, refusal="")
    if state.life in CHANGING and state.identified:
        return work(replace(wanted, trouble="its runtime bundle is changed"), Life.PROVISIONING)
    return (replace(state, refusal=state.reason), ()) if bundle else (wanted, ())


def _left_by_person(state: DeviceState, reason: str) -> Decision:
    """At once where its server runs; else on its way to ready, before its server is started or checked."""
    if not state.adopted:
        return state, ()
    untidy = replace(state, untidy=True)
    if not state.follow or state.life not in SERVED:
        return untidy, ()
    return reap(replace(untidy, follow=0, trouble=reason))


def _work_answered(state: DeviceState, event: Answer, now: float, around: Around) -> Decision:
    if state.lent and isinstance(event, ProvisionFailed | StartFailed | CheckFailed):
        return _unlent(state, event.reason)
    match event:
        case Identified():
            return _identified(state, event, now)
        case Provisioned(bundle=bundle, adoptable=adoptable, untidy=untidy):
            # Just tidied, it is not believed: whoever writes the phone's notes then would have it tidied for ever.
            provisioned = replace(state, bundle=bundle, untidy=state.untidy or (untidy and not state.suspect))
            if provisioned.untidy:
                return reap(provisioned)
            return work(provisioned, Life.STARTING, AdoptServer if adoptable and not state.suspect else StartServer)
        case ProvisionFailed(person=True, reason=reason, hint=hint):
            return quarantine(_ended(state, Outcome.FAILED, reason, now), Ailment.BUNDLE, reason, hint)
        case ServerStarted(in_use=True):
            return _taken_over(state, now)
        case ServerStarted():
            if state.untidy:
                return reap(state)
            entered, asked = work(state, Life.CHECKING)
            followed = replace(entered, follow=entered.generation, suspect=False)
            return followed, (FollowServer(followed.follow), *asked)
        case CheckPassed():
            return _passed(state, now)
        case CheckFailed(wrong=True, reason=reason, hint=hint):
            return mend(replace(state, follow=0), Ailment.WRONG, reason, hint, now, around)
        case RecoveryFinished(tidied=True):
            return work(replace(state, untidy=False, suspect=True, follow=0), Life.PROVISIONING)
        case RecoveryFinished() if state.untidy:  # since it began
            return reap(replace(state, follow=0))
        case RecoveryFinished(server_alive=alive):
            if alive and state.follow:
                return work(state, Life.CHECKING)
            return work(replace(state, follow=0), Life.STARTING)
        case BackedOff():
            known = state.identified and state.quarantine is None
            return work(state, Life.PROVISIONING if known else Life.IDENTIFYING)
        case IdentifyFailed() | ProvisionFailed() | RecoveryFailed() | StartFailed() | CheckFailed():
            return mend(replace(state, follow=0), event.ailment, event.reason, event.hint, now, around)
        case _:
            raise AssertionError(f"{event} is answered elsewhere")


def _taken_over(state: DeviceState, now: float) -> Decision:
    """Its holder goes on with it, so it was fit: neither checked nor cleaned before the session there has ended."""
    number = state.generation + 1
    mended = _ended(state, Outcome.MENDED, "", now)
    ready = replace(mended, life=Life.READY, generation=number, follow=number, trouble="", hint="", ready_at=now)
    return ready, (FollowServer(number),)


def _identified(state: DeviceState, event: Identified, now: float) -> Decision:
    known = replace(state, identified=True, adopted=event.adopted)
    under_way = state.climb.under_way
    if event.same_boot and under_way is not None and under_way.rung is Rung.REBOOT:
        known = _ended(known, Outcome.FAILED, "it came back without having rebooted", now)
    if not event.adopted:
        known = replace(known, quarantine=None)  # nobody gets it anyway
        return rest(_ended(known, Outcome.CUT, "it is not adopted", now), Life.NEW, hint=_ADOPT), ()
    if known.quarantine is not None:
        kept = known.quarantine
        return rest(_ended(known, Outcome.MENDED, "", now), Life.QUARANTINED, kept.reason, kept.hint), ()
    return work(known, Life.PROVISIONING)


def _passed(state: DeviceState, now: float) -> Decision:
    mended = _ended(state, Outcome.MENDED, "", now)
    right = replace(mended.climb, tried=tuple(each for each in mended.climb.tried if each[1] is not Ailment.WRONG))
    ready = replace(mended, life=Life.READY, trouble="", hint="", ready_at=now, climb=right)
    ready = replace(ready, generation=ready.generation + 1, proven=ready.proven if ready.lent else ready.bundle)
    # Who has borrowed it may want another bundle again.
    return ready, () if ready.lent else (DropOldBundles(),)


def _unlent(state: DeviceState, reason: str) -> Decision:
    """A lent bundle does not work: that says nothing about the device, whose own bundle decides as ever."""
    own = replace(state, lent="", refusal=reason, suspect=True, trouble=f"it did not take another bundle: {reason}")
    return work(own, Life.PROVISIONING)


def _look_again(state: DeviceState, reason: str) -> Decision:
    """Nobody knows whether its server lives: at once for the first failure, else after a pause."""
    counted = replace(state, failures=state.failures + 1, trouble=reason, hint="")
    if counted.failures <= IMMEDIATE_RESTARTS:
        return work(counted, Life.PROVISIONING)
    return back_off(counted, reason)
