"""`farm compare JOB JOB`: two benches that are stored."""

from types import SimpleNamespace

import pytest

from farm.common.errors import UserError
from farm.kinds.compare.command import compare_results
from farm.measure.comparison import compare_stored, two_models


def certificate(median_s=0.010, nominal_s=0.001, **fields):
    estimate = {
        "median_s": median_s, "low_s": median_s * 0.999, "high_s": median_s * 1.001, "confidence": 0.95, "count": 100,
        "effective_count": 100.0, "block": 1, "half_width": 0.001,
    }  # fmt: skip
    return {
        "device": "pixel", "epoch": "x/y:14", "verdict": "trusted", "reasons": [], "estimate": estimate,
        "reference": {"kernel": "k", "nominal_s": nominal_s, "median_s": nominal_s, "nominal_of": "history"}, **fields,
    }  # fmt: skip


def test_both_are_taken_at_one_nominal_speed():
    """The same model, once when the phone was known by a bench that was 8 % hot."""
    hot, later = certificate(0.0108, 0.00108), certificate(0.010, 0.001)
    for a, b in ((hot, later), (later, hot)):
        found = compare_stored(a, b, 0.01)
        assert found.ratio == pytest.approx(1)
        assert found.answer == "same"
    slower = compare_stored(hot, certificate(0.011, 0.001), 0.01)
    assert slower.sentence.startswith("B is slower: B / A is 1.100, 99 % interval 1.09")


@pytest.mark.parametrize("min_effect", [0, 0.002, 0.01, 0.3, 0.4, 0.5])
def test_every_minimum_effect_that_the_command_takes_will_do(min_effect):
    found = compare_stored(certificate(), certificate(0.005), min_effect)
    assert found.answer == "faster"
    assert found.find_effect > min_effect


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"reference": {"kernel": "other", "nominal_s": 0.001}}, "different reference kernels, k and other"),
        ({"reference": None}, "different reference kernels, k and none"),
        ({"verdict": "rejected", "reasons": [{"cause": "it stepped"}]}, "result of B is rejected: it stepped"),
        ({"device": "galaxy"}, "different phones: pixel and galaxy"),
        ({"epoch": "x/y:15"}, "different system versions"),
    ],
)
def test_what_may_not_be_compared_is_refused_in_words(fields, said):
    with pytest.raises(ValueError, match=said):
        compare_stored(certificate(), certificate(0.005) | fields)


@pytest.mark.parametrize(("median_s", "answer"), [(0.009, "cannot tell"), (0.005, "faster"), (0.62, "slower")])
def test_results_that_are_not_trusted_tell_only_what_no_doubt_changes(median_s, answer):
    doubtful = certificate(median_s, verdict="suspect", reasons=[{"cause": "few samples"}])
    found = compare_stored(certificate(), doubtful, 0.01)
    assert (found.answer, found.ratio) == (answer, pytest.approx(median_s / 0.01))
    assert ("the result of B is suspect", "few samples") in [(each.cause, each.evidence) for each in found.reasons]


def test_without_a_reference_kernel_they_are_taken_as_measured():
    found = compare_stored(certificate(reference=None), certificate(0.005, reference=None), 0.01)
    assert (found.answer, found.ratio) == ("faster", pytest.approx(0.5))


def test_that_two_results_are_of_two_models_is_said():
    a, b = certificate(model="a.onnx", model_sha256="1" * 64), certificate(model="b.onnx", model_sha256="2" * 64)
    assert two_models(a, a) == []
    assert two_models(a, b) == ["A is of a.onnx, B of b.onnx: two files, whose outputs were not compared"]


def test_results_of_two_kinds_are_refused_by_them():
    jobs = {
        name: SimpleNamespace(job=SimpleNamespace(id=name, kind=name.partition("-")[0]))
        for name in ("run-1", "bench-2")
    }
    for each in jobs.values():
        each.raise_for_error = lambda each=each: each
    farm = SimpleNamespace(job=lambda name, fetch_outputs: jobs[name])
    with pytest.raises(UserError, match="A is of kind run, B of kind bench") as caught:
        compare_results(farm, "run-1", "bench-2", 0.01, json=False, why=False)
    assert caught.value.hint == "compare two of one kind"
