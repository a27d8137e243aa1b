"""`explain device`: everything that decides whether a phone is handed out, as values and as sentences. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from farm.core.device import DeviceView, Heat, Service
from farm.core.durations import format_duration
from farm.core.health import Health
from farm.core.health_rules import Finding
from farm.core.lifecycle_state import DeviceState
from farm.core.recovery import Ailment, Around, Outcome, ReleaseRule, Rung, budgets_left
from farm.core.requests import LeaseClass
from farm.store.records import RecoveryRecord

BRIEF_CHARS = 60  # of a reason that stands in full above
EVIDENCE_CHARS = 200
# As farm.core.lifecycle writes a step: monotonic second, event, its values, life before and after, what was ordered.
_STEP = re.compile(r"(\d+\.\d+) (\w+)\((.*)\) : (\S+) -> (\S+) \[.*\]", re.DOTALL)
_WORD = re.compile(r"[A-Z][a-z]*")
RUNGS_SHOWN = 10  # of the last 24 hours; `--json` has all
_RELEASED = {
    ReleaseRule.PERSON: "until somebody releases it: farm device release {name}",
    ReleaseRule.BUNDLES: "until the bundle library changes (farm bundle add), or farm device release {name}",
    ReleaseRule.WELL: "until a probe finds it well, or farm device release {name}",
}


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known of one device now."""

    view: DeviceView
    state: DeviceState
    around: Around
    holder: str
    findings: Sequence[Finding]
    probed_s_ago: float | None
    beside: Sequence[str]  # others on its hub
    busy_beside: Mapping[str, str]  # of these: name -> who has it
    rungs: Sequence[RecoveryRecord]  # of the last 24 hours, oldest first
    quarantined_at: datetime | None
    story: Sequence[str]
    now_s: float  # monotonic
    ordered: str = ""  # who took it out of service, and when; "": it is in service, or nobody noted it


def as_values(facts: DeviceFacts) -> dict[str, Any]:
    """For programs."""
    view, state, climb = facts.view, facts.state, facts.state.climb
    kept = state.quarantine
    return {
        "life": view.life.value,
        "service": view.service.value,
        "ordered": facts.ordered,
        "heat": view.heat.value,
        "holder": facts.holder,
        "reason": view.reason,
        "hint": state.hint,
        "classes": {
            each.value: {"open": view.serves(each), "reason": _why_not(view, each), "opens_in_s": _opens(view, each)}
            for each in LeaseClass
        },
        "recovery": {
            "since_s": None if climb.since_s is None else round(facts.now_s - climb.since_s, 1),
            "under_way": None if climb.under_way is None else climb.under_way.rung.value,
            "skipped": list(climb.skipped),
            "left_today": {rung.value: left for rung, left in budgets_left(climb, facts.now_s, facts.around).items()},
            "last_day": [
                {
                    "rung": each.rung,
                    "ailment": each.ailment,
                    "cause": each.cause,
                    "began_at": each.began_at.isoformat(),
                    "took_s": each.took_s,
                    "outcome": each.outcome,
                    "detail": each.detail,
                }
                for each in facts.rungs
            ],
        },
        "quarantine": None
        if kept is None
        else {
            "reason": kept.reason,
            "hint": kept.hint,
            "ailment": kept.ailment.value,
            "rule": kept.rule.value,
            "at": None if facts.quarantined_at is None else facts.quarantined_at.isoformat(),
            "evidence": kept.evidence.splitlines(),
        },
        "probe": {
            "age_s": None if facts.probed_s_ago is None else round(facts.probed_s_ago, 1),
            "findings": [{"kind": each.kind.value, "what": each.what, "hint": each.hint} for each in facts.findings],
            "missing": [] if view.health is None else list(view.health.missing),
            "dropped": [] if view.health is None else [asdict(each) for each in view.health.dropped],
        },
        "place": None if view.place is None else {"hub": view.place.hub, "port": view.place.port},
        "beside": list(facts.beside),
        "story": list(facts.story),
    }


