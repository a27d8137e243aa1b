"""The life of one device as a state machine: events in, instructions out, nothing else.

Rules of this file:
- `decide` is a pure function of (state, event, now); `Lifecycle` only remembers the story and guards the table.
- Work is numbered. A work instruction carries `generation`; its answer carries it back. Whatever makes outstanding work
  moot (unplugged, server died, operator spoke) moves on to the next number, so a late answer is recognised and ignored.
- A followed server has a number too (`follow`): its death counts only while that very server is followed.
- The runner (farm.fleet.agent) cancels work whose generation, and following whose number, is no longer current.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from farm.core.device import Life, Service
from farm.core.errors import FarmError
from farm.core.lifecycle_messages import (
    Adopted,
    AdoptServer,
    Answer,
    BackedOff,
    BackOff,
    BugFound,
    BundlesChanged,
    BundleWanted,
    Check,
    CheckFailed,
    CheckPassed,
    Clean,
    DropOldBundles,
    Event,
    FollowServer,
    Identified,
    Identify,
    IdentifyFailed,
    Instruction,
    LeftByPerson,
    Link,
    LinkLost,
    Listed,
    Provision,
    Provisioned,
    ProvisionFailed,
    Reap,
    RecoveryFailed,
    RecoveryFinished,
    Released,
    ServerDied,
    ServerStarted,
    ServiceChanged,
    SessionBroke,
    StartFailed,
    StartServer,
    StopServer,
    Unadopted,
    Unlisted,
    Work,
)

STABLE_S = 10.0  # a server that stayed ready this long starts with a clean record when it breaks
IMMEDIATE_RESTARTS = 1  # consecutive failures answered at once; later ones back off
WRONG_RESULTS_TOLERATED = 2  # wrong golden results in a row before a person must look: restart, re-push, give up
KEPT_STEPS = 50  # length of the story an illegal transition tells

MEANING: Mapping[Life, str] = MappingProxyType(
    {
        Life.NEW: "listed and identified, but not adopted: nothing is written to it",
        Life.UNAUTHORIZED: "waits for someone to accept the farm's adb key on its screen",
        Life.OFFLINE: "listed by adb, but it cannot be talked to",
        Life.IDENTIFYING: "read-only commands find out what it is",
        Life.PROVISIONING: "the runtime bundle is being verified or pushed",
        Life.STARTING: "its RPC server is being started or taken over",
        Life.CHECKING: "golden kernels run; their results are compared",
        Life.READY: "may be leased",
        Life.RECOVERING: "something broke; it is being cleaned up or waits for the next attempt",
        Life.QUARANTINED: "needs a person; the reason says why",
        Life.GONE: "not listed by adb",
    }
)

LINK_DOWN = frozenset({Life.GONE, Life.OFFLINE, Life.UNAUTHORIZED})

# Every legal change of life, except that a bug in farm (BugFound) leads from each to QUARANTINED. Staying in a life (a
# second attempt of the same work) is listed where it may happen.
TRANSITIONS: Mapping[Life, frozenset[Life]] = MappingProxyType(
    {
        Life.GONE: frozenset({Life.IDENTIFYING, Life.OFFLINE, Life.UNAUTHORIZED}),
        Life.OFFLINE: frozenset({Life.IDENTIFYING}) | LINK_DOWN,
        Life.UNAUTHORIZED: frozenset({Life.IDENTIFYING}) | LINK_DOWN,
        Life.IDENTIFYING: frozenset({Life.NEW, Life.PROVISIONING, Life.RECOVERING}) | LINK_DOWN,
        Life.NEW: frozenset({Life.PROVISIONING}) | LINK_DOWN,
        Life.PROVISIONING: frozenset({Life.STARTING, Life.RECOVERING, Life.QUARANTINED, Life.NEW}) | LINK_DOWN,
        Life.STARTING: frozenset({Life.CHECKING, Life.PROVISIONING, Life.RECOVERING, Life.NEW}) | LINK_DOWN,
        Life.CHECKING: frozenset(
            {Life.READY, Life.STARTING, Life.PROVISIONING, Life.RECOVERING, Life.QUARANTINED, Life.NEW}
        )
        | LINK_DOWN,
        Life.READY: frozenset({Life.STARTING, Life.PROVISIONING, Life.RECOVERING, Life.NEW}) | LINK_DOWN,
        Life.RECOVERING: frozenset(
            {Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING, Life.NEW}
        )
        | LINK_DOWN,
        Life.QUARANTINED: frozenset({Life.IDENTIFYING, Life.PROVISIONING, Life.NEW}) | LINK_DOWN,
    }
)

WORKING = frozenset(
    {Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING}
)  # lives in which exactly one answer is awaited
# Lives in which another bundle may be wanted: its server runs, or is about to.
CHANGING = frozenset({Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.READY, Life.RECOVERING})
SERVED = frozenset({Life.CHECKING, Life.READY, Life.RECOVERING})  # lives in which a server may be followed


@dataclass(frozen=True, slots=True)
class DeviceState:
    """Everything the machine knows about one device."""

    life: Life = Life.GONE
    service: Service = Service.IN
    adopted: bool = False
    identified: bool = False  # since it was last plugged in
    generation: int = 0  # number of the work last asked for
    follow: int = 0  # number of the server being followed, 0 for none
    failures: int = 0  # in a row, since it was last ready for STABLE_S
    wrong: int = 0  # wrong golden results in a row
    # A server failed its check or did not start: it is replaced, never taken over, and its files are compared by hash.
    suspect: bool = False
    untidy: bool = False  # a person had it; it is not READY again before what they left is removed
    bundle: str = ""  # hash of the bundle verified on it
    lent: str = ""  # hash of the bundle that it runs for whoever has it; "": its own
    refusal: str = ""  # why it did not take the bundle that was last wanted
    trouble: str = ""  # what broke or is in the way; stays until it is ready, unplugged or released
    hint: str = ""  # what a person can do about it
    ready_at: float = 0.0  # monotonic seconds; meaningful while READY

    @property
    def reason(self) -> str:
        """Why it is not ready, one line for a person; "" when it is."""
        if self.life is Life.READY:
            return ""
        return self.trouble or MEANING[self.life]


class IllegalTransitionError(FarmError):
    """A device was about to make a step that its table of transitions does not have (a bug in farm)."""

    code = "illegal_transition"


Decision = tuple[DeviceState, tuple[Instruction, ...]]


class Lifecycle:
    """One device's state, its guard and its story."""

    def __init__(self, state: DeviceState | None = None) -> None:
        self.state = state or DeviceState()
        self._story: deque[str] = deque(maxlen=KEPT_STEPS)

    @property
    def story(self) -> tuple[str, ...]:
        """The last steps, oldest first, one line each."""
        return tuple(self._story)

    def handle(self, event: Event, now: float) -> tuple[Instruction, ...]:
        """Take one event at monotonic second `now`.

        Raises:
            IllegalTransitionError: the table does not allow the step; `evidence` is the story.
        """
        before = self.state
        after, instructions = decide(before, event, now)
        names = ", ".join(type(instruction).__name__ for instruction in instructions)
        self._story.append(f"{now:.3f} {event} : {before.life} -> {after.life} [{names}]")
        legal = after.life in TRANSITIONS[before.life] or isinstance(event, BugFound)
        if after.life is not before.life and not legal:
            raise IllegalTransitionError(
                f"a device cannot go from {before.life} to {after.life}", evidence="\n".join(self._story)
            )
        self.state = after
        return instructions


