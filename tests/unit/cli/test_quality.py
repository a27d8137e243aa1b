"""What people read of quality: which loss their inputs find, and the one line on speed and quality."""

from types import SimpleNamespace

import numpy as np
import pytest

from farm.cli.quality import both_words, found_loss_words, needed_words
from farm.common.errors import Code
from farm.kinds.compare import CompareSpec
from farm.kinds.outcomes import RunOutcome
from farm.kinds.run import RunSpec
from farm.measure.quality import METRICS, Scores, compare_quality
from tests.support.errors import raises_code

HASH = "a" * 64


def quality(lost, regained, count=2000):
    a = np.arange(count) < 0.9 * count
    b = a.copy()
    b[:lost] = False
    b[count - regained :] = True
    one, other = (Scores(METRICS["top1"], each.astype(float), np.ones(count)) for each in (a, b))
    return compare_quality(one, other).to_wire()


@pytest.mark.parametrize(
    ("answer", "changed", "said"),
    [
        (
            "faster",
            (40, 10),
            "B is faster and worse: B / A 0.610; top1 90.00 % -> 88.50 %, -1.50 points (95 % interval",
        ),
        ("slower", (10, 40), "B is slower and better: "),
        ("same", (2, 3), "B is as fast and as good: "),
        ("cannot tell", (40, 30), "B is of unknown speed and of unknown quality: "),
    ],
)
def test_one_line_says_both(answer, changed, said):
    assert both_words({"answer": answer, "ratio": 0.61}, quality(*changed)).startswith(said)


def test_it_is_said_how_many_inputs_would_tell():
    assert needed_words(quality(40, 10)) == []
    assert needed_words(quality(40, 30)) == ["4,726 labelled inputs would find a loss of 1.00 points with 95 % power"]


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (
            1797,
            "1,797 labelled inputs find a loss of 1.5 points with 95 % power, if of 4 changed answers 3 are lost; 2,",
        ),
        (
            10_000,
            "10,000 labelled inputs find a loss of 0.3 points with 95 % power, if of 4 changed answers 3 are lost",
        ),
        (20, "20 labelled inputs are too few to find any loss"),
        (1, "1 labelled input is too few to find any loss"),
    ],
)
def test_which_loss_is_found_is_said_beforehand(count, said):
    assert found_loss_words(count).startswith(said)


def test_a_job_in_few_words_says_how_right_it_is():
    job = SimpleNamespace(located={}, quality={"metric": "top1", "value": 0.9457})
    assert RunOutcome.brief(job) == "top1 94.57 %"


@pytest.mark.parametrize(
    ("spec", "fields", "said"),
    [
        (RunSpec, {"inputs": HASH, "quality": HASH}, "--quality and --input"),
        (RunSpec, {"top_k": 3, "quality": HASH}, "--quality and --top-k"),
        (RunSpec, {"fill": "zeros", "quality": HASH}, "--quality and --fill"),
        (RunSpec, {"locate": True, "quality": HASH}, "--quality and --locate"),
        (RunSpec, {"locate": True, "top_k": 1}, "--locate and --top-k"),
        (RunSpec, {"metric": "mse"}, "--metric is for --quality"),
        (CompareSpec, {"inputs": HASH, "quality": HASH}, "--quality and --input"),
        (CompareSpec, {"bundle": "a", "quality": HASH}, "--quality and --bundle"),
        (CompareSpec, {"program_b": HASH, "quality": HASH}, "--quality and --runtime-b"),
        (CompareSpec, {"metric": "top5"}, "--metric is for --quality"),
    ],
)
def test_options_without_effect_on_labelled_inputs_are_refused(spec, fields, said):
    b = {"model_b": HASH, "name_b": "b"} if spec is CompareSpec else {}
    with raises_code(Code.BAD_SPEC, match=said):
        spec(on="android", model=HASH, name="a", **b, **fields)
    assert spec(on="android", model=HASH, name="a", **b, quality=HASH, metric="mse").metric == "mse"
