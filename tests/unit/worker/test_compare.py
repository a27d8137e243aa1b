"""What the two sides of a comparison are."""

from farm.jobs.specs import CompareSpec
from farm.jobs.tasks import CompareTask
from farm.worker.compare import sides_of

A, B, RECORDS = "a" * 64, "b" * 64, "c" * 64


def sides(**fields):
    spec = CompareSpec(on="android", model=A, name="a.onnx", model_b=B, name_b="b.onnx", **fields)
    target_b_name = spec.target_b or spec.target
    return sides_of(
        CompareTask.of(
            spec,
            {"kind": "llvm"},
            "/cache",
            target_b={"kind": target_b_name},
            target_b_name=target_b_name,
            bundles=None,
            virtual=False,
        )
    )


def test_what_is_not_said_of_b_is_as_of_a_but_its_records():
    a, b = sides(precision="float16", records=RECORDS, shapes={"x": (1, 2)})
    assert (a.model, a.name, a.records, a.target) == (A, "a.onnx", RECORDS, {"kind": "llvm"})
    assert (b.model, b.name, b.records) == (B, "b.onnx", None)
    assert (b.precision, b.shapes, b.cache) == ("float16", {"x": (1, 2)}, "/cache")


def test_b_may_be_built_another_way():
    a, b = sides(precision_b="float16_acc32", records_b=RECORDS, target_b="opencl")
    assert (a.precision, a.records, a.target_name) == ("float32", None, "cpu")
    assert (b.precision, b.records, b.target_name, b.target) == (
        "float16_acc32", RECORDS, "opencl", {"kind": "opencl"},
    )  # fmt: skip
