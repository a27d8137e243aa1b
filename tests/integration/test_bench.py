"""`farm bench` and the checker with real workers and a stock RPC server; only leasing is a stand-in."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from farm.bundle.abi import Abi, Platform
from farm.bundle.manifest import Bundle
from farm.control.artifacts import ArtifactFolder
from farm.control.worker_door import WorkerDoor
from farm.core.device import DeviceView, Life
from farm.core.identity import DeviceIdentity, Soc
from farm.core.requests import Lease
from farm.jobs.bench import BenchRunner
from farm.jobs.checker import CheckTimeoutError, FarmChecker
from farm.jobs.model import BenchSpec
from farm.jobs.supervisor import Supervisor
from farm.jobs.zygote import Toolchain
from farm.leasing import LeaseEndedError
from farm.worker.small_cnn import build
from tests.support.tvm import free_port, process, wait_for_port

SERVER_KEY = "a-secret"
CPU = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-android", "mattr": ["+neon"]}
IDENTITY = DeviceIdentity(soc=Soc(name="Snapdragon"), fingerprint="x/y:14", targets={"cpu": CPU, "arm": ARM})


class OneAtATime:
    """Leases without an allocator: a lock per phone. Every key opens the one server; remembers what happened."""

    def __init__(self, key=SERVER_KEY):
        self.key = key
        self.locks = {}
        self.held = {}
        self.taken = {}  # lease -> future
        self.log = []

    async def acquire(self, request):
        lock = self.locks.setdefault(request.device, asyncio.Lock())
        await lock.acquire()
        lease = Lease(f"lease-{len(self.log)}", request.device, len(self.log) + 1, request, 0.0)
        self.held[lease.id] = lock
        self.taken[lease.id] = asyncio.get_running_loop().create_future()
        self.log.append(("acquired", request.device))
        return lease

    def release(self, lease_id):
        lock = self.held.pop(lease_id, None)
        if lock is not None:
            lock.release()

    def taken_away(self, lease_id):
        return asyncio.shield(self.taken[lease_id])

    def abort(self, lease_id, reason):
        self.log.append(("aborted", reason))

    def new_match_key(self, lease_id, *, single_use):
        assert lease_id in self.held
        assert single_use
        return self.key


def phone(name):
    return DeviceView(
        name=name, serial=name, life=Life.READY, adopted=True, aliases=("android", name), identity=IDENTITY,
        bundle="b" * 64, temperature_c=30.0,
    )  # fmt: skip


class Phones:
    """The fleet: views, and whoever follows them."""

    def __init__(self):
        self.now = {}
        self.listeners = []

    def views(self):
        return tuple(self.now.values())

    def subscribe(self, callback):
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)

    def change(self, view):
        self.now[view.name] = view
        for listener in tuple(self.listeners):
            listener(view)


class Lab:
    def __init__(self, folder, port):
        self.artifacts = ArtifactFolder(folder / "artifacts")
        self.door = WorkerDoor(folder / "workers.sock", self.artifacts)
        self.supervisor = Supervisor((Toolchain("default", Path(sys.executable)),), folder / "work", self.door)
        self.port = port
        self.phones = Phones()
        self.phones.change(phone("a"))
        self.leases = OneAtATime()
        self.steps = []
        self.heard = asyncio.Event()
        self.model = self.artifacts.add(build().SerializeToString(deterministic=True))

    def runner(self, port=None):
        return BenchRunner(
            leases=self.leases,
            devices=self.phones,
            workers=self.supervisor,
            gate=lambda: ("127.0.0.1", port or self.port),
            toolchain_of=lambda view: "default",
        )

    def spec(self, **changes):
        fields = {"model": self.model, "name": "small_cnn.onnx", "selector": "android", "repeat": 4, "number": 2}
        return BenchSpec.from_wire(fields | changes)

    async def bench(self, port=None, **changes):
        def record(device, step, facts):
            self.steps.append((device, step))
            self.heard.set()

        result = await self.runner(port).run("bench-1", self.spec(**changes), "tester", record)
        assert self.leases.held == {}
        assert self.phones.listeners == []
        return result

    async def until(self, device, step):
        while (device, step) not in self.steps:
            self.heard.clear()
            await self.heard.wait()


@pytest.fixture(scope="module")
def server():
    """A stock TVM RPC server; its key is its match key."""
    port = free_port()
    arguments = ["-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
    with process([*arguments, "--key", SERVER_KEY], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        wait_for_port(port)
        yield port


@pytest.fixture
async def lab(tmp_path, server):
    known = {child.pid for child in psutil.Process().children(recursive=True)}
    lab = Lab(tmp_path, server)
    await lab.door.start()
    await lab.supervisor.start()
    yield lab
    await lab.supervisor.stop()
    await lab.door.stop()
    # The stock server forks one process per session; it ends each by itself soon after.
    left = [child for child in psutil.Process().children(recursive=True) if "zygote" in " ".join(child.cmdline())]
    assert [child for child in left if child.pid not in known] == []


@contextlib.contextmanager
def silent_phone():
    """Accepts connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def test_a_model_is_compiled_run_checked_and_timed_on_every_phone(lab):
    lab.phones.change(phone("b"))
    result = await lab.bench()
    assert result.ok
    assert [one.device for one in result.results] == ["a", "b"]
    for row in json.loads(json.dumps(result.to_wire()))["results"]:
        assert len(row["samples_s"]) == 4
        assert all(0 < sample < 1 for sample in row["samples_s"])
        latency = row["latency"]
        assert latency["min_ms"] <= latency["low_ms"] <= latency["median_ms"] <= latency["high_ms"] <= latency["max_ms"]
        assert np.isclose(latency["median_ms"], 1000 * np.median(row["samples_s"]))
        assert row["numerics"]["reference"] == "onnx.reference"
        assert row["numerics"]["host_against_reference"]["ok"]
        assert 0 <= row["max_abs_error"] < 1e-5
        assert row["versions"]["apache-tvm"]
        assert (row["soc"], row["bundle"], row["identity"]["fingerprint"]) == ("Snapdragon", "b" * 64, "x/y:14")
        assert row["attempts"][0]["state"] == "done"
        assert row["attempts"][0]["fence"] > 0
    # Two phones of one kind: one of the two workers compiled, the other found the library.
    assert sorted(row.report["compile"]["cached"] for row in result.results) == [False, True]
    assert [step for device, step in lab.steps if device == "a"][:3] == [
        "waiting for the phone", "reading the model", "compiling for cpu",
    ]  # fmt: skip


