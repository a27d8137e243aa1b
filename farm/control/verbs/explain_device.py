"""`explain device`: everything that decides whether a phone is handed out, as values and as sentences. No I/O."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from farm.common.causes import brief
from farm.common.durations import format_duration
from farm.control.verbs import json_of
from farm.devices.lifecycle.recovery import ActionOutcome, RecoveryAction, RecoveryContext, budgets_left
from farm.devices.lifecycle.state import LifecycleState
from farm.head.allocator.explain import FREE
from farm.model.device import DeviceView, Heat, Life, Service, state_word
from farm.model.health import DeviceFault, Finding, Health, Quarantine, ReleaseRule
from farm.model.requests import LeaseClass
from farm.store.devices import RecoveryRecord

# As devices.lifecycle writes a step: monotonic second, event, its values, life before and after, what was ordered.
_STEP = re.compile(r"(\d+\.\d+) (\w[\w ]*)(?:\((.*)\))? : (\S+) -> (\S+) \[.*\]", re.DOTALL)
_WORD = re.compile(r"[A-Z]?[a-z]+")
_REASON = re.compile(r"\breason=(.*?)(?:, \w+=|$)")  # among the `name=value` of an event
ACTIONS_SHOWN = 10  # of the last 24 hours; `--json` has all


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The known facts about one device now."""

    view: DeviceView
    state: LifecycleState
    context: RecoveryContext
    holder: str
    findings: Sequence[Finding]
    probed_s_ago: float | None
    beside: Sequence[str]  # others on its hub
    busy_beside: Mapping[str, str]  # of these: name -> who has it
    actions: Sequence[RecoveryRecord]  # of the last 24 hours, oldest first
    quarantined_at: datetime | None
    transitions: Sequence[str]
    now_s: float  # monotonic
    bundles: Sequence[str] = ()  # what decides which runtime bundle it gets, where that is not simply the current one
    ordered: str = ""  # the user who took it out of service, and when; "": it is in service, or it was not noted


def as_values(facts: DeviceFacts) -> dict[str, Any]:
    """For programs."""
    view, progress, kept = facts.view, facts.state.progress, facts.state.quarantine
    return {
        **json_of(view, "life", "service", "heat", "reason", "evidence", "hint"),
        **json_of(facts, "ordered", "holder", "beside", "transitions"),
        "classes": {each.value: _class_values(view, each) for each in LeaseClass},
        "recovery": {
            "since_s": None if progress.since_s is None else round(facts.now_s - progress.since_s, 1),
            "under_way": None if progress.under_way is None else progress.under_way.action.value,
            "skipped": list(progress.skipped),
            "left_today": {
                action.value: left for action, left in budgets_left(progress, facts.now_s, facts.context).items()
            },
            "last_day": [
                json_of(each, "action", "fault", "cause", "began_at", "took_s", "outcome", "detail")
                for each in facts.actions
            ],
        },
        "quarantine": None
        if kept is None
        else {
            **json_of(kept, "cause", "hint", "fault", "rule"),
            "at": None if facts.quarantined_at is None else facts.quarantined_at.isoformat(),
            "evidence": [step for step, _ in _steps(kept, facts.quarantined_at)],
        },
        "probe": {
            "age_s": None if facts.probed_s_ago is None else round(facts.probed_s_ago, 1),
            "findings": [json_of(each, "kind", "cause", "evidence", "hint") for each in facts.findings],
            "missing": [] if view.health is None else list(view.health.missing),
            "dropped": [] if view.health is None else [asdict(each) for each in view.health.dropped],
        },
        "bundle": {"hash": view.bundle, "reasons": list(facts.bundles)},
        "place": None if view.place is None else json_of(view.place, "hub", "port"),
    }


def as_lines(facts: DeviceFacts) -> list[str]:
    """For people."""
    parts = (facts.bundles, _recovery(facts), _probe(facts), _place(facts))
    return [*_state(facts), *_classes(facts.view), *(line for part in parts for line in part)]


