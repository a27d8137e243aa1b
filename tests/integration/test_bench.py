"""Jobs that take a model to a phone, and the checker, with real workers and a stock RPC server; no leasing."""

import asyncio
import contextlib
import io
import json
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import numpy as np
import psutil
import pytest
import pytest_asyncio

from farm.bundle.model import Abi, Bundle, Platform
from farm.bundle.versions import TrialKind, TrialResult, installed_versions, known_trials
from farm.common.errors import Code, ModelError, PhoneError, UserError
from farm.common.selector import Selector
from farm.control.artifacts import ArtifactFolder
from farm.control.server import WorkerServer
from farm.jobs.attempt import AttemptTimeoutError
from farm.jobs.checker import FarmChecker
from farm.jobs.executor import AttemptContext
from farm.jobs.logs import AttemptLogs
from farm.jobs.supervisor import Supervisor
from farm.kinds import KINDS
from farm.kinds.execution import PhoneWork
from farm.model.device import DeviceView, Life
from farm.model.identity import DeviceIdentity, Soc
from farm.model.job import Attempt, Job
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from farm.model.specs import spec_from_wire
from farm.model.toolchain import Toolchain
from farm.zoo import small_cnn as build
from tests.support.errors import raises_code
from tests.support.quiet import AS_THEY_ARE
from tests.support.reads import ReadsHere
from tests.support.tvm import free_port, process, wait_for_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUNDLE = Bundle(
    name="b", hash="b" * 64, abi=Abi.X86_64, files=(), path=Path(), toolchain="default", golden_kinds=(),
    tvm_version=installed_versions().tvm, ffi_version=installed_versions().ffi, has_opencl=False,
)  # fmt: skip
SERVER_KEY = "a-secret"
CPU = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-android", "mattr": ["+neon"]}
IDENTITY = DeviceIdentity(soc=Soc(name="Snapdragon"), fingerprint="x/y:14", targets={"cpu": CPU, "arm": ARM})
PHONE = DeviceView(
    name="a", serial="a", life=Life.READY, adopted=True, aliases=("android", "a"), identity=IDENTITY, bundle="b" * 64,
    temperature_c=30.0,
)  # fmt: skip


class OneKey:
    """Leasing without leases: every key opens the one server; remembers what went wrong."""

    def __init__(self):
        self.aborted = []

    def new_match_key(self, lease_id, *, single_use):
        assert single_use
        return SERVER_KEY

    def abort(self, lease_id, reason):
        self.aborted.append((lease_id, reason))

    async def ended_by_phone(self, lease_id):
        return False


