"""Recovery actions as data: which one helps against which fault, its impact, its budget, the progress.

Pure: times are monotonic seconds and passed in. `recovery_steps` decides, the agent performs. An action is taken only
for a fault that it can help against: nothing here can spend a reboot on a network outage or an unplugged phone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from farm.model.health import DeviceFault, ReleaseRule

DAY_S = 24 * 3600.0
# What a probe found is over when it was not found for so long: probes come every 10 s, and a driver that faults once in
# some minutes is not repaired by a fresh server each time.
FOUND_STABLE_S = 600.0
ANY_NUMBER = 10**9  # in a row: what users do to a phone says nothing about the phone


class RecoveryAction(StrEnum):
    """The recovery actions, the mildest first."""

    REAP = "reap"
    RESTART = "restart-server"
    REPUSH = "re-push"
    RECONNECT = "reconnect"
    REBOOT = "reboot"
    POWER_CYCLE = "power-cycle"
    QUARANTINE = "quarantine"


class Impact(StrEnum):
    """The work that an action affects, besides the faulty phone's own."""

    SESSION = "session"  # what runs in the phone's RPC sessions
    DEVICE = "device"  # everything on the phone, its holder's shell too
    HUB = "hub"  # possibly every phone on the same USB hub


RELEASED_WHEN: Mapping[DeviceFault, ReleaseRule] = MappingProxyType(
    {DeviceFault.BUNDLE: ReleaseRule.BUNDLES, DeviceFault.HOT: ReleaseRule.WELL, DeviceFault.STORAGE: ReleaseRule.WELL}
)  # every other fault: PERSON


class ActionOutcome(StrEnum):
    """How an action ended."""

    REPAIRED = "repaired"  # the phone was ready (after quarantine or an order: at rest) again
    FAILED = "failed"  # the same or something else was wrong afterwards
    CUT = "cut"  # a person, or the link, came in between


@dataclass(frozen=True, slots=True)
class ActionRule:
    """One recovery action: its impact, its budget, the faults it repairs."""

    action: RecoveryAction
    what: str  # what is done, for a person
    impact: Impact
    per_day: int | None  # for one phone in any 24 h; None: as often as needed
    helps: Mapping[DeviceFault, int]  # fault -> tries in a row before the next action


