"""Which bundle each phone of one ABI and platform gets: the rolling upgrade, decided without I/O.

A bundle that the library names newly is the *candidate*. One idle phone tries it (the canary); when it was ready with
it for `soak_s`, the other phones follow, at most `share` of them at once. When every phone has it, it is *current*. A
phone on which it fails gets its last proven bundle back; if it works with that, the candidate is *refused*. It also
fails where golden kernels take `SLOWER` times as long as before and are quick again with the previous bundle. Where
no phone has a proven bundle nothing needs protection: the named bundle is current at once.

`Rollout` is the state, `named`, `trial_failed`, `advance`, `promoted` and `rolled_back` the events. `advance` also
returns the phones to exchange now, and busy phones that get no further lease before their exchange: else a phone that
is always leased would never change. `farm.devices.rollouts` runs it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from farm.common.durations import BackOff
from farm.common.errors import UserError

RETRY = BackOff(60.0, 3600.0)  # before a phone tries again after a failure that was not the bundle's
SLOWER = 1.25  # times as long; not measured on hardware
SLOWER_VIRTUAL = 3.0  # of virtual phones: a loaded host made golden kernels 1.9 times as long


class TrialState(StrEnum):
    """Where a phone stands with another bundle than the one it had."""

    TRYING = "trying"  # it is chosen: pushed, started, checked, or ready with it for less than `soak_s`
    PASSED = "passed"
    FAILED = "failed"  # by the bundle's fault, as far as is known
    PUT_OFF = "put off"  # the link, the host or the phone failed; it is tried again after a pause


@dataclass(frozen=True, slots=True)
class Trial:
    """One phone and a bundle that is new to it."""

    bundle: str  # hash
    state: TrialState
    reason: str = ""  # of the latest failure
    put_off: int = 0  # times
    until_s: float = 0.0  # end of the pause, seconds since 1970
    since_s: float = 0.0  # when the phone was chosen to try it, seconds since 1970
    before_s: Mapping[str, float] = field(default_factory=dict)  # as RolloutPhone.golden_s, with the previous bundle
    with_s: Mapping[str, float] = field(default_factory=dict)  # the same with the bundle, if it failed by its speed


@dataclass(frozen=True, slots=True)
class Rollout:
    """The state of one ABI and platform. Bundles are named by hash; "" is none."""

    current: str = ""
    previous: str = ""  # current before
    candidate: str = ""
    wanted: str = ""  # named by the library or a toolchain when it was last asked
    refused: Mapping[str, str] = field(default_factory=dict)  # bundle -> reason
    trials: Mapping[str, Trial] = field(default_factory=dict)  # by the phone's serial


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """`[rollout]`: how a new runtime bundle reaches the phones."""

    share: Annotated[float, Field(gt=0, le=1)] = 0.25  # of the phones of its ABI that change at once; at least one
    soak_s: Annotated[float, Field(ge=0, le=86_400)] = 10.0  # a phone must stay ready before the next ones change


@dataclass(frozen=True, slots=True)
class RolloutPhone:
    """One phone as the rollout sees it."""

    serial: str
    name: str
    bundle: str  # hash of the bundle on it; "" unknown
    ready_s: float | None = None  # for how long it has been ready; None: it is not
    idle: bool = False  # ready and not leased
    with_person: bool = False  # a person has it, perhaps for hours
    reachable: bool = False  # ready or on its way there
    counted: bool = False  # must have the candidate before that is current: reachable, or away for a short time
    golden_s: Mapping[str, float] = field(default_factory=dict)  # time of golden kernels with `bundle`, by kind
    virtual: bool = False  # its speed is that of its host


def named(
    rollout: Rollout,
    wanted: str,
    stored: Collection[str],
    proven: Sequence[str],
    damaged: Mapping[str, str] = MappingProxyType({}),
) -> Rollout:
    """The library was read: it (or a toolchain) names `wanted`.

    Args:
        rollout: the state.
        wanted: the bundle named; "" there is none.
        stored: every bundle of this ABI and platform in the library.
        proven: for each phone with a proven bundle, that bundle.
        damaged: why bundles in the library are unreadable; such a candidate or current bundle is refused.
    """
    refused = {bundle: why for bundle, why in rollout.refused.items() if bundle in stored or bundle in damaged}
    refused |= {each: damaged[each] for each in (rollout.candidate, rollout.current) if each in damaged}
    current, previous, candidate = (
        bundle if bundle in stored else "" for bundle in (rollout.current, rollout.previous, rollout.candidate)
    )
    known = Counter(bundle for bundle in proven if bundle in stored)
    usable = [bundle for bundle, _ in known.most_common() if bundle not in refused]
    if not known:
        current, candidate = wanted, ""
        refused.pop(wanted, None)
    elif not current:
        current = wanted if wanted in usable or not usable else usable[0]
        refused.pop(current, None)
    if candidate == current or (wanted != rollout.wanted and known):
        candidate = "" if wanted == current or wanted in refused else wanted
    trials = {serial: trial for serial, trial in rollout.trials.items() if trial.bundle in (current, candidate)}
    return Rollout(current, previous, candidate, wanted, refused, trials)


def added(rollout: Rollout, bundle: str) -> Rollout:
    """An operator added the bundle, perhaps once more: its earlier failures are forgotten."""
    again = replace(rollout, wanted="") if rollout.wanted == bundle else rollout
    return replace(again, refused=_without(rollout.refused, bundle), trials=_trials_but(rollout, bundle))


def assigned(rollout: Rollout, serial: str, proven: str) -> str:
    """The bundle that a phone gets at its next provisioning. `proven`: its last proven one, if it can be had."""
    trial = rollout.trials.get(serial)
    if trial is None or not trial.bundle:
        return rollout.current
    if trial.bundle == rollout.candidate and trial.state in (TrialState.TRYING, TrialState.PASSED):
        return rollout.candidate
    failed = trial.state in (TrialState.FAILED, TrialState.PUT_OFF)
    return proven if proven and failed and trial.bundle == rollout.current else rollout.current


def trial_failed(rollout: Rollout, serial: str, bundle: str, reason: str, *, at_fault: bool, now_s: float) -> Rollout:
    """The bundle failed on a phone, which gets its last proven one. `at_fault`: the server or its check failed."""
    former = rollout.trials.get(serial)
    put_off = 1 + (former.put_off if former is not None and former.bundle == bundle else 0)
    if at_fault:
        trial = Trial(bundle, TrialState.FAILED, reason)
    else:
        trial = Trial(bundle, TrialState.PUT_OFF, reason, put_off, now_s + RETRY.delay_s(put_off))
    return replace(rollout, trials={**rollout.trials, serial: trial})


def released(rollout: Rollout, serial: str) -> Rollout:
    """An operator put the phone back into service: it may try the current bundle again, not a candidate."""
    trial = rollout.trials.get(serial)
    if trial is None or trial.bundle == rollout.candidate:
        return rollout
    return replace(rollout, trials=_without(rollout.trials, serial))


def promoted(rollout: Rollout, bundle: str) -> Rollout:
    """An operator makes the bundle current: no canary; phones change in waves, and each still falls back.

    A candidate stays one, with its trials, unless it is the bundle or the bundle is current already.

    Raises:
        UserError: it is current, not refused, and no candidate is in its way.
    """
    if bundle == rollout.current and not rollout.candidate and bundle not in rollout.refused:
        raise UserError("the bundle is current already", hint="farm bundle list")
    previous = rollout.previous if bundle == rollout.current else rollout.current
    candidate = "" if bundle in (rollout.current, rollout.candidate) else rollout.candidate
    trials = {serial: trial for serial, trial in rollout.trials.items() if candidate and trial.bundle == candidate}
    refused = _without(rollout.refused, bundle)
    return replace(rollout, current=bundle, previous=previous, candidate=candidate, refused=refused, trials=trials)


def rolled_back(rollout: Rollout, bundle: str, reason: str) -> Rollout:
    """An operator withdraws the candidate, or the current bundle in favour of the one before.

    Raises:
        UserError: it is neither, there is no bundle before, or that is refused.
    """
    refused = {**rollout.refused, bundle: reason}
    if bundle == rollout.candidate:
        return replace(rollout, candidate="", refused=refused, trials=_trials_but(rollout, bundle))
    if bundle != rollout.current:
        raise UserError("the bundle is neither a candidate nor current", hint="farm bundle list")
    if not rollout.previous:
        raise UserError("there is no bundle to go back to", hint="farm bundle promote NAME, or add another bundle")
    if why := rollout.refused.get(rollout.previous):
        raise UserError(
            f"the bundle before is refused: {why}", hint="farm bundle promote NAME makes it, or another, current"
        )
    candidate = "" if rollout.candidate == rollout.previous else rollout.candidate
    trials = _trials_but(rollout, bundle) if candidate else {}
    return replace(rollout, current=rollout.previous, previous="", candidate=candidate, refused=refused, trials=trials)


def advance(
    rollout: Rollout, phones: Sequence[RolloutPhone], config: RolloutConfig, now_s: float
) -> tuple[Rollout, tuple[str, ...], dict[str, str]]:
    """Take the next step.

    Returns:
        The new state; serials of idle phones to provision again, with `assigned`; and serials of busy phones that must
        get no new lease, each with the bundle that waits for it. The last two are at most `share` of the phones.
    """
    rollout = _judge_trials(rollout, {phone.serial: phone for phone in phones}, config, now_s)
    counted = [phone for phone in phones if phone.counted]
    passed = {serial for serial, trial in rollout.trials.items() if trial.state is TrialState.PASSED}
    if rollout.candidate and counted and all(phone.serial in passed for phone in counted):
        rollout = replace(rollout, current=rollout.candidate, previous=rollout.current, candidate="", trials={})
        passed = set()
    in_doubt = any(
        trial.bundle == rollout.candidate and trial.state is TrialState.FAILED for trial in rollout.trials.values()
    )
    target = rollout.current if in_doubt else rollout.candidate or rollout.current
    canary = target == rollout.candidate and not passed
    room = 1 if canary else max(1, math.floor(config.share * len(counted)))
    room -= sum(trial.state is TrialState.TRYING for trial in rollout.trials.values())
    trials = dict(rollout.trials)
    slow = {serial for serial, trial in trials.items() if trial.with_s}
    kept = {each.serial: target for each in phones if each.serial in slow and _is_busy(each, target)}
    for phone in sorted(phones, key=lambda phone: _order(rollout, phone)):
        former = trials.get(phone.serial)
        if former is not None and former.state is TrialState.TRYING and _is_busy(phone, former.bundle):
            kept[phone.serial] = former.bundle  # leased between the choice and its exchange
        elif room > 0 and _is_due(former, phone, target, rollout, now_s) and (phone.idle or _is_busy(phone, target)):
            room -= 1
            if phone.idle:
                put_off = former.put_off if former is not None and former.bundle == target else 0
                before_s = phone.golden_s if phone.bundle != target else {}
                trials[phone.serial] = Trial(
                    target, TrialState.TRYING, put_off=put_off, since_s=now_s, before_s=before_s
                )
            else:
                kept[phone.serial] = target
    chosen = {serial: trial.bundle for serial, trial in trials.items() if trial.state is TrialState.TRYING}
    chosen |= dict.fromkeys(slow, target)
    exchange = tuple(
        phone.serial for phone in phones if phone.idle and chosen.get(phone.serial, "") not in ("", phone.bundle)
    )
    return replace(rollout, trials=trials), exchange, kept


def news(before: Rollout, after: Rollout) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(event, bundle, its data) for each thing that changed; `serial` stands for the phone."""
    if after.candidate and after.candidate != before.candidate:
        yield "bundle.candidate", after.candidate, {"current": after.current}
    for bundle, reason in after.refused.items():
        if before.refused.get(bundle) != reason:
            yield "bundle.refused", bundle, {"reason": reason}
    for serial, trial in after.trials.items():
        former = before.trials.get(serial)
        same = former is not None and (former.bundle, former.state) == (trial.bundle, trial.state)
        if same:
            continue
        if trial.state is TrialState.TRYING and trial.bundle == after.candidate:
            canary = not any(each.state is TrialState.PASSED for each in after.trials.values())
            yield "bundle.canary" if canary else "bundle.trying", trial.bundle, {"serial": serial}
        elif trial.state in (TrialState.FAILED, TrialState.PUT_OFF):
            yield "bundle.failed", trial.bundle, {"serial": serial, "reason": trial.reason}
    if after.current and after.current != before.current:
        yield "bundle.current", after.current, {"previous": before.current}