def decide(state: DeviceState, event: Event, now: float) -> Decision:
    """The next state and what to do, for one event. Events that do not matter in a state change nothing."""
    if isinstance(event, Answer) and (event.generation != state.generation or state.life not in WORKING):
        return state, ()
    match event:
        case Listed() | Unlisted():
            return _link_changed(state, event)
        case Adopted() | Unadopted() | ServiceChanged() | Released() | BundlesChanged():
            return _operator_spoke(state, event)
        case BundleWanted(bundle=bundle):
            return _bundle_wanted(state, bundle)
        case ServerDied() | LinkLost() | SessionBroke():
            return _server_in_doubt(state, event, now)
        case LeftByPerson(reason=reason):
            return _left_by_person(state, reason)
        case BugFound(reason=reason, hint=hint):
            return _rest(state, Life.QUARANTINED, reason, hint), ()
        case _:
            return _work_answered(state, event, now)


def _link_changed(state: DeviceState, event: Listed | Unlisted) -> Decision:
    match event:
        case Unlisted():
            return (state, ()) if state.life is Life.GONE else (_rest(state, Life.GONE), ())
        case Listed(link=Link.USABLE):
            if state.life not in LINK_DOWN:
                return state, ()
            return _work(replace(state, failures=0, identified=False, trouble="", hint=""), Life.IDENTIFYING)
        case Listed(link=link, reason=reason, hint=hint):
            life = Life.UNAUTHORIZED if link is Link.UNAUTHORIZED else Life.OFFLINE
            return _rest(state, life, reason, hint), ()


