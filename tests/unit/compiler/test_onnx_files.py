"""ONNX files: no other file is read for one, but data in the folder of one that is named by its path."""

import math
import os
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from farm.common.errors import Code, ModelError, UserError
from farm.common.files import checked_file
from farm.compiler import onnx_data
from farm.compiler.inputs import open_shapes
from farm.compiler.load import import_model, load, outline, read
from farm.compiler.model import TensorSpec
from farm.compiler.onnx_data import in_parts, model_bytes, whole
from farm.compiler.onnx_file import STALE, arrays_in, folded
from farm.compiler.torch_model import TorchModel
from tests.support.errors import raises_code
from tests.support.onnx_files import onnx_model
from tests.support.tiny_model import tiny_onnx

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


def stated(shape, *, output=False):
    """Two nodes, between which the file states a shape."""
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    between = [helper.make_tensor_value_info("h", TensorProto.FLOAT, shape)]
    return onnx_model(nodes, {"x": [8]}, {"y": shape if output else [8]}, value_info=between)


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("shape", [[9], [-1], [8, 1]])
def test_a_stated_shape_that_contradicts_the_nodes_is_dropped_with_a_note(shape, output):
    source = read(stated(shape, output=output).SerializeToString(), "net.onnx")
    assert import_model(source).outputs[0].shape == (8,)
    assert source.notes == (STALE,)
    assert outline(source, ())["notes"] == [STALE]
    assert read(stated([8]).SerializeToString(), "net.onnx").notes == ()


def calling(*functions):
    """A model that calls F0; each function is (name, names of what it calls)."""
    opset = [helper.make_opsetid("", 16), helper.make_opsetid("own", 1)]  # another than the model's
    made = []
    for name, called in functions:
        inner = ["a", *(f"t{i}" for i in range(len(called) - 1)), "b"]
        nodes = [
            helper.make_node(kind, [inner[i]], [inner[i + 1]], domain="own" if kind[0] == "F" else "")
            for i, kind in enumerate(called)
        ]
        made.append(helper.make_function("own", name, ["a"], ["b"], nodes, opset))
    model = onnx_model([helper.make_node("F0", ["x"], ["y"], domain="own")], {"x": [8]}, {"y": [8]}, functions=made)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return read(model.SerializeToString(), "net.onnx")


def test_functions_of_a_model_are_inlined():
    source = calling(("F0", ["Relu", "F1"]), ("F1", ["Neg"]))
    assert source.operators() == {"Relu": 1, "Neg": 1}
    assert import_model(source).outputs[0].shape == (8,)


@pytest.mark.parametrize(
    "functions",
    [
        [("F0", ["F0"])],
        [("F0", ["F1", "F1"]), ("F1", ["F0"])],
        [(f"F{i}", [f"F{i + 1}"] * 2) for i in range(40)] + [("F40", ["Neg"])],
    ],
    ids=["itself", "each other", "billions"],
)
def test_functions_without_an_end_are_refused(functions):
    with pytest.raises(ModelError, match="functions"):
        calling(*functions)


def test_parameters_and_operators_are_counted_wherever_they_stand():
    for place in ("initializer", "constant", "branch"):
        tensor = helper.make_tensor("c", TensorProto.UINT8, [8], np.arange(8))
        source = read(PLACES[place](tensor).SerializeToString(), "net.onnx")
        elements, size_bytes = source.parameters()
        assert (elements - size_bytes, source.operators()["Cast"] > 0) == (0, True)
        assert elements >= (17 if place == "branch" else 8)