def progress(rollout: Rollout, phones: Sequence[RolloutPhone]) -> tuple[int, int]:
    """Phones that have the candidate, and those that are to have it."""
    passed = {serial for serial, trial in rollout.trials.items() if trial.state is TrialState.PASSED}
    return sum(phone.serial in passed for phone in phones if phone.counted), sum(phone.counted for phone in phones)


def _judge_trials(rollout: Rollout, phones: Mapping[str, RolloutPhone], config: RolloutConfig, now_s: float) -> Rollout:
    """Update the trials from the phones: passed, left, or failed by the bundle's fault."""
    judged = rollout
    for serial, trial in rollout.trials.items():
        phone = phones.get(serial)
        reachable = phone is not None and phone.reachable
        if trial.state is TrialState.TRYING and not reachable:
            judged = replace(judged, trials=_without(judged.trials, serial))
        elif phone is None or phone.ready_s is None:
            if trial.state is TrialState.FAILED and trial.bundle == rollout.candidate and not reachable:
                # Its last proven bundle does not help it either: that is no verdict on the candidate.
                judged = trial_failed(judged, serial, trial.bundle, trial.reason, at_fault=False, now_s=now_s)
        elif trial.state is TrialState.TRYING and phone.bundle == trial.bundle and phone.ready_s >= config.soak_s:
            if trial.bundle != rollout.candidate:
                trials = _without(judged.trials, serial)
            elif slower := _slower(phone, phone.golden_s, trial.before_s):
                failed = replace(trial, state=TrialState.FAILED, reason=slower, with_s=phone.golden_s)
                trials = {**judged.trials, serial: failed}
            else:
                trials = {**judged.trials, serial: replace(trial, state=TrialState.PASSED)}
            judged = replace(judged, trials=trials)
        elif trial.state is TrialState.FAILED and trial.bundle == rollout.candidate != phone.bundle:
            if trial.with_s and not _slower(phone, trial.with_s, phone.golden_s):
                reason = "golden kernels are slow with the previous bundle, too"
                judged = trial_failed(judged, serial, trial.bundle, reason, at_fault=False, now_s=now_s)
                continue
            refused = {**rollout.refused, trial.bundle: f"on {phone.name}: {trial.reason}"}
            return replace(rollout, candidate="", refused=refused, trials=_trials_but(rollout, trial.bundle))
    return judged


