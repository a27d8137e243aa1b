"""What the two sides of a comparison are."""

import numpy as np
import pytest

from farm.common.errors import UserError
from farm.kinds.compare import CompareSpec, CompareTask
from farm.kinds.compare.command import print_results
from farm.kinds.compare.worker import NOT_COMPARED, TimedSide, _outputs_of, sides_of

A, B, RECORDS = "a" * 64, "b" * 64, "c" * 64


def sides(**fields):
    spec = CompareSpec(on="android", model=A, name="a.onnx", model_b=B, name_b="b.onnx", **fields)
    target_b = {"kind": spec.target_b or spec.target}
    return sides_of(CompareTask(spec=spec, target={"kind": "llvm"}, cache="/cache", target_b=target_b))


def test_what_is_not_said_of_b_is_as_of_a_but_its_records():
    a, b = sides(precision="float16", records=RECORDS, shapes={"x": (1, 2)})
    assert (a.spec.model, a.spec.name, a.spec.records, a.target) == (A, "a.onnx", RECORDS, {"kind": "llvm"})
    assert (b.spec.model, b.spec.name, b.spec.records) == (B, "b.onnx", None)
    assert (b.spec.precision, b.spec.shapes, b.cache) == ("float16", {"x": (1, 2)}, "/cache")


def test_b_may_be_built_another_way():
    a, b = sides(precision_b="float16_acc32", records_b=RECORDS, target_b="opencl")
    assert (a.spec.precision, a.spec.records, a.spec.target) == ("float32", None, "cpu")
    assert (b.spec.precision, b.spec.records, b.spec.target, b.target) == (
        "float16_acc32", RECORDS, "opencl", {"kind": "opencl"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"program_b": A, "precision_b": "float16"}, "--precision-b"),
        ({"program": A, "records": RECORDS}, "--records"),
        ({"program": A, "program_b": B, "inputs": A}, "--input"),
    ],
)
def test_how_to_build_what_is_not_built_is_refused(fields, option):
    with pytest.raises(UserError, match=f"{option} is for TVM, and another runtime's program runs there"):
        sides(**fields)
    assert sides(program=A, precision="float16", precision_b="float32")[1].spec.precision == "float32"


def timed(numbers, inputs="half"):
    output = None if numbers is None else np.asarray(numbers, np.float32)
    return TimedSide(lambda *_: [], {}, inputs=inputs, output=lambda: output)


def test_outputs_of_two_runtimes_for_the_same_inputs_are_compared():
    found = _outputs_of([timed([[1.0, 2.0, 4.0]]), timed([1.0, 2.5, 4.0])])
    assert found == {"outputs": {"max_abs_error": 0.5, "largest": 4.0, "count": 3}, "unlike": [], "notes": []}
    far = _outputs_of([timed([1.0, 2.0]), timed([9.0, -2.0])])
    assert far["unlike"] == ["for the same inputs, output 0 of B is far from that of A"]
    assert _outputs_of([timed([1.0]), timed([np.nan])])["outputs"]["max_abs_error"] is None


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (timed(None), timed([1.0]), NOT_COMPARED),
        (timed([1.0]), timed(None), NOT_COMPARED),
        (timed([1.0]), timed([1.0], inputs="ones"), NOT_COMPARED),
        (timed([1.0, 2.0]), timed([1.0]), "outputs were not compared: the first output has 2 numbers in A, 1 in B"),
    ],
)
def test_outputs_that_cannot_be_compared_have_the_reason(a, b, said):
    assert _outputs_of([a, b]) == {"outputs": None, "unlike": [], "notes": [said]}


def compared(device, outputs):
    side = {"latency": {"median_ms": 1.0}, "runtime": {"name": "ort", "version": "1"}, "ran_on": "CPU 3 nodes"}
    comparison = {"answer": "same", "ratio": 1.0, "low": 1.0, "high": 1.0, "pairs": 40, "reasons": ()}
    return {"device": device, "a": side, "b": side, "comparison": comparison, "outputs": outputs}


def test_the_largest_difference_of_all_phones_is_printed(capsys):
    some = {"max_abs_error": 3e-7, "largest": 0.53, "count": 10}
    print_results([compared("pixel", some), compared("galaxy", {**some, "max_abs_error": 2e-6}), compared("old", None)])
    out = capsys.readouterr().out
    assert "Outputs of A and B differ by 2e-06 at most, of numbers up to 0.53." in out
    assert "A ran under ort 1, CPU 3 nodes; B under ort 1, CPU 3 nodes" in out
    print_results([compared("pixel", {**some, "max_abs_error": None})])
    assert "there are NaN or infinities" in capsys.readouterr().out
