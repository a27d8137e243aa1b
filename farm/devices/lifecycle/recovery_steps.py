"""Recovery of one device: the next state when something is wrong with it.

Pure, like `lifecycle`, which calls it. `recovery` chooses the next action; this module enters the state for it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from farm.devices.lifecycle.messages import (
    ActionDone,
    ActionFailed,
    ActionOrdered,
    EndServer,
    FaultCleared,
    FaultFound,
    Instruction,
    LinkState,
    Listed,
    Pause,
    PlainEvent,
    QuarantineOrdered,
    ReportBundle,
    TakeAction,
    WaitEnded,
)
from farm.devices.lifecycle.recovery import (
    RELEASED_WHEN,
    RETURN_S,
    ActionOutcome,
    RecoveryAction,
    RecoveryContext,
    next_action,
    return_s,
)
from farm.devices.lifecycle.state import LINK_DOWN, Decision, LifecycleState, back_off, reap, rest, work
from farm.model.device import Life
from farm.model.health import DeviceFault, Quarantine, ReleaseRule

IMMEDIATE_RESTARTS = 1  # consecutive failures answered at once; later ones back off
WAITING_ATTEMPT = 3  # whose pause (2 s) is that between two looks whether a holder is gone
MUTE_TRIES = 2  # unanswered commands after which a usable phone's transport counts as faulty; a busy phone is slow once
# Before each action for a dead link: adb and the phone often find each other again, and a power cycle hurts most.
LINK_PAUSES_S = (5.0, 30.0, 60.0)
SERVING = frozenset({Life.STARTING, Life.CHECKING, Life.READY})  # the bundle is whole on it
BUNDLE_FAULTS = frozenset(
    {DeviceFault.BUNDLE, DeviceFault.SERVER, DeviceFault.START, DeviceFault.CHECK, DeviceFault.WRONG}
)
_BY_HAND = "replug it; if that does not help, restart it by hand"
_RELEASE = {
    ReleaseRule.PERSON: "find the cause, then: farm device release NAME",
    ReleaseRule.BUNDLES: "farm bundle add, or farm device release NAME",
    ReleaseRule.WELL: "",  # it ends by itself
}


def recover(
    state: LifecycleState, fault: DeviceFault | None, reason: str, hint: str, now: float, context: RecoveryContext
) -> Decision:
    """Something is wrong: take the next action against it; without one, wait and try again.

    It only waits where `fault` is None (it is not the phone's, or adb's list will show it) and for a phone that was not
    adopted. What the hub or the host did costs the phone no action, and no failure is counted.
    """
    if context.external_cause:
        spared = replace(state, progress=state.progress.end(ActionOutcome.CUT, context.external_cause, now))
        return back_off(spared, f"{context.external_cause}; {reason}", hint)
    progress = state.progress.end(ActionOutcome.FAILED, reason, now)
    failed = replace(state, failures=state.failures + 1, cause=reason, hint=hint, progress=progress)
    if fault is None or not state.adopted or (fault is DeviceFault.MUTE and failed.failures < MUTE_TRIES):
        return back_off(failed, reason, hint)
    choice = next_action(progress, fault, now, context, proven=_proven(state))
    if choice.action is RecoveryAction.QUARANTINE:
        return quarantine(replace(failed, progress=replace(progress, skipped=choice.skipped)), fault, reason, hint)
    failed = replace(failed, progress=replace(progress, skipped=choice.skipped))
    if choice.action is None:
        if choice.waits:
            soon = replace(failed, failures=min(failed.failures, WAITING_ATTEMPT))
            return back_off(soon, f"{reason}; {choice.waits}", hint)
        return back_off(failed, reason, hint or _BY_HAND)
    return _take(
        replace(failed, progress=failed.progress.begin(choice.action, fault, reason, now)), choice.action, fault
    )


def fall_back(state: LifecycleState, fault: DeviceFault | None, reason: str, now: float) -> Decision:
    """The bundle that is new to the device failed: its last proven one is provisioned before anything harder."""
    progress = state.progress.end(ActionOutcome.CUT, reason, now)
    cause = f"it gets its last proven bundle back; {reason}"
    own, asked = work(replace(state, progress=progress, suspect=True, cause=cause, hint=""), Life.PROVISIONING)
    return own, (ReportBundle(reason, fault in BUNDLE_FAULTS), *asked)


def _take(state: LifecycleState, action: RecoveryAction, fault: DeviceFault) -> Decision:
    """Enter the state that an action leads to: at once after a first failure, later after a pause."""
    doubted = (
        fault in (DeviceFault.CHECK, DeviceFault.WRONG, DeviceFault.START, DeviceFault.GPU)
        or action is RecoveryAction.REPUSH
    )
    taken = replace(state, suspect=state.suspect or doubted)
    provisioned = taken.life in SERVING and taken.identified and bool(taken.bundle)
    at_once = provisioned and (taken.failures <= IMMEDIATE_RESTARTS or fault is DeviceFault.WRONG)
    match action:
        case RecoveryAction.REAP if provisioned:
            return reap(taken)
        case RecoveryAction.RESTART if at_once:
            return work(taken, Life.STARTING)
        case RecoveryAction.REPUSH if at_once and fault is DeviceFault.WRONG:
            return work(taken, Life.PROVISIONING)
        case RecoveryAction.REAP | RecoveryAction.RESTART | RecoveryAction.REPUSH:
            return back_off(taken, taken.cause, taken.hint)
        case _:
            return work(replace(taken, follow=0), Life.RECOVERING, partial(TakeAction, action=action))


def quarantine(state: LifecycleState, fault: DeviceFault, reason: str, hint: str = "") -> Decision:
    """Keep it away from users until the rule of its fault, or a person, says otherwise."""
    rule = RELEASED_WHEN.get(fault, ReleaseRule.PERSON)
    if fault in BUNDLE_FAULTS and not _proven(state):
        rule = ReleaseRule.BUNDLES  # its bundle never worked on it: another one may
    skipped = "\n".join(state.progress.skipped)
    kept = replace(state, quarantine=Quarantine(reason, hint or _RELEASE[rule], fault, rule, skipped))
    if state.life in LINK_DOWN:
        return kept, ()
    leave = fault is DeviceFault.BUG or (fault is DeviceFault.BUNDLE and not state.follow)
    stop: tuple[Instruction, ...] = (EndServer(),) if state.adopted and state.identified and not leave else ()
    return rest(kept, Life.QUARANTINED, "; ".join(filter(None, (reason, skipped))), hint), stop


def probe_reported(
    state: LifecycleState, event: FaultFound | FaultCleared, now: float, context: RecoveryContext
) -> Decision:
    """A probe found something, or no longer finds it.

    While the phone is leased, or recovery is under way, nothing is done: the next probe finds it again.
    """
    match event:
        case FaultCleared(fault=fault):
            kept = state.quarantine
            if kept is None or (kept.rule, kept.fault) != (ReleaseRule.WELL, fault):
                return state, ()
            return released(state)
        case FaultFound(fault=fault, reason=reason, hint=hint, used=used):
            if state.life is not Life.READY or context.holder:
                return state, ()
            if not used:
                state = replace(state, progress=state.progress.notice(fault, now))
            # What a probe takes for stuck may still die: it is killed, and that is verified, before anything harder.
            return recover(
                state, DeviceFault.SESSION if fault is DeviceFault.STUCK else fault, reason, hint, now, context
            )


def released(state: LifecycleState) -> Decision:
    """It is well again: recovery begins again, its tried actions forgotten (budgets stay spent)."""
    free = replace(state, quarantine=None, failures=0, progress=state.progress.settled())
    if state.life is not Life.QUARANTINED:
        return free, ()
    return work(replace(free, cause="", hint=""), Life.IDENTIFYING)


def operator_ordered(state: LifecycleState, event: ActionOrdered | QuarantineOrdered, now: float) -> Decision:
    """An operator wants an action taken, or the phone out of users' hands."""
    if not state.adopted:
        return state, ()
    match event:
        case QuarantineOrdered(reason=reason):
            cut = replace(
                state, progress=replace(state.progress.end(ActionOutcome.CUT, "quarantined by hand", now), skipped=())
            )
            return quarantine(cut, DeviceFault.ORDER, reason)
        case ActionOrdered(action=RecoveryAction.REBOOT) if state.life in LINK_DOWN:
            return state, ()
        case ActionOrdered(action=action, reason=reason):
            progress = state.progress.end(ActionOutcome.CUT, reason, now).begin(
                action, DeviceFault.ORDER, reason, now, free=True
            )
            begun = replace(state, progress=progress)
            if state.life in LINK_DOWN:
                resting = rest(begun, state.life, reason)
                return resting, (TakeAction(resting.generation, action),)
            ordered = replace(begun, follow=0, cause=reason, hint="")
            return work(ordered, Life.RECOVERING, partial(TakeAction, action=action))


