"""Files of inputs and labels are looked at before anything is uploaded."""

import io
import zipfile

import numpy as np
import pytest

from farm.client.specs import checked_inputs, checked_labels
from farm.common.errors import UserError
from farm.compiler import inputs


def claim(path, shape):
    """An .npz of some bytes with an array that says it has this shape."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue())


NPY = b"\x93NUMPY\x01\x00"


def test_plain_arrays_are_taken(tmp_path):
    path = tmp_path / "in.npz"
    np.savez(path, x=np.ones(3), n=np.arange(3))
    assert checked_inputs(path) == path


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: np.savez(path, x=np.array([1.0, np.nan])), "the array 'x' has NaN"),
        (lambda path: np.savez(path, x=np.array([{}], dtype=object)), "holds Python objects"),
        (lambda path: claim(path, (1 << 40,)), "is damaged, or no array"),
        (lambda path: claim(path, (0, 1 << 70)), "is damaged, or no array"),
        (lambda path: np.savez(path, x=np.ones(600), y=np.ones(600)), "have 9,856 bytes"),
        (lambda path: path.write_bytes(NPY), "is no .npz file"),
        (lambda path: path.write_bytes(b"text"), "is no .npz file"),
    ],
    ids=["nan", "objects", "claim", "sizes", "claims", "npy", "text"],
)
def test_what_is_wrong_with_inputs_is_told_with_their_file(tmp_path, write, said, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_ARRAY_BYTES", 8000)
    path = tmp_path / "in.npz"
    write(path)
    with pytest.raises(UserError) as raised:
        checked_inputs(path)
    assert str(path) in raised.value.message
    assert said in raised.value.message


def test_labels_are_text(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is no UTF-8 text"):
        checked_labels(path)
    path.write_text("cat\n")
    assert checked_labels(path) == path
