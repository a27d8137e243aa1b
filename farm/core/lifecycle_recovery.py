"""Climbing the recovery ladder: what the life of a device becomes when something is wrong with it.

Pure, like `lifecycle`, which calls it. Which rung comes next is `farm.core.recovery`'s; here is what taking it means.
"""

from __future__ import annotations

from dataclasses import replace

from farm.core.device import Life
from farm.core.lifecycle_messages import (
    Ailing,
    Distrusted,
    Instruction,
    Link,
    Listed,
    Ordered,
    Pause,
    Paused,
    PowerCycle,
    Reboot,
    Reconnect,
    RungDone,
    RungFailed,
    StopServer,
    Unlisted,
    Well,
)
from farm.core.lifecycle_state import LINK_DOWN, Decision, DeviceState, back_off, reap, rest, work
from farm.core.recovery import (
    RELEASED_WHEN,
    RETURN_S,
    Ailment,
    Around,
    Outcome,
    Quarantine,
    ReleaseRule,
    Rung,
    next_rung,
    return_s,
)

IMMEDIATE_RESTARTS = 1  # consecutive failures answered at once; later ones back off
WAITING_ATTEMPT = 3  # whose pause (2 s) is that between two looks whether a holder is gone
MUTE_TRIES = 2  # commands that a usable phone does not answer before its transport is blamed; a busy phone is slow once
# Before each rung for a dead link: adb and the phone often find each other again, and a power cycle hurts most.
LINK_PAUSES_S = (5.0, 30.0, 60.0)
SERVING = frozenset({Life.STARTING, Life.CHECKING, Life.READY})  # the bundle is whole on it
BUNDLE_AILMENTS = frozenset({Ailment.SERVER, Ailment.START, Ailment.CHECK, Ailment.WRONG})
_BY_HAND = "replug it; if that does not help, restart it by hand"
_RELEASE = "farm device release NAME, once it is understood"


def mend(state: DeviceState, ailment: Ailment | None, reason: str, hint: str, now: float, around: Around) -> Decision:
    """Something is wrong: take the next rung against it; without one, wait and try again.

    `ailment` None: it is not the phone's fault, or adb's list will tell; waiting is all there is to do. So it is with a
    stranger's phone.
    """
    climb = state.climb.end(Outcome.FAILED, reason, now)
    failed = replace(state, failures=state.failures + 1, trouble=reason, hint=hint, climb=climb)
    if ailment is None or not state.adopted or (ailment is Ailment.MUTE and failed.failures < MUTE_TRIES):
        return back_off(failed, reason, hint)
    choice = next_rung(climb, ailment, now, around, proven=_proven(state))
    if choice.rung is Rung.QUARANTINE:
        return quarantine(replace(failed, climb=replace(climb, skipped=choice.skipped)), ailment, reason, hint)
    failed = replace(failed, climb=replace(climb, skipped=choice.skipped))
    if choice.rung is None:
        if choice.waits:
            soon = replace(failed, failures=min(failed.failures, WAITING_ATTEMPT))
            return back_off(soon, f"{reason}; {choice.waits}", hint)
        return back_off(failed, reason, hint or _BY_HAND)
    return _take(replace(failed, climb=failed.climb.begin(choice.rung, ailment, reason, now)), choice.rung, ailment)


def _take(state: DeviceState, rung: Rung, ailment: Ailment) -> Decision:
    """Enter the life that a rung means. One whose patience is used up begins after a pause."""
    doubted = ailment in (Ailment.CHECK, Ailment.WRONG, Ailment.START, Ailment.GPU) or rung is Rung.REPUSH
    taken = replace(state, suspect=state.suspect or doubted)
    provisioned = taken.life in SERVING and taken.identified and bool(taken.bundle)
    at_once = provisioned and (taken.failures <= IMMEDIATE_RESTARTS or ailment is Ailment.WRONG)
    match rung:
        case Rung.REAP if provisioned:
            return reap(taken)
        case Rung.RESTART if at_once:
            return work(taken, Life.STARTING)
        case Rung.REPUSH if at_once and ailment is Ailment.WRONG:
            return work(taken, Life.PROVISIONING)
        case Rung.REAP | Rung.RESTART | Rung.REPUSH:
            return back_off(taken, taken.trouble, taken.hint)
        case Rung.RECONNECT:
            return work(replace(taken, follow=0), Life.RECOVERING, Reconnect)
        case Rung.REBOOT:
            return work(replace(taken, follow=0), Life.RECOVERING, Reboot)
        case _:
            return work(replace(taken, follow=0), Life.RECOVERING, PowerCycle)


