"""How right a model's outputs are: scores of labelled inputs, intervals, paired tests, and how many inputs find a loss.

Every metric is a ratio of sums over labelled inputs: right answers, squared errors, or edits of words. A proportion has
Wilson's interval (1927), any other metric that of the studentised bootstrap over inputs. Two builds on the same inputs
are compared by McNemar's mid-p test (Fagerland 2013), or by the same bootstrap of what they differ in at each input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from farm.common.durations import many
from farm.measure.series import FloatArray

Array = npt.NDArray[Any]
CONFIDENCE = 0.95
POWER = 0.95  # of the loss that farm names beforehand
AIMED_POWER = 0.957  # of the formula: it promises up to half a point too much (bench quality)
LOSS = 0.01  # of a proportion: the loss to be found, one point; smaller differences, for certain, are the same
LOSS_DB = 0.1  # of PSNR, as `LOSS`
# Beforehand it is not known how many answers change. So many for each that is lost in the end: of four, three become
# wrong and one right.
CHANGED_PER_LOSS = 2.0
MIN_CHANGED = 10  # with fewer changed answers no normal approximation says how many inputs find a loss
RESAMPLES = 2000
SEED = 20260801  # fixed: the same scores always give the same interval
MAX_RESAMPLED = 10_000  # inputs; of more, sums of some at random are drawn together
MAX_DRAWN = 200_000  # values at once, which stay in a processor's cache
MAX_PSNR_DB = 200.0  # outputs that equal their labels have no finite one


@dataclass(frozen=True, slots=True)
class QualityMetric:
    """What is measured of outputs, and how its numbers are written."""

    name: str
    about: str
    unit: str
    factor: float = 1.0  # from the value to the unit
    higher: bool = False  # whether higher is better
    top: int = 0  # of a proportion: the label is among so many largest; 0: it is no proportion

    def words(self, value: float) -> str:
        """A value with its unit: `94.10 %`."""
        return f"{self.digits(value)} {self.unit}".rstrip()

    def digits(self, value: float, sign: str = "") -> str:
        """A value without its unit."""
        return f"{value * self.factor:{sign}.2f}" if self.unit else f"{value:{sign}.4g}"


METRICS: Mapping[str, QualityMetric] = {
    each.name: each
    for each in (
        QualityMetric("top1", "the label is the largest element", "%", 100.0, higher=True, top=1),
        QualityMetric("top5", "the label is among the five largest elements", "%", 100.0, higher=True, top=5),
        QualityMetric("mse", "mean squared error", ""),
        QualityMetric("psnr", "peak signal to noise ratio of the mean squared error", "dB", higher=True),
        QualityMetric("wer", "edited words over the label's words", "%", 100.0),
    )
}


@dataclass(frozen=True, slots=True)
class Scores:
    """Each labelled input's part in a metric: the sum of `counts` over the sum of `weights`, for PSNR in dB of it."""

    metric: QualityMetric
    counts: FloatArray  # right answers (0 or 1), mean squared errors, or edits
    weights: FloatArray  # the label's words for wer, else 1
    peak: float = 1.0  # of PSNR: from the smallest to the largest number of all labels

    @property
    def value(self) -> float:
        """The metric."""
        return self.of_ratio(float(self.counts.sum() / self.weights.sum()))

    def of_ratio(self, ratio: float) -> float:
        """The metric of a ratio of sums."""
        if self.metric.name != "psnr":
            return ratio
        return min(10 * math.log10(self.peak**2 / ratio), MAX_PSNR_DB) if ratio > 0 else MAX_PSNR_DB


@dataclass(frozen=True, slots=True)
class QualityEstimate:
    """A metric over all labelled inputs, with its interval."""

    metric: str
    value: float
    low: float
    high: float
    confidence: float
    count: int  # labelled inputs
    method: str  # "wilson" or "bootstrap"


