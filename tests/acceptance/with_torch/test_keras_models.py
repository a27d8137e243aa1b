"""Keras's files, converted on its PyTorch backend: their numbers are Keras's."""

import os

import numpy as np
import pytest

from farm.common.errors import ModelError
from farm.compiler.load import import_model, load, read
from farm.compiler.reference import compare, reference_for

pytest.importorskip("torch", reason="PyTorch is not here: make acceptance installs its CPU build if it can")
pytest.importorskip("onnxscript", reason="Keras's ONNX export needs onnxscript")
os.environ["KERAS_BACKEND"] = "torch"  # before Keras is imported
keras = pytest.importorskip("keras", reason="Keras is not here: make acceptance installs it where PyTorch is")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Keras's way from PyTorch to numpy


@pytest.fixture(scope="module")
def network():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential([
        keras.Input((16, 16, 3), name="image"), layers.Conv2D(8, 3, padding="same", activation="relu"),
        layers.BatchNormalization(), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(5, activation="softmax"),
    ])  # fmt: skip


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_network_computes_what_keras_does(network, tmp_path, suffix):
    path = tmp_path / f"net{suffix}"
    network.save(path)
    source = read(path.read_bytes(), path.name)
    assert (source.format, [spec.shape for spec in source.inputs]) == ("keras", [("batch", 16, 16, 3)])
    image = np.random.default_rng(0).standard_normal((1, 16, 16, 3)).astype(np.float32)
    name = source.inputs[0].name
    reference = reference_for(import_model(source, {name: image.shape}), {name: image}, tmp_path)
    assert reference.by.startswith("keras 3.")
    assert np.allclose(reference.outputs[0], network(image).detach().numpy(), atol=1e-6)
    assert compare(reference.host_outputs, reference.outputs, source.outputs).ok


def test_layers_with_code_of_their_own_and_cut_files_are_refused(network, tmp_path):
    path = tmp_path / "net.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x + 1)]).save(path)
    with pytest.raises(ModelError, match=r"Keras .* cannot read it"):
        load(path)
    network.save(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ModelError, match="cut short or damaged"):
        load(path)