async def test_inputs_of_ones_own_are_used_and_must_fit(lab, tmp_path):
    def uploaded(**arrays):
        np.savez(tmp_path / "x.npz", **arrays)
        return lab.artifacts.add((tmp_path / "x.npz").read_bytes())

    good = await lab.bench(inputs=uploaded(input=np.zeros((1, 3, 32, 32))))
    assert good.ok
    bad = await lab.bench(inputs=uploaded(input=np.zeros((1, 3, 31, 32))))
    assert bad.results[0].error["message"] == "input 'input' has shape 1x3x31x32, the model wants 1x3x32x32"
    assert len(bad.results[0].attempts) == 1
    unknown = await lab.bench(inputs=uploaded(picture=np.zeros((1, 3, 32, 32))))
    assert "lacks the array 'input'" in unknown.results[0].error["message"]
    garbage = await lab.bench(inputs=lab.artifacts.add(b"no zip"))
    assert "no .npz file" in garbage.results[0].error["message"]


async def test_a_bad_model_fails_once_and_says_why(lab):
    result = await lab.bench(model=lab.artifacts.add(b"hello world, no model"), name="notes.txt")
    (row,) = result.results
    assert not result.ok
    assert row.error["message"].startswith("notes.txt is not an ONNX model")
    assert row.error["fault"] == "user"
    assert len(row.attempts) == 1


async def test_a_phone_without_that_target_is_named(lab):
    (row,) = (await lab.bench(target="adreno")).results
    assert row.error["message"] == "a has no target 'adreno'"
    assert row.error["hint"] == "its targets: cpu, arm"


async def test_a_library_the_phone_cannot_load_is_the_phones_fault_and_tried_twice(lab):
    (row,) = (await lab.bench(target="arm")).results
    assert row.error["fault"] == "phone"
    assert row.error["message"].startswith("loading the library failed")
    assert [attempt.state for attempt in row.attempts] == ["failed", "failed"]
    assert [what for what, _ in lab.leases.log] == ["acquired", "aborted", "acquired", "aborted"]


async def test_a_failed_phones_place_is_taken_by_another(lab):
    broken = replace(phone("a"), identity=replace(IDENTITY, targets={"cpu": ARM}))
    lab.phones.change(broken)
    lab.phones.change(phone("b"))
    result = await lab.bench(devices=1)
    (row,) = result.results
    assert result.ok
    assert row.device == "b"
    assert [(attempt.device, attempt.state) for attempt in row.attempts] == [("a", "failed"), ("b", "done")]


async def test_a_phone_that_refuses_is_reported(lab):
    (row,) = (await lab.bench(port=free_port())).results
    assert row.error["message"].startswith("opening the session failed")
    assert row.error["fault"] == "phone"


