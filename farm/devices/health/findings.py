"""Findings of probes: published once, shown while they hold, reported to recovery."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from farm.common.events import EventLog
from farm.devices.agent import Agent
from farm.devices.health.health_rules import (
    FindingHistory,
    HealthConfig,
    Situation,
    advance,
    findings,
    has_evidence,
    kinds_of,
)
from farm.devices.lifecycle import messages as m
from farm.model.device import Life
from farm.model.health import DeviceFault, Finding, Health, ReleaseRule

More = Callable[[Agent, Health], Iterable[Finding]]

_FOR_A_PERSON = frozenset({DeviceFault.BATTERY})  # a probe finds it again until the battery is replaced


@dataclass(slots=True)
class _FindingsState:
    account: FindingHistory = field(default_factory=FindingHistory)
    health: Health | None = None
    at_s: float = -1.0  # when `health` was read, monotonic
    follow: int = 0  # number of the server that ran then
    held: bool = False
    used: bool = False  # a probe saw it leased since its last check
    ready_at: float | None = None  # of the check since which GPU faults count
    acknowledged_gpu_faults: Collection[str] | None = None
    accepted: frozenset[str] = frozenset()  # findings, by their cause, that a person knew of and released it


class Findings:
    """One per fleet. Used from the event loop's thread."""

    def __init__(self, config: HealthConfig, events: EventLog, more: More = lambda *_: ()) -> None:
        """`more`: further findings of a probe (farm.devices.battery_control)."""
        self._config = config
        self._events = events
        self._more = more
        self._devices: WeakKeyDictionary[Agent, _FindingsState] = WeakKeyDictionary()

    def use(self, config: HealthConfig) -> None:
        """Judge by this from the next probe on."""
        self._config = config

    @property
    def battery_hot_c(self) -> float:
        """Above so many degrees a battery is too hot, and its phone is taken out of use."""
        return self._config.battery_hot_c

    def take(self, agent: Agent, *, held: bool, in_hands: bool) -> tuple[m.FaultFound | m.FaultCleared, ...]:
        """Look at the agent's latest probe; sets `agent.findings`, and returns the faults found and cleared.

        Args:
            agent: the device.
            held: whether a lease has it now.
            in_hands: whether that is a person, who may run what they like on it.
        """
        known, now = self._devices.setdefault(agent, _FindingsState()), agent.health
        if now is None or agent.health_at <= known.at_s:
            return ()
        situation = self._situation(agent, now, known, held=held, in_hands=in_hands)
        same = known.follow == agent.state.follow != 0
        found = [
            *findings(now, known.health if same else None, self._config, situation),
            *self._more(agent, now),
        ]
        ignored = self._config.ignored(agent.identity.model if agent.identity else "")
        counted = [each for each in found if each.kind not in ignored]
        done = known.account = advance(
            known.account, [replace(each, fault=None) if each.cause in known.accepted else each for each in counted]
        )
        known.accepted &= {each.cause for each in done.held.values()}
        known.health, known.at_s = now, agent.health_at
        known.follow, known.held = agent.state.follow, held
        agent.findings = tuple(done.held[kind] for kind in sorted(done.held))
        used = known.used or agent.used_at > agent.state.ready_at
        for each in done.news:
            self._publish("device.finding", agent, each)
        for each in done.over:
            self._publish("device.finding_over", agent, each)
        ailing = (
            m.FaultFound(each.fault, "; ".join(filter(None, (each.cause, each.evidence))), each.hint, used)
            for each in done.fresh
            if each.fault is not None
        )
        return (*self._well(agent, now, done), *ailing)

    def released(self, agent: Agent) -> None:
        """A person put it back into service: findings that only a person judges do not count until they change."""
        known = self._devices.get(agent)
        if known is not None:
            known.accepted |= {
                each.cause for each in agent.findings if each.fault is not None and each.fault in _FOR_A_PERSON
            }

    def _situation(self, agent: Agent, now: Health, known: _FindingsState, *, held: bool, in_hands: bool) -> Situation:
        ready, kept = agent.state.life is Life.READY, agent.state.quarantine
        if ready and known.ready_at != agent.state.ready_at:
            # Faults that the probe before saw were followed by a check. Those since are unchecked: better one check
            # too many. What was in the log when farm first looked is none of its business.
            known.acknowledged_gpu_faults = (known.health or now).gpu_faults
            known.ready_at = agent.state.ready_at
            known.used = False
        known.used |= held
        return Situation(
            ready=ready,
            held=held or known.held,
            in_hands=in_hands,
            adb=agent.adb,
            acknowledged_gpu_faults=known.acknowledged_gpu_faults if ready else None,
            known=known.account.known | (kinds_of(kept.fault) if kept else frozenset()),
        )

    def _well(self, agent: Agent, now: Health, account: FindingHistory) -> Iterable[m.FaultCleared]:
        """A quarantine that ends by itself: its fault is found no more, not even by a probe that awaits another."""
        kept = agent.state.quarantine
        if kept is None or kept.rule is not ReleaseRule.WELL or not has_evidence(now, kept.fault):
            return
        if kept.fault not in account.faults | {each.fault for each in account.first.values()}:
            yield m.FaultCleared(kept.fault)

    def _publish(self, kind: str, agent: Agent, finding: Finding) -> None:
        self._events.publish(
            kind,
            agent.name,
            finding=finding.kind.value,
            act=finding.act,
            cause=finding.cause,
            evidence=finding.evidence,
            hint=finding.hint,
        )
