"""What a file is, and which shapes and types it takes: told by its content, refused by name."""

import io
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from farm.common.errors import Code, ModelError, UserError
from farm.compiler.compile import Recipe, compile_model
from farm.compiler.inputs import import_with
from farm.compiler.load import import_model, load, read
from farm.compiler.model import format_of
from farm.compiler.relax_model import run_script
from tests.support.errors import raises_code
from tests.support.onnx_files import onnx_model


def zipped(*members, claims=1):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for member in members:
            archive.writestr(member, b"x")
            archive.filelist[-1].file_size = claims
    return packed.getvalue()


def scaling():
    """y = x * 2, one open dimension named "batch" and one without a name."""
    shape = ["batch", None, 3]
    return onnx_model([helper.make_node("Add", ["x", "x"], ["y"])], {"x": shape}, {"y": shape}).SerializeToString()


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (b"\x1c\0\0\0TFL3" + bytes(20), "net", "tflite"),
        (b"\x89HDF\r\n\x1a\n" + bytes(20), "net", "keras"),
        (zipped("config.json", "metadata.json", "model.weights.h5"), "net.zip", "keras"),
        (zipped("archive/archive_format", "archive/models/model.json"), "net.zip", "torch"),
        (zipped("serialized_exported_program.json", "version"), "net", "torch"),
        (b' \n{"root_index": 0}', "net", "relax"),
        (b"# a comment\n@R.function\ndef main(): ...\n", "net", "script"),
        (b"anything", "net.py", "script"),
        (b"\x08\x08", "net", "onnx"),
        (b"anything", "net", "onnx"),
        (b"\0@R.function", "net.onnx", "onnx"),
    ],
)
def test_the_content_tells_the_format(data, name, kind):
    assert format_of(data, name) == kind


def test_an_old_keras_that_would_read_files_of_the_host_reads_none(monkeypatch):
    for name in ("keras", "onnxscript", "torch"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__version__="3.14.2"))
    with pytest.raises(ModelError, match=r"Keras 3\.14\.2"):
        read(b"\x89HDF\r\n\x1a\n", "net.h5")


@pytest.mark.parametrize(
    ("data", "name", "said"),
    [
        (b"hello", "net.tflite", "net.tflite is not a TensorFlow Lite model"),
        (b"hello", "net.pt2", "not a program of torch.export"),
        (b"hello", "net.json", "not a Relax module"),
        (zipped("net/data.pkl", "net/version"), "net.pt", "is a pickle"),
        (zipped("readme"), "net.zip", "an archive, but of no model format"),
        (zipped("readme")[:-8], "net.zip", "an archive that is cut short"),
        (zipped("readme").replace(b"\x14\3\x14", b"\x14\3\x50"), "net.zip", "an archive that is cut short"),
        (
            zipped("config.json", "model.weights.h5", claims=3 << 30),
            "net.keras",
            r"claims 6,442,450,944 bytes unpacked",
        ),
        (bytes(257) + b"ustar" + bytes(300), "net.farm.tar", "is a .tar archive"),
        (b"", "net.onnx", "is empty"),
    ],
)
def test_what_is_no_model_is_refused(data, name, said):
    with pytest.raises(ModelError, match=said) as caught:
        read(data, name)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("shapes", "said", "next_"),
    [
        ({}, r"net: input 'x', shape batchx\?x3, leaves dimension 0 \('batch'\) open", "--shape 'x:[1,64,3]'"),
        ({"x": (4,)}, "has 3 dimensions, and the shape given for it, 4, has 1", "--shape 'x:[1,64,3]'"),
        ({"x": (4, 5, 6)}, "dimension 2 is 3 in the file, and 6 is asked for", "left open"),
        ({"x": (4, 0, 3)}, "dimension 1 is 0", "1 or more"),
        ({"X1": (1,)}, "a shape is given for 'X1', which is no input of net", "net has inputs: x"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(shapes, said, next_):
    with raises_code(Code.BAD_SHAPE, match=said) as caught:
        load(scaling(), name="net", shapes=shapes)
    assert next_ in caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("dtypes", "said"),
    [({"y": "int8"}, "a type is given for 'y', which is no input of net"), ({"x": "floaty"}, "'floaty' is no type")],
)
def test_types_are_refused_by_name(dtypes, said):
    with raises_code(Code.BAD_SHAPE, match=said):
        load(scaling(), name="net", shapes={"x": (1, 1, 3)}, dtypes=dtypes)


def test_an_input_in_another_type_is_converted_at_the_start():
    model = load(scaling(), name="net", shapes={"x": (2, 1, 3)}, dtypes={"x": "uint8"})
    assert (model.inputs[0].dtype, model.outputs[0].dtype) == (np.uint8, np.float32)
    machine = relax.VirtualMachine(compile_model(model, Recipe({"kind": "llvm"})), tvm.cpu())
    given = np.array([[[200, 1, 2]], [[255, 0, 3]]], np.uint8)  # 400 is more than the type holds
    assert machine["main"](tvm.runtime.tensor(given)).numpy().tolist() == (given.astype(np.float32) * 2).tolist()


def test_the_key_is_of_everything_that_shapes_the_module():
    source = read(scaling(), "net")
    shapes, others = {"x": (1, 2, 3)}, {"x": (2, 2, 3)}
    keys = [
        import_model(source, shapes).key,
        import_model(source, others).key,
        import_model(source, shapes, {"x": "float16"}).key,
        load(scaling() + b"", name="other name", shapes=shapes).key,
    ]
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3


def test_arrays_and_shapes_must_agree():
    packed = io.BytesIO()
    np.savez(packed, x=np.ones((2, 4, 3), np.float32))
    source = read(scaling(), "net")
    model, given = import_with(source, packed.getvalue(), {"x": (2, 4, 3)}, {"x": "float16"})
    assert (model.inputs[0].shape, given["x"].dtype) == ((2, 4, 3), np.float16)
    with raises_code(Code.BAD_INPUTS, match="'x' has shape 2x4x3, and --shape says 2x5x3"):
        import_with(source, packed.getvalue(), {"x": (2, 5, 3)})


def test_a_file_that_is_not_there_is_the_users(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*No such file"):
        load(tmp_path / "absent.onnx")
    (tmp_path / "net.onnx").write_bytes(scaling())
    assert load(tmp_path / "net.onnx", shapes={"x": (1, 1, 3)}).name == "net.onnx"


def test_an_output_that_is_no_tensor_is_refused(tmp_path):
    script = tmp_path / "net.py"
    script.write_text(
        "@R.function\ndef main(x: R.Tensor((2,), dtype='float32')):\n    y = R.shape_of(x)\n    return y\n"
    )
    with pytest.raises(ModelError, match=r"net.py: output 0 is no tensor but"):
        import_model(run_script(script))
