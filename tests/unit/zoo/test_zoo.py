"""The zoo's networks are what their papers say: layers and parameters by hand, sane numbers, the same bytes."""

import hashlib
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from farm.common.errors import UserError
from farm.zoo import MODELS, main, onnx_bytes

# Parameters as the papers and torchvision count them (trainable: weights, biases, normalisations' factors and shifts).
# Ours have the running means and variances in the file too: two more per normalised channel.
KNOWN = {
    "mobilenet_v2": {"trainable": 3_504_872, "convolutions": 52, "residuals": 10},
    "resnet18": {"trainable": 11_689_512, "convolutions": 20, "residuals": 8},
    "resnet50": {"trainable": 25_557_032, "convolutions": 53, "residuals": 16},
}


def parsed(name):
    return onnx.load_model_from_string(onnx_bytes(name))


@pytest.mark.parametrize("name", KNOWN)
def test_layers_and_parameters_are_the_papers(name):
    graph = parsed(name).graph
    kinds = Counter(node.op_type for node in graph.node)
    assert kinds["Conv"] == kinds["BatchNormalization"] == KNOWN[name]["convolutions"]
    assert (kinds["Add"], kinds["Gemm"]) == (KNOWN[name]["residuals"], 1)
    size = {weight.name: int(np.prod(weight.dims, dtype=np.int64)) for weight in graph.initializer}
    running = sum(size[node.input[3]] * 2 for node in graph.node if node.op_type == "BatchNormalization")
    limits = sum(size[each] for node in graph.node if node.op_type == "Clip" for each in node.input[1:])
    assert sum(size.values()) - running - limits == KNOWN[name]["trainable"]
    assert [each.dim_value for each in graph.input[0].type.tensor_type.shape.dim] == [1, 3, 224, 224]
    assert [each.dim_value for each in graph.output[0].type.tensor_type.shape.dim] == [1, 1000]


@pytest.mark.parametrize("name", MODELS)
def test_numbers_stay_sane_and_tell_inputs_apart(name):
    session = onnxruntime.InferenceSession(onnx_bytes(name))
    shape = session.get_inputs()[0].shape
    images = [np.random.default_rng(seed).standard_normal(shape).astype(np.float32) for seed in range(2)]
    first, second = (session.run(None, {"input": image})[0] for image in images)
    assert np.isfinite(first).all()
    assert 0.05 < first.std() < 10  # of float16 too
    assert (first - second).std() > 0.02 * first.std()


def test_weights_are_drawn_from_one_seed_in_order():
    assert onnx_bytes("mobilenet_v2") == onnx_bytes("mobilenet_v2")
    weights = parsed("small_cnn").graph.initializer
    digest = hashlib.sha256(b"".join(numpy_helper.to_array(each).tobytes() for each in weights)).hexdigest()
    # results of other days are compared with today's
    assert digest == "fa65c675e39a2283961713d6e4216757e0f9e69d19cba7a52e80d401b48bdd86"


def test_the_command_writes_the_file_or_says_why_not(tmp_path, capsys):
    assert main(["small_cnn", str(tmp_path / "net.onnx")]) == 0
    assert (tmp_path / "net.onnx").read_bytes() == onnx_bytes("small_cnn")
    assert main(["small_cnn", str(tmp_path / "none" / "net.onnx")]) == 2
    assert main(["resnet19", str(tmp_path / "net.onnx")]) == 2
    assert main([]) == 2
    said = capsys.readouterr().err
    assert "No such file or directory" in said
    assert "did you mean resnet18?" in said
    assert "usage: python -m farm.zoo NAME OUT.onnx" in said
    with pytest.raises(UserError, match="no network 'zzz'"):
        onnx_bytes("zzz")