def quarantine(state: DeviceState, ailment: Ailment, reason: str, hint: str = "") -> Decision:
    """Keep it away from users until the rule of its ailment, or a person, says otherwise."""
    rule = RELEASED_WHEN.get(ailment, ReleaseRule.PERSON)
    if ailment in BUNDLE_AILMENTS and not _proven(state):
        rule = ReleaseRule.BUNDLES  # its bundle never worked on it: another one may
    said = f"{reason} ({'; '.join(state.climb.skipped)})" if state.climb.skipped else reason
    hint = hint or (_RELEASE if rule is ReleaseRule.PERSON else "")
    kept = replace(state, quarantine=Quarantine(said, hint, ailment, rule))
    if state.life in LINK_DOWN:
        return kept, ()
    stop: tuple[Instruction, ...] = (StopServer(),) if state.adopted and state.identified else ()
    return rest(kept, Life.QUARANTINED, said, hint), () if ailment in (Ailment.BUNDLE, Ailment.BUG) else stop


def found(state: DeviceState, event: Ailing | Well, now: float, around: Around) -> Decision:
    """A probe found something, or no longer finds it.

    While somebody has the phone, or it is being mended, nothing is done: the next probe finds it again.
    """
    match event:
        case Well(ailment=ailment):
            kept = state.quarantine
            if kept is None or (kept.rule, kept.ailment) != (ReleaseRule.WELL, ailment):
                return state, ()
            return released(state)
        case Ailing(ailment=ailment, reason=reason, hint=hint, used=used):
            if state.life is not Life.READY or around.holder:
                return state, ()
            if not used:
                state = replace(state, climb=state.climb.notice(ailment, now))
            # What a probe takes for stuck may still die: it is killed, and that is verified, before anything harder.
            return mend(state, Ailment.SESSION if ailment is Ailment.STUCK else ailment, reason, hint, now, around)


def released(state: DeviceState) -> Decision:
    """It is fine again: from the beginning, with what was tried forgotten (budgets stay spent)."""
    free = replace(state, quarantine=None, failures=0, climb=state.climb.settled())
    if state.life is not Life.QUARANTINED:
        return free, ()
    return work(replace(free, trouble="", hint=""), Life.IDENTIFYING)


def ordered(state: DeviceState, event: Ordered | Distrusted, now: float) -> Decision:
    """An operator wants a rung taken, or the phone out of users' hands."""
    if not state.adopted:
        return state, ()
    match event:
        case Distrusted(reason=reason):
            cut = replace(state, climb=replace(state.climb.end(Outcome.CUT, "quarantined by hand", now), skipped=()))
            return quarantine(cut, Ailment.ORDER, reason)
        case Ordered(rung=Rung.REBOOT) if state.life in LINK_DOWN:
            return state, ()
        case Ordered(rung=rung, reason=reason):
            climb = state.climb.end(Outcome.CUT, reason, now).begin(rung, Ailment.ORDER, reason, now, free=True)
            begun = replace(state, climb=climb)
            if state.life in LINK_DOWN:
                resting = rest(begun, state.life, reason)
                return resting, (PowerCycle(resting.generation),)
            kind = Reboot if rung is Rung.REBOOT else PowerCycle
            return work(replace(begun, follow=0, trouble=reason, hint=""), Life.RECOVERING, kind)


def rung_answered(state: DeviceState, event: Paused | RungDone | RungFailed, now: float, around: Around) -> Decision:
    """What was to be done to the link or the whole phone is done, could not be, or has been waited for."""
    under_way = state.climb.under_way
    if state.life not in LINK_DOWN:
        match event:
            case RungFailed(reason=reason, hint=hint) if under_way is not None:
                return mend(state, under_way.ailment, reason, hint, now, around)
            case _:
                return work(replace(state, identified=False), Life.IDENTIFYING)
    match event:
        case RungDone() if under_way is not None:
            return pause(rest(state, state.life, state.trouble, state.hint), return_s(under_way.rung, around))
        case RungFailed(reason=reason):
            failed = replace(state, climb=state.climb.end(Outcome.FAILED, reason, now))
            return pause(rest(failed, state.life, state.trouble, state.hint), LINK_PAUSES_S[-1])
        case _:
            return _waited(state, now, around)


