"""Parts of program jobs that need no phone: failures in words, sets on a phone, numbers against a reference."""

import io
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from farm.adb.push import SyncSession
from farm.common.errors import Code, UserError
from farm.control.artifacts import ArtifactFolder
from farm.devices.server.program_files import KEPT_SETS, outdated
from farm.kinds.bench import BenchSpec
from farm.kinds.program import ProgramUse
from farm.kinds.program.command import packed_runtime, program_fields
from farm.kinds.program.executor import InstalledProgram, ProgramHost, failed
from farm.model.specs import fields_of
from farm.programs.description import ExpectedNumbers, Places, builtin_description
from farm.worker.programs import PhoneProgram, check_numbers
from farm.worker.timing import RunLimits
from tests.support.errors import raises_code

DATA = Path("tests/data/programs")
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


@pytest.mark.parametrize("file", [b"1,2", b"\x93NUMPY\1\0\1\0("])
def test_a_reference_that_is_none(file):
    with raises_code(Code.BAD_PROGRAM, match=r"wanted.npy is no .npy file"):
        check_numbers(EXPECTED, file, raw([1, 2]))


def phone(stdout):
    """A daemon whose program prints the same at each call."""
    return SimpleNamespace(call=lambda verb, **_: {"program.run": {"stdout": stdout, "stderr": ""}}[verb])


def program(stdout, form="json-lines"):
    ort, _ = builtin_description("ort")
    return PhoneProgram(
        phone(stdout), ProgramUse(description={**ort.to_wire(), "output": form, "placement": ()}, sha256="0", runs=20)
    )


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
    description = {**ort.to_wire(), "output": "json-lines", "placement": (), "skip": 2}
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


def litert(stdout, gpu="true", placement=(), told=None):
    """LiteRT's program, asked for the GPU; `told`: what its own call for the placement prints, or its error."""
    description, _ = builtin_description("litert")
    use = ProgramUse(
        description={**description.to_wire(), "placement": placement}, sha256="0", runs=20,
        settings={"threads": "4", "gpu": gpu},
    )  # fmt: skip
    answers = {"program.run": {"stdout": stdout, "stderr": ""}, "program.placement": {"artifact": "a"}, "log": {}}
    logged = []

    def call(verb, **_):
        if verb == "program.placement" and isinstance(told, UserError):
            raise told
        return answers[verb]

    daemon = SimpleNamespace(call=call, artifact=lambda _: told, log=lambda *line: logged.append(line))
    return PhoneProgram(daemon, use), logged


LITERT = (DATA / "benchmark_model-2024.txt").read_text()
ON_GPU = (DATA / "benchmark_model-gpu.txt").read_text()


def test_a_program_that_used_no_accelerator_though_it_was_asked_for_one_fails():
    with raises_code(Code.NOT_OFFLOADED, match="did all work on the CPU, though asked for gpu=true"):
        litert(LITERT)[0].first_call()
    on_cpu, _ = litert(LITERT, gpu="false")
    on_cpu.first_call()
    assert (on_cpu.about()["ran_on"], on_cpu.about()["offloaded"]) == ("CPU", 0.0)
    on_gpu, _ = litert(ON_GPU)
    on_gpu.first_call()
    assert (on_gpu.about()["ran_on"], on_gpu.about()["offloaded"]) == ("TfLiteGpuDelegateV2 49 nodes", 1.0)


def test_a_call_of_its_own_tells_the_placement_and_one_that_fails_tells_nothing():
    own, _ = litert(LITERT, placement=("a",), told=ON_GPU.encode())
    own.first_call()
    assert own.ran_on.offloaded == 1.0
    failing, logged = litert(LITERT, placement=("a",), told=failed("litert", 1, "no such option"))
    failing.first_call()
    assert failing.ran_on is None
    assert "no such option" in logged[0][0]
    with raises_code(Code.PROGRAM_UNREADABLE):
        litert(LITERT, placement=("a",), told=UserError("too much", Code.PROGRAM_UNREADABLE))[0].first_call()


class WrittenFile:
    """A phone's file, as a `sync:` stream has it."""

    def __init__(self, mode):
        self.mode = mode

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def stat(self, path):
        assert path == "/work/out.raw"
        return self

    async def receive(self, _path):
        for piece in (raw([1, 2]), raw([3])):
            yield piece


@pytest.fixture
def numbers(monkeypatch, tmp_path):
    """Reads the numbers of a program; takes the file's mode on the phone."""

    async def read(mode):
        async def opened(*_):
            return WrittenFile(mode)

        monkeypatch.setattr(SyncSession, "open", opened)
        context = SimpleNamespace(view=SimpleNamespace(serial="S1"), job=SimpleNamespace(user="ann"))
        artifacts = ArtifactFolder(tmp_path)
        description = replace(builtin_description("ort")[0], expected=EXPECTED)
        program = InstalledProgram(ProgramUse(description={}, sha256="0", runs=1), description, Places("", "", "/work"))
        host = ProgramHost(context, SimpleNamespace(client=None, artifacts=artifacts), None, [program])
        try:
            return artifacts.path((await host.read_numbers(side=0))["artifact"]).read_bytes()
        finally:
            assert list((tmp_path / "partial").iterdir()) == []

    return read


async def test_numbers_of_a_program_come_to_the_disk_piece_by_piece(numbers):
    assert await numbers(stat.S_IFREG | 0o644) == raw([1, 2, 3])


@pytest.mark.parametrize("mode", [0, stat.S_IFIFO | 0o644, stat.S_IFLNK | 0o777, stat.S_IFDIR | 0o755], ids=oct)
async def test_numbers_are_those_of_a_plain_file(numbers, mode):
    """The read of a pipe would wait until the phone counts as one that hangs."""
    with raises_code(Code.PROGRAM_WRONG, match="ort did not write out.raw"):
        await numbers(mode)


def test_outputs_are_numbers_of_the_type_that_the_description_says():
    ort, _ = builtin_description("ort")
    description = {**ort.to_wire(), "written": {"file": "out.raw", "type": "int16"}}

    def written(data):
        daemon = SimpleNamespace(call=lambda *_, **__: {"artifact": "a"}, artifact=lambda _: data)
        return PhoneProgram(daemon, ProgramUse(description=description, sha256="0", runs=20))

    assert written(raw([1, -2], np.int16)).outputs().tolist() == [1, -2]
    with raises_code(Code.PROGRAM_WRONG, match=r"out.raw has 3 bytes, which are no int16 numbers"):
        written(b"abc").outputs()
    assert program("").outputs() is None


def test_options_of_a_bench_that_are_tvms_alone_are_refused():
    fields = {name: each.default for name, each in fields_of(BenchSpec).items() if each.help.option}
    fields |= {"on": "android", "shapes": {}, "dtypes": {}, "after": (), "deadline_s": None}
    assert program_fields({**fields, "settings": {"threads": "2"}}, "ort")["settings"] == {"threads": "2"}
    for runtime, hint in (("ort", ""), ("own.toml", "own.toml has them")):
        with pytest.raises(UserError, match="--precision is for TVM") as caught:
            program_fields({**fields, "precision": "float16"}, runtime)
        assert caught.value.hint.endswith(hint)
    with pytest.raises(UserError, match="--input is for TVM"):
        program_fields({**fields, "inputs": "data.npz"}, "ort")
    assert program_fields(fields, "ort")["on"] == "android"
