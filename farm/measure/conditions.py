"""The conditions of a measurement, as far as they are known, and those that speak against its result.

No numpy is imported: commands and the web page use `common_estimate` and `moved_nominal`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from farm.common.causes import cause_of, fold_cause
from farm.common.durations import format_duration
from farm.common.limits import MAX_REPEAT


class Verdict(StrEnum):
    """Whether a number may be relied on."""

    TRUSTED = "trusted"  # nothing speaks against it
    SUSPECT = "suspect"  # the number is shown with its reasons; it is not compared silently
    REJECTED = "rejected"  # the samples do not give one number


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that speaks against a result. `code` is for programs, the texts are for people."""

    code: str
    verdict: Verdict  # the best verdict that this leaves possible: SUSPECT or REJECTED
    cause: str
    evidence: str = ""
    hint: str = ""  # the next step
    amount: float | None = None  # by how much, at most, the number may be off for it, relative; None: nobody knows

    def __post_init__(self) -> None:
        fold_cause(self)

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON; without `amount` where it is not known."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return {**known, "verdict": str(self.verdict)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Reason:
        """The reason in a stored result."""
        verdict = Verdict.REJECTED if wire.get("verdict") == Verdict.REJECTED else Verdict.SUSPECT
        texts = (cause_of(wire), wire.get("evidence", ""), wire.get("hint", ""))
        return cls(wire.get("code", ""), verdict, *texts, wire.get("amount"))


def reasons_of(wire: Iterable[Mapping[str, Any]]) -> list[Reason]:
    """The reasons of a stored result, those that reject it first."""
    reasons = map(Reason.from_wire, wire)
    return sorted(reasons, key=lambda each: each.verdict is not Verdict.REJECTED)


@dataclass(frozen=True, slots=True)
class PhoneCondition:
    """A phone's condition at one time. None: unknown, which is never a reason to trust."""

    temperature_c: float | None = None  # the battery's or the skin's, always the same one of a phone
    throttle_status: int | None = None  # Android's PowerManager.THERMAL_STATUS_*: 0 none ... 6 shutdown
    battery_percent: float | None = None
    charging: bool | None = None
    clock_hz: float | None = None  # the highest that the fastest core may have now: heat and governors lower it
    gpu_clock_hz: float | None = None  # the same of the GPU
    governors: str | None = None  # what chooses them below that, "schedutil, gpu msm-adreno-tz"
    neighbours: int | None = None  # other phones that work on the same hub
    disturbed: str | None = None  # what the latest probes found that disturbs, "" for nothing


@dataclass(frozen=True, slots=True)
class Conditions:
    """Before, during (each time they were read) and after."""

    before: PhoneCondition = PhoneCondition()
    during: tuple[PhoneCondition, ...] = ()
    after: PhoneCondition = PhoneCondition()
    virtual: bool = False  # the phone is simulated: this host's processor is its processor

    @property
    def moments(self) -> tuple[PhoneCondition, ...]:
        """All of them, in the order of time."""
        return (self.before, *self.during, self.after)

    @property
    def is_cool(self) -> bool:
        """Whether its temperature is known and was never one at which heat lowers clocks."""
        temperatures = _known(self, "temperature_c")
        return bool(temperatures) and max(temperatures) < MIN_WARM_C

    def unknown(self) -> tuple[str, ...]:
        """Names of conditions that were unknown at all moments."""
        names = (each.name for each in fields(PhoneCondition))
        return tuple(name for name in names if all(getattr(moment, name) is None for moment in self.moments))


LIGHT_THROTTLING = 1
SEVERE_THROTTLING = 3  # THERMAL_STATUS_SEVERE: clocks are held down for all apps
MAX_WARMING_C = 8.0  # more, and the chip has other clocks and leakage at the end than at the beginning
MIN_WARM_C = 37.0  # of the battery or the skin: below, other work slows a phone down, not heat
LOW_BATTERY_PERCENT = 15.0  # vendors' battery savers begin here
MAX_SHOWN = 1000  # times: a larger ratio is reported as this one
ROUGHLY = 1.2  # times; a ratio that is known no better is said to be
MAX_NEEDED = 100_000  # pairs, which take some hours
MAX_CLOCK_CHANGE = 0.05  # relative; governors step by more than this
COOL = "let the phone cool, then measure again"
LONGER = "measure longer: --measure 2m"
MIN_LONGER_S, MAX_LONGER_S = 120.0, 3600.0  # the time that LONGER names; the longest that --measure takes
ENOUGH_SAMPLES = 40  # for a trusted median, what warm-up takes included; `few_samples` asks for less
LONGER_FACTOR = 4  # from the time, or the samples, of a run that did not suffice to those of the next
AGAIN = "measure again"
END_OTHER_WORK = "end other work on the phone, then measure again"
END_HOSTS_WORK = "end other work on this host, then measure again"


