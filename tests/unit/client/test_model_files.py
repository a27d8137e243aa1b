"""Models that show by themselves that they will not do: nothing of them is sent."""

import numpy as np
import pytest

from farm.common.errors import FarmError, ModelError, UserError
from farm.compiler.package import write_package
from tests.support.packages import MADE
from tests.support.tiny_model import tiny_onnx

IMAGES = np.zeros((2, 4, 8, 8), np.float32)


@pytest.fixture
def folder(tmp_path):
    whole = write_package(MADE, {"model.so": b"library", "reference.npz": b"arrays"})
    (tmp_path / "whole.farm.tar").write_bytes(whole)
    (tmp_path / "damaged.farm.tar").write_bytes(whole.replace(b"library", b"liberty"))
    (tmp_path / "open.onnx").write_bytes(tiny_onnx(batch="n"))
    (tmp_path / "net.onnx").write_bytes(tiny_onnx())
    (tmp_path / "cut.onnx").write_bytes(tiny_onnx()[:300])
    (tmp_path / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (tmp_path / "net.tflite").write_text("<html>")
    (tmp_path / "empty").touch()
    np.savez(tmp_path / "bad.npz", x=IMAGES, labels=np.array([4, 0]))
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "name", "options", "error", "words"),
    [
        ("bench", "damaged.farm.tar", {}, UserError, "SHA-256 differs"),
        ("bench", "whole.farm.tar", {"shapes": {"x": (2, 4)}}, UserError, "--shape x is"),
        ("bench", "passwd", {}, ModelError, "passwd is of no known model format"),
        ("run", "net.tflite", {}, ModelError, "net.tflite is not a TensorFlow Lite model"),
        ("tune", "empty", {}, ModelError, "empty is empty"),
        ("program", "empty", {"program": b"a packed one"}, ModelError, "empty is empty"),
        ("tune", "whole.farm.tar", {}, UserError, "is a package, compiled already"),
        ("run", "open.onnx", {}, ModelError, "leaves dimension 0"),
        ("tune", "open.onnx", {}, ModelError, "leaves dimension 0"),
        ("run", "open.onnx", {"inputs": {"x": np.zeros((2, 3))}}, ModelError, "the model wants nx4x8x8"),
        ("run", "whole.farm.tar", {"inputs": {"x": np.zeros((2, 3))}}, ModelError, "the model wants 1x4"),
        ("bench", "cut.onnx", {}, ModelError, "cut.onnx is an ONNX model that is cut short or damaged"),
        ("run", "net.onnx", {"inputs": {"x": np.zeros((1, 4, 8, 8), complex)}}, ModelError, "the model wants float32"),
        ("run", "net.onnx", {"labels": ["cat", "dog"], "top_k": 2}, ModelError, "there are 2 labels"),
        (
            "run",
            "net.onnx",
            {"quality": {"x": IMAGES, "labels": [0, 3]}},
            ModelError,
            r"labels\[1\] is 3, and output y",
        ),
        ("run", "open.onnx", {"quality": "bad.npz"}, ModelError, r"^bad.npz: labels\[0\] is 4, and output y has class"),
    ],
)
def test_it_is_refused_before_anything_is_sent(daemon, client, folder, kind, name, options, error, words):
    if isinstance(options.get("quality"), str):
        options = {"quality": folder / options["quality"]}
    with pytest.raises(error, match=words) as caught:
        client.spec(kind, model=folder / name, on="android", **options)
    assert ("--input" in caught.value.hint) == (kind == "run" and "dimension" in words)
    assert not any(call.startswith("artifact") for call in daemon.calls)


def test_what_fits_is_taken(client, folder):
    inputs = {"x": np.zeros((2, 4, 8, 8), np.float32)}
    given = client.spec("run", model=folder / "open.onnx", on="android", inputs=inputs)
    shaped = client.spec("tune", model=folder / "open.onnx", on="android", shapes={"x": (1, 4, 8, 8)})
    assert (given.name, shaped.shapes, shaped.trials) == ("open.onnx", {"x": (1, 4, 8, 8)}, 1000)


def test_a_spec_of_no_kind_is_refused(client):
    with pytest.raises(FarmError, match="there is no kind of job 'memry'") as caught:
        client.spec("memry", model="m.onnx", on="android")
    assert caught.value.hint == "did you mean memory?"