ACTION_RULES: tuple[ActionRule, ...] = (
    ActionRule(
        RecoveryAction.REAP,
        "kill what sessions left (SIGKILL by process group, verified)",
        Impact.SESSION,
        None,  # users' kernels hang as often as they like: a tuning has thousands of bad candidates
        {DeviceFault.SESSION: ANY_NUMBER},
    ),
    ActionRule(
        RecoveryAction.RESTART,
        "start a fresh RPC server",
        Impact.SESSION,
        300,  # one in 5 minutes all day: more is no accident of a user's any more
        {DeviceFault.SERVER: 3, DeviceFault.CHECK: 1, DeviceFault.WRONG: 1, DeviceFault.GPU: 1},
    ),
    ActionRule(
        RecoveryAction.REPUSH,
        "compare the runtime with the bundle by hash and push what differs",
        Impact.SESSION,
        50,  # hashing reads 100 MB of flash: cheap, but no cure that is needed every half hour
        {DeviceFault.SERVER: 1, DeviceFault.START: 3, DeviceFault.CHECK: 2, DeviceFault.WRONG: 1},
    ),
    ActionRule(
        RecoveryAction.RECONNECT,
        "have adb drop its transport and make a new one",
        Impact.DEVICE,
        50,  # a bad cable asks for it all day; what it costs is a second
        {DeviceFault.MUTE: 2, DeviceFault.OFFLINE: 2, DeviceFault.UNAUTHORIZED: 1},
    ),
    ActionRule(
        RecoveryAction.REBOOT,
        "reboot",
        Impact.DEVICE,
        3,  # each costs a minute or two and a little flash; a phone that needs more needs a person
        {DeviceFault.STUCK: 1, DeviceFault.GPU: 1, DeviceFault.SERVER: 1, DeviceFault.START: 1, DeviceFault.CHECK: 1},
    ),
    ActionRule(
        RecoveryAction.POWER_CYCLE,
        "cut the power of its USB port for a moment",
        Impact.HUB,
        3,
        {DeviceFault.MUTE: 1, DeviceFault.OFFLINE: 1},
    ),
    ActionRule(
        RecoveryAction.QUARANTINE,
        "quarantined until an operator checks it",
        Impact.DEVICE,
        None,
        dict.fromkeys(
            (
                DeviceFault.SERVER, DeviceFault.START, DeviceFault.CHECK, DeviceFault.WRONG, DeviceFault.STUCK,
                DeviceFault.GPU, DeviceFault.STORAGE, DeviceFault.HOT, DeviceFault.BATTERY, DeviceFault.BUNDLE,
                DeviceFault.BUG,
            ),
            1,
        ),
    ),
)  # fmt: skip
RULE_OF: Mapping[RecoveryAction, ActionRule] = MappingProxyType({rule.action: rule for rule in ACTION_RULES})
# Actions after which the phone leaves adb's list or comes back on it: its return is waited for this long.
RETURN_S: Mapping[RecoveryAction, float] = MappingProxyType(
    {
        RecoveryAction.RECONNECT: 15.0,  # over the network: 3-10 s between adb's attempts
        RecoveryAction.REBOOT: 300.0,  # 30-90 s on most phones; the first boot after an update takes more
        RecoveryAction.POWER_CYCLE: 60.0,  # enumeration takes seconds; a phone that ran empty boots first
    }
)
# Over USB adb opens the transport again within a second, and a phone that works answers at once.
WIRED_RECONNECT_S = 5.0
# With these faults the holder may still work with the phone; with all other faults its server is dead or unreachable.
_STILL_OF_USE = frozenset({DeviceFault.STUCK, DeviceFault.GPU})
_FAULTS_OF_A_BUNDLE = frozenset({DeviceFault.SERVER, DeviceFault.START, DeviceFault.CHECK})


PerDay = Annotated[int, Field(ge=0)]
AwayLimit = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """`[recovery]`: how often one phone may have each action in any 24 hours; 0: never."""

    restarts_per_day: PerDay = RULE_OF[RecoveryAction.RESTART].per_day or 0  # of its RPC server
    # its runtime compared by hash, and pushed where it differs
    pushes_per_day: PerDay = RULE_OF[RecoveryAction.REPUSH].per_day or 0
    # a second each; a bad cable asks for it all day
    reconnects_per_day: PerDay = RULE_OF[RecoveryAction.RECONNECT].per_day or 0
    reboots_per_day: PerDay = RULE_OF[RecoveryAction.REBOOT].per_day or 0  # a minute or two each
    power_cycles_per_day: PerDay = RULE_OF[RecoveryAction.POWER_CYCLE].per_day or 0  # of its USB port
    away_s: AwayLimit = 900.0  # how long a phone may be away before the alert FarmDeviceAway
    pool_away_s: Mapping[str, AwayLimit] = field(default_factory=dict)  # pool -> the same for its phones

    def per_day(self) -> dict[RecoveryAction, int]:
        """The budgets by action."""
        return {
            RecoveryAction.RESTART: self.restarts_per_day,
            RecoveryAction.REPUSH: self.pushes_per_day,
            RecoveryAction.RECONNECT: self.reconnects_per_day,
            RecoveryAction.REBOOT: self.reboots_per_day,
            RecoveryAction.POWER_CYCLE: self.power_cycles_per_day,
        }


@dataclass(frozen=True, slots=True)
class RecoveryContext:
    """The facts outside the phone that a decision needs, as they are now."""

    holder: str = ""  # the holder; "": not leased
    in_hands: bool = False  # whether that is a person, who may be at its shell although its server is not well
    no_power: str = "no power switch is configured"  # why its port's power cannot be cut; "" it can
    neighbours: str = ""  # leases on phones that would lose their power with it, for a sentence
    wired: bool = False  # it hangs on a known USB port
    external_cause: str = ""  # the failure of its hub or the host that explains the fault; "": none is known
    per_day: Mapping[RecoveryAction, int] = field(default_factory=dict)  # budgets that operators set; else the rules'
    fallback: str = ""  # hash of its last proven bundle, where it has or gets another one; "" none
    on_trial: bool = False  # that other one is a candidate, not proven before it is current

    def budget(self, action: RecoveryAction) -> int | None:
        """How often a phone may have this action in 24 h; None: as often as needed."""
        return self.per_day.get(action, RULE_OF[action].per_day)