class QualityAnswer(StrEnum):
    """The answer of a comparison: B, seen from A."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"  # any difference is smaller than the loss to be found
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class QualityComparison:
    """B against A on the same labelled inputs."""

    metric: str
    answer: QualityAnswer
    a: float
    b: float
    difference: float  # B - A
    low: float
    high: float
    confidence: float
    p: float  # of a difference as large, if there were none
    test: str  # "mcnemar" or "bootstrap"
    count: int  # labelled inputs
    lost: int  # of a proportion: answers that A has right and B wrong
    regained: int  # of a proportion: answers that A has wrong and B right
    loss: float  # the loss to be found
    needed: int  # labelled inputs that find it with 95 % power, as far as these tell

    @property
    def sentence(self) -> str:
        """The answer in words."""
        metric = METRICS[self.metric]
        unit = "points" if metric.unit == "%" else metric.unit
        answers = {"better": "B is better", "worse": "B is worse", "same": "both are as good"}
        ends = f"{metric.digits(self.low, '+')} to {metric.digits(self.high, '+')}"
        return (
            f"{answers.get(self.answer, 'cannot tell')}: {self.metric} {metric.words(self.a)} -> "
            f"{metric.words(self.b)}, {' '.join(filter(None, (metric.digits(self.difference, '+'), unit)))} "
            f"({100 * self.confidence:.0f} % interval {ends}, p {self.p:.2g}) of {many(self.count, 'input', ',')}"
        )

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**asdict(self), "answer": str(self.answer)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> QualityComparison:
        """The comparison that `to_wire` wrote."""
        known = {name: wire[name] for name in cls.__dataclass_fields__}
        return cls(**{**known, "answer": QualityAnswer(wire["answer"])})


# Scores ------------------------------------------------------------------------------------------------------------


def check_labels(metric: QualityMetric, labels: Array) -> None:
    """Whether labels are of the form that a metric needs.

    Args:
        metric: which.
        labels: along the first axis, one for each input: class numbers (n), numbers of words (n, words; a negative one
            is none), or outputs.

    Raises:
        ValueError: they are not; the message says what they are and what is needed.
    """
    whole = np.issubdtype(labels.dtype, np.integer)
    needed, fits, wrong = f"{metric.name} needs real numbers", labels.dtype.kind in "biuf", ""
    if metric.top:
        needed = f"{metric.name} needs one class number, from 0, for each input"
        fits = whole and labels.reshape(len(labels), -1).shape[1] == 1
        wrong = _first(labels, labels < 0) if fits else ""
    elif metric.name == "wer":
        needed = "wer needs numbers of words, a row for each input; a negative number is no word"
        fits = whole and labels.ndim == 2 and bool((labels >= 0).any())
    if wrong or not fits:
        form = "text" if labels.dtype.kind in "US" else f"{labels.dtype} of shape {'x'.join(map(str, labels.shape))}"
        raise ValueError(f"{wrong or f'labels are {form}'}, and {needed}")


def check_output(metric: QualityMetric, labels: Array, shape: Sequence[int], name: str) -> None:
    """Whether labels are for an output.

    Args:
        metric: which.
        labels: as `check_labels` wants them.
        shape: of the output for one input.
        name: the output's.

    Raises:
        ValueError: they are not.
    """
    classes = math.prod(shape)
    if metric.top and (wrong := _first(labels, labels >= classes)):
        raise ValueError(f"{wrong}, and output {name} has classes 0 to {classes - 1}")
    if metric.name in ("mse", "psnr") and labels.shape[1:] != tuple(shape):
        raise ValueError(f"a label is {_shape_words(labels.shape[1:])}, and output {name} {_shape_words(shape)}")


def _first(labels: Array, wrong: Array) -> str:
    """The first wrong label with its place; "": there is none."""
    places = np.flatnonzero(wrong)
    return f"labels[{places[0]}] is {labels.reshape(-1)[places[0]]}" if places.size else ""


def _shape_words(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def scored(metric: QualityMetric, outputs: Array, labels: Array) -> tuple[FloatArray, FloatArray]:
    """The counts and weights of some inputs.

    Args:
        metric: which.
        outputs: along the first axis, one for each input.
        labels: as `check_labels` wants them, for the same inputs.

    Raises:
        ValueError: they do not fit each other.
    """
    if metric.top:
        right = _ranks(outputs.reshape(len(outputs), -1), labels.reshape(-1)) < metric.top
        return right.astype(np.float64), np.ones(len(outputs))
    if metric.name == "wer":
        return _edits(outputs, labels)
    if outputs.shape != labels.shape:
        raise ValueError(f"a label is {_shape_words(labels.shape[1:])}, an output {_shape_words(outputs.shape[1:])}")
    off = (outputs.astype(np.float64) - labels.astype(np.float64)).reshape(len(outputs), -1)
    # An output that is no number is as wrong as a number can be, and still counts.
    return np.nan_to_num(np.mean(off**2, axis=1), nan=1e300, posinf=1e300), np.ones(len(outputs))


def peak_of(metric: QualityMetric, labels: Array) -> float:
    """The peak for PSNR: from the smallest to the largest number of all labels; 1 where they are all the same."""
    return float(labels.max()) - float(labels.min()) or 1.0 if metric.name == "psnr" else 1.0


def _ranks(outputs: Array, labels: Array) -> Array:
    """How many classes come before each label's: larger ones, and equal ones of a lower number. NaN is never right."""
    if not outputs.shape[1] > labels.max():
        raise ValueError(f"a label is class {labels.max()}, and an output has {outputs.shape[1]} classes")
    own = np.take_along_axis(outputs, labels[:, None].astype(np.intp), axis=1)
    before = (outputs > own) | ((outputs == own) & (np.arange(outputs.shape[1]) < labels[:, None]))
    return np.asarray(np.where(np.isnan(own[:, 0]), outputs.shape[1] + METRICS["top5"].top, before.sum(axis=1)))


