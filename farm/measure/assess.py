"""The assessment of a run of samples: the median at nominal speed, how sure, and whether it may be relied on.

A doubt is an amount where one can be given: how far at most the median may be off for it. Amounts widen the interval,
and the verdict compares that interval with what was wanted. A doubt without an amount limits the verdict by itself.

Also how many more samples a run needs, and whether it is worth another run: the caller takes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from farm.common.durations import many
from farm.measure.amounts import (
    REJECTED_OFFSET,
    UNKNOWN,
    Follows,
    moved_by_clock,
    moved_without,
    moved_without_readings,
)
from farm.measure.conditions import (
    AGAIN,
    COOL,
    END_OTHER_WORK,
    LONGER,
    Conditions,
    Reason,
    Verdict,
    about_host,
    judge_conditions,
    percent,
    ratio_words,
    signed_percent,
    uncertainty_words,
    worst,
)
from farm.measure.interval import MedianEstimate, median_interval, slow_noise, wander
from farm.measure.patterns import (
    LevelStep,
    Modes,
    Outliers,
    Trend,
    find_modes,
    find_outliers,
    find_step,
    find_trend,
    find_warmup,
)
from farm.measure.series import Corrected, FloatArray, SampleSeries, correct, detrended, interpolated_reference

FEWEST = 5  # with fewer samples left there is no interval worth the name
MIN_TRUSTED = 30  # with fewer, the interval holds the median less often than it says (bench statistics)
MIN_EFFECTIVE = 30.0  # likewise, of independent samples
MIN_EFFECTIVE_PART = 0.25  # of few samples: whether they resemble their neighbours shows badly
AIM_EFFECTIVE = 100.0  # where samples resemble their neighbours: an autocorrelation found too small would end the run
MIN_SPAN_S, MIN_SPAN_SAMPLES = 1.0, 60  # a run that is shorter and has fewer samples sees no slow noise
MIN_SLOW_NOISE, MAX_SLOW_NOISE = 0.15, 0.3  # probability: beyond, more samples are taken; nothing is trusted
MAX_WARMUP = 1 / 3  # of the samples; a run that needs more has hardly settled
MAX_OUTLIERS = 0.1
MAX_LOST = 0.1  # of the time, to outliers: few and long ones hardly move the median, and yet the phone was held up
MAX_RUN = 3  # outliers in a row; more are an event
MAX_DRIFT = 0.15  # the model need not slow down as the reference kernel does; over so much it matters
# Of the reference kernel's level from its nominal, the slower over the faster. A model follows the kernel's speed only
# roughly (what waits for memory does not at all), so the correction is trusted near 1 alone, however constant it is.
MAX_OFFSET = 0.15
REACHES = ", and its interval reaches to the median as measured"
REJECTED_WIDTH = 0.5  # relative half width: an interval so wide says hardly more than the order of magnitude
REJECTED_CHANGE = 0.05  # relative: levels this far apart are not one number
NOTABLE = 0.25  # of the goal: of a median that misses it, smaller amounts are no reasons
TWICE = 2.0  # levels further apart are said as a ratio


@dataclass(frozen=True, slots=True)
class Assessment:
    """The certificate's part that comes from the samples, and the verdict on all of it. Times in seconds."""

    count: int  # samples taken
    span_s: float  # from the first sample's start to the last one's
    warmup: int  # of these, at the start, left out of the estimate
    estimate: MedianEstimate  # at the reference kernel's nominal speed, where there was one; widened by the amounts
    amounts: tuple[Reason, ...]  # how far the median may be off, and for what; together the interval's half width
    fastest_s: float  # of the samples in the estimate, at the same speed
    slowest_s: float  # likewise
    p90_s: float  # nine of ten of these samples took no longer
    p99_s: float
    raw_median_s: float  # as measured, warm-up left out
    nominal_s: float | None  # the reference kernel's; None: there was no reference
    reference_median_s: float | None
    reference_offset: float | None  # of that median from the nominal, relative; above 0: slower
    drift: float  # the smoothed reference's slowest over its fastest, minus 1
    slow_noise: float  # how likely samples remember others a 75th of the run away or further; in the corrected samples
    trend: Trend | None  # in the corrected samples
    step: LevelStep | None  # in the corrected samples, or as measured
    reference_step: LevelStep | None
    modes: Modes | None  # in the corrected samples, or as measured
    reference_modes: Modes | None  # of the reference readings
    outliers: Outliers
    reference_outliers: Outliers | None
    conditions: Conditions
    reasons: tuple[Reason, ...]  # those that reject it first

    @property
    def verdict(self) -> Verdict:
        """The verdict that the reasons leave."""
        return worst(self.reasons)

    @property
    def used(self) -> int:
        """Samples in the estimate."""
        return self.estimate.count

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON; times in seconds."""
        unknown = () if self.estimate.interval_s else ("low_s", "high_s", "half_width")  # of one sample: null
        return {
            **asdict(self),
            "amounts": [{"code": each.code, "cause": each.cause, "amount": each.amount} for each in self.amounts],
            "estimate": {**asdict(self.estimate), "half_width": self.estimate.half_width, **dict.fromkeys(unknown)},
            "used": self.used,
            "verdict": str(self.verdict),
            "reasons": [reason.to_wire() for reason in self.reasons],
            "unknown": list(self.conditions.unknown()),
        }


def assess(
    samples: SampleSeries,
    nominal_s: float | None = None,
    *,
    conditions: Conditions | None = None,
    half_width: float = 0.01,
    follows: Follows = UNKNOWN,
) -> Assessment:
    """Correct drift, cut the warm-up, estimate the median, and look for everything that makes it no single number.

    Args:
        samples: all that were taken, in order.
        nominal_s: the reference kernel's time at nominal speed on this phone; None: its median in this run.
        conditions: the phone's; what is None in them is unknown.
        half_width: the relative half width of the 95 % interval that was wanted.
        follows: how far the model follows the clock, by earlier benches.
    """
    known = conditions or Conditions()
    whole = correct(samples, nominal_s)
    cut = find_warmup(whole.log_s)
    if whole.nominal_s is not None:
        cut = max(cut, find_warmup(detrended(np.log(interpolated_reference(samples)))))
    settled = samples.after(cut)
    has_reference = settled.has_reference  # a few readings may all be of the warm-up
    # Again: now that the warm-up no longer bends the smoothed reference.
    corrected = correct(settled, nominal_s) if cut else whole
    reference_s = float(np.median(settled.reference_s[settled.readings])) if has_reference else None
    estimate = median_interval(corrected.log_s, corrected.residual if has_reference else None, beside=corrected.beside)
    outliers = find_outliers(corrected.log_s, cut)
    calm = np.delete(corrected.log_s, _places(outliers, cut))  # a burst is no slow noise
    own_modes, own_step = find_modes(corrected.log_s), _step(whole.log_s, cut)
    found = Assessment(
        count=samples.count,
        span_s=float(samples.start_s[-1] - samples.start_s[0]),
        warmup=cut,
        estimate=estimate,
        amounts=(),
        fastest_s=float(np.exp(corrected.log_s.min())),
        slowest_s=float(np.exp(corrected.log_s.max())),
        p90_s=float(np.exp(np.quantile(corrected.log_s, 0.9))),
        p99_s=float(np.exp(np.quantile(corrected.log_s, 0.99))),
        raw_median_s=float(np.median(settled.seconds)),
        nominal_s=corrected.nominal_s,
        reference_median_s=reference_s,
        reference_offset=None if not (reference_s and corrected.nominal_s) else reference_s / corrected.nominal_s - 1,
        drift=float(np.exp(np.ptp(corrected.smooth)) - 1),
        slow_noise=slow_noise(calm),
        trend=find_trend(corrected.log_s),
        step=own_step or _step(np.log(samples.seconds), cut),
        reference_step=_reference_step(samples, cut) if has_reference else None,
        modes=own_modes or find_modes(detrended(np.log(settled.seconds))),
        reference_modes=_reference_modes(settled) if has_reference else None,
        outliers=outliers,
        reference_outliers=_reference_outliers(settled, cut) if has_reference else None,
        conditions=known,
        reasons=(),
    )
    clock = moved_by_clock(settled, corrected, follows, unsmoothed=_has_clock_levels(found))
    levels = clock if not (own_step or own_modes) and _has_clock_levels(found) and _has_near_levels(found) else None
    return _judged(found, _doubts_with_amounts(found, settled, corrected, levels), clock, half_width)


def _step(log_values: FloatArray, cut: int) -> LevelStep | None:
    """A step after the warm-up, or one that the warm-up would hide: it never makes samples slower."""
    hidden = find_step(log_values) if cut else None
    if hidden is not None and hidden.change > 0:
        return hidden
    step = find_step(log_values[cut:])
    return None if step is None else replace(step, index=step.index + cut)


def _reference_step(samples: SampleSeries, cut: int) -> LevelStep | None:
    readings = samples.readings
    step = _step(np.log(samples.reference_s[readings]), int((readings < cut).sum()))
    return None if step is None else replace(step, index=int(readings[step.index]))


def _reference_modes(settled: SampleSeries) -> Modes | None:
    log_readings = np.log(settled.reference_s[settled.readings])
    return find_modes(detrended(log_readings)) or find_modes(log_readings)


def _reference_outliers(settled: SampleSeries, cut: int) -> Outliers:
    readings = settled.readings
    found = find_outliers(detrended(np.log(settled.reference_s[readings])))
    return replace(found, indices=tuple(int(readings[index]) + cut for index in found.indices))


def _doubts_with_amounts(
    found: Assessment, settled: SampleSeries, corrected: Corrected, levels: float | None
) -> list[Reason]:
    """`levels`: the amount for levels of the samples and of the reference kernel."""
    doubts = _doubts(found)
    if found.conditions.virtual:
        doubts = list(map(about_host, doubts))
    elif found.conditions.is_cool:
        doubts = [replace(each, hint=END_OTHER_WORK) if each.hint == COOL else each for each in doubts]
    known = [
        each
        if each.verdict is Verdict.REJECTED
        else replace(each, amount=_amount(each.code, found, settled, corrected, levels))
        for each in doubts
    ]
    return [*known, *judge_conditions(found.conditions)]


LEVELS = frozenset({"step", "modes", "reference_step", "reference_modes"})
SAME_AMOUNT = (frozenset({"outliers", "burst"}), frozenset({"reference_outliers", "reference_burst"}), LEVELS)


def _has_clock_levels(found: Assessment) -> bool:
    return found.reference_step is not None or found.reference_modes is not None


def _has_near_levels(found: Assessment) -> bool:
    """Whether levels are so near to each other that a median of them has an amount."""
    steps = (each.change for each in (found.step, found.reference_step) if each)
    modes = (each.distance for each in (found.modes, found.reference_modes) if each)
    return all(abs(size) <= REJECTED_CHANGE for size in (*steps, *modes))


def _amount(
    code: str, found: Assessment, settled: SampleSeries, corrected: Corrected, levels: float | None
) -> float | None:
    """How far at most the median may be off for a doubt; None: nobody knows.

    `levels`: for levels of the samples and of the reference kernel.
    """
    if code in LEVELS:
        return levels
    if code in ("outliers", "burst"):
        return moved_without(corrected.log_s, _places(found.outliers, found.warmup))
    if code in ("reference_outliers", "reference_burst") and found.reference_outliers is not None:
        return moved_without_readings(settled, corrected, _places(found.reference_outliers, found.warmup))
    if code == "wanders":
        bound = wander(np.delete(corrected.log_s, _places(found.outliers, found.warmup)))
        return None if bound is None else max(bound - _sampling(found.estimate), 0.0)
    return None


def _places(outliers: Outliers, warmup: int) -> npt.NDArray[np.intp]:
    return np.array(outliers.indices, dtype=np.intp) - warmup


def _sampling(estimate: MedianEstimate) -> float:
    """The half width of the interval on the log scale."""
    return math.log(estimate.high_s / estimate.low_s) / 2


def _judged(found: Assessment, doubts: Sequence[Reason], clock: float, half_width: float) -> Assessment:
    """The interval widened by the amounts; doubts with one are reasons only where that interval misses the goal."""
    bounded = [each for each in doubts if each.amount is not None and math.isfinite(each.amount)]
    scatter = f"{many(found.used, 'sample')} scatter{'s' * (found.used == 1)}"
    listed = [Reason("sampling", Verdict.TRUSTED, scatter, amount=_sampling(found.estimate))]
    if found.nominal_s is not None and not any(each.code in LEVELS for each in bounded):
        cause = "the model may not follow the clock as the reference kernel"
        listed.append(Reason("follows", Verdict.TRUSTED, cause, "", AGAIN, clock))
    for each in sorted(bounded, key=lambda each: not each.code.startswith("reference_")):
        same = next((codes for codes in SAME_AMOUNT if each.code in codes), {each.code})
        if not any(other.code in same for other in listed):
            listed.append(each)
    wider = math.exp(sum(each.amount or 0.0 for each in listed[1:]))
    estimate = replace(found.estimate, low_s=found.estimate.low_s / wider, high_s=found.estimate.high_s * wider)
    listed.sort(key=lambda each: -(each.amount or 0.0))
    reasons = [each for each in doubts if each not in bounded]
    if estimate.interval_s and not estimate.half_width <= half_width:
        reasons.append(_too_wide(estimate, half_width, listed[0]))
        notable = [each for each in listed if each.code == "follows"] + bounded
        reasons += [
            replace(each, verdict=Verdict.SUSPECT) for each in notable if (each.amount or 0.0) > NOTABLE * half_width
        ]
    reasons.sort(key=lambda each: each.verdict is not Verdict.REJECTED)
    known = tuple(listed) if found.estimate.interval_s else ()
    return replace(found, estimate=estimate, amounts=known, reasons=tuple(reasons))


def _too_wide(estimate: MedianEstimate, half_width: float, largest: Reason) -> Reason:
    far = not estimate.half_width <= max(REJECTED_WIDTH, half_width)
    cause = uncertainty_words(estimate.half_width, half_width)
    evidence = "" if largest.code == "sampling" else f"Most of it: {largest.cause}."
    return Reason("wide", Verdict.REJECTED if far else Verdict.SUSPECT, cause, evidence, largest.hint or LONGER)


def _doubts(found: Assessment) -> list[Reason]:
    return [
        *_too_little(found),
        *_reference(found),
        *_levels("step", COOL, found.step, found.reference_step, _describe_step),
        *_levels("modes", END_OTHER_WORK, found.modes, found.reference_modes, _describe_modes),
        *_outliers("", found.outliers),
        *_outliers("reference_", found.reference_outliers),
    ]


def _too_little(found: Assessment) -> Iterator[Reason]:
    estimate = found.estimate
    if found.used < MIN_TRUSTED:
        verdict = Verdict.REJECTED if found.used < FEWEST else Verdict.SUSPECT
        cause = f"only {many(found.used, 'sample')}, {MIN_TRUSTED} needed"
        yield Reason("few_samples", verdict, cause, "", LONGER)
    elif estimate.effective_count < (needed := min(MIN_EFFECTIVE, MIN_EFFECTIVE_PART * found.used)):
        cause = f"samples are correlated: worth {estimate.effective_count:.0f}, {needed:.0f} needed"
        evidence = f"{found.used} samples say as much as {estimate.effective_count:.1f} independent samples"
        yield Reason("few_effective", Verdict.SUSPECT, cause, evidence, LONGER)
    if estimate.cut:
        cause = "the interval is cut at the fastest or slowest sample"
        evidence = "So few independent samples do not bound the median."
        yield Reason("beyond_samples", Verdict.SUSPECT, cause, evidence, LONGER)
    if found.slow_noise > MAX_SLOW_NOISE:
        yield Reason("wanders", Verdict.SUSPECT, "drifts more slowly than the run could show", "", LONGER)
    if found.warmup > MAX_WARMUP * found.count:
        cause = f"warmed up for {found.warmup} of {found.count} samples"
        yield Reason("warming_up", Verdict.SUSPECT, cause, "", LONGER)
    if found.trend is not None:
        cause = f"samples changed by {signed_percent(found.trend.change)} from first to last"
        yield Reason("trend", Verdict.SUSPECT, cause, "", LONGER)


def _reference(found: Assessment) -> Iterator[Reason]:
    if found.nominal_s is None:
        cause, evidence = "no reference kernel ran beside it", "Nothing shows whether the clock changed."
        yield Reason("no_reference", Verdict.SUSPECT, cause, evidence, AGAIN)
    elif found.drift > MAX_DRIFT:
        cause = f"the clock drifted by {percent(found.drift)} within the run"
        yield Reason("drift", Verdict.SUSPECT, cause, "By the reference kernel's speed.", COOL)
    if found.reference_offset is not None:
        yield from _offset(found.reference_offset)


def _offset(offset: float) -> Iterator[Reason]:
    share = max(1 + offset, 1e-9)  # an offset of -1 is a clock that says nothing took any time
    times = max(share, 1 / share)
    if times > 1 + MAX_OFFSET:
        far = times > 1 + REJECTED_OFFSET
        cause = f"the clock was {ratio_words(times)} times {'slower' if offset > 0 else 'faster'} than usual"
        evidence = (
            f"The median was corrected by as much, by the reference kernel's speed{REACHES * far}. "
            f"Up to {1 + MAX_OFFSET:g} times is trusted, beyond {1 + REJECTED_OFFSET:g} times is rejected."
        )
        hint = COOL if offset > 0 else AGAIN
        yield Reason("reference_offset", Verdict.REJECTED if far else Verdict.SUSPECT, cause, evidence, hint)


_Level = TypeVar("_Level", LevelStep, Modes)


def _levels(
    code: str, of_clock: str, own: _Level | None, reference: _Level | None,
    describe: Callable[[_Level], tuple[float, str, str]],
) -> Iterator[Reason]:  # fmt: skip
    """`of_clock`: the hint where the reference kernel shows them."""
    for where, what, level in (("", "unstable samples", own), ("reference_", "unstable clock", reference)):
        if level is not None:
            size, cause, evidence = describe(level)
            verdict = Verdict.REJECTED if abs(size) > REJECTED_CHANGE else Verdict.SUSPECT
            yield Reason(where + code, verdict, f"{what}: {cause}", evidence, of_clock if where else AGAIN)


def _describe_step(step: LevelStep) -> tuple[float, str, str]:
    return step.change, f"{signed_percent(step.change)} from sample {step.index} on", ""


def _describe_modes(modes: Modes) -> tuple[float, str, str]:
    times = 1 + modes.distance
    apart = f"{ratio_words(times)} times" if times >= TWICE else percent(modes.distance)
    return modes.distance, f"two speeds, {apart} apart", f"{percent(modes.low_share)} at the faster speed"


def _outliers(where: str, outliers: Outliers | None) -> Iterator[Reason]:
    if outliers is None:
        return
    of = " of the clock" if where else ""
    one = "reading" if where else "sample"
    samples = f"{one}s{of}"
    if outliers.share > MAX_OUTLIERS:
        cause = f"{percent(outliers.share)} of the {samples} are outliers"
        evidence = f"{many(outliers.count, one)}{of}, the worst {signed_percent(outliers.worst)}"
        yield Reason(where + "outliers", Verdict.SUSPECT, cause, evidence, END_OTHER_WORK)
    if outliers.lost > MAX_LOST:
        cause = f"outliers took {percent(outliers.lost)} of the time of the {samples}"
        yield Reason(where + "held_up", Verdict.SUSPECT, cause, "What ran here was held up.", END_OTHER_WORK)
    if outliers.longest_run > MAX_RUN:
        cause = f"{outliers.longest_run} {samples} in a row are outliers"
        yield Reason(where + "burst", Verdict.SUSPECT, cause, "Something else ran on the phone.", END_OTHER_WORK)


MIN_GROWTH = 0.5  # each look at the data is a chance to stop too early: few looks, far apart
MAX_GROWTH = 1.0
MARGIN = 1.1  # aim a little further: the width itself is only estimated
UNSETTLED = frozenset({"warming_up", "trend"})  # what more samples may leave behind
HOPELESS = frozenset({"throttled", "battery"})  # what another run at once would meet again


def more_samples(found: Assessment, half_width: float, *, most: int = 5000) -> int:
    """How many more to take before looking again; 0: enough, or `most` are taken.

    The width of an interval falls with the square root of the samples. Never fewer than half as many, never more than
    as many again. Samples that resemble their neighbours need so many that they say as much as 100 independent ones: an
    autocorrelation found too small would both narrow the interval and end the run. A run below a second has 60.
    """
    used = max(found.used, 1)
    needed = float(MIN_TRUSTED)
    if found.estimate.half_width > half_width:
        needed = max(needed, MARGIN * used * (found.estimate.half_width / half_width) ** 2)
    if found.span_s < MIN_SPAN_S:
        needed = max(needed, MIN_SPAN_SAMPLES)
    if found.estimate.effective_count < min(used / 2, AIM_EFFECTIVE):
        needed = max(needed, MARGIN * used * AIM_EFFECTIVE / found.estimate.effective_count)
    if found.slow_noise > MIN_SLOW_NOISE or any(reason.code in UNSETTLED for reason in found.reasons):
        needed = max(needed, 1.5 * used)
    if needed <= used:
        return 0
    more = min(max(needed - used, MIN_GROWTH * found.count), MAX_GROWTH * found.count)
    return max(0, min(math.ceil(more), most - found.count))


def measure_again(runs: Sequence[Assessment], remeasure: int) -> bool:
    """Whether to take another run: none is trusted yet, and of `remeasure` more some are left.

    What the last run met and the next would meet at once (a throttled phone, a low battery) is no reason to try again.
    """
    if len(runs) > remeasure or any(run.verdict is Verdict.TRUSTED for run in runs):
        return False
    return not runs or not any(reason.code in HOPELESS for reason in runs[-1].reasons)


def best(runs: Sequence[Assessment]) -> Assessment:
    """The run to report: the best verdict, of equal ones the last; never chosen by how fast it says the model is.

    Raises:
        ValueError: there is no run.
    """
    if not runs:
        raise ValueError("there is no run")
    return min(reversed(runs), key=lambda run: list(Verdict).index(run.verdict))
