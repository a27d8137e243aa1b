"""Carries out the rolling upgrade of runtime bundles that `farm.bundle.rollout_rules` decides.

One `Rollouts` per fleet, used from the event loop's thread. Agents ask it for their bundle at each provisioning
(`bundle_for`) and report a bundle that failed (`trial_failed`). `run` takes the next step when something changed and
once a second. What is decided is kept in the store: the next daemon continues with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from farm.bundle import rollout_rules as rules
from farm.bundle.model import Bundle
from farm.bundle.rollout_rules import Rollout, RolloutConfig, RolloutPhone, Trial, TrialState
from farm.common.errors import FarmError
from farm.common.events import EventLog
from farm.common.files import short_hash
from farm.common.tasks import at_most
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.state import LINK_DOWN
from farm.model.device import Life
from farm.store.devices import RolloutTable
from farm.store.writer import StoreWriteError

if TYPE_CHECKING:
    from farm.devices.agent import Agent
    from farm.devices.fleet import Fleet

STEP_EVERY_S = 1.0
# a phone that has been away for longer is not waited for: it gets the current bundle when it is back
AWAY = timedelta(minutes=10)
_OUT = frozenset({Life.NEW, Life.QUARANTINED})
_ROLLOUT = TypeAdapter(Rollout)
RolloutGroup = tuple[str, str]  # ABI, platform

log = logging.getLogger(__name__)


class Rollouts:
    """The rolling upgrades of all ABIs and platforms."""

    def __init__(
        self,
        wanted: Callable[[str, str], Bundle | None],
        stored: Callable[[], Sequence[Bundle]],
        table: RolloutTable,
        events: EventLog,
        config: RolloutConfig,
    ) -> None:
        """Read where each rollout stands.

        Args:
            wanted: the bundle that is named for an ABI and platform; called in a thread.
            stored: every bundle of the library; called in a thread.
            table: where decisions are kept.
            events: gets `bundle.*`.
            config: of `[rollout]`.

        Raises:
            HostError: the database cannot be read.
        """
        self._wanted = wanted
        self._stored = stored
        self._table = table
        self._events = events
        self._config = config
        self._fleet: Fleet  # see `follow`
        self._bundles: Mapping[str, Bundle] = {}  # the library as read last, by hash
        self._groups: dict[RolloutGroup, Rollout] = {}
        self._unsaved: set[RolloutGroup] = set()
        self._waiting: dict[str, str] = {}  # busy phones that get no other lease: bundle (its hash) by serial
        self._changed = asyncio.Event()
        self._deciding = asyncio.Lock()  # a step, or an operator's order, until it is stored
        for group, fields in table.all().items():
            try:
                self._groups[group] = _ROLLOUT.validate_python(fields)
            except (ValidationError, RecursionError) as error:
                log.warning("the rollout for %s (%s) begins again, its row is damaged: %s", *group, error)

    def follow(self, fleet: Fleet) -> None:
        """Its phones are those that get the bundles."""
        self._fleet = fleet

    def use(self, config: RolloutConfig) -> None:
        """Roll out by it from now on."""
        self._config = config

    # -- for agents --

    async def bundle_for(self, agent: Agent) -> Bundle | None:
        """The bundle that an identified phone gets now; None: there is none for it.

        Raises:
            NoSuchBundleError: a toolchain names a bundle that the library does not have.
        """
        abi, platform = agent.runs()
        wanted, stored = await asyncio.to_thread(lambda: (self._wanted(abi, platform), self._stored()))
        self._on_library_read((abi, platform), wanted, stored)
        proven = agent.state.proven if self._is_usable((abi, platform), agent.state.proven) else ""
        return self._bundles.get(rules.assigned(self._groups[abi, platform], agent.serial, proven))

    def fallback(self, agent: Agent) -> str:
        """The bundle (a hash) that it gets back if its present or next bundle fails; "" if it has no other bundle.

        That is its last proven one; for a candidate, where that cannot be had any more, the current one.
        """
        group = self._group_of(agent)
        if group is None or not agent.assigned or agent.state.bundle_override:
            return ""
        proven = agent.state.proven if self._is_usable(group, agent.state.proven) else ""
        for back in (proven, self._groups[group].current if self.is_on_trial(agent) else ""):
            if back not in ("", agent.assigned):
                return back
        return ""

    def is_on_trial(self, agent: Agent) -> bool:
        """Whether the bundle that it has or gets is a candidate."""
        group = self._group_of(agent)
        return group is not None and agent.assigned != "" and agent.assigned == self._groups[group].candidate

    def trial_failed(self, agent: Agent, reason: str, *, at_fault: bool) -> None:
        """A bundle that was new to the phone failed there; `at_fault`: the bundle itself is, as far as is known."""
        group = self._group_of(agent)
        if group is not None:
            now_s = time.time()
            failed = rules.trial_failed(
                self._groups[group], agent.serial, agent.assigned, reason, at_fault=at_fault, now_s=now_s
            )
            self._put(group, failed)

    def released(self, agent: Agent) -> None:
        """An operator put the phone back into service: see `rules.released`."""
        group = self._group_of(agent)
        if group is not None:
            self._put(group, rules.released(self._groups[group], agent.serial))

    # -- for operators --

    async def refresh(self, added: str = "") -> None:
        """Read the library again, and store the new state. `added`: a bundle that was just added."""
        stored = await asyncio.to_thread(self._stored)
        for group in sorted({*self._groups, *((each.abi, each.platform) for each in stored if not each.damage)}):
            try:
                wanted = await asyncio.to_thread(self._wanted, *group)
            except FarmError as error:  # a toolchain names a bundle that is not there
                log.warning("no bundle for %s (%s): %s", *group, error)
                continue
            self._on_library_read(group, wanted, stored, added)
        await self._save()

    async def promote(self, bundle: Bundle) -> int:
        """Make a bundle current; returns how many phones will take it.

        Raises:
            UserError: it is current already.
            FarmError: as `_order`.
        """
        group = await self._order(bundle, lambda rollout: rules.promoted(rollout, bundle.hash))
        return sum(phone.counted and phone.bundle != bundle.hash for phone in self._phones(group))

    async def roll_back(self, bundle: Bundle, by: str) -> None:
        """Withdraw the candidate, or the current bundle in favour of the one before.

        Raises:
            UserError: it is neither, there is no bundle before, or that is refused.
            FarmError: as `_order`.
        """
        reason = f"rolled back by {by or 'an operator'}"
        await self._order(bundle, lambda rollout: rules.rolled_back(rollout, bundle.hash, reason))

    async def _order(self, bundle: Bundle, decide: Callable[[Rollout], Rollout]) -> RolloutGroup:
        """Store an operator's decision about a bundle, then act on it.

        Raises:
            NoSuchBundleError: a toolchain names a bundle that the library does not have.
            StoreWriteError: it cannot be stored, and nothing has changed.
        """
        await self.refresh()
        group = bundle.abi, bundle.platform
        if group not in self._groups:
            await asyncio.to_thread(self._wanted, *group)  # says why
        async with self._deciding:
            await self._store(group, decide(self._groups[group]))
            self._put(group, decide(self._groups[group]))  # a phone may have reported meanwhile
            await self._save()
        return group

    def state(self, bundle: Bundle) -> dict[str, Any]:
        """{state, reason, phones, of, trying}: how a bundle stands; `phones` of `of` have the candidate.

        `trying`: {device, since, waits} of each phone that tries it or is to try it next.
        """
        group = bundle.abi, bundle.platform
        rollout = self._groups.get(group, Rollout())
        facts: dict[str, Any] = {"state": "kept", "reason": "", "phones": 0, "of": 0, "trying": []}
        if bundle.damage:
            return {**facts, "state": "damaged", "reason": bundle.damage}
        if bundle.hash in rollout.refused:
            return {**facts, "state": "refused", "reason": rollout.refused[bundle.hash]}
        if bundle.hash == rollout.current:
            return {**facts, "state": "current"}
        if bundle.hash != rollout.candidate:
            return facts
        done, of = rules.progress(rollout, self._phones(group))
        failures = [trial.reason for trial in rollout.trials.values() if trial.reason]
        state = "rolling-out" if done else "candidate"
        trying = [
            row for agent in self._agents() if (row := self._trying(agent, rollout.trials.get(agent.serial), bundle))
        ]
        return {"state": state, "reason": failures[0] if failures else "", "phones": done, "of": of, "trying": trying}

    def _trying(self, agent: Agent, trial: Trial | None, bundle: Bundle) -> dict[str, str]:
        """A phone's row in `trying`; empty where it does not try the bundle."""
        since_s = 0.0
        if self._waiting.get(agent.serial) == bundle.hash:
            waits = "the end of its lease"
        elif trial is None or trial.bundle != bundle.hash:
            return {}
        elif trial.state is TrialState.TRYING:
            since_s, waits = trial.since_s, agent.state.reason or f"{self._config.soak_s:g} s without a failure"
        elif trial.state is TrialState.PUT_OFF:
            waits = f"another try at {datetime.fromtimestamp(trial.until_s).astimezone():%H:%M:%S}: {trial.reason}"
        else:
            return {}
        since = datetime.fromtimestamp(since_s, UTC).isoformat() if since_s else ""
        return {"device": agent.name, "since": since, "waits": waits}

    def states(self) -> dict[str, int]:
        """How many bundles are in each state, for metrics."""
        counts = dict.fromkeys(("candidate", "rolling-out", "current", "refused", "kept", "damaged"), 0)
        for bundle in self._bundles.values():
            counts[self.state(bundle)["state"]] += 1
        return counts

    def keeps(self, bundle: Bundle) -> str:
        """Why a bundle must stay although no phone has it now; "" it may go."""
        rollout = self._groups.get((bundle.abi, bundle.platform), Rollout())
        if rollout.candidate and bundle.hash == rollout.current:
            return f"phones go back to it if {self._name(rollout.candidate)} fails"
        return ""

    def explain(self, agent: Agent) -> tuple[str, ...]:
        """The reasons for the bundle that the phone has, a sentence each; nothing where it has the current one."""
        group = self._group_of(agent)
        if group is None:
            return ()
        rollout, lines = self._groups[group], []
        trial = rollout.trials.get(agent.serial)
        if rollout.candidate:
            done, of = rules.progress(rollout, self._phones(group))
            lines.append(f"bundle {self._name(rollout.candidate)} is rolling out: {done} of {of} phones have it")
        if trial is not None and trial.reason:
            lines.append(f"bundle {self._name(trial.bundle)} failed on it: {trial.reason}")
        elif trial is not None and trial.bundle == rollout.candidate:
            back = self._name(self.fallback(agent) or rollout.current)
            lines.append(f"it has {self._name(trial.bundle)} on trial, and gets {back} back if that fails")
        lines += (f"bundle {self._name(bundle)} is refused: {why}" for bundle, why in rollout.refused.items())
        return tuple(lines)

    # -- running --

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.refresh()
                break
            except OSError as error:
                log.warning("the bundle library is unreadable: %s", error)
                await asyncio.sleep(STEP_EVERY_S)
        while True:
            async with self._deciding:
                self.step()
                await self._save()
            async with at_most(STEP_EVERY_S):
                await self._changed.wait()
            self._changed.clear()

    def step(self) -> None:
        """Take the next step of each rollout."""
        self._waiting = {}
        for group, rollout in tuple(self._groups.items()):
            if not rollout.current:
                continue
            after, exchange, waiting = rules.advance(rollout, self._phones(group), self._config, time.time())
            self._put(group, after)
            agents = self._agents()
            if rollout.candidate and after.current == rollout.candidate:
                for agent in agents:
                    agent.on_event(m.BundleAccepted(after.current))
            for agent in agents:
                if agent.serial in exchange:
                    agent.on_event(m.PlainEvent.PROVISIONING_DUE)
            self._waiting |= waiting
        self._fleet.device_views.keep_from_leases(
            {serial: f"kept for the rollout of bundle {self._name(new)}" for serial, new in self._waiting.items()}
        )

    # -- below --

    def _on_library_read(
        self, group: RolloutGroup, wanted: Bundle | None, stored: Sequence[Bundle], added: str = ""
    ) -> None:
        """Take the library as it was read just now."""
        self._bundles = {bundle.hash: bundle for bundle in (*stored, *((wanted,) if wanted else ()))}
        own = {bundle.hash for bundle in self._bundles.values() if (bundle.abi, bundle.platform) == group}
        rollout = self._groups.get(group, Rollout())
        if added in own:
            rollout = rules.added(rollout, added)
        proven = [agent.state.proven for agent in self._agents() if agent.state.proven]
        damaged = {bundle.hash: bundle.damage for bundle in stored if bundle.damage}
        self._put(group, rules.named(rollout, wanted.hash if wanted else "", own, proven, damaged))

    def _put(self, group: RolloutGroup, after: Rollout) -> None:
        """Apply a new state at once, publish its changes, and store it as soon as the store can write."""
        before = self._groups.get(group, Rollout())
        if after == before and group in self._groups:
            return
        self._groups[group] = after
        self._unsaved.add(group)
        self._changed.set()
        names = {agent.serial: agent.name for agent in self._agents()}
        for kind, bundle, data in rules.news(before, after):
            if "serial" in data:
                data["device"] = names.get(data["serial"], data["serial"])
            self._events.publish(kind, self._name(bundle), hash=bundle, abi=group[0], platform=group[1], **data)

    async def _save(self) -> None:
        for group in tuple(self._unsaved):
            try:
                self._unsaved.discard(group)
                await self._store(group, self._groups[group])
            except StoreWriteError as error:
                self._unsaved.add(group)  # with the next step
                log.debug("where the rollout for %s (%s) stands is kept in memory only: %s", *group, error)

    async def _store(self, group: RolloutGroup, rollout: Rollout) -> None:
        await self._table.save(*group, _ROLLOUT.dump_python(rollout, mode="json"))

    def _agents(self) -> tuple[Agent, ...]:
        return tuple(self._fleet.agents.values())

    def _group_of(self, agent: Agent) -> RolloutGroup | None:
        """The group whose bundles a phone gets; of one not yet identified that of its last proven bundle."""
        if agent.identity is not None:
            group: RolloutGroup = agent.runs()
        elif (bundle := self._bundles.get(agent.state.proven)) is not None:
            group = bundle.abi, bundle.platform
        else:
            return None
        return group if group in self._groups else None

    def _is_usable(self, group: RolloutGroup, bundle: str) -> bool:
        found = self._bundles.get(bundle)
        return found is not None and (found.abi, found.platform) == group and bundle not in self._groups[group].refused

    def _phones(self, group: RolloutGroup) -> tuple[RolloutPhone, ...]:
        return tuple(self._phone(agent) for agent in self._agents() if self._group_of(agent) == group)

    def _phone(self, agent: Agent) -> RolloutPhone:
        state = agent.state
        ready = state.life is Life.READY and state.adopted
        reachable = state.adopted and state.life not in LINK_DOWN | _OUT
        away = state.adopted and state.life in LINK_DOWN and state.quarantine is None
        return RolloutPhone(
            agent.serial,
            agent.name,
            state.bundle,
            ready_s=max(0.0, time.monotonic() - state.ready_at) if ready else None,
            idle=ready and not self._fleet.recovery.holder(agent.name) and not state.bundle_override,
            with_person=self._fleet.in_hands(agent),
            reachable=reachable,
            golden_s=agent.golden_s,
            virtual=agent.identity is not None and agent.identity.virtual,
            counted=reachable or (away and datetime.now(UTC) - agent.since < AWAY),
        )

    def _name(self, bundle: str) -> str:
        found = self._bundles.get(bundle)
        return found.name or found.short_hash if found is not None else short_hash(bundle)
