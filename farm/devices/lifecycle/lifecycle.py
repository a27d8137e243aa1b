"""The life cycle of one device as a state machine: events in, instructions out, nothing else.

Rules of this file:
- `decide` is a pure function of (state, event, now); `Lifecycle` remembers the last transitions and guards the table.
- Work is numbered. A work instruction carries `generation`; its answer carries it back. Whatever makes outstanding work
  moot (unplugged, server died, operator spoke) moves on to the next number, so a late answer is recognised and ignored.
- A followed server has a number too (`follow`): its death counts only while that very server is followed.
- The runner (farm.devices.agent) cancels work whose generation, and following whose number, is no longer current.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace

from farm.common.errors import Code, FarmError
from farm.common.files import is_sha256, short_hash
from farm.devices.lifecycle.messages import (
    ActionDone,
    ActionFailed,
    ActionOrdered,
    AdoptServer,
    BugFound,
    BundleAccepted,
    BundleWanted,
    CheckPassed,
    DeviceEvent,
    DropOldBundles,
    EndServer,
    FaultCleared,
    FaultFound,
    FollowServer,
    Identified,
    Instruction,
    LeftByPerson,
    LinkLost,
    LinkState,
    Listed,
    PlainEvent,
    Provisioned,
    QuarantineOrdered,
    RecoveryFinished,
    ServerDied,
    ServerStarted,
    ServiceChanged,
    SessionBroke,
    StartServer,
    TakeAction,
    Unadopted,
    WaitEnded,
    WorkEnded,
    WorkFailed,
)
from farm.devices.lifecycle.recovery import ActionOutcome, RecoveryAction, RecoveryContext
from farm.devices.lifecycle.recovery_steps import (
    IMMEDIATE_RESTARTS,
    MUTE_TRIES,
    action_answered,
    fall_back,
    link_down,
    link_up,
    operator_ordered,
    probe_reported,
    quarantine,
    recover,
    released,
)
from farm.devices.lifecycle.state import (
    AWAITING,
    CHANGING,
    LINK_DOWN,
    SERVED,
    TRANSITIONS,
    Decision,
    LifecycleState,
    back_off,
    reap,
    rest,
    work,
)
from farm.model.device import Life
from farm.model.health import DeviceFault, ReleaseRule

STABLE_S = 10.0  # a device that stayed ready this long starts with a clean record when something breaks
KEPT_STEPS = 50  # transitions that the error of an illegal one shows
EVIDENCE_STEPS = 8  # of them, kept as evidence with a quarantine
_ADOPT = "farm device adopt NAME"
_OTHER_LINK = "one link is enough: unplug or disconnect one of them"
_NO_CONTEXT = RecoveryContext()
# whose failure may be that of an overriding bundle, or of one that is new to it
_BUNDLE_WORK = frozenset({Life.PROVISIONING, Life.STARTING, Life.CHECKING})


class Lifecycle:
    """One device's state, the guard of its transitions, and its last transitions."""

    def __init__(self, state: LifecycleState | None = None) -> None:
        self.state = state or LifecycleState()
        self._transitions: deque[str] = deque(maxlen=KEPT_STEPS)

    @property
    def transitions(self) -> tuple[str, ...]:
        """The last steps, oldest first, one line each."""
        return tuple(self._transitions)

    def handle(self, event: DeviceEvent, now: float, context: RecoveryContext = _NO_CONTEXT) -> tuple[Instruction, ...]:
        """Take one event at monotonic second `now`.

        Raises:
            FarmError: the table does not allow the step; `evidence` has the last ones.
        """
        before = self.state
        after, instructions = decide(before, event, now, context)
        names = ", ".join(map(_name, instructions))
        self._transitions.append(f"{now:.3f} {brief(event)} : {before.life} -> {after.life} [{names}]")
        legal = after.life in TRANSITIONS[before.life] or isinstance(event, BugFound)
        if after.life is not before.life and not legal:
            raise FarmError(
                f"a device cannot go from {before.life} to {after.life}",
                Code.ILLEGAL_TRANSITION,
                evidence="\n".join(self._transitions),
            )
        if after.quarantine is not None and after.quarantine is not before.quarantine:
            steps = list(filter(_is_step, self._transitions))
            evidence = "\n".join(filter(None, (after.quarantine.evidence, *steps[-EVIDENCE_STEPS:])))
            after = replace(after, quarantine=replace(after.quarantine, evidence=evidence))
        self.state = after
        return instructions

    def inherit(self, former: LifecycleState) -> None:
        """It is the device that had another serial: its tried actions and its quarantine continue."""
        self.state = replace(
            self.state,
            progress=former.progress,
            quarantine=former.quarantine,
            proven=former.proven,
            untidy=former.untidy,
        )