def steps_before(facts: DeviceFacts) -> list[str]:
    """The last steps of the device's life before its quarantine, none without a quarantine."""
    kept = facts.state.quarantine
    shown = (facts.view.reason, *(brief(each.cause) for each in facts.actions))
    return [] if kept is None else [step for step, line in _steps(kept, facts.quarantined_at, shown) if step != line]


def repeats_state(view: DeviceView, reason: str) -> bool:
    """Whether a reason of the allocator says only what the state says."""
    life = view.life is not Life.READY and reason.startswith(view.life.value)
    return reason == FREE or life or (view.service is not Service.IN and reason.startswith(view.service.value))


def _state(facts: DeviceFacts) -> Iterator[str]:
    view, kept = facts.view, facts.state.quarantine
    word = state_word(view, held=bool(facts.holder))
    since = f" since {facts.quarantined_at:%Y-%m-%d %H:%M:%S} UTC" if kept and facts.quarantined_at else ""
    held = f", leased by {facts.holder}" if facts.holder else ""
    heat = f", {view.heat}" if view.heat is not Heat.OK and view.heat.value != word else ""
    yield f"{view.name}: {word}{since}{held}{heat}" + (f": {kept.cause}" if kept else "")
    hint = (view.hint or (kept.hint if kept else "")).replace("NAME", view.name)
    if hint:
        yield f"  what to do: {hint}"
    if kept and not (kept.rule is ReleaseRule.PERSON and f"farm device release {view.name}" in hint):
        yield f"  {kept.rule.ends(view.name)}"
    if kept:
        yield from (f"    {step}" for step, line in _steps(kept, facts.quarantined_at) if step == line)
    elif view.reason:
        yield f"  why: {view.reason}"
        yield from (f"    {line}" for line in view.evidence.splitlines())
    if view.service is not Service.IN:
        order = f"{view.service}, {facts.ordered}" if facts.ordered else str(view.service)
        yield f"  out of service by an operator's order ({order}), undo: farm device release {view.name}"


def _classes(view: DeviceView) -> Iterator[str]:
    if view.life is not Life.READY or view.service is not Service.IN or view.withheld:
        return  # not available to any class, for the reason above
    for each in LeaseClass:
        why = _why_not(view, each)
        yield f"  {each}: {f'closed: {why}' if why else 'open'}"
        if (shut := view.closed.get(each)) and shut.evidence:
            yield f"    {shut.evidence}"


def _why_not(view: DeviceView, lease_class: LeaseClass) -> str:
    shut = view.closed.get(lease_class)
    if shut is not None:
        return str(shut)
    return "" if view.leasable else view.reason or f"its service is {view.service}"


def _class_values(view: DeviceView, lease_class: LeaseClass) -> dict[str, Any]:
    opens_in_s = None if (shut := view.closed.get(lease_class)) is None else shut.opens_in_s
    return {"open": view.serves(lease_class), "reason": _why_not(view, lease_class), "opens_in_s": opens_in_s}


def _steps(kept: Quarantine, last_at: datetime | None, shown: Container[str] = ()) -> Iterator[tuple[str, str]]:
    """A quarantine's evidence, each line for people and as it is; those of steps differ.

    Steps are in words, by the clock where its end is known (the last of them). `shown`: reasons that stand elsewhere.
    """
    steps = [(line, _STEP.fullmatch(line)) for line in kept.evidence.splitlines()]
    ends_s = next((float(match[1]) for _, match in reversed(steps) if match), 0.0)
    for line, match in steps:
        if match is None:
            yield line, line
            continue
        at_s, event, values, before, after = match.groups()
        what = " ".join(_WORD.findall(event)).lower()
        found = _REASON.search(values or "")
        reason = brief(found[1]) if found else ""
        at = "" if last_at is None else f"{last_at - timedelta(seconds=ends_s - float(at_s)):%H:%M:%S} "
        step = before if before == after else f"{before} -> {after}"
        why = f" ({reason})" if reason and reason != kept.cause and reason not in shown else ""
        yield f"{at}{step}: {what}{why}", line


