"""What the two sides of a comparison are."""

import pytest

from farm.common.errors import UserError
from farm.kinds.compare import CompareSpec, CompareTask
from farm.kinds.compare.worker import sides_of

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