def _operator_spoke(
    state: DeviceState, event: Adopted | Unadopted | ServiceChanged | Released | BundlesChanged
) -> Decision:
    match event:
        case ServiceChanged(service=service):
            return replace(state, service=service), ()
        case Adopted():
            adopted = replace(state, adopted=True)
            if state.life is not Life.NEW:
                return adopted, ()
            return _work(replace(adopted, trouble="", hint=""), Life.PROVISIONING)
        case Unadopted(clean=clean):
            farewell: Instruction = Clean() if clean else StopServer()
            given_back = replace(state, adopted=False, untidy=False)
            if state.life in LINK_DOWN or not state.identified:
                return given_back, ()
            return replace(_rest(given_back, Life.NEW), failures=0, wrong=0, bundle=""), (farewell,)
        case Released():
            if state.life is not Life.QUARANTINED:
                return state, ()
            return _work(replace(state, failures=0, wrong=0, trouble="", hint=""), Life.IDENTIFYING)
        case BundlesChanged():
            if state.life is not Life.QUARANTINED or not state.adopted or not state.identified:
                return state, ()
            return _work(replace(state, failures=0, wrong=0, trouble="", hint=""), Life.PROVISIONING)


def _server_in_doubt(state: DeviceState, event: ServerDied | LinkLost | SessionBroke, now: float) -> Decision:
    if state.life is Life.READY and now - state.ready_at >= STABLE_S:
        state = replace(state, failures=0)
    match event:
        case SessionBroke(reason=reason):
            if not state.follow or state.life not in {Life.READY, Life.CHECKING}:
                return state, ()
            failures = state.failures + (state.life is Life.CHECKING)
            return _reap(replace(state, failures=failures, trouble=reason))
        case ServerDied(follow=follow, reason=reason):
            if follow != state.follow or not follow:
                return state, ()
            if state.lent and state.life is Life.CHECKING:
                return _unlent(state, reason)
            return _retry(replace(state, follow=0), Life.STARTING, reason)
        case LinkLost(follow=follow, reason=reason):
            if follow != state.follow or not follow:
                return state, ()
            return _retry(replace(state, follow=0), Life.PROVISIONING, reason)


def _bundle_wanted(state: DeviceState, bundle: str) -> Decision:
    """Provision anew, whatever was under way; a device that is not on its way to ready takes only its own."""
    if bundle == state.lent:
        return state, ()
    wanted = replace(state, lent=bundle, refusal="")
    if state.life in CHANGING and state.identified:
        return _work(replace(wanted, trouble="its runtime bundle is changed"), Life.PROVISIONING)
    return (replace(state, refusal=state.reason), ()) if bundle else (wanted, ())


def _left_by_person(state: DeviceState, reason: str) -> Decision:
    """At once where its server runs; else on its way to ready, between the server's start and the check."""
    if not state.adopted:
        return state, ()
    untidy = replace(state, untidy=True)
    if not state.follow or state.life not in SERVED:
        return untidy, ()
    return _reap(replace(untidy, trouble=reason))


def _reap(state: DeviceState) -> Decision:
    entered, _ = _work(state, Life.RECOVERING, Reap)
    return entered, (Reap(entered.generation, tidy=entered.untidy),)