def _edits(outputs: Array, labels: Array) -> tuple[FloatArray, FloatArray]:
    """Edits that make the words of each output those of its label, and how many words that has."""
    words = outputs.argmax(axis=-1) if outputs.ndim == 3 else outputs
    if words.ndim != 2:
        raise ValueError("wer needs outputs of (words), or of (words, vocabulary)")
    rows = [(_words(one), _words(other)) for one, other in zip(words, labels, strict=True)]
    return np.array([_distance(*each) for each in rows], dtype=np.float64), np.array(
        [float(label.size) for _, label in rows]
    )


def _words(row: Array) -> Array:
    return np.asarray(row[row >= 0])


def _distance(one: Array, other: Array) -> int:
    """Levenshtein's distance: a row of its table at a time."""
    places = np.arange(other.size + 1)
    row = places
    for number, word in enumerate(one, 1):
        changed = np.minimum(row[1:] + 1, row[:-1] + (other != word))
        row = np.minimum.accumulate(np.concatenate(([number], changed)) - places) + places
    return int(row[-1])


# Intervals and tests -----------------------------------------------------------------------------------------------


def estimate_quality(scores: Scores, confidence: float = CONFIDENCE) -> QualityEstimate:
    """The metric with its interval."""
    metric, count = scores.metric, scores.counts.size
    if metric.top:
        low, high = wilson(int(scores.counts.sum()), count, confidence)
        return QualityEstimate(metric.name, scores.value, low, high, confidence, count, "wilson")
    ends = [scores.of_ratio(max(end, 0.0)) for end in _Bootstrap(scores.counts, scores.weights).interval(confidence)]
    return QualityEstimate(metric.name, scores.value, min(ends), max(ends), confidence, count, "bootstrap")