def action_answered(
    state: LifecycleState, event: WaitEnded | ActionDone | ActionFailed, now: float, context: RecoveryContext
) -> Decision:
    """An action on the link or the whole phone ended, could not begin, or its wait is over."""
    under_way = state.progress.under_way
    if state.life not in LINK_DOWN:
        match event:
            case ActionFailed(reason=reason, hint=hint) if under_way is not None:
                return recover(state, under_way.fault, reason, hint, now, context)
            case _:
                return work(replace(state, identified=False), Life.IDENTIFYING)
    match event:
        case ActionDone():
            left_s = LINK_PAUSES_S[-1] if under_way is None else return_s(under_way.action, context)
            return pause(rest(state, state.life, state.cause, state.hint), left_s)
        case ActionFailed(reason=reason):
            failed = replace(state, progress=state.progress.end(ActionOutcome.FAILED, reason, now))
            return pause(rest(failed, state.life, state.cause, state.hint), LINK_PAUSES_S[-1])
        case _:
            return _waited(state, now, context)


def _waited(state: LifecycleState, now: float, context: RecoveryContext) -> Decision:
    """A link was left alone long enough: was a return waited for, or is it time for an action?"""
    under_way = state.progress.under_way
    cause = full_cause = state.cause
    if under_way is not None:
        late = f"it has not come back in {return_s(under_way.action, context):g} s after the {under_way.action}"
        late = late if state.life is Life.GONE else f"the {under_way.action} did not help"
        state = replace(state, progress=state.progress.end(ActionOutcome.FAILED, late, now))
        cause = under_way.cause
        full_cause = f"{cause}; {late}"
    if state.life is Life.GONE:
        return rest(state, Life.GONE, full_cause, "look at the phone: is it on, and its cable in?"), ()
    if not state.adopted or state.quarantine is not None:  # since the wait began
        return rest(state, state.life, full_cause, state.hint or _BY_HAND), ()
    # With an external cause its transport is made again with those of its neighbours: no recovery action of its own.
    if context.external_cause:
        resting = rest(state, state.life, full_cause, state.hint)
        return resting, (TakeAction(resting.generation, RecoveryAction.RECONNECT),)
    fault = DeviceFault.UNAUTHORIZED if state.life is Life.UNAUTHORIZED else DeviceFault.OFFLINE
    choice = next_action(state.progress, fault, now, context)
    skipped = replace(state, progress=replace(state.progress, skipped=choice.skipped))
    if choice.action is None:
        resting = rest(skipped, state.life, full_cause, state.hint or _BY_HAND)
        return pause(resting, LINK_PAUSES_S[-1]) if choice.waits else (resting, ())
    begun = replace(skipped, progress=skipped.progress.begin(choice.action, fault, cause, now))
    resting = rest(begun, state.life, full_cause, state.hint)
    return resting, (TakeAction(resting.generation, choice.action),)


