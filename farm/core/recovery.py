"""The recovery ladder as data (DESIGN D5): what mends what, whom it hurts, how often; and where a phone stands on it.

Pure: times are monotonic seconds and passed in. `lifecycle_recovery` climbs; the agent performs. A rung is taken only
for an ailment that it can mend: nothing here can burn a reboot on a network outage or an unplugged phone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

DAY_S = 24 * 3600.0
# What a probe found is over when it was not found for so long: probes come every 10 s, and a driver that faults once in
# some minutes is not mended by a fresh server each time.
FOUND_STABLE_S = 600.0
ANY_NUMBER = 10**9  # in a row: what users do to a phone says nothing about the phone


class Rung(StrEnum):
    """One step of the ladder, the mildest first."""

    REAP = "reap"
    RESTART = "restart-server"
    REPUSH = "re-push"
    RECONNECT = "reconnect"
    REBOOT = "reboot"
    POWER_CYCLE = "power-cycle"
    QUARANTINE = "quarantine"


class Radius(StrEnum):
    """Whom a rung hurts besides the ailing phone's own work."""

    SESSION = "session"  # what runs in the phone's RPC sessions
    DEVICE = "device"  # everything on the phone, its holder's shell too
    HUB = "hub"  # possibly every phone on the same USB hub


class Ailment(StrEnum):
    """What is wrong, as far as it decides what may help."""

    SESSION = "session"  # a session ended in a way that leaves the phone in doubt
    SERVER = "server"  # its RPC server died
    START = "start"  # its RPC server does not start
    CHECK = "check"  # golden kernels do not run
    WRONG = "wrong"  # golden kernels give wrong numbers
    STUCK = "stuck"  # a process survives SIGKILL
    GPU = "gpu"  # its GPU driver reports faults
    MUTE = "mute"  # adb lists it as usable, yet it answers no command
    OFFLINE = "offline"  # adb lists it, its transport is dead
    UNAUTHORIZED = "unauthorized"  # nobody has accepted the farm's key
    STORAGE = "storage"  # its /data is full
    HOT = "hot"  # its battery is too hot
    BATTERY = "battery"  # its battery is worn out, swollen or reported bad
    BUNDLE = "bundle"  # there is no bundle for it, or its bundle never worked on it
    ORDER = "order"  # a person asked for it
    BUG = "bug"  # farm itself failed


class ReleaseRule(StrEnum):
    """When a quarantine ends without a person."""

    PERSON = "person"  # never
    BUNDLES = "bundles"  # when the bundle library changes
    WELL = "well"  # when a probe no longer finds the ailment


RELEASED_WHEN: Mapping[Ailment, ReleaseRule] = MappingProxyType(
    {Ailment.BUNDLE: ReleaseRule.BUNDLES, Ailment.HOT: ReleaseRule.WELL, Ailment.STORAGE: ReleaseRule.WELL}
)  # every other ailment: PERSON


class Outcome(StrEnum):
    """What became of a rung."""

    MENDED = "mended"  # the phone was ready (after quarantine or an order: at rest) again
    FAILED = "failed"  # the same or something else was wrong afterwards
    CUT = "cut"  # a person, or the link, came in between


@dataclass(frozen=True, slots=True)
class Step:
    """One rung of the ladder."""

    rung: Rung
    what: str  # what is done, for a person
    radius: Radius
    per_day: int | None  # for one phone in any 24 h; None: as often as needed
    mends: Mapping[Ailment, int]  # what it can mend -> how often it is tried in a row before the next rung