def _slower(phone: RolloutPhone, now_s: Mapping[str, float], before_s: Mapping[str, float]) -> str:
    """The kind of golden kernels with the largest slowdown, in words; "" below the limit."""
    ratios = {kind: now_s[kind] / before_s[kind] for kind in now_s.keys() & before_s.keys() if before_s[kind] > 0}
    kind = max(ratios, key=lambda each: ratios[each], default="")
    if not kind or ratios[kind] < (SLOWER_VIRTUAL if phone.virtual else SLOWER):
        return ""
    return f"golden kernels take {ratios[kind]:.2f} times as long on {kind} as with the previous bundle"


def _is_due(trial: Trial | None, phone: RolloutPhone, target: str, rollout: Rollout, now_s: float) -> bool:
    """Whether a phone is to change to `target`, or to be watched with it."""
    if not target or (trial is not None and trial.state is TrialState.TRYING):
        return False
    if trial is not None and trial.bundle == target:
        return trial.state is TrialState.PUT_OFF and now_s >= trial.until_s
    if trial is not None and trial.bundle == rollout.candidate:
        return False  # the verdict on it is awaited
    return phone.bundle != target or target == rollout.candidate


def _is_busy(phone: RolloutPhone, target: str) -> bool:
    """Whether a lease, or the cleaning after it, keeps a phone with another bundle from `target`."""
    return phone.reachable and not phone.idle and phone.bundle not in ("", target)


def _order(rollout: Rollout, phone: RolloutPhone) -> tuple[bool, bool, int, str]:
    """Idle phones first, those that persons have last; of both those that had no trouble."""
    trial = rollout.trials.get(phone.serial)
    return not phone.idle, phone.with_person, 0 if trial is None else trial.put_off, phone.name


def _trials_but(rollout: Rollout, bundle: str) -> dict[str, Trial]:
    return {serial: trial for serial, trial in rollout.trials.items() if trial.bundle != bundle}


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {each: value for each, value in mapping.items() if each != key}
