"""The state of one device's life cycle, the table of legal transitions, and functions that enter a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from farm.devices.lifecycle.messages import (
    Identify,
    Instruction,
    Provision,
    Reap,
    RetryLater,
    RunCheck,
    StartServer,
    Work,
)
from farm.devices.lifecycle.recovery import RecoveryProgress
from farm.model.device import MEANING, Life, Service
from farm.model.health import Quarantine

LINK_DOWN = frozenset({Life.GONE, Life.OFFLINE, Life.UNAUTHORIZED})

# Every legal transition, except that a bug in farm (BugFound) leads from each to QUARANTINED. Staying in a life (a
# second attempt of the same work) is listed where it may happen.
TRANSITIONS: Mapping[Life, frozenset[Life]] = MappingProxyType(
    {
        Life.GONE: frozenset({Life.IDENTIFYING, Life.OFFLINE, Life.UNAUTHORIZED}),
        Life.OFFLINE: frozenset({Life.IDENTIFYING}) | LINK_DOWN,
        Life.UNAUTHORIZED: frozenset({Life.IDENTIFYING}) | LINK_DOWN,
        Life.IDENTIFYING: frozenset({Life.NEW, Life.PROVISIONING, Life.RECOVERING, Life.QUARANTINED}) | LINK_DOWN,
        Life.NEW: frozenset({Life.PROVISIONING}) | LINK_DOWN,
        Life.PROVISIONING: frozenset({Life.STARTING, Life.RECOVERING, Life.QUARANTINED, Life.NEW}) | LINK_DOWN,
        # To READY only where the server was taken over with a session on it.
        Life.STARTING: frozenset(
            {Life.CHECKING, Life.READY, Life.PROVISIONING, Life.RECOVERING, Life.QUARANTINED, Life.NEW}
        )
        | LINK_DOWN,
        Life.CHECKING: frozenset(
            {Life.READY, Life.STARTING, Life.PROVISIONING, Life.RECOVERING, Life.QUARANTINED, Life.NEW}
        )
        | LINK_DOWN,
        Life.READY: frozenset(
            {Life.CHECKING, Life.STARTING, Life.PROVISIONING, Life.RECOVERING, Life.QUARANTINED, Life.NEW}
        )
        | LINK_DOWN,
        Life.RECOVERING: frozenset(
            {
                Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING, Life.QUARANTINED,
                Life.NEW,
            }
        )
        | LINK_DOWN,
        Life.QUARANTINED: frozenset({Life.IDENTIFYING, Life.PROVISIONING, Life.RECOVERING, Life.NEW}) | LINK_DOWN,
    }
)  # fmt: skip

# lives in which exactly one answer is awaited
WORKING = frozenset({Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING})
# Lives in which a link may be worked on; without an action to take, nothing is awaited there.
AWAITING = WORKING | LINK_DOWN
# Lives in which another bundle may be wanted: its server runs, or is about to.
CHANGING = frozenset({Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.READY, Life.RECOVERING})
SERVED = frozenset({Life.CHECKING, Life.READY, Life.RECOVERING})  # lives in which a server may be followed


@dataclass(frozen=True, slots=True)
class LifecycleState:
    """Everything the life cycle knows about one device."""

    life: Life = Life.GONE
    service: Service = Service.IN
    adopted: bool = False
    identified: bool = False  # since it was last plugged in
    generation: int = 0  # number of the work last asked for
    follow: int = 0  # number of the server being followed, 0 for none
    failures: int = 0  # in a row, since it was last ready for STABLE_S
    # A server failed its check or did not start: it is replaced, never taken over, and its files are compared by hash.
    suspect: bool = False
    untidy: bool = False  # a person had it; it is not READY again before what they left is removed
    bundle: str = ""  # hash of the bundle verified on it
    proven: str = ""  # hash of its own bundle that last passed the check on it
    bundle_override: str = ""  # hash of the bundle that overrides its own for a lease; "": its own runs
    refusal: str = ""  # why it did not take the bundle that was last wanted
    cause: str = ""  # what broke or is in the way; stays until it is ready, unplugged or released
    hint: str = ""  # what a person can do about it
    ready_at: float = 0.0  # monotonic seconds; meaningful while READY
    progress: RecoveryProgress = field(default_factory=RecoveryProgress)
    quarantine: Quarantine | None = None  # until it is released, whatever its life is

    @property
    def reason(self) -> str:
        """Why it is not ready, one line for a person; "" when it is."""
        if self.life is Life.READY:
            return ""
        now = self.cause or MEANING[self.life]
        if self.quarantine is None or self.life is Life.QUARANTINED:
            return now
        return f"quarantined: {self.quarantine.cause}; {now}"


Decision = tuple[LifecycleState, tuple[Instruction, ...]]
# The work of a life, besides provisioning; only of recovering there are several.
_WORK: Mapping[Life, Callable[[int], Work]] = MappingProxyType(
    {Life.IDENTIFYING: Identify, Life.STARTING: StartServer, Life.CHECKING: RunCheck}
)


def work(state: LifecycleState, life: Life, ask: Callable[[int], Work] | None = None) -> Decision:
    """Enter `life` and ask for its work, or that of `ask`, under the next number."""
    follow = state.follow if life in SERVED else 0
    entered = replace(state, life=life, generation=state.generation + 1, follow=follow)
    if ask is None:
        ask = partial(Provision, deep=state.suspect) if life is Life.PROVISIONING else _WORK[life]
    return entered, (ask(entered.generation),)


def rest(state: LifecycleState, life: Life, cause: str = "", hint: str = "") -> LifecycleState:
    """Enter a state without work: outstanding work, following and an override of its bundle are over."""
    resting = replace(state, life=life, generation=state.generation + 1, follow=0, cause=cause, hint=hint)
    return replace(resting, bundle_override="", refusal=resting.reason) if resting.bundle_override else resting


def back_off(state: LifecycleState, reason: str, hint: str = "") -> Decision:
    """Wait before the next attempt; the longer the more often it failed in a row."""
    waiting = replace(state, life=Life.RECOVERING, generation=state.generation + 1, follow=0, cause=reason, hint=hint)
    return waiting, (RetryLater(waiting.generation, max(1, waiting.failures)),)


def reap(state: LifecycleState, *, doubted: bool = False) -> Decision:
    """Kill processes that sessions left, and remove a person's residue if one had the phone."""
    return work(state, Life.RECOVERING, partial(Reap, tidy=state.untidy, doubted=doubted))
