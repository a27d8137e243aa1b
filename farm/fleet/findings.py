"""What probes find wrong with each device: told once, shown while it holds, and given to recovery where it can help."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from farm.core import lifecycle_messages as m
from farm.core.device import Life
from farm.core.events import EventLog
from farm.core.health import Health
from farm.core.health_account import Account, advance
from farm.core.health_rules import Finding, HealthConfig, Situation, findings, kinds_of, tells
from farm.core.recovery import Ailment, ReleaseRule
from farm.fleet.agent import Agent

More = Callable[[Agent, Health], Iterable[Finding]]

_FOR_A_PERSON = frozenset({Ailment.BATTERY})  # a probe finds it again for as long as nobody changes the battery


@dataclass(slots=True)
class _Device:
    account: Account = field(default_factory=Account)
    health: Health | None = None
    at_s: float = -1.0  # when `health` was read, monotonic
    follow: int = 0  # number of the server that ran then
    held: bool = False
    used: bool = False  # a probe saw that somebody had it since its last check
    ready_at: float | None = None  # of the check since which GPU faults count
    dealt: Collection[str] | None = None
    accepted: frozenset[str] = frozenset()  # findings, by their sentence, that a person knew of and released it


class Findings:
    """One per fleet. Used from the event loop's thread."""

    def __init__(self, config: HealthConfig, events: EventLog, more: More = lambda *_: ()) -> None:
        """`more`: what else a probe finds (farm.fleet.battery_care)."""
        self._config = config
        self._events = events
        self._more = more
        self._devices: WeakKeyDictionary[Agent, _Device] = WeakKeyDictionary()

    def use(self, config: HealthConfig) -> None:
        """Judge by this from the next probe on."""
        self._config = config

    def take(self, agent: Agent, *, held: bool, in_hands: bool) -> tuple[m.Ailing | m.Well, ...]:
        """Look at the agent's latest probe; sets `agent.findings`, and returns what to tell the agent.

        Args:
            agent: the device.
            held: whether a lease has it now.
            in_hands: whether that is a person, who may run what they like on it.
        """
        known, now = self._devices.setdefault(agent, _Device()), agent.health
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
        done = advance(
            known.account, [replace(each, ailment=None) if each.what in known.accepted else each for each in counted]
        )
        known.accepted &= {each.what for each in done.account.held.values()}
        known.account, known.health, known.at_s = done.account, now, agent.health_at
        known.follow, known.held = agent.state.follow, held
        agent.findings = tuple(done.account.held[kind] for kind in sorted(done.account.held))
        used = known.used or agent.used_at > agent.state.ready_at
        for each in done.news:
            self._tell("device.finding", agent, each)
        for each in done.over:
            self._tell("device.finding_over", agent, each)
        return (*self._well(agent, now, done.account), *_ailing(done.fresh, used=used))

    def released(self, agent: Agent) -> None:
        """A person put it back into service: what only a person judges is not held against it until it changes."""
        known = self._devices.get(agent)
        if known is not None:
            known.accepted |= {
                each.what for each in agent.findings if each.ailment is not None and each.ailment in _FOR_A_PERSON
            }

    def _situation(self, agent: Agent, now: Health, known: _Device, *, held: bool, in_hands: bool) -> Situation:
        ready, kept = agent.state.life is Life.READY, agent.state.quarantine
        if ready and known.ready_at != agent.state.ready_at:
            # Faults that the probe before saw were followed by a check. Of those since, nobody knows: better one check
            # too many. What was in the log when farm first looked is none of its business.
            known.dealt = (known.health or now).gpu_faults
            known.ready_at = agent.state.ready_at
            known.used = False
        known.used |= held
        return Situation(
            ready=ready,
            held=held or known.held,
            in_hands=in_hands,
            dealt=known.dealt if ready else None,
            known=known.account.known | (kinds_of(kept.ailment) if kept else frozenset()),
        )

    def _well(self, agent: Agent, now: Health, account: Account) -> Iterable[m.Well]:
        """A quarantine that ends by itself: its ailment is found no more, not even by a probe that awaits another."""
        kept = agent.state.quarantine
        if kept is None or kept.rule is not ReleaseRule.WELL or not tells(now, kept.ailment):
            return
        if kept.ailment not in account.ailments | {each.ailment for each in account.first.values()}:
            yield m.Well(kept.ailment)

    def _tell(self, kind: str, agent: Agent, finding: Finding) -> None:
        self._events.publish(
            kind, agent.name, finding=finding.kind.value, what=finding.what, hint=finding.hint, act=finding.act
        )


def _ailing(fresh: Iterable[Finding], *, used: bool) -> Iterable[m.Ailing]:
    return (m.Ailing(each.ailment, each.what, each.hint, used) for each in fresh if each.ailment is not None)
