"""TensorFlow Lite files with known weights compute what numpy computes; what is wrong with one is said."""

import contextlib

import numpy as np
import pytest
import tflite
import tvm
from tvm import relax

from farm.common.errors import Code, ModelError
from farm.compiler.compile import Recipe, compile_model
from farm.compiler.load import import_model, read
from farm.compiler.relax_model import saved
from farm.compiler.tflite_model import STATE
from tests.support.errors import raises_code
from tests.support.tflite_files import TfliteFile, by_numpy, convolution_and_dense, unsupported

SIZE = 5
KERNEL, BIAS, DENSE, IMAGE = (
    np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    for seed, shape in enumerate([(4, 3, 3, 2), (4,), (6, SIZE * SIZE * 4), (1, SIZE, SIZE, 2)])
)
FILE = convolution_and_dense(KERNEL, BIAS, DENSE, SIZE)


def test_a_convolution_and_a_dense_layer_compute_what_numpy_does():
    source = read(FILE, "net.tflite")
    assert (source.format, source.outputs) == ("tflite", ("scores",))
    assert [(spec.name, spec.shape, spec.dtype) for spec in source.inputs] == [
        ("image", (1, SIZE, SIZE, 2), np.float32)
    ]
    model = import_model(source)
    assert model.outputs[0].shape == (1, 6)
    machine = relax.VirtualMachine(compile_model(model, Recipe({"kind": "llvm"})), tvm.cpu())
    assert np.allclose(
        machine["main"](tvm.runtime.tensor(IMAGE)).numpy(), by_numpy(KERNEL, BIAS, DENSE, IMAGE), rtol=1e-5, atol=1e-5
    )
    told = source.reference({"image": IMAGE})
    assert told.outputs is None
    assert "TensorFlow Lite" in told.by
    pytest.importorskip("ai_edge_litert")
    [by_litert] = source.second_reference({"image": IMAGE}).outputs
    assert np.allclose(by_litert, by_numpy(KERNEL, BIAS, DENSE, IMAGE), rtol=1e-5, atol=1e-5)


def test_what_it_became_is_saved_and_read_back():
    model = import_model(read(FILE, "net.tflite"))
    again = import_model(read(saved(model), "net.json"))
    tvm.ir.assert_structural_equal(again.module["main"].body, model.module["main"].body, map_free_vars=True)


def test_an_open_dimension_must_be_fixed():
    source = read(convolution_and_dense(KERNEL, BIAS, DENSE, SIZE, open_batch=True), "net.tflite")
    assert source.inputs[0].shape == ("?", SIZE, SIZE, 2)
    with raises_code(Code.BAD_SHAPE, match=r"input 'image', shape [?]x5x5x2, leaves dimension 0 open") as caught:
        import_model(source)
    assert "--shape 'image:[1,5,5,2]'" in caught.value.hint
    assert import_model(source, {"image": (1, 5, 5, 2)}).inputs[0].shape == (1, 5, 5, 2)


def test_an_operator_that_tvm_does_not_know_is_named_with_its_place():
    with pytest.raises(ModelError, match=r"does not support RNN \(operator 0 that makes 'hashes'\)"):
        import_model(read(unsupported(), "net.tflite"))
    with pytest.raises(ModelError, match=r"at CUSTOM \(operator 0 that makes 'hashes'\): Custom operators are"):
        import_model(read(unsupported(tflite.BuiltinOperator.CUSTOM), "net.tflite"))


@pytest.mark.parametrize("end", [9, 100, 400, len(FILE) // 2, len(FILE) - 700])
def test_a_cut_file_is_refused(end):
    with pytest.raises(ModelError, match=r"net.tflite is a TensorFlow Lite model that is cut short or damaged"):
        import_model(read(FILE[:end], "net.tflite"))


def test_a_damaged_file_is_refused_or_read_but_never_breaks():
    generator = np.random.default_rng(3)
    for _ in range(60):
        damaged = bytearray(FILE)
        for place in generator.integers(8, len(FILE), 4):
            damaged[place] = int(generator.integers(256))
        with contextlib.suppress(ModelError):
            import_model(read(bytes(damaged), "net.tflite"))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_dimension_is_added_and_a_variable_is_read_back_within_a_run(dtype):
    made, kinds = TfliteFile(), tflite.BuiltinOperator
    x, axis = made.tensor("x", (4,), dtype=dtype), made.tensor("axis", (1,), np.array([0], np.int32))
    row, y = (made.tensor(name, (1, 4), dtype=dtype) for name in ("row", "y"))
    state = made.tensor("state", (), dtype="resource")
    if dtype == "int8":
        made.scales = dict.fromkeys((x, row, y), 0.5)
    made.operator(kinds.EXPAND_DIMS, [x, axis], row)
    made.operator(kinds.VAR_HANDLE, [], state)
    made.operator(kinds.ASSIGN_VARIABLE, [state, row], None)
    made.operator(kinds.READ_VARIABLE, [state], y)
    source = read(made.data([x], [y]), "net.tflite")
    assert source.notes == (STATE,)
    machine = relax.VirtualMachine(compile_model(import_model(source), Recipe({"kind": "llvm"})), tvm.cpu())
    given = np.arange(4, dtype=dtype)
    assert machine["main"](tvm.runtime.tensor(given)).numpy().tolist() == [given.tolist()]