LADDER: tuple[Step, ...] = (
    Step(
        Rung.REAP,
        "kill what sessions left (SIGKILL by process group, verified)",
        Radius.SESSION,
        None,  # users' kernels hang as often as they like: a tuning has thousands of bad candidates
        {Ailment.SESSION: ANY_NUMBER},
    ),
    Step(
        Rung.RESTART,
        "start a fresh RPC server",
        Radius.SESSION,
        300,  # one in 5 minutes all day: more is no accident of a user's any more
        {Ailment.SERVER: 3, Ailment.CHECK: 1, Ailment.WRONG: 1, Ailment.GPU: 1},
    ),
    Step(
        Rung.REPUSH,
        "compare the runtime with the bundle by hash and push what differs",
        Radius.SESSION,
        50,  # hashing reads 100 MB of flash: cheap, but no cure that is needed every half hour
        {Ailment.SERVER: 1, Ailment.START: 3, Ailment.CHECK: 2, Ailment.WRONG: 1},
    ),
    Step(
        Rung.RECONNECT,
        "have adb drop and make its transport anew",
        Radius.DEVICE,
        50,  # a bad cable asks for it all day; what it costs is a second
        {Ailment.MUTE: 2, Ailment.OFFLINE: 2, Ailment.UNAUTHORIZED: 1},
    ),
    Step(
        Rung.REBOOT,
        "reboot",
        Radius.DEVICE,
        3,  # each costs a minute or two and a little flash; a phone that needs more needs a person
        {Ailment.STUCK: 1, Ailment.GPU: 1, Ailment.SERVER: 1, Ailment.START: 1, Ailment.CHECK: 1},
    ),
    Step(
        Rung.POWER_CYCLE,
        "cut the power of its USB port for a moment",
        Radius.HUB,
        3,
        {Ailment.MUTE: 1, Ailment.OFFLINE: 1},
    ),
    Step(
        Rung.QUARANTINE,
        "keep it away from users until a person has looked",
        Radius.DEVICE,
        None,
        dict.fromkeys(
            (
                Ailment.SERVER, Ailment.START, Ailment.CHECK, Ailment.WRONG, Ailment.STUCK, Ailment.GPU,
                Ailment.STORAGE, Ailment.HOT, Ailment.BATTERY, Ailment.BUNDLE, Ailment.BUG,
            ),
            1,
        ),
    ),
)  # fmt: skip
STEPS: Mapping[Rung, Step] = MappingProxyType({step.rung: step for step in LADDER})
# Rungs after which the phone leaves adb's list or comes back on it: its return is waited for this long.
RETURN_S: Mapping[Rung, float] = MappingProxyType(
    {
        Rung.RECONNECT: 15.0,  # over the network: 3-10 s between adb's attempts
        Rung.REBOOT: 300.0,  # 30-90 s on most phones; the first boot after an update takes more
        Rung.POWER_CYCLE: 60.0,  # enumeration takes seconds; a phone that ran empty boots first
    }
)
# Over USB adb opens the transport again within a second, and a phone that works answers at once.
WIRED_RECONNECT_S = 5.0
# With these its holder may still work with it; with others its server is dead or nobody reaches it anyway.
_STILL_OF_USE = frozenset({Ailment.STUCK, Ailment.GPU})
_FAULTS_OF_A_BUNDLE = frozenset({Ailment.SERVER, Ailment.START, Ailment.CHECK})


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """`[recovery]`: how often one phone may have each rung in any 24 hours; 0: never."""

    restarts_per_day: int = STEPS[Rung.RESTART].per_day or 0  # of its RPC server
    pushes_per_day: int = STEPS[Rung.REPUSH].per_day or 0  # its runtime compared by hash, and pushed where it differs
    reconnects_per_day: int = STEPS[Rung.RECONNECT].per_day or 0  # a second each; a bad cable asks for it all day
    reboots_per_day: int = STEPS[Rung.REBOOT].per_day or 0  # a minute or two each
    power_cycles_per_day: int = STEPS[Rung.POWER_CYCLE].per_day or 0  # of its USB port

    def per_day(self) -> dict[Rung, int]:
        """The budgets by rung."""
        return {
            Rung.RESTART: self.restarts_per_day,
            Rung.REPUSH: self.pushes_per_day,
            Rung.RECONNECT: self.reconnects_per_day,
            Rung.REBOOT: self.reboots_per_day,
            Rung.POWER_CYCLE: self.power_cycles_per_day,
        }


