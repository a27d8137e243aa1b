"""Changes of level in a row of results: robust segmentation, then a test of each edge. Pure arrays; no time, no epochs.

1. Outliers: results without two neighbours of their kind among the three before and the three after. They weigh 0.
2. Candidates: the path along a grid of levels with the least capped squares and a price for each change (Viterbi; the
   capped cost of Fearnhead and Rigaill 2019). The time is linear in the number of results.
3. Backward elimination: the worst edge is dropped until each edge is a step of 2 % between levels of enough results
   (more than outliers form by chance) and better than no step by the likelihood ratio of generalised least squares in
   a window. Noise is independent, weekly, or white plus AR(1). Its kind is chosen with and without the step, so that
   wandering results explain the step if they can. At last a step must be better than a ramp and than a curve.

The thresholds are tuned by simulation (`make bench NAME=history`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from farm.measure.series import FloatArray

BoolArray = npt.NDArray[np.bool_]

MIN_EFFECT = math.log(1.02)  # results of different days differ by more than samples of one run
MIN_RESULTS = 3  # of the newest and of the oldest level; other levels need one more
MIN_SIGMA = 0.001  # relative: what results of one phone scatter at least
SPREAD = 0.6  # quantile of distances that gives the scatter: two builds in turns are scatter, outliers are not
SPREAD_OF_NORMAL = math.sqrt(2) * NormalDist().inv_cdf(0.5 + SPREAD / 2)  # that quantile in standard deviations
FAR = 3.5  # standard deviations from a level, where the cost is capped
PRICE = 0.8  # of a change, in capped costs; a needless candidate only costs time
MAX_GRID = 600  # levels in the segmentation
WINDOW = 60  # results on either side of an edge that decide about it
PHIS = (0.3, 0.6, 0.8, 0.9, 0.97, 0.995)  # AR(1) coefficients
WEEK = 7.0  # results: the period of weekly noise
SHORT_MEMORY, LONG_MEMORY = (0.0, WEEK, 0.3, 0.6), 0.9
# Kinds of noise: the AR(1) coefficient (or the period), and the share of white noise in the variance.
KINDS = [(0.0, 1.0), (WEEK, 0.2), (WEEK, 0.5)] + [(phi, white) for phi in PHIS for white in (0.0, 0.1, 0.3, 0.6)]
# Standard errors that make an edge at 80 results, by simulation, for each kind of noise beside the edges.
SURE = {0.0: 3.2, WEEK: 3.2, 0.3: 3.7, 0.6: 4.1, 0.8: 4.4, 0.9: 3.9, 0.97: 3.8, 0.995: 3.8}
SURE_AT = 80  # results
MIN_SURE_AT = 20  # results: still fewer need as much as these
SURE_SHORTER, SURE_LONGER = 1.5, 0.5  # less for fewer results, more for more results
# Few results hardly show whether they wander: an edge between noises of a short memory then needs more.
FEW, SURE_OF_FEW = 30, 0.9  # results; all of it for ten results less
CLEAR = 3.0  # standard deviations: a smaller step may be a drift, and needs more for fewer than 80 results
SURE_OF_SMALL = 1.6  # for a tenth of 80 results
RAMPS = (8, 16)  # results from an edge to the ends of a ramp
SURE_OF_RAMP = 0.3  # standard errors by which a step is better than ramps
SURE_OF_CURVE, CURVE_SHORTER = 2.7, 2.0  # the same for a cubic; less for fewer results
MIN_CURVED = 8  # results of a level: a drift does not show in fewer
CHANCE = 0.006  # the probability that outliers look like a level
LONG = 1000  # results; in a longer history most candidates are no edges
AROUND = 2  # edges on either side that are tested again before another edge is dropped


@dataclass(frozen=True, slots=True)
class LevelChange:
    """From the result `index` on, results are at another level."""

    index: int
    effect: float  # log(after / before)
    errors: float  # standard errors, as of a normal distribution
    until: int | None = None  # the first result of the level that undoes the change; None: it lasts


def level_changes(log_s: FloatArray, own: FloatArray) -> list[LevelChange]:
    """The changes of level, in order.

    Args:
        log_s: logarithms of times, in the order of time.
        own: the standard error of each result, relative. A result weighs less if its own is above the median.
    """
    if log_s.size < 2 * MIN_RESULTS:
        return []
    results = _LogTimes(log_s, own)
    found = _eliminated(results, _segmented(results))
    changes = []
    for place, (index, effect, errors) in enumerate(found):
        following, back, _ = found[place + 1] if place + 1 < len(found) else (None, math.inf, 0.0)
        undone = abs(effect + back) < max(MIN_EFFECT, abs(effect) / 4)
        changes.append(LevelChange(index, effect, errors, following if undone else None))
    return changes


class _LogTimes:
    """The results, their scatter, their weights and which of them are outliers."""

    def __init__(self, log_s: FloatArray, own: FloatArray) -> None:
        self.log_s = clean = log_s
        around = np.lib.stride_tricks.sliding_window_view(np.pad(log_s, 3, mode="edge"), 7)
        self.local = np.median(around, axis=1)  # of each result and its three neighbours on either side
        typical = float(np.median(own))
        self.min_sigma = max(typical, MIN_SIGMA)
        for _ in range(3):
            self.sigma = max(_scatter(clean), self.min_sigma)
            between = max(self.sigma**2 - typical**2, 0.0)
            self.weight = self.sigma**2 / np.maximum(between + own**2, self.sigma**2)
            self.outlier = self._outliers()
            clean = self.cleaned([])

    def _outliers(self) -> BoolArray:
        """Results that are not near two of their neighbours; the newest three, all off on one side: near one."""
        x, near = self.log_s, np.zeros(self.log_s.size, dtype=int)
        reach = FAR * self.sigma / np.sqrt(self.weight)
        for lag in (1, 2, 3):
            close = np.abs(x[lag:] - x[:-lag]) <= np.maximum(reach[lag:], reach[:-lag])
            near[lag:] += close
            near[:-lag] += close
        found = near < 2
        off = (x[-MIN_RESULTS:] - np.median(x[-MIN_RESULTS - 7 : -MIN_RESULTS])) / reach[-MIN_RESULTS:]
        if off.min() > 1 or off.max() < -1:
            found[-MIN_RESULTS:] = near[-MIN_RESULTS:] < 1
        return np.asarray(found if 2 * int(found.sum()) < x.size else np.zeros(x.size, dtype=bool))

    def cleaned(self, edges: Sequence[int]) -> FloatArray:
        """The results; the median of the nearest three on either side within the level stands for an outlier."""
        clean, kept, ends = self.log_s.copy(), np.flatnonzero(~self.outlier), np.array([0, *edges, self.log_s.size])
        for place in np.flatnonzero(self.outlier):
            level = int(np.searchsorted(ends, place, side="right"))
            low, high, at = np.searchsorted(kept, (ends[level - 1], ends[level], place))
            near = kept[max(at - 3, low) : min(at + 3, high)]
            clean[place] = np.median(self.log_s[near if near.size else slice(ends[level - 1], ends[level])])
        return clean


def _scatter(x: FloatArray) -> float:
    """Standard deviation of results around a level, from the distances of results one to three places apart."""
    lags = range(1, min(3, max(x.size // 10, 1)) + 1)  # in a short row, an excursion would be most of the distances
    return max(float(np.quantile(np.abs(x[lag:] - x[:-lag]), SPREAD)) for lag in lags) / SPREAD_OF_NORMAL


def _segmented(results: _LogTimes) -> list[int]:
    """The first results of levels (without the first level) by least capped squares, each change at a price."""
    x, sigma = results.log_s, results.sigma
    step = sigma / 2
    while (grid := np.unique(np.round(x[~results.outlier] / step)) * (step / sigma)).size > MAX_GRID:
        step *= 1.5
    best = np.zeros(grid.size)
    moved, source = np.zeros((x.size, grid.size), dtype=bool), np.zeros(x.size, dtype=int)
    weights = np.where(results.outlier, 0.0, results.weight).tolist()
    for place, (value, weight) in enumerate(zip((x / sigma).tolist(), weights, strict=True)):
        source[place] = best.argmin()
        other = best[source[place]] + PRICE * FAR**2
        np.greater(best, other, out=moved[place])
        np.minimum(best, other, out=best)
        if weight:
            best += np.minimum(weight * (value - grid) ** 2, FAR**2)
    edges, at = [], int(best.argmin())
    for place in range(x.size - 1, 0, -1):
        if moved[place, at]:
            edges.append(place)
            at = int(source[place])
    return _settled(results, edges[::-1])


def _settled(results: _LogTimes, edges: list[int]) -> list[int]:
    """The edges, moved past outliers beside them, which cost nothing: an outlier joins the level that is nearer."""
    x, outlier = results.log_s, results.outlier
    ends = [0, *edges, x.size]
    clean = results.cleaned(edges)
    levels = [float(np.median(clean[low:high])) for low, high in pairwise(ends)]
    for j in range(1, len(ends) - 1):
        later = np.abs(x - levels[j]) < np.abs(x - levels[j - 1])
        while ends[j] < ends[j + 1] - 1 and outlier[ends[j]] and not later[ends[j]]:
            ends[j] += 1
        while ends[j] > ends[j - 1] + 1 and outlier[ends[j] - 1] and later[ends[j] - 1]:
            ends[j] -= 1
    return ends[1:-1]


def _eliminated(results: _LogTimes, edges: list[int]) -> list[tuple[int, float, float]]:
    """(edge, effect, standard errors) of the edges that hold."""
    n = results.log_s.size
    more = math.log10(max(n, MIN_SURE_AT) / SURE_AT)
    shift = SURE_LONGER * more if more > 0 else SURE_SHORTER * more**3
    curve = SURE_OF_CURVE + CURVE_SHORTER * min(more, 0.0)
    few = SURE_OF_FEW * min(max((FEW - n) / 10, 0.0), 1.0)
    known: dict[object, _Fit] = {}
    while edges:
        ends = [0, *edges, n]
        clean = results.cleaned(edges)
        medians = [float(np.median(clean[low:high])) for low, high in pairwise(ends)]
        steps = np.abs(np.diff(medians)).tolist()
        if n > LONG and min(steps) < MIN_EFFECT / 2:  # no fits for steps that are far too small
            edges = _without_worst(edges, [min(step - MIN_EFFECT / 2, 0.0) for step in steps])
            continue
        found = _fits(results, clean, edges, known)
        effects = [float(fit.effect[i]) for fit, i in found]
        short = [level for level in range(len(ends) - 1) if not _holds(results, medians, ends, level)]
        inner = [i for i in short if 0 < i < len(edges) and ends[i + 1] - ends[i] <= MIN_RESULTS + 1]
        bumps = [i for i in inner if 2 * abs(effects[i - 1] + effects[i]) < min(map(abs, effects[i - 1 : i + 1]))]
        if bumps:  # outliers that lie together
            results.outlier = results.outlier | np.isin(np.searchsorted(ends, np.arange(n), side="right") - 1, bumps)
            edges = [edge for j, edge in enumerate(edges) if j not in bumps and j + 1 not in bumps]
            continue
        spare = [float(fit.errors[i]) - SURE[KINDS[fit.kind][0]] - shift for fit, i in found]
        for j, effect in enumerate(effects):
            if KINDS[found[j][0].kind][0] in SHORT_MEMORY:
                small = abs(effect) < CLEAR * results.sigma
                spare[j] -= max(few, -SURE_OF_SMALL * min(more, 0.0) * small)
            if j in short or j + 1 in short or abs(effect) < MIN_EFFECT:
                spare[j] = min(spare[j], 0.0) - 10
        if min(spare) >= 0:
            spare = [fit.spare_over_curves(i, curve) for fit, i in found]
        if min(spare) >= 0:
            return [
                (edge, effect, float(fit.errors[i]))
                for edge, effect, (fit, i) in zip(edges, effects, found, strict=True)
            ]
        edges = _without_worst(edges, spare)
    return []


def _without_worst(edges: list[int], spare: list[float]) -> list[int]:
    """The edges without those that fail (`spare` below 0) by more than the edges around them."""
    beside = [math.inf] * AROUND + spare + [math.inf] * AROUND
    worst = [min(beside[j : j + 2 * AROUND + 1]) for j in range(len(edges))]
    return [edge for edge, own, least in zip(edges, spare, worst, strict=True) if own >= 0 or own > least]


def _holds(results: _LogTimes, medians: list[float], ends: list[int], i: int) -> bool:
    """Whether level `i` has enough results, and more than it has by chance if results stray as often as elsewhere."""
    x, outlier, n, low, high = results.log_s, results.outlier, ends[-1], ends[i], ends[i + 1]
    inliers, newest = int((~outlier[low:high]).sum()), high == n
    if high - low < MIN_RESULTS + (low > 0 and not newest) or inliers < MIN_RESULTS - newest:
        return False
    level = medians[i]
    sides = [(ends[j], ends[j + 1], medians[j]) for j in (i - 1, i + 1) if 0 <= j < len(medians)]
    other = min((side for _, _, side in sides), key=lambda side: float(abs(side - level)))
    there = int((np.abs(x[low:high] - other) > abs(level - other) / 2).sum())
    alike = 0  # results beside the level that are at it, and are not where their neighbours are
    for a, b, side in sides:
        reach = min(2.5 * results.sigma, abs(side - level) / 2)
        alike += int(((np.abs(x[a:b] - level) < reach) & (np.abs(x[a:b] - results.local[a:b]) > reach)).sum())
    astray = max(int(outlier[:low].sum() + outlier[high:].sum()), alike)
    stray, agree = (astray + 1) / (n - high + low + 2), (alike + 1) / (astray + 2)
    places = MIN_RESULTS if newest else n**1.5 / 9  # 80 of 80 results; more of more, for levels of more lengths
    return places * _at_least(there, high - low, stray) * agree ** max(inliers - 1, 0) < CHANCE


def _at_least(count: int, of: int, probability: float) -> float:
    """The probability of at least `count` successes `of` so many (binomial)."""
    odds = probability / (1 - probability)
    term = total = 0.0
    for k in range(count, of + 1):
        if k == count:
            logs = math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1)
            term = math.exp(logs + k * math.log(probability) + (of - k) * math.log1p(-probability))
        else:
            term *= odds * (of - k + 1) / k
        total += term
    return min(total, 1.0)


def _fits(results: _LogTimes, clean: FloatArray, edges: list[int], known: dict[object, _Fit]) -> list[tuple[_Fit, int]]:
    """For each edge the fit of the window around it, and its place there. One window where there are few results."""
    n, found, span = clean.size, [], WINDOW if clean.size > 2 * WINDOW else clean.size
    for low in range(0, n, span):
        start = min(max(low - WINDOW // 2, 0), max(n - 2 * WINDOW, 0))
        inside = [edge - start for edge in edges if start < edge < start + 2 * WINDOW]
        if any(low <= edge + start < low + span for edge in inside):
            window = slice(start, start + 2 * WINDOW)
            key = (start, *inside, clean[window].tobytes())
            if key not in known:
                lost = int(results.outlier[window].sum())
                known[key] = _Fit(clean[window], np.sqrt(results.weight[window]), inside, lost, results.min_sigma)
            found += [(known[key], i) for i, edge in enumerate(inside) if low <= edge + start < low + span]
    return found


@lru_cache(maxsize=1)
def _whiteners(size: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For each kind of noise the matrix that makes it white (leading blocks serve fewer results), sums, log det.

    Durbin and Levinson's recursion, for all kinds at once. Shapes (kinds, size, size), (kinds, size, size + 1) of the
    sums of each row's first columns, and (kinds, size).
    """
    lag = np.arange(size)
    memory = np.array([np.cos(2 * np.pi * lag / WEEK) if phi == WEEK else phi**lag for phi, _ in KINDS])
    white = np.array([share for _, share in KINDS])[:, None]
    covariance = (1 - white) * memory + white * (lag == 0)
    whitener = np.zeros((len(KINDS), size, size))
    variance = covariance[:, 0].copy()
    variances = np.empty((len(KINDS), size))
    ahead = np.zeros((len(KINDS), 0))  # coefficients that predict a value from the values before, the newest first
    for place in range(size):
        if place:
            partial = (covariance[:, place] - (ahead * covariance[:, place - 1 : 0 : -1]).sum(axis=1)) / variance
            ahead = np.concatenate([ahead - partial[:, None] * ahead[:, ::-1], partial[:, None]], axis=1)
            variance = variance * (1 - partial**2)
        variances[:, place] = variance
        whitener[:, place, :place] = -ahead[:, ::-1]
        whitener[:, place, place] = 1.0
    whitener /= np.sqrt(variances)[:, :, None]
    sums = np.concatenate([np.zeros((len(KINDS), size, 1)), np.cumsum(whitener, axis=2)], axis=2)
    return whitener, sums, np.cumsum(np.log(variances), axis=1)