def brief(event: DeviceEvent) -> str:
    """An event as text: empty and false fields are left out, hashes are cut."""
    if isinstance(event, PlainEvent):
        return event.value
    values = ((each.name, getattr(event, each.name)) for each in fields(event))
    shown = (f"{name}={short_hash(value) if is_sha256(value) else value}" for name, value in values if value)
    return f"{type(event).__name__}({', '.join(shown)})"


def _is_step(transition: str) -> bool:
    """Whether a line of the history changed the life or asked for work."""
    before, _, after = transition.rpartition(" : ")[2].removesuffix(" []").partition(" -> ")
    return before != after


def _name(instruction: Instruction) -> str:
    return instruction.action.value if isinstance(instruction, TakeAction) else type(instruction).__name__


def decide(state: LifecycleState, event: DeviceEvent, now: float, context: RecoveryContext = _NO_CONTEXT) -> Decision:
    """The next state and the instructions, for one event. Events that do not matter in a state change nothing."""
    if isinstance(event, WorkEnded) and (event.generation != state.generation or state.life not in AWAITING):
        return state, ()
    match event:
        case Listed(link=LinkState.USABLE):
            return link_up(state, now) if state.life in LINK_DOWN else (state, ())
        case Listed() | PlainEvent.UNLISTED:
            return link_down(state, event, now, context)
        case ActionOrdered() | QuarantineOrdered():
            return operator_ordered(state, event, now)
        case PlainEvent.PROVISIONING_DUE:
            if state.life is not Life.READY or context.holder or state.bundle_override:
                return state, ()
            # Sessions may have changed its files since they were last compared.
            return work(replace(_settled(state, now), suspect=True), Life.PROVISIONING)
        case PlainEvent.PHONE_AT_FAULT:
            if context.external_cause or state.life is not Life.RECOVERING or state.progress.under_way is not None:
                return state, ()  # the host cut the session: the phone is tidied, not repaired
            progress = state.progress.begin(RecoveryAction.REAP, DeviceFault.SESSION, state.cause, now)
            return replace(state, progress=progress), ()
        case PlainEvent() | Unadopted() | ServiceChanged():
            return _operator_spoke(state, event, now)
        case FaultFound() | FaultCleared():
            return probe_reported(_settled(state, now), event, now, context)
        case BundleWanted(bundle=bundle):
            return _bundle_wanted(state, bundle)
        case BundleAccepted(bundle=bundle):
            if bundle != state.bundle or state.bundle_override or state.life is not Life.READY:
                return state, ()
            return replace(state, proven=bundle), (DropOldBundles(),)
        case ServerDied() | LinkLost() | SessionBroke():
            return _server_in_doubt(state, event, now, context)
        case LeftByPerson(reason=reason):
            return _left_by_person(state, reason)
        case BugFound(reason=reason, hint=hint):
            distrusted, _ = quarantine(_ended(state, ActionOutcome.CUT, reason, now), DeviceFault.BUG, reason, hint)
            return rest(distrusted, Life.QUARANTINED, reason, hint), ()
        case ActionDone() | ActionFailed():
            return action_answered(state, event, now, context)
        case WaitEnded() if state.life in LINK_DOWN:
            return action_answered(state, event, now, context)
        case WorkEnded():
            return _work_answered(state, event, now, context)


def _operator_spoke(state: LifecycleState, event: PlainEvent | Unadopted | ServiceChanged, now: float) -> Decision:
    match event:
        case ServiceChanged(service=service):
            return replace(state, service=service), ()
        case PlainEvent.ADOPTED:
            adopted = replace(state, adopted=True)
            if state.life is not Life.NEW:
                return adopted, ()
            return work(replace(adopted, cause="", hint=""), Life.PROVISIONING)
        case Unadopted(clean=clean):
            ended = _ended(state, ActionOutcome.CUT, "it was given back", now)
            given_back = replace(ended, adopted=False, untidy=False, proven="", progress=ended.progress.settled())
            if state.life is Life.QUARANTINED and not state.identified:
                return given_back, ()  # a bug in farm keeps it there
            given_back = replace(given_back, quarantine=None)
            if state.life in LINK_DOWN or not state.identified:
                return given_back, ()
            return replace(rest(given_back, Life.NEW, hint=_ADOPT), failures=0, bundle=""), (EndServer(clean),)
        case PlainEvent.RELEASED:
            return released(state)
        case _:  # BUNDLES_CHANGED
            if state.quarantine is None or state.quarantine.rule is not ReleaseRule.BUNDLES:
                return state, ()
            free, instructions = released(state)
            if state.life is not Life.QUARANTINED or not state.adopted or not state.identified:
                return free, instructions
            return work(replace(free, generation=state.generation, suspect=False), Life.PROVISIONING)