def pause(state: LifecycleState, seconds: float) -> Decision:
    """Wait beside a link that is down. `state` rests under a number of its own."""
    return state, (Pause(state.generation, seconds),)


def link_down(state: LifecycleState, event: Listed | PlainEvent, now: float, context: RecoveryContext) -> Decision:
    """Adb lists it no more, or as unusable."""
    under_way = state.progress.under_way
    ours = under_way is not None and under_way.action in RETURN_S
    match event:
        case PlainEvent():
            life, reason, hint, reconnectable = Life.GONE, "", "", False
        case Listed(link=link, reason=reason, hint=hint, reconnectable=reconnectable):
            life = Life.UNAUTHORIZED if link is LinkState.UNAUTHORIZED else Life.OFFLINE
    if life is state.life and (ours or life is Life.GONE or state.cause.startswith(reason)):
        return state, ()  # no news: what is under way for this link continues
    if ours:
        assert under_way is not None
        # We sent it away ourselves: it is expected back.
        text = f"{under_way.action} under way" + ("" if under_way.cause == reason else f": {under_way.cause}")
        left_s = under_way.began_s + return_s(under_way.action, context) - now
        return pause(rest(state, life, "; ".join(filter(None, (reason, text))), hint), max(1.0, left_s))
    cut = replace(state, progress=state.progress.end(ActionOutcome.CUT, "its link was lost", now))
    if life in LINK_DOWN and state.life not in LINK_DOWN:
        cut = replace(cut, progress=cut.progress.settled(now, but=DeviceFault.WRONG))
    resting = rest(cut, life, reason, hint)
    if not reconnectable or not state.adopted or state.quarantine is not None:
        return resting, ()
    tried = sum(action in RETURN_S for action, _ in resting.progress.tried)
    return pause(resting, LINK_PAUSES_S[min(tried, len(LINK_PAUSES_S) - 1)])


def link_up(state: LifecycleState, now: float) -> Decision:
    """Adb lists it as usable: from the beginning, unless it comes back from an action of ours."""
    under_way = state.progress.under_way
    if under_way is None or under_way.action not in RETURN_S:
        state = replace(state, failures=0, progress=state.progress.settled(now, but=DeviceFault.WRONG))
    return work(replace(state, identified=False, cause="", hint=""), Life.IDENTIFYING)


def _proven(state: LifecycleState) -> bool:
    """Whether the bundle on it ever passed its check there; an overriding bundle passed it when the override began."""
    return bool(state.bundle_override) or (bool(state.proven) and state.proven == state.bundle)