class _Fit:
    """Levels between edges, by generalised least squares for each kind of noise."""

    def __init__(self, y: FloatArray, weight: FloatArray, edges: list[int], lost: int, min_sigma: float) -> None:
        whitener, sums, logdet = _whiteners(2 * WINDOW)
        self.count, self.starts, self.min_sigma = y.size, [0, *edges, y.size], min_sigma
        self.whitener, self.weight = whitener[:, : y.size, : y.size], weight[:, None]
        self.share = logdet[:, y.size - 1] / y.size
        self.freedom = max(y.size - len(edges) - 2 - lost, 2)
        padded = np.zeros(whitener.shape[2])
        padded[: y.size] = (y - y.mean()) * weight
        self.y = (whitener.reshape(-1, padded.size) @ padded).reshape(len(KINDS), -1, 1)[:, : y.size]
        if weight.min() < 1:
            levels = np.repeat(np.eye(len(edges) + 1), np.diff(self.starts), axis=0)
            self.design = self.whitener @ (levels * self.weight)
        else:
            self.design = np.diff(sums[:, : y.size, self.starts], axis=2)
        inverse, found, self.rss = self._solved(self.design)
        jump, own, off = np.diff(found), np.diagonal(inverse, 0, 1, 2), np.diagonal(inverse, 1, 1, 2)
        self.kind = int((np.log(self.rss) + self.share).argmin())
        self.effect = jump[self.kind]
        self.errors = self._better_than(self.rss[:, None] + jump**2 / (own[:, :-1] + own[:, 1:] - 2 * off))

    def _solved(self, design: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The inverse normal matrices, the coefficients and the residual squares, for each kind of noise."""
        across = design.transpose(0, 2, 1)
        inverse: FloatArray = np.linalg.inv(across @ design + 1e-9 * np.eye(design.shape[2])).astype(np.float64)
        levels = inverse @ (across @ self.y)
        rss = ((self.y - design @ levels)[:, :, 0] ** 2).sum(axis=1)
        return inverse, levels[:, :, 0], np.maximum(rss, self.count * (MIN_SIGMA / 100) ** 2)

    def _better_than(self, rss: FloatArray) -> FloatArray:
        """Standard errors by which these levels are better than models that leave `rss`, each at its best kind.

        Student's t as a normal deviate (Hill 1970, algorithm 395).
        """
        ratio = (np.log(rss) + self.share[:, None]).min(axis=0) - (np.log(self.rss) + self.share).min()
        t2 = self.freedom * np.expm1(np.clip(ratio, 0, 50))
        t2 *= min(1.0, self.rss[self.kind] / self.freedom / self.min_sigma**2)
        a = self.freedom - 0.5
        b = 48 * a**2
        z2 = a * np.log1p(t2 / self.freedom)
        series = (((-0.4 * z2 - 3.3) * z2 - 24) * z2 - 85.5) / (0.8 * z2**2 + 100 + b) + z2 + 3
        return np.asarray(np.sqrt(z2) * (series / b + 1), dtype=np.float64)

    def spare_over_curves(self, j: int, sure_of_curve: float) -> float:
        """Standard errors to spare over ramps and, unless noise of a long memory follows it, over a cubic."""
        low, at, high = self.starts[j : j + 3]
        shapes = [(np.clip((np.arange(low, high) - at + 0.5)[:, None] / RAMPS, -1, 1), SURE_OF_RAMP)]
        if not LONG_MEMORY <= KINDS[self.kind][0] < 1 and min(at - low, high - at) >= MIN_CURVED:
            shapes.append((np.linspace(-1, 1, high - low)[:, None] ** (1, 2, 3), sure_of_curve))
        merged = np.delete(self.design, j, axis=2)
        merged[:, :, j] = self.design[:, :, j] + self.design[:, :, j + 1]
        spare = []
        for shape, sure in shapes:
            design = np.concatenate([merged, self.whitener[:, :, low:high] @ (shape * self.weight[low:high])], axis=2)
            spare.append(float(self._better_than(self._solved(design)[2][:, None])[0]) - sure)
        return min(spare)