@dataclass(frozen=True, slots=True)
class Around:
    """What a decision needs to know of the world around the phone, as it is now."""

    holder: str = ""  # who has the phone; "" nobody
    in_hands: bool = False  # whether that is a person, who may be at its shell although its server is not well
    no_power: str = "no power switch is configured"  # why its port's power cannot be cut; "" it can
    neighbours: str = ""  # leases on phones that would lose their power with it, for a sentence
    wired: bool = False  # it hangs on a known USB port
    elsewhere: str = ""  # why the fault is not this phone's (its hub, the host); "" nothing says so
    per_day: Mapping[Rung, int] = field(default_factory=dict)  # budgets that operators set; else the ladder's

    def budget(self, rung: Rung) -> int | None:
        """How often a phone may have this rung in 24 h; None: as often as needed."""
        return self.per_day.get(rung, STEPS[rung].per_day)


@dataclass(frozen=True, slots=True)
class Taken:
    """A rung under way."""

    rung: Rung
    ailment: Ailment
    cause: str  # one sentence
    began_s: float  # monotonic


@dataclass(frozen=True, slots=True)
class Ended:
    """A rung that is over."""

    taken: Taken
    outcome: Outcome
    detail: str  # what was found afterwards; "" when all was well
    took_s: float


@dataclass(frozen=True, slots=True)
class Climb:
    """Where one phone stands on the ladder."""

    since_s: float | None = None  # monotonic second at which it began to climb; None: it does not
    tried: tuple[tuple[Rung, Ailment], ...] = ()  # in this climb
    spent: tuple[tuple[Rung, float], ...] = ()  # rungs with a budget and when they were taken, of the last day
    wrong: tuple[float, ...] = ()  # when rungs were taken for wrong numbers, of the last day
    found: tuple[tuple[Ailment, float], ...] = ()  # what probes found, and when it was last acted on
    under_way: Taken | None = None
    last: Ended | None = None
    skipped: tuple[str, ...] = ()  # why rungs that might have helped were not taken this time

    @property
    def sent_away(self) -> bool:
        """Whether the phone was made to leave, and is expected back."""
        return self.under_way is not None and self.under_way.rung in RETURN_S

    def times(self, rung: Rung, ailment: Ailment) -> int:
        """How often a rung was tried in this climb: mild ones for this ailment, others for whatever it was."""
        if STEPS[rung].radius is Radius.SESSION:
            return self.tried.count((rung, ailment))
        return sum(tried is rung for tried, _ in self.tried)

    def spent_on(self, rung: Rung, now_s: float) -> int:
        """How many of the last 24 hours' budget are gone."""
        return sum(spent is rung and at > now_s - DAY_S for spent, at in self.spent)

    def was_wrong(self, now_s: float) -> bool:
        """Whether its numbers were wrong in the last 24 hours, and right since."""
        mending = any(ailment is Ailment.WRONG for _, ailment in self.tried)
        return not mending and any(at > now_s - DAY_S for at in self.wrong)

    def notice(self, ailment: Ailment, now_s: float) -> Climb:
        """A probe found this, and it is acted on."""
        others = tuple(each for each in self.found if each[0] is not ailment)
        return replace(self, found=(*others, (ailment, now_s)))

    def begin(self, rung: Rung, ailment: Ailment, cause: str, now_s: float, *, free: bool = False) -> Climb:
        """Take a rung; `free`: it is not counted (a person ordered it)."""
        recent = tuple((spent, at) for spent, at in self.spent if at > now_s - DAY_S)
        counted = not free and STEPS[rung].per_day is not None
        wrong = tuple(at for at in self.wrong if at > now_s - DAY_S)
        return replace(
            self,
            since_s=now_s if self.since_s is None else self.since_s,
            tried=(*self.tried, (rung, ailment)) if STEPS[rung].mends.get(ailment, 0) < ANY_NUMBER else self.tried,
            spent=(*recent, (rung, now_s)) if counted else recent,
            wrong=(*wrong, now_s) if ailment is Ailment.WRONG else wrong,
            under_way=Taken(rung, ailment, cause, now_s),
        )

    def end(self, outcome: Outcome, detail: str, now_s: float) -> Climb:
        """The rung under way, if any, is over."""
        if self.under_way is None:
            return self
        ended = Ended(self.under_way, outcome, detail, max(0.0, now_s - self.under_way.began_s))
        return replace(self, under_way=None, last=ended)

    def settled(self, now_s: float = math.inf, *, but: Ailment | None = None) -> Climb:
        """The phone was well for long enough, or a person took care: the next trouble begins at the lowest rung.

        What was tried for the ailment `but`, or for one that a probe found in the `FOUND_STABLE_S` before `now_s`,
        still counts. Budgets stay spent.
        """
        found = tuple(each for each in self.found if each[1] > now_s - FOUND_STABLE_S)
        kept = {but, *(ailment for ailment, _ in found)}
        tried = tuple(each for each in self.tried if each[1] in kept)
        return replace(self, since_s=None, tried=tried, found=found, skipped=())