def judge_conditions(conditions: Conditions) -> tuple[Reason, ...]:
    """The reasons against a result measured under these conditions; unknown conditions give none."""
    reasons = []
    statuses = _known(conditions, "throttle_status")
    if statuses and max(statuses) >= LIGHT_THROTTLING:
        highest = int(max(statuses))
        verdict = Verdict.REJECTED if highest >= SEVERE_THROTTLING else Verdict.SUSPECT
        reasons.append(Reason("throttled", verdict, f"the phone throttled: thermal status {highest} of 6", "", COOL))
    temperatures = _known(conditions, "temperature_c")
    if temperatures and max(temperatures) - min(temperatures) > MAX_WARMING_C:
        cause = f"the temperature went from {temperatures[0]:.0f} to {temperatures[-1]:.0f} °C"
        reasons.append(Reason("temperature", Verdict.SUSPECT, cause, "", COOL))
    low = [
        moment.battery_percent
        for moment in conditions.moments
        if moment.battery_percent is not None and moment.battery_percent < LOW_BATTERY_PERCENT and not moment.charging
    ]
    if low:
        cause, hint = f"battery at {min(low):.0f} % and not charging", "charge the phone, then measure again"
        reasons.append(Reason("battery", Verdict.SUSPECT, cause, "the phone may save power", hint))
    for code, clock_name in (("clock", "the clock"), ("gpu_clock", "the GPU's clock")):
        clocks = _known(conditions, f"{code}_hz")
        if clocks and max(clocks) > (1 + MAX_CLOCK_CHANGE) * min(clocks):
            cause = f"{clock_name} changed: {min(clocks) / 1e6:.0f} to {max(clocks) / 1e6:.0f} MHz"
            reasons.append(Reason(code, Verdict.SUSPECT, cause, "", COOL))
    disturbed = dict.fromkeys(each.disturbed for each in conditions.moments if each.disturbed)
    reasons += [Reason("disturbed", Verdict.SUSPECT, cause, "", END_OTHER_WORK) for cause in disturbed]
    governors = dict.fromkeys(each.governors for each in conditions.moments if each.governors)
    if len(governors) > 1:
        reasons.append(
            Reason("governor", Verdict.SUSPECT, "the clock's governor changed", " -> ".join(governors), AGAIN)
        )
    return tuple(reasons)


def about_host(reason: Reason) -> Reason:
    """The reason as one about this host, which is the cause of what happens to virtual phones."""
    hint = END_HOSTS_WORK if reason.hint in (END_OTHER_WORK, COOL) else reason.hint
    return replace(reason, evidence=reason.evidence.replace("on the phone", "on this host"), hint=hint)


def next_step(reason: Reason, spec: Mapping[str, Any]) -> str:
    """The next step that a reason asks for, beyond what the job's spec (its fields as JSON) asked for. Pure."""
    if reason.hint != LONGER:
        return reason.hint
    repeat, measured_s = spec.get("repeat") or 0, spec.get("measure_s") or 0.0
    if repeat >= MAX_REPEAT or (measured_s >= MAX_LONGER_S and not repeat):
        return "use a quieter phone, or a wider --half-width"
    if repeat:
        return f"take more samples: --repeat {min(MAX_REPEAT, max(LONGER_FACTOR * repeat, ENOUGH_SAMPLES))}"
    if measured_s >= MIN_LONGER_S:
        longer = format_duration(min(MAX_LONGER_S, LONGER_FACTOR * measured_s)).replace(" ", "")
        return f"measure longer: --measure {longer}"
    return LONGER