def test_suggested_shapes_make_sense_and_lie_in_a_programs_range():
    inputs = {"image": ["N", 3, "H", "W"], "tokens": ["N", "S"], "nhwc": ["N", "H", "W", 3]}
    nodes = [helper.make_node("Relu", [name], [f"{name}_out"]) for name in inputs]
    source = read(
        onnx_model(nodes, inputs, {f"{name}_out": shape for name, shape in inputs.items()}).SerializeToString(), "n"
    )
    assert open_shapes(source) == (
        "--shape 'image:[1,3,224,224]'", "--shape 'tokens:[1,64]'", "--shape 'nhwc:[1,224,224,3]'",
    )  # fmt: skip
    unbounded = SimpleNamespace(lower=2, upper=math.inf)  # as torch's int_oo, it is no int
    program = SimpleNamespace(range_constraints={"s77": unbounded})
    x = TensorSpec("x", ("s77", 3), np.dtype("float32"))
    torch_model = TorchModel("net.pt2", "", (x,), ("y",), program)
    assert open_shapes(torch_model) == ("--shape 'x:[2,3]'",)
    assert torch_model._sizes({"x": (2, 3)}) == {"s77": (2, "x")}
    with raises_code(Code.BAD_SHAPE):
        torch_model._sizes({"x": (1, 3)})


