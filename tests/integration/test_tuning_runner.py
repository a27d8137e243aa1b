"""A runner and a builder on this host: every candidate is answered exactly once, whatever it does."""

import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tenacity import wait_fixed
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm.common.errors import Code
from farm.simulation.runtime import build_bundle_folder, is_launcher
from farm.tuning.phones import HostPhones, stock_server
from tests.support.candidates import builder_inputs, library, module, runner_inputs
from tests.support.errors import raises_code
from tests.support.staged_phones import CountingPhones, StagedPhones, compiled_server
from tests.support.tvm import environment
from tests.support.waiting import HANG_S, still_alive
from tests.support.whole_farm import until

pytest.importorskip("tvm")

from tvm.s_tir.meta_schedule.arg_info import TensorInfo
from tvm.s_tir.meta_schedule.runner import RunnerInput

from farm.tuning.build_process import BuildError
from farm.tuning.builder import FarmBuilder
from farm.tuning.measurement_slot import MAX_FAILURES
from farm.tuning.runner import PoolRunner
from tests.support.needs import need

ONCE = EvaluatorConfig(number=1, repeat=2, min_repeat_ms=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("candidates")


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """What HostPhones takes: the compiled server where there is a compiler."""
    bundle = build_bundle_folder(tmp_path_factory.mktemp("host") / "bundle")
    return {"command": stock_server} if is_launcher(bundle / "tvm_rpc") else {
        "command": compiled_server(bundle), "libraries": bundle,
    }  # fmt: skip


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    with FarmBuilder(cache=tmp_path_factory.mktemp("cache"), timeout_s=HANG_S) as builder:
        yield builder


def newest_build_server():
    servers = [child for child in psutil.Process().children() if "farm.tuning.build_server" in child.cmdline()]
    return max(servers, key=psutil.Process.create_time)


def results(runner, paths):
    return [future.result() for future in runner.run(runner_inputs(paths))]


def test_candidates_are_measured_on_several_phones_and_each_result_says_by_which(host, folder):
    told, found = [], []
    path = library(folder, "sleep 2")
    with StagedPhones(2, **host) as phones, PoolRunner(phones, evaluator=ONCE, measured=told.append) as runner:
        while len({each.device for each in told}) < 2:  # the one that is ready first may measure some alone
            found += results(runner, [path] * 20)
        assert runner.status().unanswered == 0
    assert all(len(each.run_secs) == 2 and min(each.run_secs) >= 0.002 for each in found)
    assert Counter(each.device for each in told).keys() == {"host-1", "host-2"}
    assert len(told) == len(found)


def test_a_candidate_costs_four_round_trips(host, folder):
    with CountingPhones(**host) as phones, PoolRunner(phones, evaluator=ONCE) as runner:
        path = library(folder, "add")
        results(runner, [path])
        before = phones.turns
        results(runner, [path] * 50)
        assert phones.turns - before == 4 * 50


def test_a_candidate_that_kills_its_process_is_blamed_and_nobody_else(host, folder):
    killer, good = library(folder, "abort"), library(folder, "add")
    with StagedPhones(**host) as phones, PoolRunner(phones, evaluator=ONCE) as runner:
        first, *others = results(runner, [killer, *[good] * 5])
        assert "twice" in first.error_msg
        assert [each.error_msg for each in others] == [None] * 5
        sessions = phones.opened
        [again, other] = results(runner, [killer, good])
        assert "poison" in again.error_msg
        assert other.error_msg is None
        assert phones.opened <= sessions + 1  # it was refused without being run


def test_a_candidate_whose_arguments_find_no_memory_fails_and_says_so(host, folder):
    path = library(folder, "add")
    huge = RunnerInput(str(path), "cpu", [TensorInfo("float32", (1 << 46,))] * 2)
    with StagedPhones(**host) as phones, PoolRunner(phones, evaluator=ONCE) as runner:
        first, other = [each.result() for each in runner.run([huge, *runner_inputs([path])])]
    assert "out of memory" in first.error_msg
    assert "MB wanted" in first.error_msg
    assert other.error_msg is None


class BrokenKernel:
    """A speed judge whose reference kernel fails on one phone."""

    def __init__(self, bad):
        self.bad = bad

    def check(self, device, session):
        if device == self.bad:
            raise RuntimeError("CL_OUT_OF_RESOURCES")
        return SimpleNamespace(factor=1.0, out="")


def test_a_phone_whose_reference_kernel_always_fails_is_put_out_with_the_reason(host, folder, monkeypatch):
    monkeypatch.setattr("farm.tuning.measurement_slot.BACK_OFF", wait_fixed(0.01))
    told = []
    with (
        StagedPhones(2, **host) as phones,
        PoolRunner(phones, evaluator=ONCE, judge_of=lambda _: BrokenKernel("host-2"), report=told.append) as runner,
    ):
        assert all(each.error_msg is None for each in results(runner, [library(folder, "sleep 2")] * 5))
        until(lambda: "host-2" in phones.given_back)
    why = "its reference kernel failed: CL_OUT_OF_RESOURCES"
    out = f"host-2 is not used any more: {MAX_FAILURES} failures in a row, the last one: {why}"
    assert [line for line in told if "host-2" in line] == [f"host-2: {why}", out]


def test_a_host_whose_server_does_not_start_again_ends_the_run_with_a_sentence(host, folder):
    broken = []

    def command(port, key, place):
        return [sys.executable, "-c", "raise SystemExit(3)"] if broken else host["command"](port, key, place)

    with HostPhones(1, command, host.get("libraries")) as phones, PoolRunner(phones, evaluator=ONCE) as runner:
        broken.append(True)
        why = "ended with 3 when it was started, 3 times in a row"
        with raises_code(Code.NO_PHONES_LEFT, match=why):
            runner.submit(runner_inputs([library(folder, "abort")])[0]).result()
        with pytest.raises(RuntimeError, match=why):  # what TVM makes of it
            results(runner, [library(folder, "add")])


def test_a_server_that_fails_to_start_once_is_started_again(host, folder):
    failures = []

    def command(port, key, place):
        if failures:
            failures.pop()
            return [sys.executable, "-c", "raise SystemExit(3)"]
        return host["command"](port, key, place)

    with HostPhones(1, command, host.get("libraries")) as phones:
        failures.extend([None] * 2)
        phones.abort_session("host", "the test")
        assert [each.device for each in phones.state().phones] == ["host"]


def test_a_candidate_that_never_returns_and_ignores_sigterm_costs_itself_only(host, folder):
    with StagedPhones(**host) as phones, PoolRunner(phones, evaluator=ONCE, timeout_s=1.5) as runner:
        found = results(runner, [library(folder, "stubborn"), library(folder, "add")])
    assert "timeout" in found[0].error_msg
    assert found[1].error_msg is None


def test_a_server_on_this_host_does_not_outlive_its_owner(host):
    """Even one that was killed outright."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tests.support.staged_phones import HostPhones, compiled_server\n"
        "bundle = Path(sys.argv[1]); phones = HostPhones(command=compiled_server(bundle), libraries=bundle)\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    if "libraries" not in host:
        need("g++")
    command = [sys.executable, "-c", code, str(host["libraries"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as owner:
        assert owner.stdout.readline() == b"ready\n"
        family = psutil.Process(owner.pid).children(recursive=True)
        owner.kill()
    assert len(family) == 3  # the guard, its reader of the pipe, the server
    assert still_alive(family) == []


def test_a_run_without_phones_waits_says_so_and_goes_on(host, folder):
    said, waits = [], threading.Event()

    def tell(text):
        said.append(text)
        waits.set()

    with StagedPhones(**host) as phones:
        phones.hidden.add("host")
        with PoolRunner(phones, evaluator=ONCE, report=tell) as runner:
            [future] = runner.run(runner_inputs([library(folder, "add")]))
            assert waits.wait(HANG_S)
            assert not future.done()
            phones.hidden.clear()
            assert future.result().error_msg is None
    assert said == ["waiting for phones: the test has taken them all", "phones are back"]


def test_a_phone_that_is_lost_costs_no_candidate(host, folder):
    with StagedPhones(2, **host) as phones, PoolRunner(phones, evaluator=ONCE) as runner:
        futures = runner.run(runner_inputs([library(folder, "sleep 20")] * 30))
        until(lambda: runner.status().measuring == 2)
        phones.lose("host-1")
        assert [future.result().error_msg for future in futures] == [None] * 30


def test_a_phone_that_others_want_is_given_back_between_two_candidates(host, folder):
    path = library(folder, "sleep 5")
    with StagedPhones(2, **host) as phones, PoolRunner(phones, evaluator=ONCE) as runner:
        futures = runner.run(runner_inputs([path] * 30))
        phones.wanted_back.add("host-1")
        assert all(future.result().error_msg is None for future in futures)
        assert phones.given_back == ["host-1"]


def test_closing_answers_what_is_left(host, folder):
    with StagedPhones(**host) as phones:
        with PoolRunner(phones, evaluator=ONCE) as runner:
            futures = runner.run(runner_inputs([library(folder, "sleep 100")] * 20))
        answers = [future.result() for future in futures]
    assert "closed" in answers[-1].error_msg


def test_the_builder_builds_caches_and_says_what_cannot_be_built(builder):
    modules = [module("add", addend) for addend in (1.0, 2.0, 2.0)]
    built = builder.build(builder_inputs(modules))
    assert [each.error_msg for each in built] == [None] * 3
    paths = [Path(each.artifact_path) for each in built]
    assert len({path.parent for path in paths}) == 3  # MetaSchedule deletes the folder of each
    assert paths[1].samefile(paths[2])
    [again] = builder.build(builder_inputs(modules[:1]))
    assert paths[0].samefile(again.artifact_path)


def test_a_build_that_never_ends_or_crashes_costs_itself_only(tmp_path):
    with FarmBuilder(cache=tmp_path, timeout_s=4) as builder:
        built = builder.build(builder_inputs([module("endless build"), module("add", 3.0)]))
        assert "more than 4 s" in built[0].error_msg
        assert built[1].error_msg is None
        crashing = builder.submit(builder_inputs([module("endless build", 2.0)])[0])
        until(lambda: list((tmp_path / "building").rglob("candidate-*")))  # it builds: a fork has TVM's handlers before
        [build] = newest_build_server().children()
        build.send_signal(signal.SIGSEGV)
        with pytest.raises(BuildError, match="SIGSEGV"):
            crashing.result()


def test_a_runner_waits_for_its_builders_promises_and_hears_of_failed_builds(host, tmp_path):
    modules = [module("add", addend) for addend in range(1, 7)]
    with (
        StagedPhones(**host) as phones,
        PoolRunner(phones, evaluator=ONCE) as runner,
        FarmBuilder(runner, cache=tmp_path, timeout_s=4) as builder,
    ):
        built = builder.build(builder_inputs(modules))
        builder._build._timeout_s = 0.5  # of the next one, which nothing ends sooner
        built += builder.build(builder_inputs([module("endless build")]))
        *good, bad = results(runner, [each.artifact_path for each in built])
    assert [each.error_msg for each in good] == [None] * 6
    assert "more than 0.5 s" in bad.error_msg
    assert not list((tmp_path / "building").iterdir())
