"""What is known of one device's life: the table of legal steps, the state, and entering a life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from farm.core.device import Life, Service
from farm.core.lifecycle_messages import (
    AdoptServer,
    BackOff,
    Check,
    Identify,
    Instruction,
    PowerCycle,
    Provision,
    Reap,
    Reboot,
    Reconnect,
    StartServer,
    Work,
)
from farm.core.recovery import Climb, Quarantine

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

WORKING = frozenset(
    {Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING}
)  # lives in which exactly one answer is awaited
# Lives in which a link may be worked on; without a rung to take, nothing is awaited there.
AWAITING = WORKING | LINK_DOWN
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
    # A server failed its check or did not start: it is replaced, never taken over, and its files are compared by hash.
    suspect: bool = False
    untidy: bool = False  # a person had it; it is not READY again before what they left is removed
    bundle: str = ""  # hash of the bundle verified on it
    proven: str = ""  # hash of its own bundle that last passed the check on it
    lent: str = ""  # hash of the bundle that it runs for whoever has it; "": its own
    refusal: str = ""  # why it did not take the bundle that was last wanted
    trouble: str = ""  # what broke or is in the way; stays until it is ready, unplugged or released
    hint: str = ""  # what a person can do about it
    ready_at: float = 0.0  # monotonic seconds; meaningful while READY
    climb: Climb = field(default_factory=Climb)
    quarantine: Quarantine | None = None  # until it is released, whatever its life is

    @property
    def reason(self) -> str:
        """Why it is not ready, one line for a person; "" when it is."""
        if self.life is Life.READY:
            return ""
        now = self.trouble or MEANING[self.life]
        if self.quarantine is None or self.life is Life.QUARANTINED:
            return now
        return f"quarantined: {self.quarantine.reason}; {now}"


Decision = tuple[DeviceState, tuple[Instruction, ...]]


def work(
    state: DeviceState,
    life: Life,
    kind: type[StartServer | AdoptServer | Reap | Reconnect | Reboot | PowerCycle] | None = None,
) -> Decision:
    """Enter `life` and ask for its work under the next number."""
    follow = state.follow if life in SERVED else 0
    entered = replace(state, life=life, generation=state.generation + 1, follow=follow)
    number = entered.generation
    asked: Work
    if kind is not None:
        asked = kind(number)
    elif life is Life.IDENTIFYING:
        asked = Identify(number)
    elif life is Life.PROVISIONING:
        asked = Provision(number, deep=state.suspect)
    elif life is Life.STARTING:
        asked = StartServer(number)
    elif life is Life.CHECKING:
        asked = Check(number)
    else:
        raise AssertionError(f"{life} has no work of its own")
    return entered, (asked,)


def rest(state: DeviceState, life: Life, trouble: str = "", hint: str = "") -> DeviceState:
    """Enter a life in which nothing is awaited: outstanding work and following are over, and nobody borrows it."""
    resting = replace(state, life=life, generation=state.generation + 1, follow=0, trouble=trouble, hint=hint)
    return replace(resting, lent="", refusal=resting.reason) if resting.lent else resting


def back_off(state: DeviceState, reason: str, hint: str = "") -> Decision:
    """Leave it alone for a while; the longer the more often it failed in a row."""
    waiting = replace(state, life=Life.RECOVERING, generation=state.generation + 1, follow=0, trouble=reason, hint=hint)
    return waiting, (BackOff(waiting.generation, max(1, waiting.failures)),)


def reap(state: DeviceState) -> Decision:
    """Kill what sessions left, and tidy up after a person if one had it."""
    entered, _ = work(state, Life.RECOVERING, Reap)
    return entered, (Reap(entered.generation, tidy=entered.untidy),)
