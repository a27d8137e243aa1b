"""Whether what farm.measure.quality says is so: draws of digits whose truth is known, with planted mistakes.

A linear classifier of scikit-learn's digits (generated ones where scikit-learn is not installed) answers those that it
was not fitted to; these answers are the truth that is drawn from. B is A with planted flips: right answers become
wrong, and wrong ones right. The last figure is of a virtual phone, whose `farm run --quality` counts the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import helper

from benchmarks.harness import Context, Figure
from benchmarks.rates import Case, Goal, rates
from benchmarks.simulated_runs import Random
from farm.measure.quality import (
    LOSS,
    METRICS,
    QualityAnswer,
    QualityComparison,
    Scores,
    compare_quality,
    estimate_quality,
    needed_inputs,
)
from farm.measure.series import FloatArray
from farm.simulation.virtual_farm import virtual_farm
from tests.support.onnx_files import onnx_model

SEED = 20261130
FITTED = 600  # digits
STEPS, RATE = 200, 0.5  # of the classifier's gradient
COVERAGE_RUNS = 4000
BOOTSTRAP_RUNS = 1000
POWER_RUNS = 8000
COVERAGE, POWER, ALARM = Goal(93, 97), Goal(95, 100), Goal(0, 6)
TOP1, MSE, PSNR, WER = (METRICS[name] for name in ("top1", "mse", "psnr", "wer"))
BATCH = 64


@dataclass(frozen=True)
class Digits:
    """Digits that the classifier was not fitted to, and its answers."""

    name: str
    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]

    @property
    def outputs(self) -> FloatArray:
        """The probability of each class."""
        return _softmax(self.images.astype(np.float64) @ self.weights.astype(np.float64))

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Which answers are right."""
        return np.asarray(self.outputs.argmax(axis=1) == self.labels)

    @property
    def errors(self) -> FloatArray:
        """The mean squared error of each digit's probabilities."""
        return np.asarray(np.mean((self.outputs - np.eye(10)[self.labels]) ** 2, axis=1))


@cache
def digits() -> Digits:
    """Those of scikit-learn, or generated ones."""
    name, images, labels = _data()
    order = np.random.default_rng(SEED).permutation(len(labels))
    images, labels = images[order], labels[order]
    weights = np.zeros((images.shape[1], 10))
    for _ in range(STEPS):
        off = _softmax(images[:FITTED] @ weights) - np.eye(10)[labels[:FITTED]]
        weights -= RATE * images[:FITTED].T @ off / FITTED
    return Digits(name, images[FITTED:].astype(np.float32), labels[FITTED:], weights.astype(np.float32))


def _data() -> tuple[str, FloatArray, npt.NDArray[np.int64]]:
    if (spec := find_spec("sklearn")) is None:
        random = np.random.default_rng(SEED)
        labels = random.integers(0, 10, 1797)
        prototypes = random.uniform(0, 1, (10, 64))
        return "generated digits", prototypes[labels] + 0.55 * random.standard_normal((1797, 64)), labels
    found = np.loadtxt(Path(str(spec.origin)).parent / "datasets/data/digits.csv.gz", delimiter=",")
    return "digits", found[:, :-1] / 16, found[:, -1].astype(np.int64)


def _softmax(scores: FloatArray) -> FloatArray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def run(context: Context) -> list[Figure]:
    """The rate of every property, and whether it meets its goal; a virtual phone's count."""
    known = digits()
    context.say(f"{len(known.labels)} {known.name}, {known.right.mean():.1%} answered right")
    return [*rates(context, _cases, SEED), _on_a_phone(context)]


def _cases() -> list[Case]:
    stated = needed_inputs(LOSS)
    return [
        *(Case(f"top1 of {n} digits: interval", COVERAGE_RUNS, _proportion(n), COVERAGE) for n in (100, 500, 2000)),
        *(Case(f"mse of {n} digits: interval", BOOTSTRAP_RUNS, _mean(n), COVERAGE) for n in (100, 500)),
        Case("psnr of 300 digits: interval", BOOTSTRAP_RUNS, _mean(300, psnr=True), COVERAGE),
        Case("wer of 200 sentences: interval", BOOTSTRAP_RUNS, _words, COVERAGE),
        Case(f"1 point lost, {stated} digits as stated", POWER_RUNS, _lost(LOSS, None), POWER),
        Case("1 point lost, 5 % changed, digits as stated", POWER_RUNS, _lost(LOSS, 0.05), POWER),
        Case("1 point lost, none regained, digits as stated", POWER_RUNS, _lost(LOSS, LOSS), POWER),
        Case("3 points lost, digits as stated", POWER_RUNS, _lost(0.03, None), POWER),
        Case("1 point lost: interval of the difference", POWER_RUNS, _difference(2000, 0.015, 0.005), COVERAGE),
        Case("2 % changed, none lost: called better or worse", POWER_RUNS, _alarm(2000, 0.01), ALARM),
        Case("errors changed, none grown: called better or worse", BOOTSTRAP_RUNS, _mean_alarm, ALARM),
    ]


