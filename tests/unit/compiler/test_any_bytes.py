"""Whatever a file of any format holds: a model, or an error in words. Nothing else is raised."""

import json

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.common.errors import ModelError
from farm.compiler.load import read
from tests.support.tflite_files import convolution_and_dense
from tests.unit.compiler.test_onnx_files import FILE

TFLITE = convolution_and_dense(
    np.ones((4, 3, 3, 2), np.float32), np.ones(4, np.float32), np.ones((6, 100), np.float32), 5
)
GOOD = {"net.tflite": TFLITE, "net.onnx": FILE}
BEGINNINGS = (b"", b"{", b'{"nodes": [', b"PK\x03\x04", TFLITE[:8], b"@R.function\n", b"\x08\x08", FILE, FILE[:60])
NAMES = ["net", "net.py", "net.tflite", "n.json", "net.onnx"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def read_or_refused(data, name):
    try:
        found = read(data, name)
    except ModelError as error:
        said = error.message
    else:
        said = found.name
    assert name in said


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(BEGINNINGS), st.binary(max_size=200), st.sampled_from(NAMES))
def test_any_bytes(begin, data, name):
    read_or_refused(begin + data, name)


@pytest.mark.parametrize("name", GOOD)
@settings(max_examples=100, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes(name, changes):
    data = bytearray(GOOD[name])
    for at, value in changes:
        data[at % len(data)] = value
    read_or_refused(bytes(data), name)


@settings(max_examples=100, deadline=None)
@given(
    JSON,
    st.sampled_from(["nodes", "root_index", "metadata", "kind", "version", "module", "tvm"]),
)
def test_json_with_any_value(value, field):
    document = {"root_index": 0, "nodes": [], "metadata": {"tvm_version": tvm.__version__}, field: value}
    read_or_refused(json.dumps(document).encode(), "net.json")
    farms = {"kind": "farm relax model", "version": 1, "tvm": tvm.__version__, "module": "{}", field: value}
    read_or_refused(json.dumps(farms).encode(), "net.json")


@pytest.mark.parametrize("coding", ["utf-16", "utf-32", "utf-8-sig"])
def test_json_that_is_not_utf_8(coding):
    read_or_refused(b"{" + json.dumps({"root_index": 0, "nodes": []}).encode(coding), "net.json")
    read_or_refused(json.dumps({"root_index": 0, "nodes": []}).encode(coding), "net.json")
