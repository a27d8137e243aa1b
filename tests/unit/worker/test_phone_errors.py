"""What TVM raises about a phone is one error that says whose fault it is and what to do."""

import socket
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from farm.bundle.model import KIND_CPU, KIND_OPENCL, CheckResult
from farm.common.errors import Code, Fault
from farm.jobs.attempt import SessionOffer
from farm.tvm_server.wire import ServerHello, SessionCode, encode_server_hello
from farm.worker import checker
from farm.worker.session import ALWAYS_THERE, PhoneSession, check_local_memory, on_phone, opened
from tests.support.errors import raises_code

NOT_BUILT = "the GPU's driver cannot build a kernel: "
IMAGE = "OpenCL Error, code=-40: CL_INVALID_IMAGE_SIZE"
WORK_GROUP = "OpenCL Error, code=-54: CL_INVALID_WORK_GROUP_SIZE"
LOCAL_MEMORY = "add_kernel needs 4096 bytes of local memory, and the GPU has 1024"


@pytest.mark.parametrize(
    "said",
    [
        "RPCError: Error caught from RPC call:\nstd::bad_alloc",
        "OpenCL Error, code=-4: CL_MEM_OBJECT_ALLOCATION_FAILURE",
        "OpenCL Error, code=-5: CL_OUT_OF_RESOURCES",
        "Vulkan Error, code=-2: VK_ERROR_OUT_OF_DEVICE_MEMORY",
    ],
)
def test_a_phone_out_of_memory_is_told_with_what_is_needed(said):
    with raises_code(Code.OUT_OF_MEMORY) as caught, on_phone("running the model", 250_000_000):
        raise RuntimeError(said)
    assert str(caught.value) == "running the model failed: the phone is out of memory: needs at least 250 MB"
    assert caught.value.fault is Fault.PHONE
    assert caught.value.evidence == said


def test_a_session_that_is_refused_tells_nobody_its_match_key():
    def refuse():
        with gate, gate.accept()[0] as client:
            client.recv(1024)
            client.sendall(encode_server_hello(ServerHello(SessionCode.MISMATCH)))

    gate = socket.create_server(("127.0.0.1", 0))
    offer = SessionOffer("127.0.0.1", gate.getsockname()[1], "pixel:f83fc91554230c82c949cd0e23607e4a")
    with ThreadPoolExecutor(1) as pool, raises_code(Code.SESSION_FAILED) as caught:
        pool.submit(refuse)
        with opened(offer):
            pass
    assert str(caught.value) == "opening the session failed: the phone's RPC server took no session"
    everything = "".join(traceback.format_exception(caught.value)) + caught.value.evidence
    assert "f83fc915" not in everything


class Raw:
    """A session whose phone raises over its device, as TVM's own runtime does without a driver."""

    exist = property(lambda self: self.get_function("libOpenCL.so"))

    def __init__(self, *missing):
        self.missing = missing

    def device(self, name, number):
        return self

    def get_function(self, name):
        if name in self.missing:
            raise RuntimeError("code=kShutdown" if ALWAYS_THERE in self.missing else "Error! Cannot open libOpenCL!")


def test_a_driver_that_tvm_cannot_open_is_a_missing_device_with_a_hint():
    with raises_code(Code.DRIVER_MISSING, match="the phone has no opencl device, or its driver does not") as caught:
        PhoneSession(Raw("libOpenCL.so")).device("opencl")
    assert "--target cpu" in caught.value.hint
    assert caught.value.fault is Fault.USER  # neither the phone is repaired, nor the job tried again on it
    with raises_code(Code.SESSION_FAILED, match="loading opencl failed: the phone's RPC worker died"):
        PhoneSession(Raw("libOpenCL.so", ALWAYS_THERE)).device("opencl")


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        ("code=kShutdown", Code.SESSION_FAILED, "the phone's RPC worker died"),
        (
            "Check failed: (code == RPCCode::kReturn) is false: code=1",
            Code.SESSION_FAILED,
            "the phone's RPC worker died",
        ),
        ("RPCError: no such function", Code.SESSION_FAILED, "RPCError: no such function"),
        (
            'OpenCL build error for device=0x1\nError\nerror: k.cl:6:2: "Half."\nNo',
            Code.KERNEL_REFUSED,
            f'{NOT_BUILT}"Half."',
        ),
        (
            "the OpenCL driver cannot build add\n<source>:3:1: error: no half4",
            Code.KERNEL_REFUSED,
            f"{NOT_BUILT}no half4",
        ),
        ("OpenCL build error for device=0x1", Code.KERNEL_REFUSED, f"{NOT_BUILT}OpenCL build error for device=0x1"),
        (f"RPCError: Error caught from RPC call:\n{IMAGE}", Code.KERNEL_REFUSED, f"the GPU has no such image: {IMAGE}"),
        (WORK_GROUP, Code.KERNEL_REFUSED, f"the GPU has no such work group: {WORK_GROUP}"),
        (f"RuntimeError: {LOCAL_MEMORY}", Code.KERNEL_REFUSED, f"a kernel is too large: {LOCAL_MEMORY}"),
    ],
)
def test_what_tvm_raises_is_told_with_its_reason(said, code, told):
    with raises_code(code) as caught, on_phone("running the model"):
        raise RuntimeError(said)
    assert told in str(caught.value)
    if code == Code.KERNEL_REFUSED:
        assert str(caught.value) == f"running the model failed: {told}"
        assert caught.value.fault is Fault.USER  # that driver refuses it each time
        assert caught.value.hint


def test_a_driver_that_cannot_build_the_golden_kernels_is_the_phones_fault(monkeypatch):
    def run_golden(_, __, kind=KIND_CPU):
        if kind == KIND_OPENCL:
            raise RuntimeError("OpenCL build error for device=0x1")
        return CheckResult(ok=True, detail="right")

    monkeypatch.setattr(checker, "run_golden", run_golden)
    session = PhoneSession(SimpleNamespace(device=lambda *_: SimpleNamespace(exist=True)))
    monkeypatch.setattr(checker, "opened", lambda _: nullcontext(session))
    daemon = SimpleNamespace(open_session=lambda: None, progress=lambda _: None)
    with raises_code(Code.SESSION_FAILED, match="cannot build a kernel") as caught:
        checker.main({"golden": "golden", "kinds": [KIND_CPU, KIND_OPENCL]}, daemon)
    assert caught.value.fault is Fault.PHONE


def test_a_kernel_with_more_local_memory_than_the_gpu_has_is_refused_unrun(tmp_path):
    (tmp_path / "model.so").write_bytes(b"// Function: add_kernel\n__local float4 a_shared_ptr[256];\n")
    built = SimpleNamespace(device="opencl", compiled=SimpleNamespace(library=tmp_path / "model.so"))
    check_local_memory(built, SimpleNamespace(max_shared_memory_per_block=4096))
    check_local_memory(built, SimpleNamespace(max_shared_memory_per_block=None))  # the GPU does not say
    with raises_code(Code.KERNEL_REFUSED, match="add_kernel needs 4096 bytes of local memory, and the GPU has 1024"):
        check_local_memory(built, SimpleNamespace(max_shared_memory_per_block=1024))