def _scores(counts: npt.NDArray[np.generic], weights: FloatArray | None = None, name: str = "top1") -> Scores:
    known = counts.astype(np.float64)
    return Scores(METRICS[name], known, np.ones(known.size) if weights is None else weights)


def _drawn(random: Random, count: int) -> npt.NDArray[np.intp]:
    return random.integers(0, len(digits().labels), count)


def _proportion(count: int) -> Callable[[Random], bool]:
    def trial(random: Random) -> bool:
        right = digits().right
        found = estimate_quality(_scores(right[_drawn(random, count)]))
        return bool(found.low <= right.mean() <= found.high)

    return trial


def _mean(count: int, *, psnr: bool = False) -> Callable[[Random], bool]:
    name = "psnr" if psnr else "mse"

    def trial(random: Random) -> bool:
        errors = digits().errors
        found = estimate_quality(_scores(errors[_drawn(random, count)], name=name))
        return bool(found.low <= _scores(errors, name=name).value <= found.high)

    return trial


def _words(random: Random) -> bool:
    """Sentences of 3 to 29 words, of which 8 % are wrong, in some twice as many as in others."""
    words = random.integers(3, 30, 200).astype(np.float64)
    edits = random.binomial(words.astype(np.int64), random.choice([0.16 / 3, 0.32 / 3], 200))
    found = estimate_quality(_scores(edits, words, "wer"))
    return bool(found.low <= 0.08 <= found.high)


def _flipped(random: Random, count: int, lost: float, regained: float) -> QualityComparison:
    """A and B on drawn digits: of all answers, `lost` become wrong and `regained` right."""
    right = digits().right
    rate = right.mean()
    a = right[_drawn(random, count)]
    chance = random.random(count)
    b = np.where(a, chance >= lost / rate, chance < regained / (1 - rate))
    return compare_quality(_scores(a), _scores(b))


def _lost(loss: float, changed: float | None) -> Callable[[Random], bool]:
    count = needed_inputs(loss, changed)
    both = 2 * loss if changed is None else changed

    def trial(random: Random) -> bool:
        found = _flipped(random, count, (both + loss) / 2, (both - loss) / 2)
        return found.answer is QualityAnswer.WORSE

    return trial


def _difference(count: int, lost: float, regained: float) -> Callable[[Random], bool]:
    def trial(random: Random) -> bool:
        found = _flipped(random, count, lost, regained)
        return bool(found.low <= regained - lost <= found.high)

    return trial


def _called(found: QualityComparison) -> bool:
    return found.answer in (QualityAnswer.BETTER, QualityAnswer.WORSE)


def _alarm(count: int, each_way: float) -> Callable[[Random], bool]:
    return lambda random: _called(_flipped(random, count, each_way, each_way))


def _mean_alarm(random: Random) -> bool:
    errors = digits().errors[_drawn(random, 300)]
    a, b = (_scores(errors * random.lognormal(0, 0.2, errors.size), name="mse") for _ in range(2))
    return _called(compare_quality(a, b))


def _on_a_phone(context: Context) -> Figure:
    """How many digits a virtual phone answers otherwise than numpy does here."""
    context.say("one virtual phone")
    known = digits()
    model, data = context.folder / "digits.onnx", context.folder / "digits.npz"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    network = onnx_model(nodes, {"x": ["n", 64]}, {"y": ["n", 10]}, {"w": known.weights})
    model.write_bytes(network.SerializeToString())
    np.savez(data, x=known.images, labels=known.labels)
    with virtual_farm({"phone": "oneplus-12"}, report=context.say) as farm:
        farm.wait_ready(1)
        words = ("run", str(model), "--on", "android", "--quality", str(data), "--shape", f"x:[{BATCH},64]", "--json")
        found = json.loads(farm.farm(*words).stdout)["results"][0]["quality"]
    right = round(found["value"] * found["count"])
    context.say(json.dumps({name: found[name] for name in ("value", "low", "high", "count")}))
    off = abs(right - int(known.right.sum()))
    return Figure(f"{known.name} counted otherwise on a virtual phone", off, "digits", goal="0", ok=off == 0)