async def test_a_phone_that_hangs_is_given_up_at_the_time_limit(lab):
    await lab.bench()  # so that compiling takes no time below
    with silent_phone() as port:
        (row,) = (await lab.bench(port=port, timeout_s=2)).results
    assert row.error["message"] == "no result after 2 s; it was at: opening a session"
    assert len(row.attempts) == 1


async def test_an_unplugged_phone_ends_its_attempt_and_is_not_waited_for(lab):
    with silent_phone() as port:
        running = asyncio.create_task(lab.bench(port=port))
        await lab.until("a", "opening a session")
        lab.phones.change(replace(phone("a"), life=Life.GONE, reason="unplugged"))
        (row,) = (await running).results
    assert (row.error["message"], row.error["fault"]) == ("a is gone: unplugged", "phone")
    assert [(attempt.state, attempt.fence) for attempt in row.attempts] == [("failed", 1)]


async def test_a_phone_that_is_lost_while_a_job_waits_for_it_is_not_waited_for(lab):
    lock = lab.leases.locks["a"] = asyncio.Lock()
    await lock.acquire()  # somebody else has it
    running = asyncio.create_task(lab.bench())
    await lab.until("a", "waiting for the phone")
    lab.phones.change(replace(phone("a"), life=Life.QUARANTINED, reason="wrong numbers"))
    (row,) = (await running).results
    assert row.error["message"] == "a is quarantined: wrong numbers"
    assert [attempt.fence for attempt in row.attempts] == [0]


async def test_a_session_broken_by_a_cable_that_is_noticed_later_is_told_as_the_cable(lab):
    lab.leases.abort = lambda lease, reason: lab.phones.change(replace(phone("a"), life=Life.RECOVERING))
    running = asyncio.create_task(lab.bench(port=free_port()))  # nobody listens
    recovering = asyncio.Event()
    unsubscribe = lab.phones.subscribe(lambda view: recovering.set())
    await recovering.wait()
    unsubscribe()
    lab.phones.change(replace(phone("a"), life=Life.OFFLINE, reason="does not answer"))
    (row,) = (await running).results
    assert row.error["message"] == "a is offline: does not answer"


async def test_an_attempt_whose_lease_is_taken_away_is_void(lab):
    with silent_phone() as port:
        running = asyncio.create_task(lab.bench(port=port))
        await lab.until("a", "opening a session")
        lab.leases.taken["lease-0"].set_result(LeaseEndedError("ended by an operator"))
        (row,) = (await running).results
    assert row.error["message"] == "ended by an operator"
    assert [(attempt.state, attempt.fence) for attempt in row.attempts] == [("failed", 1)]


async def test_a_job_that_waits_for_a_worker_holds_no_phone(lab, monkeypatch):
    monkeypatch.setattr("farm.jobs.bench.MOST_AT_ONCE", 1)
    lab.phones.change(phone("b"))
    with silent_phone() as port:
        running = asyncio.create_task(lab.bench(port=port))
        await lab.until("a", "opening a session")
        assert lab.leases.log == [("acquired", "a")]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_cancelled_bench_gives_its_phones_back(lab):
    with silent_phone() as port:
        running = asyncio.create_task(lab.bench(port=port))
        await lab.until("a", "opening a session")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert lab.leases.held == {}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle with real golden kernels for this host."""
    from farm.worker.golden import compile_golden

    folder = tmp_path_factory.mktemp("bundle")
    (folder / "golden").mkdir()
    compile_golden(Abi.X86_64, Platform.LINUX, ("cpu",), folder / "golden")
    return Bundle("virtual", "b" * 64, "x86_64", (), folder / "files", "default", (), "", has_opencl=False)


async def test_a_healthy_phone_passes_its_check(lab, bundle):
    checker = FarmChecker(lab.supervisor, key=lambda device: SERVER_KEY, gate=lambda: ("127.0.0.1", lab.port))
    report = await checker.check("a", bundle)
    assert report.ok, report
    assert "golden kernels right" in report.detail


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
    report = await checker.check("a", replace(bundle, path=tmp_path / "files"))
    assert not report.ok
    assert "matmul_relu is off by 1" in report.detail


async def test_phones_that_hang_do_not_hold_up_the_others(lab, bundle):
    with silent_phone() as port:
        hung = FarmChecker(lab.supervisor, key=lambda device: "x", gate=lambda: ("127.0.0.1", port), limit_s=4)
        good = FarmChecker(lab.supervisor, key=lambda device: SERVER_KEY, gate=lambda: ("127.0.0.1", lab.port))
        waiting = [asyncio.create_task(hung.check(f"h{i}", bundle)) for i in range(3)]
        report = await good.check("a", bundle)
        assert report.ok
        assert not any(task.done() for task in waiting)
        for task in waiting:
            with pytest.raises(CheckTimeoutError, match=r"h\d did not finish the golden kernels within 4 s"):
                await task
