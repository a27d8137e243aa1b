"""ONNX files: no other file is read for one."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from farm.common.errors import ModelError
from farm.compiler.load import import_model, read
from tests.support.onnx_files import onnx_model

SECRET = b"what only the user of this host may read"


def outside(location):
    tensor = TensorProto(name="c", data_type=TensorProto.UINT8, dims=[8], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def sparse(tensor):
    indices = helper.make_tensor("i", TensorProto.INT64, [8], range(8))
    return helper.make_sparse_tensor(tensor, indices, [8])


def model(nodes, weights=None, **more):
    return onnx_model(nodes, {"x": [8]}, {"y": [8]}, weights, **more)


ADD = [helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT), helper.make_node("Add", ["x", "f"], ["y"])]


def constant(tensor):
    return helper.make_node("Constant", [], ["c"], value=tensor)


def in_branch(tensor):
    branch = helper.make_graph(
        [constant(tensor), ADD[0]], "b", [], [helper.make_tensor_value_info("f", TensorProto.FLOAT, [8])]
    )
    condition = helper.make_node("Constant", [], ["t"], value=helper.make_tensor("v", TensorProto.BOOL, [], [True]))
    node = helper.make_node("If", ["t"], ["f"], then_branch=branch, else_branch=branch)
    return model([condition, node, ADD[1]])


def in_function(tensor):
    opset = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "F", [], ["c"], [constant(tensor)], opset)
    made = model([helper.make_node("F", [], ["c"], domain="own"), *ADD], functions=[function])
    made.opset_import.append(helper.make_opsetid("own", 1))
    return made


PLACES = {
    "initializer": lambda tensor: model(ADD, {"c": tensor}),
    "sparse initializer": lambda tensor: model(ADD, sparse_initializer=[sparse(tensor)]),
    "constant": lambda tensor: model([constant(tensor), *ADD]),
    "sparse constant": lambda tensor: model(
        [helper.make_node("Constant", [], ["c"], sparse_value=sparse(tensor)), *ADD]
    ),
    "branch": in_branch,
    "function": in_function,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", ["secret.txt", "../work/secret.txt", "absolute"])
def test_no_tensor_is_read_from_another_file(place, location, tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "secret.txt").write_bytes(SECRET)
    tensor = outside(str(work / "secret.txt") if location == "absolute" else location)
    with pytest.raises(ModelError, match="keeps the weights of 'c' in another file"):
        read(PLACES[place](tensor).SerializeToString(), "net.onnx")


@pytest.mark.parametrize("place", ["initializer", "constant"])
def test_a_tensor_of_its_own_is_taken(place):
    tensor = helper.make_tensor("c", TensorProto.UINT8, [8], np.arange(8))
    assert import_model(read(PLACES[place](tensor).SerializeToString(), "net.onnx")).outputs[0].shape == (8,)


FILE = PLACES["constant"](helper.make_tensor("c", TensorProto.UINT8, [8], np.arange(8))).SerializeToString()


def test_types_that_no_array_has_are_refused():
    for kind in (TensorProto.UNDEFINED, 99):
        proto = onnx.load_model_from_string(FILE)
        proto.graph.input[0].type.tensor_type.elem_type = kind
        with pytest.raises(ModelError):
            read(proto.SerializeToString(), "net.onnx")
