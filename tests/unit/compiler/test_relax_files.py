"""Relax JSON and the scripts that make it: read back what was saved, and refuse what is no Relax."""

import json
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from farm.common.errors import Code, ModelError
from farm.compiler.compile import Recipe, compile_model
from farm.compiler.load import import_model, load, read, summarise
from farm.compiler.nodes import ALLOWED
from farm.compiler.relax_model import run_script, saved
from farm.tuning.build_server import build
from farm.zoo import onnx_bytes
from tests.support.errors import raises_code

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


def ran(text, folder):
    path = folder / "net.py"
    path.write_text(text)
    return run_script(path)


def run(model, *arrays):
    machine = relax.VirtualMachine(compile_model(model, Recipe({"kind": "llvm"})), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def test_a_script_is_a_model_and_its_open_dimension_has_its_name(tmp_path):
    source = ran(SCRIPT, tmp_path)
    assert (source.format, [(spec.name, spec.shape) for spec in source.inputs]) == (
        "relax", [("x", ("n", 4)), ("w", (4, 3))],
    )  # fmt: skip
    with raises_code(Code.BAD_SHAPE, match=r"leaves dimension 0 \('n'\) open"):
        import_model(source)
    model = import_model(source, {"x": (5, 4)})
    assert [(spec.name, spec.shape) for spec in model.outputs] == [("output_0", (5, 3))]
    x, w = (np.random.default_rng(seed).random(shape, np.float32) for seed, shape in enumerate([(5, 4), (4, 3)]))
    assert np.allclose(run(model, x, w), x @ w, rtol=1e-6)
    assert source.reference({}).outputs is None


def test_one_function_is_a_model_and_types_can_be_changed(tmp_path):
    model = import_model(ran(FUNCTION, tmp_path), dtypes={"x": "int8"})
    assert model.inputs[0].dtype == np.int8
    assert run(model, np.array([[-1, 2, -3, 4]] * 2, np.int8)).tolist() == [[0, 2, 0, 4]] * 2
    assert model.key != import_model(ran(FUNCTION, tmp_path)).key
    assert read(saved(model), "relu.relax.json").inputs[0].shape == (2, 4)


def test_a_name_for_two_sizes_is_refused(tmp_path):
    script = FUNCTION.replace('(2, 4), dtype="float32"', '("n", "n"), dtype="float32"')
    with raises_code(Code.BAD_SHAPE, match=r"dimension 1 \('n'\) of input 'x' is 4, and 3 in 'x'"):
        import_model(ran(script, tmp_path), {"x": (3, 4)})


@pytest.mark.parametrize(
    "again",
    [
        lambda model, _: load(saved(model), name="small"),
        lambda model, _: load(tvm.ir.save_json(model.module).encode(), name="small"),
        lambda model, folder: import_model(ran(model.module.script(show_meta=True), folder)),
    ],
    ids=["the farm's file", "save_json", "script"],
)
def test_an_imported_model_is_saved_and_read_back(again, tmp_path):
    model = load(SMALL, name="small.onnx")
    again = again(model, tmp_path)
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
    document = json.loads(saved(load(onnx_bytes("one_conv"), name="conv.onnx")))
    return json.dumps({name: value for name, value in (document | fields).items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (changed(tvm="0.25.0"), "was written by TVM 0.25.0, and this toolchain has"),
        (changed(module="{}"), "its module does not have the hash"),
        (changed(module=None), "no whole model file"),
        (changed(outputs=[1]), "no whole model file"),
        (changed(version=2), "version 2 of the farm's model file"),
        (changed()[:-40], "cut short or damaged"),
        (b'{"a": 1}', "JSON, but no Relax module"),
        (b"{" * 100_000, "cut short or damaged"),
        (tvm.ir.save_json(relax.const(1.0)).encode(), "holds no module but a"),
        (tvm.ir.save_json(tvm.IRModule()).encode(), "no Relax function 'main'"),
        (tvm.ir.save_json(tvm.IRModule()).replace('"ir.IRModule"', '"ir.NoSuch"').encode(), "of type 'ir.NoSuch'"),
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


def native_code(mark):
    """JSON of `{"m": [program]}`, where the program of TVM's virtual machine writes the file `mark`."""
    builder = relax.ExecBuilder()
    with builder.function("main", num_inputs=0):
        builder.emit_call(NATIVE, args=[builder.convert_constant(str(mark))], dst=builder.r(0))
        builder.emit_ret(builder.r(0))
    return tvm.ir.save_json(tvm.runtime.convert({"m": [builder.get().mod]}))


NATIVE = "farm.test.native"


def test_compiled_code_in_a_candidate_is_never_loaded(tmp_path):
    with pytest.raises(ModelError, match=r"node of type 'ffi\.Module'"):
        build({}, native_code(tmp_path).encode(), tmp_path)


@pytest.mark.parametrize(
    "node",
    [
        {"type": "ffi.Module", "data": ""},
        {"type": "ir.EnvFunc", "data": "runtime.SystemLib"},
        {"type": "target.Target", "data": {}},
        {"type": ["ffi.Array"], "data": []},
        {"type": None},
        {},
        7,
    ],
)
def test_json_with_a_node_that_no_model_has_is_not_given_to_tvm(node, monkeypatch):
    monkeypatch.setattr(tvm.ir, "load_json", lambda _: pytest.fail("TVM was given it"))
    document = {"root_index": 0, "nodes": [node], "metadata": {"tvm_version": tvm.__version__}}
    with pytest.raises(ModelError, match=r"damaged|no model needs"):
        read(json.dumps(document).encode(), "evil.json")


@pytest.mark.parametrize("name", ["small_cnn", "one_conv", "mobilenet_v2"])
def test_what_is_imported_has_no_node_that_is_refused(name):
    module = load(onnx_bytes(name), name="net.onnx").module
    kinds = {node["type"] for node in json.loads(tvm.ir.save_json(module))["nodes"]}
    assert {kind for kind in kinds - ALLOWED if not kind.startswith("relax.attrs.")} == set()


FOLDABLE = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def k(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        T.call_packed("{native}", "{mark}")
        for i in range(4):
            with T.sblock("b"):
                v = T.axis.spatial(4, i)
                b[v] = a[v]

    @R.function
    def main(x: R.Tensor((4,), dtype="float32")):
        cls = Module
        with R.dataflow():
            y = R.call_tir(cls.k, (R.const([1.0, 2.0, 3.0, 4.0], "float32"),), out_ty=R.Tensor((4,), "float32"))
            z = R.add(x, y)
            R.output(z)
        return z
"""


def test_nothing_of_a_model_is_computed_while_it_is_imported_and_summarised(tmp_path):
    mark = tmp_path / "ran"
    tvm.register_global_func(NATIVE, lambda path: Path(path).touch(), override=True)
    model = import_model(ran(FOLDABLE.format(native=NATIVE, mark=mark), tmp_path))
    assert summarise(load(saved(model), name="fold"))["parameters"] == 4
    assert not mark.exists()
    relax.transform.FoldConstant()(model.module)
    assert mark.exists()  # compiling does: docs/models.md says so


PROGRAM = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def k(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("b"):
                v = T.axis.spatial(4, i)
                T.reads(a[v])
                T.writes(b[v])
                b[v] = T.if_then_else(v < 2, a[v] * T.Cast("float32", v), T.exp(a.vload([v])))

    @R.function(pure=False)
    def main(x: R.Tensor((4,), dtype="float32")) -> R.Tensor((4,), dtype="float32"):
        cls = Module
        y = R.call_tir(cls.k, (x,), out_ty=R.Tensor((4,), dtype="float32"))
        z: R.Tensor((4,), dtype="float32") = R.call_packed("f", y, ty_args=(R.Tensor((4,), dtype="float32"),))
        t = R.layout_transform(z, index_map=T.index_map(lambda i: (i // 2, i % 2)))
        w: R.Tensor((4,), dtype="float32") = R.reshape(t, R.shape([4]))
        return w
"""


def test_a_program_with_tensor_ir_and_packed_calls_is_read_from_script_and_json(tmp_path):
    module = ran(PROGRAM, tmp_path).module
    (tmp_path / "printed").mkdir()
    printed = ran(module.script(show_meta=True), tmp_path / "printed").module
    for again in (read(tvm.ir.save_json(module).encode(), "program.json").module, printed):
        tvm.ir.assert_structural_equal(again, module, map_free_vars=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", "fails in line 1: SyntaxError"),
        ("x = 1\n", "makes no model"),
        ("import sys\nsys.exit('not today')\n", "fails in line 2: SystemExit: not today"),
        (FUNCTION.replace("nn.relu", "nn.rleu"), "fails in line 1: "),
        (FUNCTION + FUNCTION.replace("def main", "def other"), "makes several models: main, other"),
        (SCRIPT.replace("def main", "def other"), "no Relax function 'main'"),
        ("@R.function\ndef main(x: R.Object):\n    return x\n", "'x' of main is no tensor"),
        ("module = tvm.IRModule({}, global_infos={'vdevice': [I.vdevice({'kind': 'llvm'}, 0)]})\n", "no model needs"),
    ],
    ids=["syntax", "statement", "exit", "typo", "several", "name", "object", "target"],
)
def test_a_script_that_makes_no_model_is_told(text, said, tmp_path):
    with pytest.raises(ModelError, match=said):
        ran(text, tmp_path)


def test_a_script_runs_where_it_is_imported_and_nowhere_else(tmp_path):
    text = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n{FUNCTION}"
    with pytest.raises(ModelError, match="only farm model import runs one") as raised:
        read(text.encode(), "relu.py")
    assert raised.value.hint == "farm model import relu.py -o relu.relax.json, then give relu.relax.json"
    assert not (tmp_path / "ran").exists()
    assert ran(text, tmp_path).inputs[0].shape == (2, 4)
    assert (tmp_path / "ran").exists()