def wilson(right: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a proportion (Wilson 1927)."""
    z = _z(confidence)
    rate, z2 = right / count, z**2
    middle = (rate + z2 / 2 / count) / (1 + z2 / count)
    half = z * math.sqrt(rate * (1 - rate) / count + z2 / 4 / count**2) / (1 + z2 / count)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def compare_quality(a: Scores, b: Scores, confidence: float = CONFIDENCE) -> QualityComparison:
    """Compare two builds that ran on the same labelled inputs, in the same order.

    `better` and `worse` need a p below what the confidence leaves, `same` an interval that lies within the loss to be
    found on both sides.

    Raises:
        ValueError: the metrics, or the numbers of inputs, differ.
    """
    if a.metric != b.metric or a.counts.size != b.counts.size:
        raise ValueError("the two were measured by different metrics, or on different labelled inputs")
    metric, count = a.metric, a.counts.size
    loss = LOSS if metric.top else LOSS_DB if metric.name == "psnr" else LOSS * abs(a.value)
    lost = regained = 0
    if metric.top:
        lost, regained = int((a.counts > b.counts).sum()), int((a.counts < b.counts).sum())
        low, high, p = *_paired_interval(lost, regained, count, confidence), mcnemar(lost, regained)
        needed = needed_inputs(LOSS, max((lost + regained) / count, LOSS))
    else:
        low, high, p, needed = _of_means(a, b, loss, confidence)
    difference = b.value - a.value
    if p < 1 - confidence:
        answer = QualityAnswer.BETTER if (difference > 0) == metric.higher else QualityAnswer.WORSE
    else:
        same = max(-low, high) <= loss
        answer = QualityAnswer.SAME if same else QualityAnswer.CANNOT_TELL
    return QualityComparison(
        metric.name, answer, a.value, b.value, difference, low, high, confidence, p,
        "mcnemar" if metric.top else "bootstrap", count, lost, regained, loss, needed,
    )  # fmt: skip


def mcnemar(lost: int, regained: int) -> float:
    """McNemar's mid-p of so many changed answers, if both directions were as likely."""
    changed, few = lost + regained, min(lost, regained)
    if lost == regained:
        return 1.0
    logs = [_log_binomial(changed, k) for k in range(few + 1)]
    below = sum(math.exp(each) for each in logs)
    return min(1.0, 2 * below - math.exp(logs[-1]))


def _log_binomial(count: int, k: int) -> float:
    """The logarithm of the probability of k heads of so many coins."""
    return math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) - count * math.log(2)


def _paired_interval(lost: int, regained: int, count: int, confidence: float) -> tuple[float, float]:
    """Of the difference of two paired proportions (Bonett and Price 2012)."""
    one, other = (lost + 1) / (count + 2), (regained + 1) / (count + 2)
    half = _z(confidence) * math.sqrt((one + other - (other - one) ** 2) / (count + 2))
    return max(other - one - half, -1.0), min(other - one + half, 1.0)


def _of_means(a: Scores, b: Scores, loss: float, confidence: float) -> tuple[float, float, float, int]:
    """Ends of the difference, p, and how many inputs would find `loss`.

    Where few inputs have most of the difference, resampled statistics scatter less than true ones do: the interval is
    not narrower than that of a normal statistic, which is too wide there.
    """
    z = _z(confidence)
    if a.metric.name == "psnr":  # the difference is the ratio of the errors, in dB; equal ones are a ratio of 1
        drawn, null = _Bootstrap(b.counts + TINY, a.counts + TINY), 1.0
        ends = [-10 * math.log10(max(end, TINY)) for end in drawn.interval(confidence, z)]
        wanted = 1 - 10 ** (-loss / 10)
    else:
        drawn, null = _Bootstrap(b.counts - a.counts, a.weights), 0.0
        ends, wanted = list(drawn.interval(confidence, z)), loss
    scatter = drawn.error * math.sqrt(a.counts.size)
    needed = math.ceil(((_z(CONFIDENCE) + NormalDist().inv_cdf(POWER)) * scatter / wanted) ** 2) if wanted else 0
    return min(ends), max(ends), drawn.p(null), max(needed, 1)


TINY = 1e-30  # keeps a ratio of errors finite where there are none


