"""How right a build is on a phone: planted mistakes are counted, compared input by input, drawn beside the speed."""

import json

import numpy as np
import pytest
from onnx import helper

from farm.common.errors import ExitCode
from farm.measure.quality import wilson
from tests.support.onnx_files import onnx_model
from tests.support.whole_farm import answer, refused

pytestmark = pytest.mark.farm("oneplus-12")

INPUTS, WRONG, LOST = 403, 12, 20
BATCH = 50  # 403 are eight batches and three inputs


def digits():
    """Images of ten classes, 8 x 8, that a linear classifier tells apart without a mistake; and its weights."""
    random = np.random.default_rng(1)
    prototypes = random.standard_normal((10, 64)).astype(np.float32)
    classes = random.integers(0, 10, INPUTS)
    images = prototypes[classes] + 0.1 * random.standard_normal((INPUTS, 64)).astype(np.float32)
    return images.astype(np.float32), classes, prototypes.T.copy()


def classifier(path, weights):
    """ONNX: `x`, batch x 64, to `y`, batch x 10."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path.write_bytes(onnx_model(nodes, {"x": ["n", 64]}, {"y": ["n", 10]}, {"w": weights}).SerializeToString())
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    images, classes, weights = digits()
    right = np.argmax(images @ weights, axis=1) == classes
    assert right.all()
    labels = classes.copy()
    labels[:WRONG] = (labels[:WRONG] + 1) % 10
    np.savez(folder / "data.npz", x=images, labels=labels)
    # B: the class of the last inputs is never the answer.
    lost = int(classes[-1])
    worse = weights.copy()
    worse[:, lost] = 0
    more = int((np.argmax(images[WRONG:] @ worse, axis=1) != labels[WRONG:]).sum())
    assert more >= LOST
    return {
        "data": folder / "data.npz",
        "a": classifier(folder / "a.onnx", weights),
        "b": classifier(folder / "b.onnx", worse),
        "lost": more,
    }


def test_the_planted_mistakes_are_counted_and_drawn_beside_the_speed(farm, files, tmp_path):
    shape = ("--shape", f"x:[{BATCH},64]")
    options = ("--on", "android", "--quality", str(files["data"]), *shape)
    ran = farm.farm("run", str(files["a"]), *options)
    assert ran.returncode == 0, ran
    assert f"{INPUTS} labelled inputs find a loss of" in ran.stderr
    (row,) = [line.split() for line in ran.stdout.splitlines() if "top1" in line]
    assert row[1:4] == ["top1", f"{100 * (INPUTS - WRONG) / INPUTS:.2f}", "%"]

    found = answer(farm.farm("run", str(files["a"]), *options, "--json"))["results"][0]["quality"]
    assert found["value"] == pytest.approx((INPUTS - WRONG) / INPUTS)
    assert (found["low"], found["high"]) == pytest.approx(wilson(INPUTS - WRONG, INPUTS))
    assert (found["count"], found["batch"], found["output"], found["method"]) == (INPUTS, BATCH, "y", "wilson")

    bench = farm.farm("bench", str(files["a"]), "--on", "android", "--measure", "1s", "--remeasure", "0", *shape)
    assert bench.returncode == 0, bench
    rows = [json.loads(line) for line in farm.farm("export", "a.onnx").stdout.splitlines()]
    assert [(each["quality"], each["quality_inputs"]) for each in rows] == [
        (None, None), *[(pytest.approx(found["value"]), INPUTS)] * 2,
    ]  # fmt: skip
    farm.farm("board", "-o", str(tmp_path / "board.html"))
    page = (tmp_path / "board.html").read_text("utf-8")
    assert f"top1 of {INPUTS} labelled inputs" in page


def test_a_build_that_is_worse_is_found_input_by_input(farm, files):
    options = ("--on", "android", "--quality", str(files["data"]))
    compared = farm.farm("compare", str(files["a"]), str(files["b"]), *options, "--measure", "1s", "--json")
    (result,) = answer(compared)["results"]
    found = result["quality"]
    assert (found["answer"], found["lost"], found["regained"]) == ("worse", files["lost"], 0)
    assert (found["test"], found["count"]) == ("mcnemar", INPUTS)
    shown = farm.farm("job", "show", result["job"])
    assert "and worse: B / A" in shown.stdout

    jobs = [answer(farm.farm("run", str(files[side]), *options, "--json"))["results"][0]["job"] for side in "ab"]
    stored = answer(farm.farm("compare", *jobs, "--json"))["quality"]
    assert {name: stored[name] for name in ("answer", "lost", "p")} == {
        name: found[name] for name in ("answer", "lost", "p")
    }
    assert farm.farm("compare", *jobs).stdout.startswith("B is worse: top1 ")


def test_a_precision_that_overflows_is_measured_where_its_price_is_asked(farm, files, tmp_path):
    images, _, weights = digits()
    np.savez(tmp_path / "some.npz", x=images[:BATCH])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Mul", ["m", "k"], ["y"])]
    network = onnx_model(nodes, {"x": ["n", 64]}, {"y": ["n", 10]}, {"w": weights, "k": [2000.0]})
    large = tmp_path / "large.onnx"  # the largest output, about 64 x 2000, is infinite in float16
    large.write_bytes(network.SerializeToString())
    options = ("--on", "android", "--precision", "float16", "--shape", f"x:[{BATCH},64]")
    once = farm.farm("run", str(large), *options, "--input", str(tmp_path / "some.npz"))
    refused(once, ExitCode.USAGE, "float16 is too coarse for this model")
    ran = farm.farm("run", str(large), *options, "--quality", str(files["data"]), "--json")
    (found,) = answer(ran)["results"]
    assert found["quality"]["value"] == pytest.approx((INPUTS - WRONG) / INPUTS)
    assert (found["max_abs_error"], "too coarse" in found["numerics"]["note"]) == (None, True)
    words = ("--on", "android", "--precision-b", "float16", "--shape", f"x:[{BATCH},64]", "--measure", "1s")
    beside = farm.farm("compare", str(large), *words, "--quality", str(files["data"]))
    assert (beside.returncode, "B: float16 is too coarse" in beside.stdout) == (0, True), beside
    assert "B is slower and as good: " in beside.stdout