def percent(share: float) -> str:
    """A share in percent: three digits below 10 %, else whole."""
    value = 100 * share
    return f"{value:.3g} %" if abs(value) < 9.95 else f"{value:.0f} %"


def signed_percent(change: float) -> str:
    """A change in percent, with its sign."""
    return f"{'+' if change >= 0 else ''}{percent(change)}"


def ratio_words(ratio: float) -> str:
    """A ratio with three digits behind the point, or four in all; out of bounds it is said so, not printed."""
    if not 1 / MAX_SHOWN <= ratio <= MAX_SHOWN:
        return f"over {MAX_SHOWN}" if ratio > 1 else f"under {1 / MAX_SHOWN:g}"
    return f"{ratio:.3f}" if ratio < 10 else f"{ratio:.4g}"


def uncertainty_words(half_width: float, goal: float) -> str:
    """How far a median is known, beside what was asked for."""
    width = f"by ±{percent(half_width)}" if math.isfinite(half_width) else "without bounds"
    return f"uncertain {width}, goal ±{percent(goal)}"


def left_open(compared: Mapping[str, Any]) -> str:
    """What a comparison's answer leaves open, in one sentence: what would end a doubt, or a rough size; "": nothing."""
    names = ("answer", "needed_pairs", "needed_same", "find_effect", "low", "high")
    answer, found, none, effect, low, high = map(compared.get, names)
    if answer == "cannot tell" and found and found > MAX_NEEDED:
        return f"too noisy here: it would take more than {MAX_NEEDED} pairs, try a quieter host or phone"
    if answer == "cannot tell" and found:
        same, least = none if none and none <= MAX_NEEDED else f"more than {MAX_NEEDED}", percent(effect or 0)
        return f"{found} pairs in turns find a difference of {least}, {same} show that there is none (95 % power)"
    if answer not in ("faster", "slower") or (compared.get("known_to") or 1.0) <= ROUGHLY or not (low and high):
        return ""
    low, high = (1 / high, 1 / low) if answer == "faster" else (low, high)
    return f"B is certainly {answer}: {ratio_words(low)} to {ratio_words(high)} times"


def versus_fastest(row: Mapping[str, Any]) -> str:
    """A setting of a sweep beside the fastest one, in words."""
    if row["ratio_low"] == row["ratio_high"] == 1:
        return "the fastest"
    return f"{percent(row['ratio'] - 1)} slower" if row["slower"] else "not distinguishable"


def worst(reasons: Iterable[Reason]) -> Verdict:
    """The verdict that reasons leave."""
    found = {each.verdict for each in reasons}
    return next((each for each in (Verdict.REJECTED, Verdict.SUSPECT) if each in found), Verdict.TRUSTED)


def verdict_fields(reasons: Sequence[Reason]) -> dict[str, Any]:
    """The `verdict` and `reasons` of a certificate."""
    return {"verdict": str(worst(reasons)), "reasons": [each.to_wire() for each in reasons]}


def _known(conditions: Conditions, name: str) -> list[float]:
    values = (getattr(moment, name) for moment in conditions.moments)
    return [value for value in values if value is not None]


def clock_factor(result: Mapping[str, Any]) -> float:
    """The factor from a result's times as measured to those of its headline, at nominal speed; 1: none is known."""
    medians = ((result.get(name) or {}).get("median_ms") for name in ("estimate", "latency"))
    headline, measured = (each if isinstance(each, int | float) else 0.0 for each in medians)
    return headline / measured if headline and measured else 1.0


def common_estimate(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The times of a row of `history.list` at today's nominal, which all rows of a phone share; else as reported."""
    today: Mapping[str, Any] = row.get("today") or {}
    return today if today.get("median_s") else row.get("estimate") or {}


def moved_nominal(rows: Sequence[Mapping[str, Any]]) -> str:
    """One sentence about rows of `history.list`; "" when today's nominal is that of all results."""
    pairs = [((row.get("today") or {}).get("nominal_s"), (row.get("reference") or {}).get("nominal_s")) for row in rows]
    moved = sum(1 for now, then in pairs if now and then and not math.isclose(now, then, rel_tol=1e-3))
    return (
        f"{moved} of {len(rows)} results rescaled to today's nominal speed, for changes and plots only" if moved else ""
    )
