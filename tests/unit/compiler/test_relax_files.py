"""TVMScript and Relax JSON: read back what was saved, refuse what is no Relax, and never run what is Python."""

import json
import resource
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from farm.common.errors import Code, ModelError
from farm.compiler.compile import Recipe, compile_model
from farm.compiler.load import import_model, load, read, summarise
from farm.compiler.nodes import ALLOWED
from farm.compiler.relax_model import saved
from farm.compiler.relax_script import MAX_MEMORY_BYTES
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


def run(model, *arrays):
    machine = relax.VirtualMachine(compile_model(model, Recipe({"kind": "llvm"})), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def test_a_script_is_a_model_and_its_open_dimension_has_its_name():
    source = read(SCRIPT.encode(), "dense.py")
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


def test_one_function_is_a_model_and_types_can_be_changed():
    model = load(FUNCTION.encode(), name="relu.py", dtypes={"x": "int8"})
    assert model.inputs[0].dtype == np.int8
    assert run(model, np.array([[-1, 2, -3, 4]] * 2, np.int8)).tolist() == [[0, 2, 0, 4]] * 2
    assert model.key != load(FUNCTION.encode(), name="relu.py").key


def test_a_name_for_two_sizes_is_refused():
    script = FUNCTION.replace('(2, 4), dtype="float32"', '("n", "n"), dtype="float32"')
    with raises_code(Code.BAD_SHAPE, match=r"dimension 1 \('n'\) of input 'x' is 4, and 3 in 'x'"):
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


EVIL = [
    "import os\n" + FUNCTION,
    "from os import system\n" + FUNCTION,
    "import tvm.script as R\nprint(1)\n" + FUNCTION,
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
    *(
        FUNCTION.replace("R.nn.relu(x)", said)
        for said in (
            '__import__("os").system("touch {mark}")',
            'open("{mark}", "w")',
            'eval("open(chr(47))")',
            "().__class__.__base__.__subclasses__()",
            "(1 for i in x).gi_frame.f_globals",
            'tvm.get_global_func("runtime.SystemLib")()',
            'R.inspect.os.system("touch {mark}")',
            'T.parse("1")',
            'R.add(x, "{0.__globals__[__file__]}".format(R.nn.relu))',
            'R.add(x, f"{R.nn.relu}")',
            'R.const([1.0], "float32").data.numpy().tofile("{mark}")',
            "[R.nn.relu(v) for v in (x,)][0]",
            "x.ty",
            "x.data.numpy()",
            "x(1)",
            'R.call_packed("f", x)(1)',
            "(lambda v: v)(x)",
            'R.emit_te(R.call_packed, "f")',
            'R.ExternFunc("f")',
            'R.Callable(derive_func="runtime.SystemLib")',
            'R.Callable(None, R.Object, True, "runtime.SystemLib")',
            'R.Callable(*[None, R.Object, True, "runtime.SystemLib"])',
            "R.function(lambda x: x)",
            "I.ir_module(T.axis)",
            'R.Callable(**{"derive_func": "runtime.SystemLib"})',
            'T.target({"kind": "llvm"})',
            "R.nn.relu.__globals__",
            "R.nn.relu.func.name",
            "9 ** 9 ** 9 ** 9",
            "len.__self__",
            "open",
        )
    ),
    FUNCTION.replace("(2, 4)", '("tvm.ir.load_json(0)", 4)'),
    FUNCTION.replace("(2, 4)", '("ran" + "ge(2).sto" + "p", 4)'),
    FUNCTION.replace("x: R.Tensor", "x: open, z: R.Tensor"),
    FUNCTION.replace("    y = ", "    R = x\n    y = "),
    FUNCTION.replace("    y = ", "    len = x\n    y = "),
    FUNCTION.replace("    y = ", "    main = x\n    y = "),
    FUNCTION.replace("    y = ", "    x.name = x\n    y = "),
    FUNCTION.replace("    y = ", "    with R.dataflow() as x.name:\n        pass\n    y = "),
    FUNCTION.replace('"float32")', '"float32") = open("{mark}", "w")', 1),
]


@pytest.mark.parametrize("script", EVIL)
def test_python_in_a_script_is_refused_and_never_runs(script, tmp_path):
    mark = tmp_path / "ran"
    with pytest.raises(ModelError) as caught:
        read(script.replace("{mark}", str(mark)).encode(), "evil.py")
    assert not mark.exists()
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("huge", ["1 << 40000000000", "list(range(10000000000))"])
def test_a_script_gets_no_more_memory_than_its_text_explains(huge):
    before, limits = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(ModelError, match="cannot parse it"):
        read(FUNCTION.replace("nn.relu(x)", f"add(x, R.const(float(len(str({huge})))))").encode(), "huge.py")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_MEMORY_BYTES / 1024
    assert resource.getrlimit(resource.RLIMIT_DATA) == limits


def native_code(mark):
    """JSON of `{"m": [program]}`, where the program of TVM's virtual machine writes the file `mark`."""
    builder = relax.ExecBuilder()
    with builder.function("main", num_inputs=0):
        builder.emit_call(NATIVE, args=[builder.convert_constant(str(mark))], dst=builder.r(0))
        builder.emit_ret(builder.r(0))
    return tvm.ir.save_json(tvm.runtime.convert({"m": [builder.get().mod]}))


NATIVE = "farm.test.native"
CALLS_IT = (
    '[(v["vm_initialization"](1, 0, 2), v["main"]()) for v in [metadata["m"][0]["vm_load_executable"]()]] and x',
    'metadata["m"][0]["vm_load_executable"]()',
    'R.add(x, metadata["m"][0])',
    'R.add(x, metadata["m"][len(x)])',
    "metadata",
    "R.nn.relu(x)",
)


def test_compiled_code_in_a_candidate_is_never_loaded(tmp_path):
    with pytest.raises(ModelError, match=r"node of type 'ffi\.Module'"):
        build({}, native_code(tmp_path).encode(), tmp_path)


@pytest.mark.parametrize("call", CALLS_IT)
def test_compiled_code_in_a_scripts_metadata_is_never_loaded(call, tmp_path):
    mark = tmp_path / "ran"
    tvm.register_global_func(NATIVE, lambda path: Path(path).touch(), override=True)
    script = f"metadata = tvm.ir.load_json({native_code(mark)!r})\n" + FUNCTION.replace("R.nn.relu(x)", call)
    with pytest.raises(ModelError):
        read(script.encode(), "evil.py")
    assert not mark.exists()


def test_a_dimension_that_is_a_string_is_arithmetic():
    function = FUNCTION.replace("(2, 4)", '("n", 4)').replace("float32", "float32")
    script = function.replace("def main(x", 'def main(z: R.Tensor(("n * 2 + 1", 4), "float32"), x')
    inputs = read(script.encode(), "shapes.py").inputs
    assert [spec.shape[1:] for spec in inputs] == [(4,), (4,)]
    with pytest.raises(ModelError, match=r"dimension 'n\.bit_length' is no arithmetic"):
        read(function.replace('"n"', '"n.bit_length"').encode(), "shapes.py")


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
    model = load(FOLDABLE.format(native=NATIVE, mark=mark).encode(), name="fold.py")
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


def test_a_program_with_tensor_ir_and_packed_calls_is_read_from_script_and_json():
    module = read(PROGRAM.encode(), "program.py").module
    for how in (tvm.ir.save_json(module), module.script(show_meta=True)):
        again = read(how.encode(), "program.json" if how[0] == "{" else "program.py").module
        tvm.ir.assert_structural_equal(again, module, map_free_vars=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", "no valid Python in line 1"),
        ("x = 1\n", "line 1: `x = 1` is no TVMScript"),
        ("", "empty"),
        ("# nothing\n", "no module or function"),
        (FUNCTION.replace("nn.relu", "nn.rleu"), "TVMScript has no `R.nn.rleu`"),
        (FUNCTION.replace("relu(x)", "relu(z)"), "line 3: `z` is not defined in it"),
        (FUNCTION.replace("relu(x)", "relu(x, x, x)"), "cannot parse it as TVMScript"),
        (SCRIPT.replace("def main", "def other"), "no Relax function 'main'"),
        ("@R.function\ndef main(x: R.Object):\n    return x\n", "'x' of main is no tensor"),
        ("\0" + FUNCTION, "no valid Python"),
        ("(" * 5000 + FUNCTION, "no valid Python"),
        (FUNCTION.replace("R.nn.relu(x)", "-" * 3000 + "x"), "nested too deeply|no valid Python"),
    ],
    ids=[
        "syntax",
        "statement",
        "empty",
        "comment",
        "typo",
        "undefined",
        "shape",
        "name",
        "object",
        "nul",
        "deep",
        "minus",
    ],
)
def test_what_is_no_model_in_tvmscript_is_said(text, said):
    with pytest.raises(ModelError, match=said):
        read(text.encode(), "net.py")
    with pytest.raises(ModelError, match="no text"):
        read(b"\xff\xfe", "net.py")
