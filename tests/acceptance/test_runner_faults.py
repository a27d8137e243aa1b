"""A tuning run on a whole farm's phones while things go wrong: every candidate is answered exactly once."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.candidates import builder_inputs, library, module, runner_inputs
from tests.support.tvm import environment
from tests.support.whole_farm import plug_all, until

pytest.importorskip("tvm")

from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm import FarmBuilder, FarmRunner
from farm.tuning.stock import load_intrinsics

ROOT = Path(__file__).parents[2]
LIMIT_S = 360  # a script imports TVM twice, for itself and for its builder: on a busy host a minute
ONCE = EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "tune.md").read_text(), re.MULTILINE | re.DOTALL)
PROGRAMS = [text for text in BLOCKS if "FarmRunner" in text]  # the others are farm.Client's

pytestmark = pytest.mark.farm("oneplus-12", "oneplus-12")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("candidates")


@pytest.fixture
def told():
    return []


@pytest.fixture
def runner(farm, told):
    with FarmRunner(
        "android",
        devices=2,
        socket=farm.socket,
        evaluator=ONCE,
        timeout_s=5,
        measured=told.append,
        same_limit=None,  # virtual phones slow each other down
    ) as runner:
        yield runner
    until(lambda: not [job for job in farm.client.call("job.list")["jobs"] if job["state"] == "running"])


def answers(futures):
    return [future.result() for future in futures]


def test_two_phones_share_what_one_script_builds(runner, told, tmp_path):
    until(lambda: len(runner.status().phones) == 2)
    with FarmBuilder(runner, cache=tmp_path) as builder:
        built = builder.build(builder_inputs([module("sleep 20", addend) for addend in range(1, 25)]))
        found = answers(runner.run(runner_inputs([each.artifact_path for each in built])))
    assert [each.error_msg for each in found] == [None] * 24
    assert len(told) == 24
    assert len(Counter(each.device for each in told)) == 2


def test_with_all_phones_lost_the_run_waits_and_goes_on(farm, runner, folder, told):
    names = list(farm.lab.status())
    futures = runner.run(runner_inputs([library(folder, "sleep 100")] * 60))  # for seconds yet when the phones go
    until(lambda: len(told) >= 4)
    for name in names:
        farm.lab.unplug(name)
    until(lambda: not runner.status().phones and runner.status().waits)
    assert not all(future.done() for future in futures)
    plug_all(farm)
    assert [each.error_msg for each in answers(futures)] == [None] * 60
    farm.wait_ready(2)


def tensorized():
    """A schedule that MetaSchedule makes for phones with dot products."""
    import tvm
    from tvm import s_tir, te

    load_intrinsics()
    from tvm.s_tir.tensor_intrin.arm_cpu import ARM_DOT_4x4_i8_SDOT_INTRIN

    a = te.placeholder((64, 64), name="a", dtype="int8")
    b = te.placeholder((16, 16, 4, 4), name="b", dtype="int8")
    k = te.reduce_axis((0, 64), name="k")

    def product(i, j):
        return te.sum(a[i, k].astype("int32") * b[j // 4, k // 4, j % 4, k % 4].astype("int32"), axis=k)

    func = te.create_prim_func([a, b, te.compute((64, 64), product, name="c")])
    schedule = s_tir.Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    block = schedule.get_sblock("c")
    i, j, k = schedule.get_loops(block)
    (outer_j, inner_j), (outer_k, inner_k) = schedule.split(j, [None, 4]), schedule.split(k, [None, 4])
    schedule.reorder(i, outer_j, outer_k, inner_j, inner_k)
    schedule.decompose_reduction(block, outer_k)
    schedule.tensorize(schedule.get_loops(schedule.get_sblock("c_update"))[-2], ARM_DOT_4x4_i8_SDOT_INTRIN)
    return schedule.mod


@pytest.mark.timeout(400)
def test_a_schedule_with_a_tensor_intrinsic_is_built_by_a_server_that_knows_none(tmp_path):
    import tvm
    from tvm.s_tir.meta_schedule.builder import BuilderInput

    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+v8.2a", "+dotprod"]})
    with FarmBuilder(cache=tmp_path) as builder:
        [built] = builder.build([BuilderInput(tensorized(), target)])
    assert built.error_msg is None


LEAVES = """
import sys
from farm import FarmRunner
from tests.support.candidates import runner_inputs
runner = FarmRunner(on="android")
print(runner.run(runner_inputs([sys.argv[1]]))[0].result().error_msg)
"""


def test_a_script_that_just_ends_gives_its_phones_back(farm, folder):
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, str(library(folder, "add"))],
        env=environment() | {"FARM_SOCKET": str(farm.socket)},
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "None\n"), done
    assert "Traceback" not in done.stderr, done
    until(lambda: not [job for job in farm.client.call("job.list")["jobs"] if job["state"] == "running"])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_script_in_the_guide_runs_as_it_stands(farm, program, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment() | {"FARM_SOCKET": str(farm.socket), "HOME": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert "best" in done.stdout, done


@pytest.mark.timeout(400)
def test_a_stock_script_without_our_builder_tunes_too(farm, tmp_path):
    """`ms.tune_tir` and `tune_relax` with `runner=` only: stock's builder makes .tar files of object files."""
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    from tests.support.candidates import target

    said = []
    stock = ms.builder.LocalBuilder(timeout_sec=150)  # its children import TVM each; 30 s is too short on a busy host
    with FarmRunner("android", socket=farm.socket, evaluator=ONCE, on_notice=said.append) as runner:
        whole = {"max_trials_global": 2, "runner": runner, "builder": stock, "cost_model": "random"}
        found = ms.tune_tir(module("add"), target(), str(tmp_path / "tir"), **whole)
        made, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((16,), "float32"))
        with made.function("main", [x]):
            made.emit_func_output(made.emit(relax.op.add(x, x)))
        model = relax.transform.LegalizeOps()(made.get())
        tuned = ms.relax_integration.tune_relax(model, {}, target(), str(tmp_path / "relax"), **whole)
    for database in (found, tuned):
        seconds = [float(each) for record in database.get_all_tuning_records() for each in record.run_secs]
        assert seconds
        assert all(0 < each < 1 for each in seconds), seconds
    assert said == []
