"""Which of two is faster, by how much, how sure, and how many pairs it would take to tell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from statistics import NormalDist
from typing import Any

import numpy as np

from farm.common.durations import many
from farm.measure.conditions import (
    AGAIN,
    LONGER,
    Conditions,
    Reason,
    Verdict,
    judge_conditions,
    percent,
    ratio_words,
    reasons_of,
    signed_percent,
)
from farm.measure.interval import MedianEstimate, median_interval, student
from farm.measure.patterns import find_modes, find_step
from farm.measure.series import FloatArray, series, winsorised

CONFIDENCE = 0.99
POWER = 0.95
MIN_EFFECT = 0.01  # relative, as all effects: smaller differences are none
FIND_EFFECT = 0.03  # pairs are taken to find such a difference, at the least
MAX_EFFECT = 0.9
MIN_ROUNDS = 20  # with fewer, the 99 % interval of a median is too narrow (bench statistics)
MIN_FOR_ANSWER = 3  # with fewer, one pair that was interrupted decides
DOUBT = 1.5  # times; a suspect result may be wrong by so much (farm.measure.assess rejects what is further off)
FIRST_PAIRS = 2 * MIN_ROUNDS
# Pairs after which growing samples are compared (`more_pairs`), fixed before any are taken: each look may err by an
# equal part of what the confidence leaves, so whatever decides where it ends, all of them together err no more often.
STAGES = tuple(FIRST_PAIRS * 2**stage for stage in range(7))
MAX_PAIRS = 2000  # of one comparison
IN_TURNS = "farm compare A B measures the two in turns"
MAX_RATIO = 3e4  # of a round's interval to the one wanted: about 1e9 rounds stand for "never"
SCATTER_MARGIN = 1.8  # the scatter is only estimated: by so many of its own standard errors it is taken higher


class ComparisonAnswer(StrEnum):
    """The answer of a comparison: B, seen from A."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"  # any difference is smaller than the minimum effect
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A. Ratios are B's time over A's: below 1, B is faster."""

    answer: ComparisonAnswer
    ratio: float
    low: float
    high: float
    confidence: float
    pairs: int  # 0: two results that were not measured in turns
    min_effect: float
    find_effect: float  # the difference that pairs enough are taken to find
    needed_pairs: int  # a true difference of `find_effect` would be found by so many, with 95 % power
    needed_same: int  # two equal builds would be called the same by so many, with 95 % power
    reasons: tuple[Reason, ...]  # what makes it less than certain, and always why it is `cannot tell`

    @property
    def known_to(self) -> float:
        """How well the size is known: the true ratio is within so many times of `ratio`, at least 1."""
        return max(self.high / self.ratio, self.ratio / self.low)

    @property
    def sentence(self) -> str:
        """The answer in words."""
        answers = {"faster": "B is faster", "slower": "B is slower", "same": "both are the same"}
        low, high = ratio_words(self.low), ratio_words(self.high)
        return (
            f"{answers.get(self.answer, 'cannot tell')}: B / A is {ratio_words(self.ratio)}, "
            f"{100 * self.confidence:.0f} % interval {low} to {high}"
        )

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        reasons = [reason.to_wire() for reason in self.reasons]
        return {**asdict(self), "answer": str(self.answer), "known_to": self.known_to, "reasons": reasons}


def compare(
    a_s: Sequence[float] | FloatArray,
    b_s: Sequence[float] | FloatArray,
    *,
    min_effect: float = MIN_EFFECT,
    conditions: Conditions | None = None,
    doubts: Sequence[Reason] = (),
) -> Comparison:
    """Compare samples taken in turns on one phone.

    Pair i is one sample of A and one of B right after each other. Two pairs (ABBA or BAAB) are a round; the mean of a
    round's two log ratios has no straight drift in it, whatever its rate. The 99 % interval is the block bootstrap's of
    the median of rounds.

    `faster` and `slower` need an interval without 1 and a ratio at least `min_effect` from it; `same` an interval that
    lies within `min_effect` of 1 on both sides; all else is `cannot tell`. Fewer than 40 pairs have a wider interval,
    Student's t of their mean, and are `faster` or `slower` only when all of it lies beyond `min_effect`. With `doubts`
    about how the samples were taken all of it has to lie 1.5 times beyond.

    Raises:
        ValueError: the lengths differ or are odd or 0, a time is beyond 1e-12 to 1e9 s, or `min_effect` is not within
            0 and 0.9.
    """
    rounds = _rounds(a_s, b_s)
    few = rounds.size < MIN_ROUNDS
    pairs = 2 * int(rounds.size)
    if few:
        found = _of_few(rounds)
        answer = _sure_answer(found, min_effect) if rounds.size >= MIN_FOR_ANSWER else ComparisonAnswer.CANNOT_TELL
    else:
        found = _for_all_stages(median_interval(rounds, confidence=CONFIDENCE), rounds)
        answer = _sure_answer(found, min_effect, DOUBT) if doubts else _answer(found, min_effect)
    undecided = [_few_pairs(pairs)] if few else _undecided(answer, found, min_effect)
    reasons = (
        *doubts,
        *(undecided if answer is ComparisonAnswer.CANNOT_TELL and (few or not doubts) else ()),
        *_beyond_rounds(found, rounds),
        *_unsteady(rounds),
        *judge_conditions(conditions or Conditions()),
    )
    return _comparison(answer, found, pairs, _scatter(found, rounds), min_effect, reasons)


def needed_pairs(scatter: float, effect: float, min_effect: float = MIN_EFFECT) -> int:
    """Pairs that detect a true difference of `effect` with 95 % power; even.

    Detected means: the interval excludes 1, and the estimate is beyond `min_effect`. `scatter` is the half width, on
    the log scale, of the 99 % interval that a single round would have; `effect` is above `min_effect`.
    """
    power = NormalDist().inv_cdf(POWER) / _z()
    return _pairs(scatter, min(math.log1p(effect) / (1 + power), (effect - min_effect) / power))


def needed_same(scatter: float, min_effect: float = MIN_EFFECT) -> int:
    """Pairs by which two equal builds are called the same with 95 % power; even. 0: by none, with no minimum effect."""
    if min_effect <= 0:
        return 0
    power = NormalDist().inv_cdf((1 + POWER) / 2) / _z()
    return _pairs(scatter, -math.log1p(-min_effect) / (1 + power))


def more_pairs(found: Comparison, *, most: int = MAX_PAIRS) -> int:
    """How many more pairs to take before comparing all of them again, even; 0: that was it.

    First until there are `needed_pairs`, whatever the answer is so far: how long to continue is decided by the scatter
    alone. Without an answer then, until there are `needed_same`: so many make an interval so narrow that differences
    found by chance stay below the minimum effect. It is looked at `STAGES` only, or at the `most` that may be taken.
    """
    if found.pairs == 0:
        return 0
    aim = found.needed_pairs
    if aim <= found.pairs and found.answer is ComparisonAnswer.CANNOT_TELL:
        aim = found.needed_same
    if aim <= found.pairs:
        return 0
    stage = next((pairs for pairs in STAGES if pairs > found.pairs), found.pairs)
    more = min(stage, most) - found.pairs
    return max(0, more + more % 2)


def compare_results(
    a: MedianEstimate,
    b: MedianEstimate,
    *,
    min_effect: float = MIN_EFFECT,
    doubts: Sequence[Reason] = (),
) -> Comparison:
    """Compare two stored results of one phone by their intervals; both are best at the same nominal speed.

    What differs between two runs (temperature, where memory lies) is in neither interval, so this says less than
    samples taken in turns, and says so in its reasons. `needed_pairs` is for taking them.

    Args:
        a: the result that is known.
        b: the other.
        min_effect: smaller differences are none.
        doubts: why one of them is not to be relied on; with any, only an interval that lies 1.5 times beyond
            `min_effect` decides which is faster.

    Raises:
        ValueError: `min_effect` is not within 0 and 0.9.
    """
    middle = math.log(b.median_s) - math.log(a.median_s)
    half = math.hypot(_log_half(a), _log_half(b))
    found = MedianEstimate(
        math.exp(middle),
        math.exp(middle - half),
        math.exp(middle + half),
        CONFIDENCE,
        min(a.count, b.count),
        min(a.effective_count, b.effective_count),
        1,
    )
    scatter = half * math.sqrt(max(found.effective_count, 1.0) / 2)
    evidence = "What differs between the two runs is not in the interval."
    answer = _sure_answer(found, min_effect, DOUBT) if doubts else _answer(found, min_effect)
    undecided = () if doubts or answer is not ComparisonAnswer.CANNOT_TELL else _undecided(answer, found, min_effect)
    reasons = (
        *doubts,
        *undecided,
        Reason("not_in_turns", Verdict.SUSPECT, "not measured in turns", evidence, IN_TURNS),
    )
    return _comparison(answer, found, 0, scatter, min_effect, reasons)


def two_models(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Warnings about two certificates of different model files, or of work that ran on other units."""
    notes = []
    if a.get("model_sha256") != b.get("model_sha256"):
        notes.append(f"A is of {a.get('model')}, B of {b.get('model')}: two files, whose outputs were not compared")
    ran_on = [each.get("ran_on") for each in (a, b)]
    if all(ran_on) and ran_on[0] != ran_on[1]:
        notes.append(f"A ran on {ran_on[0]}; B on {ran_on[1]}")
    return notes