def as_lines(facts: DeviceFacts) -> list[str]:
    """For people."""
    return [*_state(facts), *_classes(facts.view), *_quarantine(facts), *_ladder(facts), *_probe(facts), *_place(facts)]


def _state(facts: DeviceFacts) -> Iterator[str]:
    view = facts.view
    held = f"{facts.holder} has it" if facts.holder else "nobody has it"
    yield f"{view.name}: {view.life}, service {view.service}, heat {_heat(view)}; {held}"
    if view.reason:
        yield f"  why: {view.reason}"
    if facts.state.hint:
        yield f"  what to do: {facts.state.hint.replace('NAME', view.name)}"
    if view.service is not Service.IN:
        order = f"{view.service}, {facts.ordered}" if facts.ordered else str(view.service)
        yield f"  an operator's order ({order}) keeps it out; undo: farm device release {view.name}"


def _heat(view: DeviceView) -> str:
    """The state of its heat, with the classes it is too warm for."""
    warm = [each.value for each in LeaseClass if each in view.closed and view.closed[each].heat]
    return f"warm: closed to {', '.join(warm)}" if warm and view.heat is Heat.OK else view.heat.value


def _classes(view: DeviceView) -> Iterator[str]:
    if not view.leasable and not view.closed:
        return  # closed to all, for the reason above
    for each in LeaseClass:
        yield f"  {each}: {_why_not(view, each) or 'open'}"


def _why_not(view: DeviceView, lease_class: LeaseClass) -> str:
    shut = view.closed.get(lease_class)
    if shut is not None:
        return f"closed: {shut}"
    return "" if view.leasable else f"closed: {view.reason or f'its service is {view.service}'}"


def _opens(view: DeviceView, lease_class: LeaseClass) -> float | None:
    shut = view.closed.get(lease_class)
    return None if shut is None else shut.opens_in_s


def _quarantine(facts: DeviceFacts) -> Iterator[str]:
    kept = facts.state.quarantine
    if kept is None:
        return
    since = f" since {facts.quarantined_at:%Y-%m-%d %H:%M:%S} UTC" if facts.quarantined_at else ""
    yield f"quarantine{since}: {kept.reason}"
    yield f"  {_RELEASED[kept.rule].format(name=facts.view.name)}"
    if kept.evidence:
        yield "  its last steps before:"
        yield from (f"    {line}" for line in _steps(kept.evidence.splitlines(), facts.quarantined_at))


def _steps(evidence: Sequence[str], last_at: datetime | None) -> Iterator[str]:
    """The steps before a quarantine in words, by the clock where its end is known (the last of them)."""
    told = [(line, _STEP.fullmatch(line)) for line in evidence]
    ends_s = next((float(match[1]) for _, match in reversed(told) if match), 0.0)
    for line, match in told:
        if match is None:
            yield line
            continue
        at_s, event, said, before, after = match.groups()
        what = " ".join(_WORD.findall(event)).lower()
        reason = next((f": {found[1]}" for each in ("reason", "trouble") if (found := _told(each, said))), "")
        at = "" if last_at is None else f"{last_at - timedelta(seconds=ends_s - float(at_s)):%H:%M:%S} "
        yield f"{at}{before if before == after else f'{before} -> {after}'}, {what}{in_brief(reason, EVIDENCE_CHARS)}"


def _told(name: str, said: str) -> re.Match[str] | None:
    """A value among the `name=value` of an event."""
    return re.search(rf"\b{name}=(.*?)(?:, \w+=|$)", said)


def in_brief(text: str, chars: int = BRIEF_CHARS) -> str:
    """The beginning of a sentence that stands in full elsewhere: up to its details, and no longer than that."""
    head = text.partition("; ")[0]
    kind, colon, rest = head.partition(": ")
    if len(head) > chars and colon and rest and kind:
        head = kind
    return head if len(head) <= chars else f"{head[: chars - 3].rstrip()}..."