def _waited(state: DeviceState, now: float, around: Around) -> Decision:
    """A link was left alone long enough: was a return waited for, or is it time for a rung?"""
    under_way = state.climb.under_way
    cause = trouble = state.trouble
    if under_way is not None:
        late = f"it has not come back in {return_s(under_way.rung, around):g} s after the {under_way.rung}"
        late = late if state.life is Life.GONE else f"the {under_way.rung} did not help"
        state = replace(state, climb=state.climb.end(Outcome.FAILED, late, now))
        cause = under_way.cause
        trouble = f"{cause}; {late}"
    if state.life is Life.GONE:
        return rest(state, Life.GONE, trouble, "look at the phone: is it on, and its cable in?"), ()
    if not state.adopted or state.quarantine is not None:  # since the wait began
        return rest(state, state.life, trouble, state.hint or _BY_HAND), ()
    ailment = Ailment.UNAUTHORIZED if state.life is Life.UNAUTHORIZED else Ailment.OFFLINE
    choice = next_rung(state.climb, ailment, now, around)
    skipped = replace(state, climb=replace(state.climb, skipped=choice.skipped))
    if choice.rung is None:
        resting = rest(skipped, state.life, trouble, state.hint or _BY_HAND)
        return pause(resting, LINK_PAUSES_S[-1]) if choice.waits else (resting, ())
    begun = replace(skipped, climb=skipped.climb.begin(choice.rung, ailment, cause, now))
    resting = rest(begun, state.life, trouble, state.hint)
    kind = Reconnect if choice.rung is Rung.RECONNECT else PowerCycle
    return resting, (kind(resting.generation),)


def pause(state: DeviceState, seconds: float) -> Decision:
    """Wait beside a link that is down. `state` rests under a number of its own."""
    return state, (Pause(state.generation, seconds),)


def link_down(state: DeviceState, event: Listed | Unlisted, now: float, around: Around) -> Decision:
    """Adb lists it no more, or as unusable."""
    under_way = state.climb.under_way
    ours = under_way is not None and under_way.rung in RETURN_S
    match event:
        case Unlisted():
            life, reason, hint, mendable = Life.GONE, "", "", False
        case Listed(link=link, reason=reason, hint=hint, mendable=mendable):
            life = Life.UNAUTHORIZED if link is Link.UNAUTHORIZED else Life.OFFLINE
    if life is state.life and (ours or life is Life.GONE or state.trouble.startswith(reason)):
        return state, ()  # no news: what is under way for this link goes on
    if ours:
        assert under_way is not None
        # We sent it away ourselves: it is expected back.
        said = f"{under_way.rung} under way" + ("" if under_way.cause == reason else f": {under_way.cause}")
        left_s = under_way.began_s + return_s(under_way.rung, around) - now
        return pause(rest(state, life, f"{reason}; {said}" if reason else said, hint), max(1.0, left_s))
    cut = replace(state, climb=state.climb.end(Outcome.CUT, "its link was lost", now))
    if life in LINK_DOWN and state.life not in LINK_DOWN:
        cut = replace(cut, climb=cut.climb.settled(now, but=Ailment.WRONG))
    resting = rest(cut, life, reason, hint)
    if not mendable or not state.adopted or state.quarantine is not None:
        return resting, ()
    tried = sum(rung in RETURN_S for rung, _ in resting.climb.tried)
    return pause(resting, LINK_PAUSES_S[min(tried, len(LINK_PAUSES_S) - 1)])


def link_up(state: DeviceState, now: float) -> Decision:
    """Adb lists it as usable: from the beginning, unless it comes back from a rung of ours."""
    under_way = state.climb.under_way
    if under_way is None or under_way.rung not in RETURN_S:
        state = replace(state, failures=0, climb=state.climb.settled(now, but=Ailment.WRONG))
    return work(replace(state, identified=False, trouble="", hint=""), Life.IDENTIFYING)


def _proven(state: DeviceState) -> bool:
    """Whether the bundle on it ever passed its check there; whoever borrows it with another saw that one pass."""
    return bool(state.lent) or (bool(state.proven) and state.proven == state.bundle)
