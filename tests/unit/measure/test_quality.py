"""Metrics, their intervals, paired tests, and the numbers of inputs that find a loss: truths known by construction."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from farm.measure.quality import (
    LOSS,
    METRICS,
    QualityAnswer,
    QualityComparison,
    Scores,
    check_labels,
    check_output,
    compare_quality,
    estimate_quality,
    found_loss,
    mcnemar,
    needed_inputs,
    peak_of,
    scored,
    wilson,
)
from farm.model.specs import MetricName

TOP1, MSE, PSNR, WER = (METRICS[name] for name in ("top1", "mse", "psnr", "wer"))


def test_what_a_job_may_ask_for_is_what_there_is():
    assert set(get_args(MetricName)) == set(METRICS)


def scores(metric, counts, weights=None, peak=1.0):
    counts = np.asarray(counts, dtype=np.float64)
    return Scores(metric, counts, np.ones(counts.size) if weights is None else np.asarray(weights, np.float64), peak)


def changed(count, lost, regained, right=0.9):
    """Right answers of A and of B."""
    a = np.arange(count) < right * count
    b = a.copy()
    b[:lost] = False
    b[count - regained :] = True
    return scores(TOP1, a), scores(TOP1, b)


@pytest.mark.parametrize(
    ("name", "outputs", "labels", "counts", "weights"),
    [
        ("top1", [[0, 1, 1], [2, np.nan, 0], [np.nan, 0, 0], [0, 0, 0]], [1, 0, 0, 0], [1, 1, 0, 1], [1] * 4),
        ("top1", [[[0.1], [0.2]]], [[1]], [1], [1]),
        ("top5", [[6, 5, 4, 3, 2, 1], [6, 5, 4, 3, 2, 1]], [4, 5], [1, 0], [1, 1]),
        ("mse", [[1.0, 2.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], [2.0, 0.0], [1, 1]),
        ("mse", [[np.inf], [np.nan]], [[0.0], [0.0]], [1e300, 1e300], [1, 1]),
        ("wer", [[1, 2, 3, -1], [1, 2, 2, 4]], [[1, 3, -1, -1], [1, 2, 3, 4]], [1, 1], [2, 4]),
        ("wer", [[[0, 9], [9, 0], [0, 9]]], [[1, 1, 1]], [1], [3]),
        ("wer", [[-1, -1]], [[7, 8]], [2], [2]),
    ],
)
def test_the_part_of_each_input(name, outputs, labels, counts, weights):
    found = scored(METRICS[name], np.array(outputs), np.array(labels))
    assert [list(each) for each in found] == [counts, weights]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("top1", np.zeros((3, 2), int)), ("top1", np.zeros(3)), ("top5", np.array([0, -1])), ("wer", np.zeros(3, int)),
        ("wer", np.full((2, 2), -1)), ("mse", np.array(["a"])), ("psnr", np.array([1j])),
    ],
)  # fmt: skip
def test_labels_of_another_form_are_refused(name, labels):
    with pytest.raises(ValueError, match=rf"^labels.*, and {name} needs"):
        check_labels(METRICS[name], labels)


@pytest.mark.parametrize(
    ("name", "labels", "said"),
    [
        ("top1", np.array([0, 9, 11, 12]), r"labels\[2\] is 11, and output y has classes 0 to 9"),
        ("mse", np.arange(4), "a label is one number, and output y 10"),
        ("psnr", np.zeros((4, 2, 3)), "a label is 2 x 3, and output y 10"),
    ],
)
def test_labels_that_are_for_another_output_are_refused(name, labels, said):
    with pytest.raises(ValueError, match=said):
        check_output(METRICS[name], labels, (10,), "y")


def test_a_wrong_label_is_shown():
    with pytest.raises(ValueError, match=r"labels\[1\] is -3, and top1 needs"):
        check_labels(TOP1, np.array([[4], [-3], [-5]]))
    with pytest.raises(ValueError, match="labels are text, and top1 needs"):
        check_labels(TOP1, np.array(["cat", "dog"]))


@pytest.mark.parametrize(
    ("name", "outputs", "labels", "said"),
    [
        ("top1", np.zeros((1, 3)), np.array([3]), "a label is class 3, and an output has 3 classes"),
        ("mse", np.zeros((1, 3)), np.zeros((1, 4)), "a label is 4, an output 3"),
        ("wer", np.zeros(1), np.zeros((1, 4), int), "wer needs outputs of"),
    ],
)
def test_labels_that_do_not_fit_the_outputs_are_refused(name, outputs, labels, said):
    with pytest.raises(ValueError, match=said):
        scored(METRICS[name], outputs, labels)


def test_psnr_is_of_the_mean_error_and_the_labels_range():
    labels = np.array([[0.0, 255.0], [10.0, 20.0]])
    counts, weights = scored(PSNR, labels + 2.55, labels)
    found = estimate_quality(scores(PSNR, counts, weights, peak_of(PSNR, labels)))
    assert found.value == pytest.approx(40.0)
    assert estimate_quality(scores(PSNR, np.zeros(5))).value == 200.0  # equal outputs: as far as it goes


def test_wilsons_interval_is_the_published_one():
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I, method 3
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)


@pytest.mark.parametrize(("rate", "count"), [(0.5, 100), (0.9, 500), (0.97, 1797)])
def test_an_interval_of_a_proportion_has_the_truth_in_93_to_97_of_100(rate, count):
    right = np.random.default_rng(1).binomial(count, rate, 3000)
    ends = {each: wilson(each, count) for each in set(right.tolist())}
    assert 0.93 <= np.mean([ends[each][0] <= rate <= ends[each][1] for each in right.tolist()]) <= 0.97


@pytest.mark.parametrize("name", ["mse", "wer", "psnr"])
def test_an_interval_of_a_mean_has_the_truth_in_93_to_97_of_100(name):
    random, held, truth = (
        np.random.default_rng(2),
        [],
        {"mse": np.exp(0.5), "wer": 0.08, "psnr": -10 * 0.5 / np.log(10)},
    )
    for _ in range(300):
        words = random.integers(3, 30, 150) if name == "wer" else None
        counts = random.binomial(words, 0.08) if words is not None else random.lognormal(0, 1, 150)
        found = estimate_quality(scores(METRICS[name], counts, words))
        held.append(found.low <= truth[name] <= found.high)
    assert 0.93 <= np.mean(held) <= 0.975  # of 300: 1.3 % are the standard error


@pytest.mark.parametrize(("loss", "both"), [(LOSS, 0.01), (LOSS, None), (LOSS, 0.05), (0.05, None), (0.003, None)])
def test_a_loss_is_found_in_over_95_of_100_at_the_number_of_inputs_stated_beforehand(loss, both):
    count = needed_inputs(loss, both)
    both = 2 * loss if both is None else both
    drawn = np.random.default_rng(3).multinomial(count, [(both + loss) / 2, (both - loss) / 2, 1 - both], 2000)
    found = [lost > regained and mcnemar(int(lost), int(regained)) < 0.05 for lost, regained, _ in drawn]
    assert np.mean(found) > 0.95


@pytest.mark.parametrize("both", [0.02, 0.2])
def test_where_nothing_is_lost_a_loss_is_seen_in_5_of_100(both):
    drawn = np.random.default_rng(4).multinomial(2000, [both / 2, both / 2, 1 - both], 2000)
    assert 0.035 <= np.mean([mcnemar(int(lost), int(regained)) < 0.05 for lost, regained, _ in drawn]) <= 0.06


def test_mcnemar_is_the_published_one():
    assert mcnemar(1, 7) == pytest.approx(0.0391, abs=1e-4)  # Fagerland, Lydersen, Laake 2013, table 2
    assert (mcnemar(0, 0), mcnemar(5, 5)) == (1.0, 1.0)
    assert mcnemar(40_000, 41_000) == pytest.approx(0.00044, abs=1e-5)


@pytest.mark.parametrize(
    ("lost", "regained", "answer"),
    [
        (40, 10, QualityAnswer.WORSE), (10, 40, QualityAnswer.BETTER), (0, 0, QualityAnswer.SAME),
        (3, 2, QualityAnswer.SAME), (40, 30, QualityAnswer.CANNOT_TELL),
    ],
)  # fmt: skip
def test_the_answer_of_a_proportion(lost, regained, answer):
    found = compare_quality(*changed(2000, lost, regained))
    assert (found.answer, found.lost, found.regained) == (answer, lost, regained)
    assert found.low < found.difference < found.high
    assert found.difference == pytest.approx((regained - lost) / 2000)


def test_a_metric_of_which_less_is_better():
    base = np.random.default_rng(5).lognormal(0, 1, 400)
    for name, factor, answer in (
        ("mse", 1.1, "worse"),
        ("mse", 0.9, "better"),
        ("psnr", 1.1, "worse"),
        ("mse", 1, "same"),
    ):
        assert compare_quality(scores(METRICS[name], base), scores(METRICS[name], base * factor)).answer == answer


def of_equal_builds(seed, sigma):
    """300 comparisons of two builds with the same mean; `sigma`: how unequal the errors of their inputs are."""
    random = np.random.default_rng(seed)
    for _ in range(300):
        base = random.lognormal(0, sigma, 300)
        yield compare_quality(*(scores(MSE, base * random.lognormal(0, 0.2, 300)) for _ in range(2)))


def test_means_that_do_not_differ_are_told_apart_in_5_of_100():
    found = [*of_equal_builds(6, 0.7)]
    assert 0.02 <= np.mean([each.p < 0.05 for each in found]) <= 0.075  # of 300: 1.3 % are the standard error
    assert 0.925 <= np.mean([each.low <= 0 <= each.high for each in found]) <= 0.98


def test_where_few_inputs_have_most_of_the_errors_equal_builds_are_rarely_told_apart():
    found = [*of_equal_builds(8, 2.5)]
    assert np.mean([each.p < 0.05 for each in found]) <= 0.06  # the bootstrap alone: 14 %
    assert all(each.p >= 0.05 or not each.low <= 0 <= each.high for each in found)


def test_many_inputs_are_drawn_in_groups():
    counts = np.random.default_rng(7).exponential(1.0, 50_000)
    found = estimate_quality(scores(MSE, counts))
    assert found.high - found.low == pytest.approx(2 * 1.96 / 50_000**0.5, rel=0.1)


def test_it_says_how_many_inputs_would_tell():
    found = compare_quality(*changed(500, 12, 8))
    assert found.answer is QualityAnswer.CANNOT_TELL
    assert found.needed == needed_inputs(LOSS, 20 / 500)


@pytest.mark.parametrize("count", [100, 1797, 50_000])
def test_the_loss_that_a_number_of_inputs_finds_needs_so_many(count):
    assert needed_inputs(found_loss(count)) == pytest.approx(count, rel=0.01)
    assert found_loss(20) == 1.0


def test_one_line_says_the_metric_of_both_and_how_sure():
    found = compare_quality(*changed(2000, 40, 10))
    assert found.sentence == (
        "B is worse: top1 90.00 % -> 88.50 %, -1.50 points (95 % interval -2.20 to -0.80, p 1.5e-05) of 2,000 inputs"
    )
    assert QualityComparison.from_wire(found.to_wire()) == found


def test_scores_of_other_inputs_are_not_compared():
    a, b = changed(100, 0, 0)
    for other in (scores(TOP1, b.counts[1:]), replace(b, metric=MSE)):
        with pytest.raises(ValueError, match="different"):
            compare_quality(a, other)