@dataclass(frozen=True, slots=True)
class ActionUnderWay:
    """An action under way."""

    action: RecoveryAction
    fault: DeviceFault
    cause: str  # one sentence
    began_s: float  # monotonic


@dataclass(frozen=True, slots=True)
class EndedAction:
    """An action that is over."""

    taken: ActionUnderWay
    outcome: ActionOutcome
    detail: str  # what was found afterwards; "" when all was well
    took_s: float


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    """The recovery actions of one phone so far."""

    since_s: float | None = None  # monotonic second at which recovery began; None: nothing is wrong
    tried: tuple[tuple[RecoveryAction, DeviceFault], ...] = ()  # since then
    # actions with a budget and when they were taken, of the last day
    spent: tuple[tuple[RecoveryAction, float], ...] = ()
    wrong: tuple[float, ...] = ()  # when actions were taken for wrong numbers, of the last day
    found: tuple[tuple[DeviceFault, float], ...] = ()  # what probes found, and when it was last acted on
    under_way: ActionUnderWay | None = None
    last: EndedAction | None = None
    skipped: tuple[str, ...] = ()  # why actions that might have helped were not taken this time

    @property
    def sent_away(self) -> bool:
        """Whether the phone was made to leave, and is expected back."""
        return self.under_way is not None and self.under_way.action in RETURN_S

    def times(self, action: RecoveryAction, fault: DeviceFault) -> int:
        """How often an action was tried since recovery began: mild actions for this fault, all others for any fault."""
        if RULE_OF[action].impact is Impact.SESSION:
            return self.tried.count((action, fault))
        return sum(tried is action for tried, _ in self.tried)

    def spent_on(self, action: RecoveryAction, now_s: float) -> int:
        """How many of the last 24 hours' budget are gone."""
        return sum(spent is action and at > now_s - DAY_S for spent, at in self.spent)

    def was_wrong(self, now_s: float) -> bool:
        """Whether its numbers were wrong in the last 24 hours, and right since."""
        repairing = any(fault is DeviceFault.WRONG for _, fault in self.tried)
        return not repairing and any(at > now_s - DAY_S for at in self.wrong)

    def notice(self, fault: DeviceFault, now_s: float) -> RecoveryProgress:
        """A probe found this, and it is acted on."""
        others = tuple(each for each in self.found if each[0] is not fault)
        return replace(self, found=(*others, (fault, now_s)))

    def begin(
        self, action: RecoveryAction, fault: DeviceFault, cause: str, now_s: float, *, free: bool = False
    ) -> RecoveryProgress:
        """Take an action; `free`: it is not counted (a person ordered it)."""
        recent = tuple((spent, at) for spent, at in self.spent if at > now_s - DAY_S)
        counted = not free and RULE_OF[action].per_day is not None
        wrong = tuple(at for at in self.wrong if at > now_s - DAY_S)
        return replace(
            self,
            since_s=now_s if self.since_s is None else self.since_s,
            tried=(*self.tried, (action, fault)) if RULE_OF[action].helps.get(fault, 0) < ANY_NUMBER else self.tried,
            spent=(*recent, (action, now_s)) if counted else recent,
            wrong=(*wrong, now_s) if fault is DeviceFault.WRONG else wrong,
            under_way=ActionUnderWay(action, fault, cause, now_s),
        )

    def end(self, outcome: ActionOutcome, detail: str, now_s: float) -> RecoveryProgress:
        """The action under way, if any, is over."""
        if self.under_way is None:
            return self
        ended = EndedAction(self.under_way, outcome, detail, max(0.0, now_s - self.under_way.began_s))
        return replace(self, under_way=None, last=ended)

    def settled(self, now_s: float = math.inf, *, but: DeviceFault | None = None) -> RecoveryProgress:
        """The phone was well for long enough, or a person took care: the next trouble begins at the lowest action.

        What was tried for the fault `but`, or for one that a probe found in the `FOUND_STABLE_S` before `now_s`,
        still counts. Budgets stay spent.
        """
        found = tuple(each for each in self.found if each[1] > now_s - FOUND_STABLE_S)
        kept = {but, *(fault for fault, _ in found)}
        tried = tuple(each for each in self.tried if each[1] in kept)
        return replace(self, since_s=None, tried=tried, found=found, skipped=())


