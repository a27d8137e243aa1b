"""Labelled inputs: what a file must have, what it claims, and how its inputs go into a model."""

import io
import zipfile
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest

from farm.common.errors import Code
from farm.compiler.inputs import shapes_in, write_arrays
from farm.compiler.labelled import MAX_LABELLED, labelled_count, read_labelled
from farm.compiler.model import TensorSpec
from farm.measure.quality import METRICS
from tests.support.errors import raises_code

TOP1 = METRICS["top1"]


@dataclass(frozen=True)
class Model:
    inputs: tuple[TensorSpec, ...]
    name: str = "net.onnx"


def model(*shape, name="x", dtype="float32"):
    return Model((TensorSpec(name, shape, np.dtype(dtype)),))


def npz(**arrays):
    packed = io.BytesIO()
    write_arrays(packed, arrays)
    return packed.getvalue()


def labelled(count, *shape):
    return npz(
        x=np.arange(count * int(np.prod(shape)), dtype=np.float32).reshape(count, *shape), labels=np.arange(count)
    )


def batches(found):
    return [(place, *(array.tolist() for array in arrays)) for place, arrays in found.batches()]


def test_a_fixed_batch_is_filled_up_at_the_end():
    found = read_labelled(labelled(5, 1), model(2, 1), TOP1)
    assert [(each[0].start, each[0].stop, each[1]) for each in batches(found)] == [
        (0, 2, [[0.0], [1.0]]), (2, 4, [[2.0], [3.0]]), (4, 5, [[4.0], [4.0]]),
    ]  # fmt: skip
    assert found.rows(np.array([[7.0], [8.0]]), 1).tolist() == [[7.0]]


@pytest.mark.parametrize(
    ("shape", "given", "batch"), [(("n", 3), {}, 1), (("n", 3), {"x": (4, 3)}, 4), ((2, "w"), {}, 2)]
)
def test_an_open_batch_is_one_input_unless_given(shape, given, batch):
    found = read_labelled(labelled(5, 3), model(*shape), TOP1, given)
    assert (found.batch, found.alone, found.first()["x"].shape) == (batch, False, (batch, 3))


def test_a_model_without_an_axis_for_a_batch_gets_them_one_by_one():
    found = read_labelled(labelled(3, 2), model(2), TOP1)
    assert [each[1] for each in batches(found)] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert found.rows(np.array([1.0, 2.0]), 1).tolist() == [[1.0, 2.0]]


def test_they_become_what_the_build_takes():
    found = read_labelled(labelled(3, 2), model("n", 2), TOP1)
    fitted = found.fitted_to("net.onnx", {"x": np.zeros((1, 2), np.float16)})
    assert fitted.arrays["x"].dtype == np.float16
    big = read_labelled(npz(x=np.array([[1.0], [1e6]]), labels=np.arange(2)), model("n", 1), TOP1)
    with raises_code(Code.BAD_INPUTS, match=r"'x' has 1000000.0 at \[1, 0\]"):
        big.fitted_to("net.onnx", {"x": np.zeros((1, 1), np.float16)})


ROWS = np.zeros((4, 2), np.float32)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": ROWS}, "there is no array 'labels'"),
        ({"labels": np.arange(4)}, "the array 'x' is missing"),
        ({"x": ROWS, "labels": np.arange(3)}, "'x' has shape 4x2, for 3 labels"),
        ({"x": ROWS, "labels": np.array(3)}, "labels is one number, not 4"),
        ({"x": ROWS, "z": ROWS, "labels": np.arange(4)}, "'z' is no input of net.onnx"),
        ({"x": np.zeros((4, 3), np.float32), "labels": np.arange(4)}, "has shape 4x3, and net.onnx wants nx2"),
        ({"x": np.zeros((4, 2, 2, 2), np.float32), "labels": np.arange(4)}, "has shape 4x2x2x2"),
        ({"x": ROWS, "labels": np.zeros(4)}, "top1 needs one class number"),
        ({"x": np.zeros((0, 2), np.float32), "labels": np.arange(0)}, "there are 0 labels"),
    ],
)
def test_what_does_not_fit_is_refused_and_named(arrays, said):
    with raises_code(Code.BAD_INPUTS, match=f"^data.npz: .*{said}"):
        read_labelled(npz(**arrays), model("n", 2), TOP1, what="data.npz")


@pytest.mark.parametrize(
    ("inputs", "output", "fits"),
    [
        (("n", 2), ("n", 3), False), (("n", 2), ("n", 4), True), (("n", 2), ("n", "c"), True), ((2, 2), (2, 3), False),
        ((2,), (3,), False), ((2,), (4,), True), (("n", 2), (9, 3), True),  # the phone's run says more
    ],
)  # fmt: skip
def test_labels_are_compared_with_an_output_whose_shape_is_known(inputs, output, fits):
    found = read_labelled(npz(x=ROWS, labels=np.arange(4)), model(*inputs), TOP1)
    refused = raises_code(Code.BAD_INPUTS, match=r"^data.npz: labels\[3\] is 3, and output y has classes 0 to 2")
    with nullcontext() if fits else refused:
        found.check_output(TOP1, TensorSpec("y", output, np.dtype("float32")), "data.npz")


def test_an_input_may_not_be_called_as_the_labels_are():
    with raises_code(Code.BAD_INPUTS, match="has an input 'labels'"):
        read_labelled(npz(labels=np.arange(4)), model("n", name="labels", dtype="int64"), TOP1)


def test_inputs_that_go_in_by_different_numbers_are_refused():
    two = Model((*model(2, 1).inputs, *model(3, 1, name="y").inputs))
    with raises_code(Code.BAD_INPUTS, match="'x' and 'y' of net.onnx do not take the same number of inputs at once"):
        read_labelled(npz(x=ROWS[:, :1], y=ROWS[:, :1], labels=np.arange(4)), two, TOP1)


def test_an_output_without_a_row_for_each_input_is_refused():
    found = read_labelled(labelled(4, 2), model(4, 2), TOP1)
    for output in (np.zeros(3), np.array(0.0)):
        with raises_code(Code.BAD_INPUTS, match="4 inputs go in at once"):
            found.rows(output, 4)


def claiming(shape, data=b""):
    """An .npz whose labels claim a shape and have other bytes."""
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<i8", "fortran_order": False, "shape": shape})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("labels.npy", member.getvalue() + data)
    return packed.getvalue()


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 62, 4), (3,)])
def test_what_a_file_claims_and_does_not_have_is_refused_before_room_is_made_for_it(shape):
    with raises_code(Code.BAD_INPUTS, match="'labels.npy' in the labelled inputs is damaged"):
        labelled_count(claiming(shape))


@pytest.mark.parametrize("header", [b"{'descr': '<i8'", b"{'descr': 'a", b"{)", b"1 +", b"(" * 20])
def test_a_header_that_is_no_header_is_damage(header):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("labels.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with raises_code(Code.BAD_INPUTS, match="is damaged"):
        labelled_count(packed.getvalue())


def test_more_inputs_than_are_taken_are_refused_by_their_number():
    with raises_code(Code.BAD_INPUTS, match=f"there are {MAX_LABELLED + 1:,} labels"):
        labelled_count(npz(labels=np.zeros(MAX_LABELLED + 1, np.int8)))


def test_shapes_are_read_without_the_arrays():
    assert shapes_in(labelled(3, 2), "a file") == {"x": (3, 2), "labels": (3,)}
