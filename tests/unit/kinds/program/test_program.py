"""Parts of program jobs that need no phone: failures in words, sets on a phone, numbers against a reference."""

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from farm.common.errors import Code, UserError
from farm.devices.server.program_files import KEPT_SETS, outdated
from farm.kinds.bench import BenchSpec
from farm.kinds.program import ProgramUse
from farm.kinds.program.command import packed_runtime, program_fields
from farm.kinds.program.executor import failed
from farm.model.specs import fields_of
from farm.programs.description import ExpectedNumbers, builtin_description
from farm.worker.programs import PhoneProgram, check_numbers
from farm.worker.timing import RunLimits
from tests.support.errors import raises_code

EXPECTED = ExpectedNumbers(file="out.raw", reference="wanted.npy", tolerance=0.01)


@pytest.mark.parametrize(
    ("exit_code", "said", "message"),
    [
        (1, "loading\nno such model", "ort ended with exit code 1: no such model"),
        (127, "", "ort ended with exit code 127: it printed nothing"),
        (139, "", "ort was ended by SIGSEGV"),
        (137, "", "ort was ended by SIGKILL"),
        (134, "", "ort was ended by SIGABRT"),
        (255, "", "ort ended with exit code 255"),
    ],
)
def test_a_failed_call_in_words(exit_code, said, message):
    error = failed("ort", exit_code, said)
    assert error.code == Code.PROGRAM_FAILED
    assert error.message.startswith(message)
    assert error.hint


@pytest.mark.parametrize(
    ("files", "said", "hint"),
    [
        (None, "there is no folder", "--runtime-folder FOLDER"),
        (["libonnxruntime.so"], "has no onnxruntime_perf_test, the program of the runtime ort", "docs/programs.md"),
        (
            ["ort/ort_runner", "ort_runner.toml"],
            "has no onnxruntime_perf_test",
            "name it as the runtime",
        ),
    ],
)
def test_a_folder_without_the_runtimes_program_has_a_way_out(tmp_path, files, said, hint):
    folder = tmp_path / "runtime"
    for each in files or ():
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).touch()
    with pytest.raises(UserError, match=said) as caught:
        packed_runtime("ort", folder, Path("net.onnx"), {})
    assert hint in caught.value.hint


def test_a_runtimes_program_may_lie_in_folders_of_abis(tmp_path):
    for abi in ("arm64-v8a", "x86_64"):
        (tmp_path / abi).mkdir()
        (tmp_path / abi / "onnxruntime_perf_test").write_text("a program")
    assert b"a program" in packed_runtime("ort", tmp_path, Path("net.onnx"), {})
    with pytest.raises(UserError, match="names its own files"):
        packed_runtime(str(tmp_path / "own.toml"), tmp_path, Path("net.onnx"), {})


def test_the_least_used_sets_go():
    there = [f"{number:016x}" for number in range(KEPT_SETS + 3)] + ["work0", "lost+found"]
    assert outdated(there, {there[0]}) == there[KEPT_SETS + 1 : KEPT_SETS + 3]
    assert outdated(there[:KEPT_SETS], ()) == []


def npy(values, dtype=np.float32):
    file = io.BytesIO()
    np.save(file, np.asarray(values, dtype))
    return file.getvalue()


def raw(values, dtype=np.float32):
    return np.asarray(values, dtype).tobytes()


@pytest.mark.parametrize(
    ("wanted", "written", "off"),
    [
        (npy([1, 2]), raw([1.01, 2]), 0.01),
        (npy([[1], [2]]), npy([1, 2]), 0),
        (npy([1, 2], np.int8), raw([1, 2], np.int8), 0),
    ],
)
def test_numbers_within_the_tolerance(wanted, written, off):
    assert check_numbers(EXPECTED, wanted, written) == pytest.approx(off, rel=1e-3)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (raw([1.1, 2]), "off by 0.1; 0.02 is allowed"),
        (raw([1, np.nan]), "off by nan"),
        (raw([1]), "has 4 bytes; 2 float32 are 8"),
        (npy([1, 2, 3]), "has 3 numbers; 2 are expected"),
    ],
)
def test_other_numbers_are_wrong(written, said):
    with raises_code(Code.PROGRAM_WRONG, match=said):
        check_numbers(EXPECTED, npy([1, 2]), written)


def test_a_reference_that_is_none():
    with raises_code(Code.BAD_PROGRAM, match=r"wanted.npy is no .npy file"):
        check_numbers(EXPECTED, b"1,2", raw([1, 2]))


def phone(stdout):
    """A daemon whose program prints the same at each call."""
    return SimpleNamespace(call=lambda verb, **_: {"program.run": {"stdout": stdout, "stderr": ""}}[verb])


def program(stdout, form="json-lines"):
    ort, _ = builtin_description("ort")
    return PhoneProgram(phone(stdout), ProgramUse(description={**ort.to_wire(), "output": form}, sha256="0", runs=20))


def test_a_call_that_tells_each_run_is_several_samples():
    each = program("".join(f'{{"ms": {n}}}\n' for n in range(1, 21)))
    assert each.first_call() is None
    assert (each.number, each.block) == (5, 4)
    assert each.timer()(5, 4) == pytest.approx([0.003, 0.008, 0.013, 0.018])


def test_a_call_that_tells_a_mean_is_one_sample():
    mean = program('{"ms": 2, "runs": 100}')
    mean.first_call()
    assert (mean.number, mean.block) == (100, 1)
    assert mean.timer()(100, 1) == [0.002]
    assert mean.plan(0.01, 30.0, None).block == 1


def test_a_call_has_as_many_runs_as_its_samples_need():
    called = []

    def call(_verb, *, side, runs):
        called.append((side, runs))
        return {"stdout": '{"ms": 2}\n' * runs, "stderr": ""}

    ort, _ = builtin_description("ort")
    description = {**ort.to_wire(), "output": "json-lines", "skip": 2}
    each = PhoneProgram(SimpleNamespace(call=call), ProgramUse(description=description, sha256="0", runs=20), 1)
    each.first_call()
    assert each.limits() == RunLimits(16, 1, 500)
    each.timer()(100, 1)
    assert called == [(1, 20), (1, 102)]  # the first two do not count
    fixed = PhoneProgram(
        SimpleNamespace(call=call), ProgramUse(description={**description, "command": ["a"]}, sha256="0", runs=20)
    )
    fixed.first_call()
    assert fixed.limits() == RunLimits(16, 16, 16)


def test_options_of_a_bench_that_are_tvms_alone_are_refused():
    fields = {name: each.default for name, each in fields_of(BenchSpec).items() if each.help.option}
    fields |= {"on": "android", "shapes": {}, "dtypes": {}, "after": (), "deadline_s": None}
    assert program_fields({**fields, "settings": {"threads": "2"}}, "ort")["settings"] == {"threads": "2"}
    for runtime, hint in (("ort", ""), ("own.toml", "own.toml has them")):
        with pytest.raises(UserError, match="--precision is for TVM") as caught:
            program_fields({**fields, "precision": "float16"}, runtime)
        assert caught.value.hint.endswith(hint)
    assert program_fields(fields, "ort")["on"] == "android"