def _work_answered(state: DeviceState, event: Answer, now: float) -> Decision:
    if state.lent and isinstance(event, ProvisionFailed | StartFailed | CheckFailed):
        return _unlent(state, event.reason)
    match event:
        case Identified(adopted=adopted):
            known = replace(state, identified=True, adopted=adopted)
            if not adopted:
                return _rest(known, Life.NEW, hint="farm device adopt NAME"), ()
            return _work(known, Life.PROVISIONING)
        case Provisioned(bundle=bundle, adoptable=adoptable, untidy=untidy):
            how = AdoptServer if adoptable and not state.suspect else StartServer
            return _work(replace(state, bundle=bundle, untidy=state.untidy or untidy), Life.STARTING, how)
        case ProvisionFailed(person=True, reason=reason, hint=hint):
            return _rest(state, Life.QUARANTINED, reason, hint), ()
        case ServerStarted():
            entered, work = _reap(state) if state.untidy else _work(state, Life.CHECKING)
            followed = replace(entered, follow=entered.generation, suspect=False)
            return followed, (FollowServer(followed.follow), *work)
        case CheckPassed():
            ready = replace(state, life=Life.READY, trouble="", hint="", wrong=0, ready_at=now)
            # Who has borrowed it may want another bundle again.
            return replace(ready, generation=ready.generation + 1), () if ready.lent else (DropOldBundles(),)
        case CheckFailed(wrong=True, reason=reason, hint=hint):
            return _wrong_result(state, reason, hint)
        case CheckFailed(reason=reason, hint=hint):
            return _retry(replace(state, follow=0, suspect=True), Life.STARTING, reason, hint)
        case RecoveryFinished(server_alive=alive):
            tidied = replace(state, untidy=False)
            if alive and state.follow:
                return _work(tidied, Life.CHECKING)
            return _work(replace(tidied, follow=0), Life.STARTING)
        case BackedOff():
            life = Life.PROVISIONING if state.identified else Life.IDENTIFYING
            return _work(state, life)
        case StartFailed(reason=reason, hint=hint):
            failed = replace(state, follow=0, failures=state.failures + 1, suspect=True)
            return _back_off(failed, reason, hint)
        case (
            IdentifyFailed(reason=reason, hint=hint)
            | ProvisionFailed(reason=reason, hint=hint)
            | RecoveryFailed(reason=reason, hint=hint)
        ):
            return _back_off(replace(state, follow=0, failures=state.failures + 1), reason, hint)


def _unlent(state: DeviceState, reason: str) -> Decision:
    """A lent bundle does not work: that says nothing about the device, whose own bundle decides as ever."""
    own = replace(state, lent="", refusal=reason, suspect=True, trouble=f"it did not take another bundle: {reason}")
    return _work(own, Life.PROVISIONING)


def _wrong_result(state: DeviceState, reason: str, hint: str) -> Decision:
    """Wrong numbers: a fresh server first, then a bundle compared by hash, then a person."""
    seen = replace(state, follow=0, wrong=state.wrong + 1, failures=state.failures + 1, suspect=True, trouble=reason)
    if seen.wrong > WRONG_RESULTS_TOLERATED:
        return _rest(seen, Life.QUARANTINED, reason, hint or "farm device release NAME, once it is understood"), (
            StopServer(),
        )
    return _work(seen, Life.STARTING if seen.wrong == 1 else Life.PROVISIONING)


def _retry(state: DeviceState, life: Life, reason: str, hint: str = "") -> Decision:
    """Try again from `life`: at once for the first failure, else after a pause."""
    counted = replace(state, failures=state.failures + 1, trouble=reason, hint=hint)
    if counted.failures <= IMMEDIATE_RESTARTS:
        return _work(counted, life)
    return _back_off(counted, reason, hint)


def _back_off(state: DeviceState, reason: str, hint: str = "") -> Decision:
    waiting = replace(state, life=Life.RECOVERING, generation=state.generation + 1, follow=0, trouble=reason, hint=hint)
    return waiting, (BackOff(waiting.generation, max(1, waiting.failures)),)


def _work(
    state: DeviceState,
    life: Life,
    kind: type[StartServer | AdoptServer | Reap] | None = None,
) -> Decision:
    """Enter `life` and ask for its work under the next number."""
    follow = state.follow if life in SERVED else 0
    entered = replace(state, life=life, generation=state.generation + 1, follow=follow)
    number = entered.generation
    work: Work
    if kind is not None:
        work = kind(number)
    elif life is Life.IDENTIFYING:
        work = Identify(number)
    elif life is Life.PROVISIONING:
        work = Provision(number, deep=state.suspect)
    elif life is Life.STARTING:
        work = StartServer(number)
    elif life is Life.CHECKING:
        work = Check(number)
    else:
        raise AssertionError(f"{life} has no work of its own")
    return entered, (work,)


def _rest(state: DeviceState, life: Life, trouble: str = "", hint: str = "") -> DeviceState:
    """Enter a life in which nothing is awaited: outstanding work and following are over, and nobody borrows it."""
    rest = replace(state, life=life, generation=state.generation + 1, follow=0, trouble=trouble, hint=hint)
    return replace(rest, lent="", refusal=rest.reason) if rest.lent else rest