def return_s(action: RecoveryAction, context: RecoveryContext) -> float:
    """How long the phone's return is waited for after an action of `RETURN_S`, in seconds."""
    return WIRED_RECONNECT_S if action is RecoveryAction.RECONNECT and context.wired else RETURN_S.get(action, 0.0)


@dataclass(frozen=True, slots=True)
class NextAction:
    """The next action. Without one nothing can be done now; `waits` is the reason to wait, if there is one."""

    action: RecoveryAction | None
    skipped: tuple[str, ...] = ()
    waits: str = ""


def next_action(
    progress: RecoveryProgress, fault: DeviceFault, now_s: float, context: RecoveryContext, *, proven: bool = True
) -> NextAction:
    """The lowest action that can repair `fault` and is not used up.

    Args:
        progress: where the phone stands.
        fault: what is wrong.
        now_s: monotonic seconds.
        context: the rest of the farm.
        proven: whether its bundle ever worked on this phone. An unproven bundle is suspected before the phone.
    """
    if context.external_cause:
        return NextAction(None, (), context.external_cause)
    if fault is DeviceFault.WRONG and progress.was_wrong(now_s):  # now and then is worse than always: it goes unnoticed
        return NextAction(RecoveryAction.QUARANTINE, ("for the second time in 24 h",))
    skipped: list[str] = []
    for rule in ACTION_RULES:
        most = rule.helps.get(fault, 0)
        if progress.times(rule.action, fault) >= most:
            continue
        if refused := _refusal(rule, progress, fault, now_s, context, proven):
            skipped.append(f"{rule.action}: {refused}")
            continue
        if waits := _waits(rule, fault, context):
            return NextAction(None, tuple(skipped), f"{rule.action} waits: {waits}")
        return NextAction(rule.action, tuple(skipped))
    return NextAction(None, tuple(skipped))


def _refusal(
    rule: ActionRule,
    progress: RecoveryProgress,
    fault: DeviceFault,
    now_s: float,
    context: RecoveryContext,
    proven: bool,
) -> str:
    """Why an action is not taken now; "" when it may be."""
    budget = context.budget(rule.action)
    if budget is not None and progress.spent_on(rule.action, now_s) >= budget:
        return f"its {budget} in 24 h are used up"
    if rule.action is RecoveryAction.REBOOT and not proven and fault in _FAULTS_OF_A_BUNDLE:
        return "its bundle has never worked on it, so the bundle is suspected first"
    if rule.action is RecoveryAction.POWER_CYCLE and context.no_power:
        return context.no_power
    return ""


def _waits(rule: ActionRule, fault: DeviceFault, context: RecoveryContext) -> str:
    """The reason why an action waits; "": it does not."""
    if (
        rule.action in (RecoveryAction.REBOOT, RecoveryAction.POWER_CYCLE)
        and context.in_hands
        and fault in _STILL_OF_USE
    ):
        return f"{context.holder} has the phone"
    if rule.impact is Impact.HUB and context.neighbours:
        return f"it would hurt {context.neighbours}"
    return ""


def budgets_left(progress: RecoveryProgress, now_s: float, context: RecoveryContext) -> dict[RecoveryAction, int]:
    """The unused part of each action's budget."""
    left: dict[RecoveryAction, int] = {}
    for rule in ACTION_RULES:
        budget = context.budget(rule.action)
        if budget is not None:
            left[rule.action] = max(0, budget - progress.spent_on(rule.action, now_s))
    return left