class Lab:
    """The door, the workers and a phone; a zygote imports TVM, so that all tests share one."""

    def __init__(self, folder, port):
        self.artifacts = ArtifactFolder(folder / "artifacts")
        self.door = WorkerServer(folder / "workers.sock", self.artifacts)
        self.supervisor = Supervisor((Toolchain("default", Path(sys.executable)),), folder / "work", self.door)
        self.logs = AttemptLogs(folder / "logs")
        self.port = port
        self.model = self.artifacts.add(build().SerializeToString(deterministic=True))
        self.count = 0
        self.begin()

    def begin(self):
        self.bundle = BUNDLE
        """As before any attempt: of the last test's nothing is remembered."""
        self.keys = OneKey()
        self.steps = []
        self.heard = asyncio.Event()
        self.latest = ""  # job
        self.nominals = {}
        self.conditions = {"temperature_c": 30.5, "throttle_status": 0, "battery_percent": 80, "charging": True}

    async def run(self, kind="bench", *, port=None, view=PHONE, timeout_s=60.0, **changes):
        """One attempt of a job; its result."""
        self.count += 1
        fields = {"kind": kind, "model": self.model, "name": "small_cnn.onnx", "on": "android", "timeout_s": timeout_s}
        if kind == "bench":
            fields |= {"repeat": 4, "number": 2}
        spec = spec_from_wire(KINDS, fields | changes)
        now = datetime.now(UTC)
        job = Job(f"{kind}-{self.count}", kind, "tester", spec.to_wire(), "android", now, timeout_s=timeout_s)
        self.latest = job.id
        attempt = Attempt(f"{job.id}.1", job.id, 1, view.name, "lease", self.count, now)
        lease = Lease(
            "lease", view.name, self.count, LeaseRequest(Selector.parse("android"), "tester", LeaseSource.JOB), 0.0
        )

        def progress(step, **facts):
            self.steps.append(step)
            self.heard.set()

        async def save_facts(facts):
            raise AssertionError("nothing to take up after a restart")

        running = AttemptContext(
            job, spec, attempt, lease, view, progress,
            lambda text, level="info", *, source="farm": self.logs.store(attempt, text, level, source),
            save_facts, lambda: False,
        )  # fmt: skip
        daemon = SimpleNamespace(
            work=PhoneWork(self.supervisor, lambda view: "default", lambda hash_: self.bundle),
            leasing=self.keys,
            fleet=SimpleNamespace(subscribe=lambda callback: lambda: None, quiesce=AS_THEY_ARE),
            gate=lambda: ("127.0.0.1", port or self.port),
            poison=SimpleNamespace(refused=lambda artifacts, user: frozenset(), read=ReadsHere().read),
            read_conditions=self.look,
            nominals=AsyncMock(side_effect=lambda *_: self.nominals),
            earlier=AsyncMock(return_value=()),
        )
        executor = KINDS.kinds[kind].executor(daemon)
        return await executor.run(running)

    async def look(self, serial):
        """The phone's condition."""
        if self.conditions is None:
            raise PhoneError(f"{serial} does not answer")
        return self.conditions

    def log(self):
        """What the latest attempt's log says, as (source, text)."""
        return [(line.source, line.text) for line in self.logs.read(self.latest, 1).lines]

    async def until(self, step):
        while step not in self.steps:
            self.heard.clear()
            await self.heard.wait()

    def uploaded(self, **arrays):
        packed = io.BytesIO()
        np.savez(packed, **arrays)
        return self.artifacts.add(packed.getvalue())

    def outputs(self, result):
        with np.load(self.artifacts.path(result["outputs"]), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def server():
    """A stock TVM RPC server; its key is its match key."""
    port = free_port()
    arguments = ["-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
    with process([*arguments, "--key", SERVER_KEY], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        wait_for_port(port)
        yield port


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory, server):
    known = {child.pid for child in psutil.Process().children(recursive=True)}
    lab = Lab(tmp_path_factory.mktemp("lab"), server)
    await lab.door.start()
    await lab.supervisor.start()
    yield lab
    await lab.supervisor.stop()
    await lab.door.stop()
    # The stock server forks one process per session; it ends each by itself soon after.
    assert [child for child in zygotes() if child.pid not in known] == []


def zygotes():
    """Those below this process; one that has ended and was not waited for yet is none."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # ZombieProcess, too
            found += [child] if "zygote" in " ".join(child.cmdline()) else []
    return found


@pytest.fixture
def lab(shared):
    shared.begin()
    return shared


@contextlib.contextmanager
def silent_phone():
    """Accepts connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def test_a_model_is_compiled_run_checked_and_timed(lab):
    first, second = await asyncio.gather(lab.run(), lab.run())
    for row in json.loads(json.dumps([first, second])):
        assert len(row["samples_s"]) == 4
        assert all(0 < sample < 1 for sample in row["samples_s"])
        latency = row["latency"]  # as the clock showed it; nothing of so few samples is warm-up
        assert latency["min_ms"] <= latency["low_ms"] <= latency["median_ms"] <= latency["high_ms"] <= latency["max_ms"]
        assert np.isclose(latency["median_ms"], 1000 * np.median(row["samples_s"]))
        certificate = row["certificate"]
        assert row["verdict"] == certificate["verdict"] == "rejected"  # four samples tell nothing
        assert certificate["reasons"][0]["code"] == "few_samples"
        assert (certificate["epoch"], certificate["bundle"], certificate["tvm"]) == (
            "x/y:14", "b" * 64, row["versions"]["apache-tvm"],
        )  # fmt: skip
        assert certificate["library_sha256"] == row["compile"]["library_sha256"]
        assert certificate["model_sha256"] == lab.model
        before = certificate["conditions"]["before"]
        assert (before["temperature_c"], before["clock_hz"]) == (30.5, None)
        assert certificate["reference"]["nominal_of"] == "this run"
        assert row["numerics"]["reference"] == "onnx.reference"
        assert row["numerics"]["host_against_reference"]["ok"]
        assert 0 <= row["max_abs_error"] < 1e-5
        assert row["versions"]["apache-tvm"]
        assert (row["device"], row["soc"], row["target"], row["toolchain"]) == ("a", "Snapdragon", "cpu", "default")
        assert (row["bundle"], row["identity"]["fingerprint"], row["temperature_c"]) == ("b" * 64, "x/y:14", 30.0)
    # Two at once: one of the two workers compiled, the other found the library.
    assert sorted(row["compile"]["cached"] for row in (first, second)) == [False, True]
    wanted = ["reading the model", "compiling for cpu", "computing the reference", "opening a session", "uploading"]
    besides = ("waiting for toolchain", "heartbeat ended")  # as slow as the host is
    said = [text for source, text in lab.log() if source == "worker" and not text.startswith(besides)]
    assert said == [*wanted, "running", "timing"]


async def test_a_bench_takes_as_many_samples_as_it_needs_and_tries_again(lab):
    asked = {"repeat": None, "number": None, "half_width": 0.5, "measure_s": 2.0, "remeasure": 1}
    lab.conditions = None  # unknown conditions are no reason to fail, nor one to trust
    first = await lab.run(**asked)
    certificate = first["certificate"]
    assert certificate["count"] == len(first["samples_s"]) >= 5
    assert certificate["number"] > 1  # a run takes microseconds, a sample 10 ms
    assert "temperature_c" in certificate["unknown"]
    assert any("condition is not known" in text for _, text in lab.log())
    tries = certificate["tries"]
    assert [each["reported"] for each in tries].count(True) == 1
    assert (len(tries) == 1) == (tries[0]["verdict"] == "trusted")
    raw = json.loads(lab.artifacts.path(certificate["raw"]).read_bytes())["tries"]
    assert [len(each["seconds"]) for each in raw] == [each["count"] for each in tries]
    for each in raw:
        assert len(each["start_s"]) == len(each["reference_s"]) == len(each["seconds"])
        assert each["start_s"] == sorted(each["start_s"])
    reference = certificate["reference"]
    assert 1e-5 < reference["median_s"] < 0.1
    # A phone whose nominal speed is known to be far above what this run saw: the same samples would take less time.
    nominal_s = reference["median_s"] / 50  # no change of this host's load comes near that
    lab.nominals = {reference["kernel"]: nominal_s}
    second = (await lab.run(**asked))["certificate"]
    assert second["reference"]["nominal_of"] == "history"
    assert second["reference"]["nominal_s"] == nominal_s
    assert second["estimate"]["median_s"] < second["raw_median_s"]


async def test_a_model_is_compared_with_itself_and_both_are_checked(lab):
    result = await lab.run("compare", model_b=lab.model, name_b="again.onnx", measure_s=0.5, min_effect=0.2)
    compared = result["comparison"]
    assert compared["answer"] in ("same", "cannot tell")
    assert compared["low"] < compared["ratio"] < compared["high"]
    assert compared["pairs"] >= 2
    assert result["unlike"] == []
    for side in ("a", "b"):
        assert result[side]["max_abs_error"] < 1e-5
        assert result[side]["model_sha256"] == lab.model
    assert (result["device"], result["target"], result["certificate"]["epoch"]) == ("a", "cpu", "x/y:14")
    raw = json.loads(lab.artifacts.path(result["certificate"]["raw"]).read_bytes())
    assert len(raw["a_s"]) == len(raw["b_s"]) == compared["pairs"]


async def test_of_two_models_the_one_that_is_wrong_is_named(lab):
    with pytest.raises(ModelError, match=r"^B: notes\.txt is of no known model format"):
        await lab.run("compare", model_b=lab.artifacts.add(b"hello world, no model"), name_b="notes.txt")
    with pytest.raises(UserError, match="a has no target 'adreno'"):
        await lab.run("compare", model_b=lab.model, name_b="net", target_b="adreno")


async def test_each_operator_is_timed(lab):
    profile = (await lab.run(profile=True))["profile"]
    assert len(profile["operators"]) > 8
    assert profile["units"] == {"cpu": pytest.approx(1.0)}
    assert len(profile["run"]) == sum(each["calls"] for each in profile["operators"])
    assert 0 < profile["operators_ms"] < 3 * profile["model_ms"]
    assert profile["overhead"]["low"] < profile["overhead"]["high"]
    assert np.isclose(sum(each["share"] for each in profile["operators"]), 1.0)
    assert np.isclose(sum(each["total_ms"] for each in profile["operators"]), profile["operators_ms"])
    assert "1x3x32x32 float32" in [shape for each in profile["operators"] for shape in each["shapes"]]
    assert any(note.startswith("together") for note in profile["notes"])


async def test_a_phone_whose_bundle_is_known_not_to_work_with_the_toolchain_gets_no_job(lab):
    bad = next(
        each for each in known_trials() if each.kind is TrialKind.SERVER and each.result is not TrialResult.WORKS
    )
    lab.bundle = replace(BUNDLE, tvm_version=bad.versions.tvm, ffi_version=bad.versions.ffi)
    with raises_code(Code.VERSIONS_UNFIT) as caught:
        await lab.run("run")
    assert f"toolchain default with bundle b on a cannot work: {bad.versions}" in caught.value.message
    assert "farm bundle build" in caught.value.hint
    assert "reading the model" not in lab.steps


async def test_a_phone_whose_bundle_nobody_has_tried_is_used_with_one_warning(lab):
    lab.bundle = replace(BUNDLE, tvm_version="9.9", ffi_version="0.9")
    await lab.run("run")
    (said,) = [text for _, text in lab.log() if "is not known" in text]
    assert "toolchain default with bundle b on a" in said
    assert said.endswith("TVM 9.9 with FFI 0.9: nobody has tried it")


async def test_a_model_is_run_and_its_outputs_are_kept(lab):
    image = np.random.default_rng(1).random((1, 3, 32, 32))
    labels = lab.artifacts.add("".join(f"class {i}\n" for i in range(10)).encode())
    result = await lab.run("run", inputs=lab.uploaded(input=image), top_k=3, labels=labels)
    result = json.loads(json.dumps(result))
    (row,) = result["arrays"]
    found = lab.outputs(result)["output"]
    assert {key: row[key] for key in ("name", "shape", "dtype")} == {
        "name": "output", "shape": [1, 10], "dtype": "float32",
    }  # fmt: skip
    assert np.array_equal(row["values"], found.ravel())
    assert (row["min"], row["max"], row["mean"]) == (found.min(), found.max(), found.astype("float64").mean())
    assert result["filled"] == []
    assert np.isclose(found.sum(), 1.0)
    order = np.argsort(-found[0])[:3]
    assert [(each["index"], each["label"]) for each in result["top_k"]["output"]] == [
        (int(i), f"class {i}") for i in order
    ]
    assert np.isclose(result["top_k"]["output"][0]["value"], found.max())
    assert (result["given"], result["device"], result["target"]) == (["input"], "a", "cpu")
    assert result["max_abs_error"] < 1e-5
    assert all(seconds >= 0 for seconds in result["timings"].values())


@pytest.mark.parametrize("kind", ["bench", "run"])
async def test_a_library_the_phone_cannot_load_is_the_phones_fault_and_it_is_looked_at(lab, kind):
    with pytest.raises(PhoneError, match=r"^loading the library failed") as caught:
        await lab.run(kind, target="arm")
    assert lab.keys.aborted == [("lease", caught.value.message)]


async def test_a_phone_that_hangs_is_given_up_at_the_time_limit(lab):
    await lab.run()  # so that compiling takes no time below
    with silent_phone() as port, pytest.raises(AttemptTimeoutError) as caught:
        await lab.run(port=port, timeout_s=5)
    assert caught.value.message == "no result after 5 s; it was at: opening a session"


async def test_a_cancelled_attempt_leaves_no_worker(lab):
    with silent_phone() as port:
        running = asyncio.create_task(lab.run(port=port))
        await lab.until("opening a session")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    left = zygotes()
    assert len(left) == 1


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle with real golden kernels for this host."""
    from farm.worker.golden import compile_golden

    folder = tmp_path_factory.mktemp("bundle")
    (folder / "golden").mkdir()
    compile_golden(Abi.X86_64, Platform.LINUX, ("cpu",), folder / "golden")
    return Bundle("virtual", "b" * 64, "x86_64", (), folder / "files", "default", (), "", has_opencl=False)


async def test_wrong_numbers_fail_the_check(lab, bundle, tmp_path):
    golden = tmp_path / "golden"
    golden.mkdir()
    for file in bundle.golden_dir.iterdir():
        (golden / file.name).write_bytes(file.read_bytes())
    with np.load(golden / "cpu.npz") as archive:
        arrays = dict(archive)
    arrays["matmul_relu.out"][0, 0] += 1
    np.savez(golden / "cpu.npz", **arrays)
    checker = FarmChecker(lab.supervisor, key=lambda device: SERVER_KEY, gate=lambda: ("127.0.0.1", lab.port))
    found = await checker.check("a", replace(bundle, path=tmp_path / "files"))
    assert not found.ok
    assert "matmul_relu is off by 1" in found.detail


async def test_phones_that_hang_do_not_hold_up_the_others(lab, bundle):
    with silent_phone() as port:
        at_silent = {"key": lambda device: "x", "gate": lambda: ("127.0.0.1", port)}
        good = FarmChecker(lab.supervisor, key=lambda device: SERVER_KEY, gate=lambda: ("127.0.0.1", lab.port))
        hung = FarmChecker(lab.supervisor, **at_silent, limit_s=3600)
        waiting = [asyncio.create_task(hung.check(f"h{i}", bundle)) for i in range(3)]
        assert (await good.check("a", bundle)).ok
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        with raises_code(Code.CHECK_TIMEOUT, match=r"golden kernels within 1 s \(opening a session\)"):
            await FarmChecker(lab.supervisor, **at_silent, limit_s=1).check("h", bundle)