def _settled(state: LifecycleState, now: float) -> LifecycleState:
    """The state with its failures forgotten, if it has been ready for long enough."""
    if state.life is Life.READY and now - state.ready_at >= STABLE_S:
        return replace(state, failures=0, progress=state.progress.settled(now))
    return state


def _ended(state: LifecycleState, outcome: ActionOutcome, detail: str, now: float) -> LifecycleState:
    """The state with the action under way, if any, ended."""
    return replace(state, progress=state.progress.end(outcome, detail, now))


def _server_in_doubt(
    state: LifecycleState, event: ServerDied | LinkLost | SessionBroke, now: float, context: RecoveryContext
) -> Decision:
    state = _settled(state, now)
    match event:
        case SessionBroke(reason=reason):
            if not state.follow or state.life not in {Life.READY, Life.CHECKING}:
                return state, ()
            failures = state.failures + (state.life is Life.CHECKING)
            progress = state.progress.end(ActionOutcome.FAILED, reason, now)
            return reap(replace(state, failures=failures, cause=reason, progress=progress), doubted=True)
        case ServerDied(follow=follow, reason=reason, stuck=stuck):
            if follow != state.follow or not follow:
                return state, ()
            if stuck:
                return recover(replace(state, follow=0), DeviceFault.STUCK, reason, "", now, context)
            if state.bundle_override and state.life is Life.CHECKING:
                return _drop_override(state, reason)
            # Of a ready device one death may be a user's doing.
            again = state.progress.times(RecoveryAction.RESTART, DeviceFault.SERVER) > 0
            if context.fallback and (again or state.life is Life.CHECKING):
                return fall_back(state, DeviceFault.SERVER, reason, now)
            return recover(replace(state, follow=0), DeviceFault.SERVER, reason, "", now, context)
        case LinkLost(follow=follow, reason=reason, mute=mute):
            if follow != state.follow or not follow:
                return state, ()
            if mute:  # the probe has asked twice
                failures = state.failures if context.external_cause else max(state.failures, MUTE_TRIES - 1)
                silent = replace(state, follow=0, failures=failures)
                return recover(silent, DeviceFault.MUTE, reason, "", now, context)
            return _reidentify(replace(state, follow=0), reason)


def _bundle_wanted(state: LifecycleState, bundle: str) -> Decision:
    """Provision again, whatever was under way; a device that is not on its way to ready takes only its own."""
    if bundle == state.bundle_override:
        return state, ()
    wanted = replace(state, bundle_override=bundle, refusal="")
    if state.life in CHANGING and state.identified and state.adopted and state.quarantine is None:
        return work(replace(wanted, cause="its runtime bundle is changed"), Life.PROVISIONING)
    return (replace(state, refusal=state.reason), ()) if bundle else (wanted, ())


def _left_by_person(state: LifecycleState, reason: str) -> Decision:
    """At once where its server runs; else on its way to ready, before its server is started or checked."""
    if not state.adopted:
        return state, ()
    untidy = replace(state, untidy=True)
    if not state.follow or state.life not in SERVED:
        return untidy, ()
    return reap(replace(untidy, follow=0, cause=reason))


