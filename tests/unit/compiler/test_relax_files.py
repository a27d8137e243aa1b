"""TVMScript and Relax JSON: read back what was saved, refuse what is no Relax, and never run what is Python."""

import json

import numpy as np
import pytest
import tvm
from tvm import relax

from farm.compiler.compile import Recipe, compile_model
from farm.compiler.load import import_model, load, read
from farm.compiler.model import ShapeError
from farm.compiler.relax_model import saved
from farm.core.errors import ModelError
from farm.zoo.catalogue import onnx_bytes

SMALL = onnx_bytes("small_cnn")
SCRIPT = '''
"""A dense layer whose batch is open."""
from typing import TypeVar
from tvm.script import ir as I
from tvm.script import relax as R

n = TypeVar("n")


@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor((n, 4), dtype="float32"), w: R.Tensor((4, 3), dtype="float32")
    ) -> R.Tensor((n, 3), dtype="float32"):
        with R.dataflow():
            gv: R.Tensor((n, 3), dtype="float32") = R.matmul(x, w)
            R.output(gv)
        return gv
'''
FUNCTION = """@R.function
def main(x: R.Tensor((2, 4), dtype="float32")):
    y = R.nn.relu(x)
    return y
"""


def run(model, *arrays):
    machine = relax.VirtualMachine(compile_model(model, Recipe({"kind": "llvm"})), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def test_a_script_is_a_model_and_its_open_dimension_has_its_name():
    source = read(SCRIPT.encode(), "dense.py")
    assert (source.format, [(spec.name, spec.shape) for spec in source.inputs]) == (
        "relax", [("x", ("n", 4)), ("w", (4, 3))],
    )  # fmt: skip
    with pytest.raises(ShapeError, match=r"leaves dimension 0 \('n'\) open"):
        import_model(source)
    model = import_model(source, {"x": (5, 4)})
    assert [(spec.name, spec.shape) for spec in model.outputs] == [("output_0", (5, 3))]
    x, w = (np.random.default_rng(seed).random(shape, np.float32) for seed, shape in enumerate([(5, 4), (4, 3)]))
    assert np.allclose(run(model, x, w), x @ w, rtol=1e-6)
    assert source.reference({}).outputs is None


def test_one_function_is_a_model_and_types_can_be_changed():
    model = load(FUNCTION.encode(), name="relu.py", dtypes={"x": "int8"})
    assert model.inputs[0].dtype == np.int8
    assert run(model, np.array([[-1, 2, -3, 4]] * 2, np.int8)).tolist() == [[0, 2, 0, 4]] * 2
    assert model.key != load(FUNCTION.encode(), name="relu.py").key


def test_a_name_for_two_sizes_is_refused():
    script = FUNCTION.replace('(2, 4), dtype="float32"', '("n", "n"), dtype="float32"')
    with pytest.raises(ShapeError, match=r"dimension 1 \('n'\) of input 'x' is 4, and 3 in 'x'"):
        load(script.encode(), name="relu.py", shapes={"x": (3, 4)})


@pytest.mark.parametrize(
    "how",
    [
        lambda model: saved(model),
        lambda model: tvm.ir.save_json(model.module).encode(),
        lambda model: model.module.script(show_meta=True).encode(),
    ],
    ids=["the farm's file", "save_json", "script"],
)
def test_an_imported_model_is_saved_and_read_back(how):
    model = load(SMALL, name="small.onnx")
    again = load(how(model), name="small" if how(model)[:1] == b"{" else "small.py")
    tvm.ir.assert_structural_equal(again.module, model.module, map_free_vars=True)
    assert again.inputs == model.inputs
    assert [spec.shape for spec in again.outputs] == [(1, 10)]


def test_the_farms_file_says_what_it_is():
    document = json.loads(saved(load(SMALL, name="small.onnx")))
    assert (document["name"], document["tvm"], document["source"]["format"]) == (
        "small.onnx", tvm.__version__, "onnx",
    )  # fmt: skip
    assert document["inputs"] == [{"name": "input", "shape": [1, 3, 32, 32], "dtype": "float32"}]
    assert load(saved(load(SMALL, name="small.onnx")), name="x").outputs[0].name == "output"


def changed(**fields):
    document = json.loads(saved(load(FUNCTION.encode(), name="relu.py")))
    return json.dumps({name: value for name, value in (document | fields).items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (changed(tvm="0.25.0"), "was written by TVM 0.25.0, and this toolchain has"),
        (changed(module="{}"), "its module has another hash"),
        (changed(module=None), "no whole model file"),
        (changed(outputs=[1]), "no whole model file"),
        (changed(version=2), "version 2 of the farm's model file"),
        (changed()[:-40], "cut short or damaged"),
        (b'{"a": 1}', "JSON, but no Relax module"),
        (b"{" * 100_000, "cut short or damaged"),
        (tvm.ir.save_json(relax.const(1.0)).encode(), "holds no module but a"),
        (tvm.ir.save_json(tvm.IRModule()).encode(), "no Relax function 'main'"),
        (tvm.ir.save_json(tvm.IRModule()).replace('"ir.IRModule"', '"ir.NoSuch"').encode(), "is damaged"),
        (b'{"root_index": 0, "nodes": [], "metadata": {}}', "was written by TVM unknown"),
    ],
    ids=[
        "version", "hash", "no module", "outputs", "farm's version", "cut", "other", "deep", "constant", "empty",
        "type", "no version",
    ],
)  # fmt: skip
def test_json_that_is_no_model_is_refused(data, said):
    with pytest.raises(ModelError, match=said):
        read(data, "net")


EVIL = [
    "import os\n" + FUNCTION,
    "from os import system\n" + FUNCTION,
    "import tvm.script as R\nprint(1)\n" + FUNCTION,
    FUNCTION.replace("R.nn.relu(x)", '__import__("os").system("touch {mark}")'),
    FUNCTION.replace("R.nn.relu(x)", 'open("{mark}", "w")'),
    FUNCTION.replace("R.nn.relu(x)", 'eval("open(chr(47))")'),
    FUNCTION.replace("R.nn.relu(x)", "().__class__.__base__.__subclasses__()"),
    FUNCTION.replace("R.nn.relu(x)", "(1 for i in x).gi_frame.f_globals"),
    FUNCTION.replace("R.nn.relu(x)", 'tvm.get_global_func("runtime.SystemLib")()'),
    FUNCTION.replace("R.nn.relu(x)", 'R.inspect.os.system("touch {mark}")'),
    FUNCTION.replace("R.nn.relu(x)", 'T.parse("1")'),
    FUNCTION.replace("    y = R", "    a = R\n    y = R"),
    FUNCTION.replace("@R.function", "@R.function\n@print"),
    FUNCTION.replace("@R.function", '@open("{mark}", "w").write'),
    FUNCTION.replace("(2, 4)", '(open("{mark}", "w"), 4)'),
    FUNCTION.replace("(2, 4)", '(\'__import__("os").system("touch {mark}")\', 4)'),
    'metadata = tvm.ir.load_json(open("{mark}", "w"))\n' + FUNCTION,
    'n = TypeVar(open("{mark}", "w"))\n' + FUNCTION,
    "class A(print): pass\n",
    "@I.ir_module\nclass M:\n    open('{mark}', 'w')\n",
    "@I.ir_module\nclass M:\n    @I.pyfunc\n    def f(x):\n        open('{mark}', 'w')\n",
]


@pytest.mark.parametrize("script", EVIL)
def test_python_in_a_script_is_refused_and_never_runs(script, tmp_path):
    mark = tmp_path / "ran"
    with pytest.raises(ModelError) as caught:
        read(script.replace("{mark}", str(mark)).encode(), "evil.py")
    assert not mark.exists()
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", "no valid Python in line 1"),
        ("x = 1\n", "line 1: `x = 1` is no TVMScript"),
        ("", "empty"),
        ("# nothing\n", "no module or function"),
        (FUNCTION.replace("nn.relu", "nn.rleu"), "TVMScript has no `R.nn.rleu`"),
        (FUNCTION.replace("relu(x)", "relu(z)"), "cannot parse it as TVMScript"),
        (SCRIPT.replace("def main", "def other"), "no Relax function 'main'"),
        ("@R.function\ndef main(x: R.Object):\n    return x\n", "'x' of main is no tensor"),
        ("\0" + FUNCTION, "no valid Python"),
        ("(" * 5000 + FUNCTION, "no valid Python"),
    ],
    ids=["syntax", "statement", "empty", "comment", "typo", "undefined", "name", "object", "nul", "deep"],
)
def test_what_is_no_model_in_tvmscript_is_said(text, said):
    with pytest.raises(ModelError, match=said):
        read(text.encode(), "net.py")
    with pytest.raises(ModelError, match="no text"):
        read(b"\xff\xfe", "net.py")