class _Bootstrap:
    """The studentised bootstrap of a ratio of sums: how far resampled ratios are off, in their own standard errors."""

    def __init__(self, counts: FloatArray, weights: FloatArray) -> None:
        counts, weights = _in_groups(counts, weights)
        columns = np.stack([counts, weights, counts**2, counts * weights, weights**2])
        self.ratio, self.error = (float(each[0]) for each in _ratios(columns.sum(axis=1, keepdims=True)))
        drawn = [
            np.stack([each.take(places).sum(axis=1) for each in columns]) for places in _drawn_places(counts.size)
        ] if self.error else [columns.sum(axis=1, keepdims=True)]  # fmt: skip
        ratios, errors = _ratios(np.concatenate(drawn, axis=1))
        off = ratios - self.ratio
        self._t = np.sort(np.divide(off, errors, out=np.zeros_like(off), where=errors > 0))

    def interval(self, confidence: float, least: float = 0.0) -> tuple[float, float]:
        """Where the ratio is; `least`: so many standard errors at the least, to either side."""
        far, near = np.quantile(self._t, [(1 + confidence) / 2, (1 - confidence) / 2])
        return self.ratio - max(float(far), least) * self.error, self.ratio - min(float(near), -least) * self.error

    def p(self, null: float) -> float:
        """Of a ratio as far from `null`, if that were the true one; not below that of a normal statistic."""
        if not self.error:
            return 1.0 if self.ratio == null else 1 / (RESAMPLES + 1)
        found = (self.ratio - null) / self.error
        beyond = min((self._t >= found).sum(), (self._t <= found).sum())
        return min(1.0, max(2 * float(beyond + 1) / (self._t.size + 1), 2 * NormalDist().cdf(-abs(found))))


def _ratios(sums: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The ratio of each column of sums, and its standard error (Fieller's residuals)."""
    counts, weights, squares, products, weight_squares = sums
    total = np.where(weights > 0, weights, np.nan)
    ratios = counts / total
    spread = squares - 2 * ratios * products + ratios**2 * weight_squares
    return np.nan_to_num(ratios), np.nan_to_num(np.sqrt(np.maximum(spread, 0.0)) / total)


def _in_groups(counts: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The same, or sums of groups drawn at random where there are very many."""
    if counts.size <= MAX_RESAMPLED:
        return counts, weights
    order = np.random.default_rng(SEED).permutation(counts.size)
    edges = np.linspace(0, counts.size, MAX_RESAMPLED, endpoint=False).astype(np.intp)
    return np.add.reduceat(counts[order], edges), np.add.reduceat(weights[order], edges)


def _drawn_places(size: int) -> Iterator[npt.NDArray[np.int64]]:
    random, most = np.random.default_rng(SEED), max(1, MAX_DRAWN // size)
    yield from (random.integers(0, size, (min(most, RESAMPLES - done), size)) for done in range(0, RESAMPLES, most))


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)


# Beforehand --------------------------------------------------------------------------------------------------------


def needed_inputs(loss: float = LOSS, changed: float | None = None) -> int:
    """Labelled inputs on which a loss of a proportion is found with 95 % power (Connor 1987).

    Args:
        loss: of right answers among all, above 0.
        changed: answers that are right in one build only, among all; at least `loss`. None: twice the loss.
    """
    both = max(CHANGED_PER_LOSS * loss if changed is None else changed, loss)
    power = NormalDist().inv_cdf(AIMED_POWER)
    needed = (_z(CONFIDENCE) * math.sqrt(both) + power * math.sqrt(both - loss**2)) ** 2 / loss**2
    return math.ceil(max(needed, MIN_CHANGED / both))


def found_loss(count: int) -> float:
    """The smallest loss of a proportion that so many labelled inputs find with 95 % power; 1: none.

    Twice as many answers as are lost change, by assumption.
    """
    low, high = 0.0, 0.5
    if needed_inputs(high) > count:
        return 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if needed_inputs(middle) <= count else (middle, high)
    return high