def _work_answered(state: LifecycleState, event: WorkEnded, now: float, context: RecoveryContext) -> Decision:
    if isinstance(event, WorkFailed) and state.life in _BUNDLE_WORK and not context.external_cause:
        if state.bundle_override:
            return _drop_override(state, event.reason)
        if context.fallback:
            return fall_back(state, event.fault, event.reason, now)
    match event:
        case Identified():
            return _identified(state, event, now)
        case Provisioned(bundle=bundle, adoptable=adoptable, untidy=untidy):
            # Ignored just after a cleanup: else a phone that keeps writing such notes would be cleaned without end.
            provisioned = replace(state, bundle=bundle, untidy=state.untidy or (untidy and not state.suspect))
            if provisioned.untidy:
                return reap(provisioned)
            return work(provisioned, Life.STARTING, AdoptServer if adoptable and not state.suspect else StartServer)
        case WorkFailed(fault=DeviceFault.BUNDLE, reason=reason, hint=hint):
            return quarantine(_ended(state, ActionOutcome.FAILED, reason, now), DeviceFault.BUNDLE, reason, hint)
        case ServerStarted(in_use=True):
            return _taken_over(state, now)
        case ServerStarted():
            if state.untidy:
                return reap(state)
            entered, asked = work(state, Life.CHECKING)
            followed = replace(entered, follow=entered.generation, suspect=False)
            return followed, (FollowServer(followed.follow), *asked)
        case CheckPassed():
            return _passed(state, now, on_trial=context.on_trial or bool(state.bundle_override))
        case RecoveryFinished(tidied=True):
            return work(replace(state, untidy=False, suspect=True, follow=0), Life.PROVISIONING)
        case RecoveryFinished() if state.untidy:  # since it began
            return reap(replace(state, follow=0))
        case RecoveryFinished(server_alive=alive):
            if alive and state.follow:
                return work(state, Life.CHECKING)
            return work(replace(state, follow=0), Life.STARTING)
        case WaitEnded():
            known = state.identified and state.adopted and state.quarantine is None
            return work(state, Life.PROVISIONING if known else Life.IDENTIFYING)
        case WorkFailed():
            return recover(replace(state, follow=0), event.fault, event.reason, event.hint, now, context)
        case _:
            raise AssertionError(f"{event} is answered elsewhere")


def _taken_over(state: LifecycleState, now: float) -> Decision:
    """Its holder keeps it, so it was usable: neither checked nor cleaned before the session there has ended."""
    number = state.generation + 1
    repaired = _ended(state, ActionOutcome.REPAIRED, "", now)
    ready = replace(repaired, life=Life.READY, generation=number, follow=number, cause="", hint="", ready_at=now)
    return ready, (FollowServer(number),)


def _identified(state: LifecycleState, event: Identified, now: float) -> Decision:
    known = replace(state, identified=True, adopted=event.adopted)
    under_way = state.progress.under_way
    if event.same_boot and under_way is not None and under_way.action is RecoveryAction.REBOOT:
        known = _ended(known, ActionOutcome.FAILED, "it came back without having rebooted", now)
    if not event.adopted:
        known = replace(known, quarantine=None)  # it is not leased anyway
        ended = _ended(known, ActionOutcome.CUT, "it is not adopted", now)
        return rest(ended, Life.NEW, event.other_link, _OTHER_LINK if event.other_link else _ADOPT), ()
    if known.quarantine is not None:
        kept = known.quarantine
        return rest(_ended(known, ActionOutcome.REPAIRED, "", now), Life.QUARANTINED, kept.cause, kept.hint), ()
    return work(known, Life.PROVISIONING)


def _passed(state: LifecycleState, now: float, *, on_trial: bool) -> Decision:
    """Ready. A bundle on trial proves nothing yet, and the device's own stays on it."""
    repaired = _ended(state, ActionOutcome.REPAIRED, "", now)
    right = replace(
        repaired.progress, tried=tuple(each for each in repaired.progress.tried if each[1] is not DeviceFault.WRONG)
    )
    ready = replace(repaired, life=Life.READY, cause="", hint="", ready_at=now, progress=right)
    ready = replace(ready, generation=ready.generation + 1, proven=ready.proven if on_trial else ready.bundle)
    return ready, () if on_trial else (DropOldBundles(),)


def _drop_override(state: LifecycleState, reason: str) -> Decision:
    """An overriding bundle does not work: that says nothing about the device; its own bundle is provisioned again."""
    own = replace(
        state, bundle_override="", refusal=reason, suspect=True, cause=f"it did not take another bundle; {reason}"
    )
    return work(own, Life.PROVISIONING)


def _reidentify(state: LifecycleState, reason: str) -> Decision:
    """Whether its server lives is unknown: look at once after the first failure, else after a pause."""
    counted = replace(state, failures=state.failures + 1, cause=reason, hint="")
    if counted.failures <= IMMEDIATE_RESTARTS:
        return work(counted, Life.PROVISIONING)
    return back_off(counted, reason)