def return_s(rung: Rung, around: Around) -> float:
    """How long the phone's return is waited for after a rung of `RETURN_S`, in seconds."""
    return WIRED_RECONNECT_S if rung is Rung.RECONNECT and around.wired else RETURN_S.get(rung, 0.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do next. Without a rung nothing can be done now; `waits` says for what, if for something."""

    rung: Rung | None
    skipped: tuple[str, ...] = ()
    waits: str = ""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a phone is kept away from users; survives its unplugging and the daemon's end."""

    reason: str
    hint: str = ""
    ailment: Ailment = Ailment.ORDER
    rule: ReleaseRule = ReleaseRule.PERSON
    evidence: str = ""  # the last steps of its life before


def next_rung(climb: Climb, ailment: Ailment, now_s: float, around: Around, *, proven: bool = True) -> Choice:
    """The lowest rung that can mend `ailment` and is not used up.

    Args:
        climb: where the phone stands.
        ailment: what is wrong.
        now_s: monotonic seconds.
        around: the world around it.
        proven: whether its bundle ever worked on this phone. One that never did is suspected before the phone.
    """
    if ailment is Ailment.WRONG and climb.was_wrong(now_s):  # now and then is worse than always: nobody notices
        return Choice(Rung.QUARANTINE, ("for the second time in 24 h",))
    skipped: list[str] = []
    for step in LADDER:
        most = step.mends.get(ailment, 0)
        if climb.times(step.rung, ailment) >= most:
            continue
        if refused := _refusal(step, climb, ailment, now_s, around, proven):
            skipped.append(f"{step.rung}: {refused}")
            continue
        if waits := _waits(step, ailment, around):
            return Choice(None, tuple(skipped), f"{step.rung} waits: {waits}")
        return Choice(step.rung, tuple(skipped))
    return Choice(None, tuple(skipped))


def _refusal(step: Step, climb: Climb, ailment: Ailment, now_s: float, around: Around, proven: bool) -> str:
    """Why a rung is not for now; "" when it is."""
    budget = around.budget(step.rung)
    if budget is not None and climb.spent_on(step.rung, now_s) >= budget:
        return f"its {budget} in 24 h are used up"
    if step.rung is Rung.REBOOT and not proven and ailment in _FAULTS_OF_A_BUNDLE:
        return "its bundle has never worked on it, so the bundle is suspected first"
    if step.rung is Rung.POWER_CYCLE and around.no_power:
        return around.no_power
    if step.rung in (Rung.REBOOT, Rung.POWER_CYCLE) and around.elsewhere:
        return around.elsewhere
    return ""


def _waits(step: Step, ailment: Ailment, around: Around) -> str:
    """For whom a rung waits; "" for nobody."""
    if step.rung in (Rung.REBOOT, Rung.POWER_CYCLE) and around.in_hands and ailment in _STILL_OF_USE:
        return f"{around.holder} has the phone"
    if step.radius is Radius.HUB and around.neighbours:
        return f"it would hurt {around.neighbours}"
    return ""


def budgets_left(climb: Climb, now_s: float, around: Around) -> dict[Rung, int]:
    """What is left of each rung's budget."""
    left: dict[Rung, int] = {}
    for step in LADDER:
        budget = around.budget(step.rung)
        if budget is not None:
            left[step.rung] = max(0, budget - climb.spent_on(step.rung, now_s))
    return left