def _recovery(facts: DeviceFacts) -> Iterator[str]:
    progress, kept = facts.state.progress, facts.state.quarantine
    shown = {facts.view.reason, kept.cause if kept else ""}  # above
    if progress.under_way is not None:
        took = format_duration(max(0.0, facts.now_s - progress.under_way.began_s))
        yield f"recovery: {progress.under_way.action} under way for {took}: {brief(progress.under_way.cause)}"
    if kept is None:  # else they are its evidence
        yield from (f"recovery: not taken: {each}" for each in progress.skipped)
    # The quarantine that it is in stands above.
    actions = [each for each in facts.actions if each.action != RecoveryAction.QUARANTINE or each.outcome is not None]
    if actions:
        yield f"recovery and orders in the last 24 h ({len(actions)}; UTC):"
    if len(actions) > ACTIONS_SHOWN:
        yield f"  ... {len(actions) - ACTIONS_SHOWN} before these"
    for each in actions[-ACTIONS_SHOWN:]:
        cause, detail = brief(each.cause), brief(each.detail)
        why = "" if cause in shown else f" ({cause})"
        then = "" if not detail or detail in (cause, *shown) else f", then: {detail}"
        yield f"  {each.began_at:%H:%M:%S} {each.action} {_ended(each)}{why}{then}"
    left = budgets_left(progress, facts.now_s, facts.context)
    spent = {action: count for action, count in left.items() if count < (facts.context.budget(action) or 0)}
    hard = {action: left[action] for action in (RecoveryAction.REBOOT, RecoveryAction.POWER_CYCLE)} | spent
    yield "automatic repairs left: " + ", ".join(f"{action} {count}" for action, count in hard.items())
    if facts.context.no_power:
        yield f"  power-cycle: {facts.context.no_power}"


def _ended(taken: RecoveryRecord) -> str:
    """How the action ended; an operator's order repairs nothing, and a quarantine lasts."""
    took_s = taken.took_s or 0.0
    if taken.outcome is None:
        return "under way"
    if taken.action == RecoveryAction.QUARANTINE:
        return f"lasted {format_duration(took_s)}"
    if taken.fault == DeviceFault.ORDER and taken.outcome == ActionOutcome.REPAIRED:
        return f"by order, {took_s:.1f} s"
    return f"{taken.outcome} in {took_s:.1f} s"


def _probe(facts: DeviceFacts) -> Iterator[str]:
    health = facts.view.health
    if health is None or facts.probed_s_ago is None:
        yield "probe: none yet"
        return
    readings = _readings(facts.view, health) or "nothing that is believed"
    yield f"probe {format_duration(facts.probed_s_ago)} ago: {readings}"
    kept = facts.state.quarantine
    for each in facts.findings:
        if not kept or each.cause != kept.cause:
            yield f"  {each.cause}" + (f" ({each.hint.replace('NAME', facts.view.name)})" if each.hint else "")


def _readings(view: DeviceView, health: Health) -> str:
    battery, hottest = health.battery, max(health.temperatures, key=lambda each: each.celsius, default=None)
    readings = (
        "" if view.temperature_c is None else f"TEMP {view.temperature_c:.1f} °C ({view.temperature_of})",
        "" if battery.percent is None else f"battery {battery.percent} %",
        "" if battery.celsius is None else f"battery {battery.celsius:.1f} °C",
        ""
        if hottest is None or hottest.celsius == view.temperature_c
        else f"hottest {hottest.sensor} {hottest.celsius:.1f} °C",
        "thermal status not known" if health.throttle is None else f"throttle {health.throttle.name.lower()}",
        "" if health.data_free_bytes is None else f"/data {_size(health.data_free_bytes)} free",
    )
    return ", ".join(filter(None, readings))


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 10**9 else f"{count / 1e6:.0f} MB"


def _place(facts: DeviceFacts) -> Iterator[str]:
    if (place := facts.view.place) is not None:
        others = f", beside {', '.join(facts.beside)}" if facts.beside else ""
        yield f"plugged in at hub {place.hub}, port {place.port}{others}"
        for name, holder in facts.busy_beside.items():
            yield f"  {holder} has {name}: with --quiet-hub a bench waits until that is given back"
