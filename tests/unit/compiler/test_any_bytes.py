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
FUNCTION = """@R.function
def main(x: R.Tensor(("n", 4), dtype="float32")):
    y = R.nn.relu(x)
    return y
"""
GOOD = {"net.tflite": TFLITE, "net.onnx": FILE}
BEGINNINGS = (b"", b"{", b'{"nodes": [', b"PK\x03\x04", TFLITE[:8], b"@R.function\n", b"\x08\x08", FILE, FILE[:60])
NAMES = ["net", "net.py", "net.tflite", "n.json", "net.onnx"]


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
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
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


WORDS = (
    "x y n R T I metadata tvm main R.nn.relu R.add R.const R.Tensor R.shape T.int64 T.axis.remap ( ) (x) [0] ['a'] . , "
    "= + - * : 1 2.0 'n' 'float32' None lambda if else for in with def return @R.function @T.prim_func"
)
PIECES = st.sampled_from([*WORDS.split(), "\n", "\n    "])


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=12), st.sampled_from(["R.nn.relu(x)", '"n"', "y = ", "return y", "x: R"]))
def test_a_script_with_any_words_in_it(words, place):
    read_or_refused(FUNCTION.replace(place, f"{place} {' '.join(words)}", 1).encode(), "net.py")


@pytest.mark.parametrize("text", ["x in {}", "None in {}", "list({})", "sum({})", "[*{}]", "max(*{})", "R.shape({})"])
def test_a_value_of_the_model_is_not_gone_through(text):
    script = FUNCTION.replace("R.nn.relu(x)", text.format("R.nn.relu(x)"))
    with pytest.raises(ModelError, match="cannot parse it as TVMScript"):
        read(script.encode(), "net.py")


@pytest.mark.parametrize("text", ["x" * 100_000, "(" * 300 + "x" + ")" * 300, "9" * 5000, "x" + ".a" * 2000, "[" * 90])
def test_a_script_that_is_deep_or_long(text):
    read_or_refused(FUNCTION.replace("R.nn.relu(x)", text).encode(), "net.py")