def _ladder(facts: DeviceFacts) -> Iterator[str]:
    climb = facts.state.climb
    if climb.under_way is not None:
        took = format_duration(max(0.0, facts.now_s - climb.under_way.began_s))
        yield f"recovery: {climb.under_way.rung} under way for {took}: {climb.under_way.cause}"
    yield from (f"recovery: not taken: {each}" for each in climb.skipped)
    if facts.rungs:
        count = len(facts.rungs)
        yield f"recovery and orders in the last 24 h ({count}; UTC):"
    if len(facts.rungs) > RUNGS_SHOWN:
        yield f"  ... {len(facts.rungs) - RUNGS_SHOWN} before these"
    for each in facts.rungs[-RUNGS_SHOWN:]:
        found = f"; then: {in_brief(each.detail)}" if each.detail else ""
        yield f"  {each.began_at:%H:%M:%S} {each.rung} ({in_brief(each.cause)}): {_ended(each)}{found}"
    left = budgets_left(climb, facts.now_s, facts.around)
    spent = {rung: count for rung, count in left.items() if count < (facts.around.budget(rung) or 0)}
    hard = {rung: left[rung] for rung in (Rung.REBOOT, Rung.POWER_CYCLE)} | spent
    yield "recovery left for now: " + ", ".join(f"{rung} {count}" for rung, count in hard.items())
    if facts.around.no_power:
        yield f"  power-cycle: {facts.around.no_power}"


def _ended(rung: RecoveryRecord) -> str:
    """How it ended; an order mends nothing, and a quarantine lasts."""
    if rung.outcome is None:
        return "still" if rung.rung == Rung.QUARANTINE else "under way"
    if rung.rung == Rung.QUARANTINE:
        return f"lasted {format_duration(rung.took_s or 0.0)}"
    word = "by order" if rung.ailment == Ailment.ORDER and rung.outcome == Outcome.MENDED else rung.outcome
    return f"{word}, {rung.took_s or 0.0:.1f} s" if word == "by order" else f"{word} in {rung.took_s or 0.0:.1f} s"


def _probe(facts: DeviceFacts) -> Iterator[str]:
    health = facts.view.health
    if health is None or facts.probed_s_ago is None:
        yield "probe: none yet"
        return
    said = _readings(facts.view, health) or "nothing that is believed"
    yield f"probe {format_duration(facts.probed_s_ago)} ago: {said}"
    for each in facts.findings:
        yield f"  {each.what}" + (f" ({each.hint.replace('NAME', facts.view.name)})" if each.hint else "")


def _readings(view: DeviceView, health: Health) -> str:
    battery, hottest = health.battery, max(health.temperatures, key=lambda each: each.celsius, default=None)
    said = (
        "" if view.temperature_c is None else f"TEMP {view.temperature_c:.1f} °C ({view.temperature_of})",
        "" if battery.percent is None else f"battery {battery.percent} %",
        "" if battery.celsius is None else f"battery {battery.celsius:.1f} °C",
        ""
        if hottest is None or hottest.celsius == view.temperature_c
        else f"hottest {hottest.sensor} {hottest.celsius:.1f} °C",
        "thermal status not known" if health.throttle is None else f"throttle {health.throttle.name.lower()}",
        "" if health.data_free_bytes is None else f"/data {_size(health.data_free_bytes)} free",
    )
    return ", ".join(filter(None, said))


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 10**9 else f"{count / 1e6:.0f} MB"


def _place(facts: DeviceFacts) -> Iterator[str]:
    place = facts.view.place
    if place is not None:
        others = f", beside {', '.join(facts.beside)}" if facts.beside else ""
        yield f"plugged in at hub {place.hub}, port {place.port}{others}"
        for name, holder in facts.busy_beside.items():
            yield f"  {holder} has {name}: with --quiet-hub a bench waits until that is given back"
