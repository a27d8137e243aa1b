"""A model that compiles in a moment: one convolution with batch normalisation, one dense layer."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

LIMIT_S = 180.0  # of a run on a phone that another processor imitates


def check_numbers(farm, phone, model, folder, *options):
    """Run the model in the file `model` on a phone, and compare its output with the reference's."""
    given = np.random.default_rng(7).standard_normal((1, 4, 8, 8)).astype(np.float32)
    inputs, outputs = folder / "in.npz", folder / "out.npz"
    np.savez(inputs, x=given)
    files = ("--input", str(inputs), "--output", str(outputs))
    done = farm.farm("run", str(model), "--on", phone.name, *options, *files, timeout_s=LIMIT_S)
    assert done.returncode == 0, done
    [expected] = ReferenceEvaluator(onnx.load(model)).run(None, {"x": given})
    with np.load(outputs) as kept:
        [name] = kept.files
        np.testing.assert_allclose(kept[name], expected, rtol=1e-4, atol=1e-6)


def tiny_onnx(*, batch=1, side=8, doc=""):
    """Input `x`, batch x 4 x side x side, output `y`, batch x 3. `doc`: text in the file, to make it large."""
    random = np.random.default_rng(3)

    def weight(name, *shape):
        return numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 4, name)

    weights = [weight("w", 8, 4, 3, 3), weight("scale", 8), weight("shift", 8), weight("mean", 8), weight("d", 8, 3)]
    weights.append(numpy_helper.from_array(np.full(8, 0.5, np.float32), "variance"))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["b"], name="norm"),
        helper.make_node("Relu", ["b"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "d"], ["y"], name="dense"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4, side, side])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3])
    graph = helper.make_graph(nodes, "tiny", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, doc_string=doc)
    return bytes(model.SerializeToString(deterministic=True))