def check_same_phone(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Refuse two certificates of which one is of another phone, or of another system version of it.

    Raises:
        ValueError: it is.
    """
    for name, what in (("device", "phones"), ("epoch", "system versions of the phone")):
        if a[name] != b[name]:
            raise ValueError(f"the two were measured on different {what}: {a[name]} and {b[name]}")


def compare_stored(a: Mapping[str, Any], b: Mapping[str, Any], min_effect: float = MIN_EFFECT) -> Comparison:
    """Compare two benches by their certificates, both at the nominal speed of B.

    Results that are not trusted give an interval, and `cannot tell`.

    Raises:
        ValueError: they may not be compared, or one of them is no measurement.
    """
    check_same_phone(a, b)
    kernels = [(each.get("reference") or {}).get("kernel", "") for each in (a, b)]
    if kernels[0] != kernels[1]:
        raise ValueError(
            f"cannot tell: the two were measured beside different reference kernels, {kernels[0] or 'none'} and "
            f"{kernels[1] or 'none'}"
        )
    for name, each in (("A", a), ("B", b)):
        if each["verdict"] == "rejected":
            why = _why(each).partition("\n")[0]
            raise ValueError(f"cannot tell: the result of {name} is rejected: {why}")
    doubts = tuple(
        Reason("not_trusted", Verdict.SUSPECT, f"the result of {name} is {each['verdict']}", _why(each), AGAIN)
        for name, each in (("A", a), ("B", b))
        if each["verdict"] != "trusted"
    )
    return compare_results(_at_speed_of(b, a), _estimate(b), min_effect=min_effect, doubts=doubts)


def _why(certificate: Mapping[str, Any]) -> str:
    return "\n".join(reason.cause for reason in reasons_of(certificate["reasons"]))


def _at_speed_of(of: Mapping[str, Any], certificate: Mapping[str, Any]) -> MedianEstimate:
    """A certificate's estimate at the nominal speed of another one with the same reference kernel."""
    given, wanted = (each.get("reference") for each in (certificate, of))
    estimate = _estimate(certificate)
    if not given or not wanted:
        return estimate
    factor = wanted["nominal_s"] / given["nominal_s"]
    times = {name: getattr(estimate, name) * factor for name in ("median_s", "low_s", "high_s")}
    return replace(estimate, **times)


def _estimate(certificate: Mapping[str, Any]) -> MedianEstimate:
    given = certificate["estimate"]
    return MedianEstimate(**{name: given[name] for name in MedianEstimate.__dataclass_fields__ if name in given})


def together(comparisons: Sequence[Comparison]) -> Comparison:
    """One answer for several phones: the one that all give, else `cannot tell`; the interval spans all of theirs.

    Raises:
        ValueError: there is none.
    """
    if not comparisons:
        raise ValueError("there is no comparison")
    answers = {each.answer for each in comparisons}
    reasons = list(dict.fromkeys(reason for each in comparisons for reason in each.reasons))
    if len(answers) > 1:
        answered = ", ".join(f"{each.answer} ({each.ratio:.3f})" for each in comparisons)
        reasons.append(Reason("phones_disagree", Verdict.SUSPECT, "the phones disagree", answered, "judge each phone"))
    return replace(
        comparisons[0],
        answer=answers.pop() if len(answers) == 1 else ComparisonAnswer.CANNOT_TELL,
        ratio=math.exp(sum(math.log(each.ratio) for each in comparisons) / len(comparisons)),
        low=min(each.low for each in comparisons),
        high=max(each.high for each in comparisons),
        pairs=sum(each.pairs for each in comparisons),
        needed_pairs=max(each.needed_pairs for each in comparisons),
        needed_same=max(each.needed_same for each in comparisons),
        reasons=tuple(reasons),
    )


def _comparison(
    answer: ComparisonAnswer,
    found: MedianEstimate,
    pairs: int,
    scatter: float,
    min_effect: float,
    reasons: Iterable[Reason],
) -> Comparison:
    find_effect = _find_effect(min_effect)
    return Comparison(
        answer=answer,
        ratio=found.median_s,
        low=found.low_s,
        high=found.high_s,
        confidence=CONFIDENCE,
        pairs=pairs,
        min_effect=min_effect,
        find_effect=find_effect,
        needed_pairs=needed_pairs(scatter, find_effect, min_effect),
        needed_same=needed_same(scatter, min_effect),
        reasons=tuple(reasons),
    )


def _find_effect(min_effect: float) -> float:
    """The difference to find: 3 %, or three times the least that counts."""
    if not 0 <= min_effect < MAX_EFFECT:
        raise ValueError(f"a least effect of {min_effect:g} is not within 0 and {MAX_EFFECT:g}")
    return min(MAX_EFFECT, max(FIND_EFFECT, 3 * min_effect))


def _answer(found: MedianEstimate, min_effect: float) -> ComparisonAnswer:
    if 1 - min_effect < found.low_s and found.high_s < 1 + min_effect:
        return ComparisonAnswer.SAME
    if found.high_s < 1 and found.median_s <= 1 - min_effect:
        return ComparisonAnswer.FASTER
    if found.low_s > 1 and found.median_s >= 1 + min_effect:
        return ComparisonAnswer.SLOWER
    return ComparisonAnswer.CANNOT_TELL


def _sure_answer(found: MedianEstimate, min_effect: float, beyond: float = 1.0) -> ComparisonAnswer:
    """Which is faster, when the whole interval lies beyond the minimum effect, and `beyond` times further."""
    if found.high_s * beyond < 1 - min_effect:
        return ComparisonAnswer.FASTER
    if found.low_s > beyond * (1 + min_effect):
        return ComparisonAnswer.SLOWER
    return ComparisonAnswer.CANNOT_TELL


def _undecided(answer: ComparisonAnswer, found: MedianEstimate, min_effect: float) -> Iterator[Reason]:
    """Which rule left it open."""
    if answer is not ComparisonAnswer.CANNOT_TELL:
        return
    low, high = signed_percent(found.low_s - 1), signed_percent(found.high_s - 1)
    evidence = f"The interval is {low} to {high}, the minimum effect {percent(min_effect)}."
    if found.low_s <= 1 <= found.high_s:
        yield Reason("includes_1", Verdict.SUSPECT, "the interval includes no difference", evidence, LONGER)
    else:
        cause = f"the difference of {signed_percent(found.median_s - 1)} is below the minimum effect"
        yield Reason("below_min_effect", Verdict.SUSPECT, cause, evidence, LONGER)


def _few_pairs(pairs: int) -> Reason:
    return Reason("few_pairs", Verdict.SUSPECT, f"only {many(pairs, 'pair')}, {FIRST_PAIRS} needed", "", LONGER)


def _beyond_rounds(found: MedianEstimate, rounds: FloatArray) -> Iterator[Reason]:
    """Why an interval is wider than the observed scatter."""
    least, most = math.exp(float(rounds.min())), math.exp(float(rounds.max()))
    if (found.low_s < least or found.high_s > most) and least < most:
        evidence = (
            f"The interval reaches beyond the ratios seen, {ratio_words(least)} to {ratio_words(most)}: "
            f"{rounds.size} rounds of two pairs say little of how they scatter."
        )
        yield Reason("beyond_samples", Verdict.SUSPECT, "the size is known roughly", evidence, LONGER)


def _rounds(a_s: Sequence[float] | FloatArray, b_s: Sequence[float] | FloatArray) -> FloatArray:
    a, b = series(a_s).seconds, series(b_s).seconds
    if a.size != b.size or a.size % 2:
        raise ValueError(f"{a.size} samples of A and {b.size} of B: pairs come in twos (ABBA)")
    return np.asarray((np.log(b) - np.log(a)).reshape(-1, 2).mean(axis=1), dtype=np.float64)


def _unsteady(rounds: FloatArray) -> Iterator[Reason]:
    step, modes = find_step(rounds), find_modes(rounds)
    if step is not None:
        cause = f"unstable ratio: {signed_percent(step.change)} from pair {2 * step.index} on"
        yield Reason("step", Verdict.SUSPECT, cause, "", AGAIN)
    if modes is not None:
        cause = f"unstable ratio: two levels, {percent(modes.distance)} apart"
        yield Reason("modes", Verdict.SUSPECT, cause, "", AGAIN)


def _of_few(rounds: FloatArray) -> MedianEstimate:
    """The median of few rounds, and the interval of one look by Student's t around it; no wild one is pulled in."""
    count = int(rounds.size)
    middle = float(np.median(rounds))
    half = math.log(MAX_RATIO)
    if count > 1:
        error = math.sqrt(math.pi / 2) * float(np.std(rounds, ddof=1)) / math.sqrt(count)
        half = min(half, student(_quantile(), count - 1) * error)
    low, high = math.exp(middle - half), math.exp(middle + half)
    return MedianEstimate(math.exp(middle), low, high, CONFIDENCE, count, count, 1)


def _for_all_stages(found: MedianEstimate, rounds: FloatArray) -> MedianEstimate:
    """An interval so much wider that its confidence is that of all looks together (Bonferroni).

    On either side it reaches as far as the bootstrap's, and as the standard deviation says if that is further: of few
    rounds the bootstrap's width scatters, and an interval that is narrow by chance would decide.
    """
    wider = _z() / NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    middle = math.log(found.median_s)
    normal = _normal(rounds, student(_quantile(), rounds.size - 1)) / math.sqrt(rounds.size)
    below = max(wider * (middle - math.log(found.low_s)), normal)
    above = max(wider * (math.log(found.high_s) - middle), normal)
    return replace(found, low_s=math.exp(middle - below), high_s=math.exp(middle + above))


def _normal(rounds: FloatArray, quantile: float) -> float:
    """The half width, on the log scale, that one round's interval would have if rounds were normal."""
    return quantile * math.sqrt(math.pi / 2) * float(np.std(winsorised(rounds)))


def _scatter(found: MedianEstimate, rounds: FloatArray) -> float:
    """The half width that one round's interval would have, on the log scale; an upper bound, as rounds are few."""
    half = (math.log(found.high_s) - math.log(found.low_s)) / 2
    return max(half * math.sqrt(rounds.size), _normal(rounds, _z())) * (1 + SCATTER_MARGIN / math.sqrt(rounds.size))


def _pairs(scatter: float, half: float) -> int:
    return 2 * max(MIN_ROUNDS, math.ceil(min(scatter / half, MAX_RATIO) ** 2))


def _log_half(estimate: MedianEstimate) -> float:
    """Half the width of an estimate's interval, on the log scale, at this module's confidence."""
    return math.log(estimate.high_s / estimate.low_s) / 2 * _z() / NormalDist().inv_cdf(0.5 + estimate.confidence / 2)


def _quantile() -> float:
    """Up to where one look's interval goes, of a distribution."""
    return 1 - (1 - CONFIDENCE) / 2 / len(STAGES)


def _z() -> float:
    return NormalDist().inv_cdf(_quantile())