def test_a_saved_model_is_recognised(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01\x12\x10")
    with pytest.raises(ModelError) as file:
        read((tmp_path / "saved_model.pb").read_bytes(), "saved_model.pb")
    with pytest.raises(UserError) as folder:
        checked_file(tmp_path)
    assert "tf2onnx" in file.value.hint
    assert "tf2onnx" in folder.value.hint


def reshaped():
    """A Reshape to [shape of x, 0 with -1 last], computed as Paddle's exporter does; and a large constant."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "from", "to"], ["batch"]),
        helper.make_node("Cast", ["batch"], ["b32"], to=TensorProto.INT32),
        helper.make_node("Concat", ["b32", "rest"], ["d32"], axis=0),
        helper.make_node("Cast", ["d32"], ["d"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "d"], ["y"]),
    ]
    weights = {
        "from": numpy_helper.from_array(np.array([0]), "from"),
        "to": numpy_helper.from_array(np.array([1]), "to"),
        "rest": numpy_helper.from_array(np.array([-1, 2], np.int32), "rest"),
    }
    return onnx_model(nodes, {"x": ["N", 4, "W"]}, {"y": [None, None, None]}, weights)


def test_shapes_that_nodes_compute_are_constant_once_the_inputs_shapes_are_fixed():
    source = read(reshaped().SerializeToString(), "net.onnx")
    assert import_model(source, {"x": (2, 4, 3)}).outputs[0].shape == (2, 6, 2)
    assert [node.op_type for node in folded(source.proto, {"x": (2, 4, 3)}).graph.node] == ["Reshape"]
    assert len(source.proto.graph.node) == 6  # the file's own stays


def test_what_little_claims_to_be_is_not_made():
    """onnx.shape_inference would fill the machine's memory."""
    nodes = [helper.make_node("ConstantOfShape", ["n"], ["c"]), helper.make_node("Mul", ["x", "c"], ["y"])]
    huge = numpy_helper.from_array(np.array([1 << 40]), "n")
    proto = onnx_model(nodes, {"x": [1]}, {"y": [1 << 40]}, {"n": huge})
    source = read(proto.SerializeToString(), "net.onnx")
    assert folded(source.proto, {"x": (1,)}).graph.node[0].op_type == "ConstantOfShape"


# --- data in other files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one_file", [True, False])
def test_tensors_in_files_beside_the_model_are_taken_along(tmp_path, one_file):
    content, path = tiny_onnx(doc="\n\x08location"), tmp_path / "net.onnx"
    made = onnx.load_model_from_string(content)
    saved = onnx.load_model_from_string(content)
    where = {"all_tensors_to_one_file": one_file, "location": "net.onnx.data" if one_file else None}
    onnx.save_model(saved, path, save_as_external_data=True, size_threshold=0, **where)
    assert whole(path) == model_bytes(path) == content
    parts = in_parts(path)
    assert sum(parts.files.values()) == sum(len(each.raw_data) for each in made.graph.initializer)
    assert ("net.onnx.data" in parts.sentence()) == one_file
    assert load(path).sha256 == load(content).sha256


def test_other_files_are_left_as_they_are(tmp_path):
    path = tmp_path / "net.onnx"
    for content in (
        b"",
        b"\x08",
        FILE,
        tiny_onnx(doc="\n\x08location"),
        b"\x08" + b"j\x0c\n\x08location" * 3,
        b"PK\x03\x04",
    ):
        path.write_bytes(content)
        assert (whole(path), model_bytes(path)) == (path, content)


def beside(folder, place="initializer", *, location="data.bin", dims=(8,), kind=TensorProto.UINT8, **about):
    """A model with a tensor in another file, about which it says what it likes; None: nothing."""
    tensor = TensorProto(name="c", data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": "8", **about}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    path = folder / "net.onnx"
    path.write_bytes(PLACES[place](tensor).SerializeToString())
    return path


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", ["data.bin", "inside/data.bin", "./link", "linked/data.bin"])
def test_a_tensor_anywhere_in_a_model_is_read_from_its_folder(place, location, tmp_path):
    (tmp_path / "inside").mkdir()
    for name in ("data.bin", "inside/data.bin"):
        (tmp_path / name).write_bytes(b"...." + bytes(range(8)))
    (tmp_path / "link").symlink_to("inside/data.bin")
    (tmp_path / "linked").symlink_to(tmp_path / "inside")
    data = whole(beside(tmp_path, place, location=location, offset="4", length=None))
    tensors = [each for each in arrays_in(onnx.load_model_from_string(data)) if each.name == "c"]
    assert [each.raw_data for each in tensors] == [bytes(range(8))] * len(tensors)
    assert b"location" not in data
    assert tensors


OUTSIDE = "has tensors in .*, which is not read"
CONTRADICTS = "tensor 'c' has .* bytes by its shape, and"


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"location": "absent"}, "'absent', which is not beside it"),
        *(({"location": name}, OUTSIDE) for name in (
            "", ".", "..", "../secret", "a/../../secret", "/etc/passwd", "pipe", "folder", "leads_out", "device",
            "loop", "folder_out/secret", "data.bin/x", "zero\0", "x" * 300,
        )),
        *(({key: value}, CONTRADICTS) for key in ("offset", "length") for value in ("-1", "1e3", " 8", "٨", "9" * 30)),
        ({"length": "9"}, CONTRADICTS),
        ({"offset": "5"}, "'data.bin' has 12 bytes, and tensor 'c' ends at 13"),
        ({"dims": [1 << 40], "length": None}, "1,099,511,.* bytes with its data, and an ONNX model"),
        ({"dims": [1 << 20, 1 << 20], "length": None}, "1,099,511,.* bytes with its data"),
        ({"dims": [-1]}, "a type or shape that no other file can have"),
        ({"kind": TensorProto.STRING}, "a type or shape that no other file can have"),
        ({"kind": 99}, "a type or shape that no other file can have"),
        ({"kind": TensorProto.INT4, "dims": [25]}, "has 13 bytes by its shape"),
    ],
)  # fmt: skip
def test_what_is_no_data_of_the_models_own_folder_is_refused(tmp_path, about, said):
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(SECRET)
    (folder / "data.bin").write_bytes(bytes(12))
    os.mkfifo(folder / "pipe")
    for name, to in (("leads_out", "../secret"), ("folder_out", ".."), ("device", "/dev/zero"), ("loop", "loop")):
        (folder / name).symlink_to(to)
    with pytest.raises(ModelError, match=said) as raised:
        whole(beside(folder, **about))
    assert raised.value.hint


def test_what_is_too_large_for_one_model_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(1 << 31)
    path = beside(tmp_path, dims=[1 << 31], length=str(1 << 31))
    with pytest.raises(ModelError, match="an ONNX model 2,147,483,647 at most"):
        in_parts(path)


def test_without_the_package_onnx_the_way_out_is_told(tmp_path, monkeypatch):
    (tmp_path / "data.bin").write_bytes(bytes(8))
    path = beside(tmp_path)
    monkeypatch.setattr(onnx_data, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match="keeps tensors in other files") as raised:
        whole(path)
    assert "onnx" in raised.value.hint
    path.write_bytes(FILE)
    assert whole(path) == path
