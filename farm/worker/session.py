"""One RPC session to the attempt's phone, through the gate, and one model in it, up to right outputs.

What fails in a session is held to be the phone's fault.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from farm.common.errors import Code, FarmError, ModelError, PhoneError, UserError
from farm.compiler.build import Build, BuildRequest, build
from farm.compiler.compile import Recipe
from farm.compiler.inputs import Fill
from farm.compiler.model import Array
from farm.compiler.reference import flatten
from farm.compiler.targets import unpack_records
from farm.compiler.tvm_errors import end_of, first_line
from farm.jobs.attempt import SessionOffer
from farm.model.identity import target_key
from farm.model.placement import ThreadPlacement
from farm.model.specs import ModelTask
from farm.tuning.session import connect
from farm.worker.channel import DaemonChannel

# What is said when an allocation fails: C++ on the CPU, OpenCL's and Vulkan's status names on the GPU. Where Android's
# low memory killer ends the process instead, nothing is said: that is a worker which died.
_OUT_OF_MEMORY = re.compile(
    r"std::bad_alloc|CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_OUT_OF_(RESOURCES|HOST_MEMORY)|CL_INVALID_BUFFER_SIZE"
    r"|VK_ERROR_OUT_OF_(DEVICE|HOST|POOL)_MEMORY"
)
_ENDED = re.compile(r"kShutdown|RPCCode::kReturn\) is false: code=1\b")  # the answer "shut down" in place of a value
ALWAYS_THERE = "tvm.rpc.server.remove"  # every RPC server has it
# Kernels and their local memory in the OpenCL source that TVM keeps in a library.
_LOCAL_LINE = re.compile(rb"// Function: (\w+)|__local ([a-z]+)(\d*) \w+\[(\d+)\];")
_DTYPE_BYTES = {
    b"bool": 1, b"char": 1, b"uchar": 1, b"short": 2, b"ushort": 2, b"half": 2, b"int": 4, b"uint": 4, b"float": 4,
    b"long": 8, b"ulong": 8, b"double": 8,
}  # fmt: skip
# TVM's words, then the driver's log.
_BUILD_FAILED = re.compile(r"OpenCL build error|the OpenCL driver cannot build")
_BUILD_ERROR = re.compile(r"^\W*(?:\S+: )?error: (?:\S+:\d+:\d+: )?(.+)", re.MULTILINE)
# OpenCL's names of errors, or the words of the virtual phones' runtime.
_IMAGE = re.compile(r"CL_INVALID_IMAGE_(?:SIZE|FORMAT_DESCRIPTOR)|CL_IMAGE_FORMAT_NOT_SUPPORTED")
_WORK_GROUP = re.compile(r"CL_INVALID_WORK_(?:GROUP|ITEM)_SIZE")
_LOCAL_MEMORY = re.compile(r"(\S+ needs \d+ bytes of local memory, and the GPU has \d+)")
_MEMORY_HINT = "another phone, --target cpu, or a target whose max_shared_memory_per_block is what this GPU has"
FASTEST_FIRST = 1  # TVM's mode kBig: a thread per core, from the one of the highest clock on


class PhoneProcessError(PhoneError):
    """The process that served the session is gone: it crashed, or the session was cut."""


class PhoneSession:
    """A session with a phone's RPC server."""

    def __init__(self, session: Any, opened_s: float = 0.0) -> None:
        self.raw = session  # tvm.rpc.RPCSession
        self.opened_s = opened_s  # how long opening it took
        self.suspect = ""  # SHA-256 of the library at fault if the phone's process dies now; "": unknown
        self.alone = True  # whether one library at most was loaded

    def device(self, name: str) -> Any:
        """The phone's device by TVM's name (`cpu`, `opencl`, `vulkan`)."""
        if name != "cpu" and not self.has_device(name):
            raise ModelError(
                f"the phone has no {name} device, or its driver does not load",
                Code.DRIVER_MISSING,
                hint="--target cpu, or another phone; `farm device show` says what its last check ran on",
            )
        return self.raw.device(name, 0)

    def has_device(self, name: str) -> bool:
        """Whether the phone has a device by TVM's name, and its driver loads."""
        try:
            return bool(self.raw.device(name, 0).exist)
        except Exception:  # noqa: BLE001 - without libOpenCL.so TVM's runtime raises instead of answering no
            with on_phone(f"loading {name}"):
                self.raw.get_function(ALWAYS_THERE)  # a dead session is the phone's fault, not a missing driver
            return False

    def load(self, library: Path, name: str) -> Any:
        """Upload a library under `name` and load it there."""
        self.upload(library, name)
        return self.load_uploaded(name)

    def upload(self, library: Path, name: str) -> None:
        """Upload a library under `name`."""
        with on_phone("uploading the library"):
            self.raw.upload(bytearray(library.read_bytes()), name)  # by path, TVM never closes the file

    def load_uploaded(self, name: str) -> Any:
        """Load a library that was uploaded."""
        with on_phone("loading the library"):
            return self.raw.load_module(name)

    def function(self, name: str) -> Any:
        """A global function of the phone's TVM runtime."""
        with on_phone(f"looking for {name}"):
            return self.raw.get_function(name)

    def virtual_machine(self, module: Any, device: Any) -> Any:
        """A Relax VM on the phone for an uploaded library."""
        with on_phone("starting the model"):
            return relax.VirtualMachine(module, device)

    def close(self) -> None:
        """End the session now; the phone's worker process ends with it."""
        with contextlib.suppress(RuntimeError, OSError):  # broken already: ended
            self.raw._sess.get_function("CloseRPCConnection")()  # noqa: SLF001 - the one way to close for certain


@contextlib.contextmanager
def opened(offer: SessionOffer) -> Iterator[PhoneSession]:
    """Connect through the gate with the offered match key; close in the end."""
    with on_phone("opening the session"):
        begun_s = time.monotonic()
        raw = connect(offer)
        session = PhoneSession(raw, time.monotonic() - begun_s)
    try:
        yield session
    finally:
        session.close()


@contextlib.contextmanager
def on_phone(step: str, needs_bytes: int = 0) -> Iterator[None]:
    """Turn whatever TVM raises while talking to a phone into one error that names the step.

    `needs_bytes`: memory that the step is known to need, 0 when unknown.
    """
    try:
        yield
    except FarmError:
        raise
    except Exception as error:
        text, evidence = str(error), end_of(error)
        if _OUT_OF_MEMORY.search(text):
            needs = f": needs at least {needs_bytes / 1e6:.0f} MB" if needs_bytes else ""
            raise PhoneError(
                f"{step} failed: the phone is out of memory{needs}",
                Code.OUT_OF_MEMORY,
                hint="a phone with more memory, --precision float16, or a smaller batch",
                evidence=evidence,
            ) from error
        if refusal := kernel_refusal(error):
            raise _refused(step, refusal, evidence) from error
        if _ENDED.search(text):
            died = "the phone's RPC worker died; a crash of the kernel, or a cut session"
            raise PhoneProcessError(f"{step} failed: {died}", Code.SESSION_FAILED, evidence=evidence) from error
        raise PhoneError(f"{step} failed: {first_line(error)}", Code.SESSION_FAILED, evidence=evidence) from error


def check_local_memory(built: Build, device: Any) -> None:
    """Refuse a build with a kernel that needs more local memory than the phone's GPU has, before it runs there."""
    if built.device != "opencl":
        return
    with on_phone("asking the GPU for its local memory"):
        room_bytes = device.max_shared_memory_per_block
    kernel, needed_bytes = most_local_memory(built.compiled.library.read_bytes())
    if room_bytes and (refusal := memory_refusal(kernel, needed_bytes, room_bytes)):
        raise _refused("loading the model", refusal)


def most_local_memory(library: bytes) -> tuple[str, int]:
    """The OpenCL kernel of a library that allocates the most local memory, and how many bytes; ("", 0): none does."""
    needed, kernel = {"": 0}, ""
    for name, dtype, lanes, count in _LOCAL_LINE.findall(library):
        if name:
            kernel = name.decode()
        else:
            needed[kernel] = needed.get(kernel, 0) + _DTYPE_BYTES.get(dtype, 0) * int(lanes or 1) * int(count)
    return max(needed.items(), key=lambda each: each[1])


def _refused(step: str, refusal: KernelRefusal, evidence: str = "") -> ModelError:
    return ModelError(f"{step} failed: {refusal.reason}", Code.KERNEL_REFUSED, hint=refusal.hint, evidence=evidence)


RECORDS = Path("records")  # unpacked, in the attempt's own folder


@dataclass(frozen=True, slots=True)
class FirstRun:
    """A model on a phone that has run once."""

    machine: Any  # relax.VirtualMachine
    device: Any  # tvm.runtime.Device
    outputs: list[Array]
    timings: dict[str, float]  # seconds as this host saw them, the link to the phone included

    def run_again(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of another run, for inputs of the same shapes and types in the order of the build's."""
        with on_phone("running the model"):
            self.machine.set_input("main", *(tvm.runtime.tensor(array, self.device) for array in inputs))
            self.machine.invoke_stateful("main")
            self.device.sync()
            return flatten(self.machine.get_outputs("main"))


def prepare(
    task: ModelTask[Any],
    daemon: DaemonChannel,
    *,
    inputs: str | bytes | None,
    fill: Fill = "random",
    require_all_inputs: bool = False,
    refused: Sequence[tuple[str, str]] = (),
) -> Build:
    """Everything that needs no phone: a library for it, inputs, and expected outputs; or all from the cache.

    Args:
        task: which model, and how.
        daemon: has the artifacts.
        inputs: an .npz, or the artifact of one.
        fill: what inputs are made of that it does not give.
        require_all_inputs: refuse an .npz that gives only some.
        refused: operators that must not use textures, each with the reason.
    """
    daemon.progress("reading the model")
    wanted = BuildRequest(
        recipe=Recipe(task.target, task.spec.precision, _records(task, daemon), task.spec.texture, tuple(refused)),
        shapes=task.spec.shapes,
        dtypes=task.spec.dtypes,
        npz=daemon.artifact(inputs) if isinstance(inputs, str) else inputs,
        fill=fill,
        require_all_inputs=require_all_inputs,
    )

    def report(step: str) -> None:
        daemon.progress(f"{step} for {task.spec.target}" if step == "compiling" else step)

    built = build(daemon.artifact(task.spec.model), task.spec.name, wanted, Path(task.cache), report)
    if task.spec.records is not None and built.compiled.scheduled < built.compiled.operators:
        with_record = f"{built.compiled.scheduled} of {built.compiled.operators} operators have one"
        daemon.log(f"tuning records: {with_record}; the others are compiled as without")
    if daemon.poisoned([built.compiled.sha256]):
        raise ModelError(
            f"{built.name}: this build has killed what ran it twice, and is not run any more",
            Code.POISONED,
            hint="compile it otherwise (--precision, --target), or farm poison list and farm poison forget",
        )
    return built


@contextlib.contextmanager
def session_to_phone(daemon: DaemonChannel) -> Iterator[PhoneSession]:
    """A session of the attempt. When the phone fails in it, the daemon looks at the phone."""
    suspect = ""
    try:
        with opened(daemon.open_session()) as session:
            try:
                yield session
            finally:
                suspect = session.suspect
    except PhoneError as error:
        if not (suspect and isinstance(error, PhoneProcessError) and _killed(daemon, suspect, error.message)):
            daemon.abort_session("", error.message)
        raise


def first_run(built: Build, session: PhoneSession, report: Callable[[str], None], *, side: str = "") -> FirstRun:
    """Upload the library and run the model once; `report` is called with each step.

    `side` distinguishes libraries of one session: a loaded one must not be written again, even with the same bytes.
    """
    device = session.device(built.device)
    check_local_memory(built, device)
    report("uploading")
    session.suspect = built.compiled.sha256
    times_s = [time.monotonic()]
    name = f"{built.compiled.key[:16]}{side}.so"
    with on_phone("loading the model", built.least_bytes):
        machine = session.virtual_machine(session.load(built.compiled.library, name), device)
    times_s.append(time.monotonic())
    report("running")
    with on_phone("running the model", built.least_bytes):
        machine.set_input("main", *(tvm.runtime.tensor(array, device) for array in built.inputs.values()))
        device.sync()
        times_s.append(time.monotonic())
        machine.invoke_stateful("main")
        device.sync()
        times_s.append(time.monotonic())
        outputs = flatten(machine.get_outputs("main"))
        times_s.append(time.monotonic())
    if not session.alone:
        session.suspect = ""  # from now on it may be either of two
    session.alone = False
    names = ("upload_s", "send_inputs_s", "run_s", "fetch_outputs_s")
    timings = {name: times_s[i + 1] - times_s[i] for i, name in enumerate(names)}
    return FirstRun(machine, device, outputs, timings)


def _killed(daemon: DaemonChannel, artifact: str, what: str) -> bool:
    """Whether the daemon holds the library guilty; the phone is looked after then."""
    try:
        return daemon.suspect(artifact, what)
    except FarmError:
        return False


def _records(task: ModelTask[Any], daemon: DaemonChannel) -> Path | None:
    if task.spec.records is None:
        return None
    folder = RECORDS / f"{task.spec.records[:16]}-{target_key(task.target)}"  # two sides may be for two targets
    for line in unpack_records(daemon.artifact(task.spec.records), task.target, folder, "the tuning records"):
        daemon.log(f"tuning records: {line}", "warning")
    return folder


@dataclass(frozen=True, slots=True)
class KernelRefusal:
    """Why a GPU cannot run a kernel, and what to do."""

    reason: str
    hint: str


def kernel_refusal(error: Exception) -> KernelRefusal | None:
    """What TVM's error says about a kernel; None: it is about something else."""
    text = str(error)
    if _BUILD_FAILED.search(text):
        found = _BUILD_ERROR.search(text)
        return KernelRefusal(
            f"the GPU's driver cannot build a kernel: {found[1].strip() if found else first_line(error)}",
            "the evidence has the driver's words (--json); another phone, --target cpu or --precision float32",
        )
    if _IMAGE.search(text):
        return KernelRefusal(
            f"the GPU has no such image: {first_line(error)}",
            "leave out --texture, or give the target a texture_spatial_limit that fits this GPU",
        )
    if _WORK_GROUP.search(text):
        return KernelRefusal(
            f"the GPU has no such work group: {first_line(error)}",
            "another phone, --target cpu, or a target whose max_threads_per_block is what this GPU has",
        )
    if found := _LOCAL_MEMORY.search(text):
        return KernelRefusal(f"a kernel is too large: {found[1]}", _MEMORY_HINT)
    return None


def memory_refusal(kernel: str, needed_bytes: int, room_bytes: int) -> KernelRefusal | None:
    """Of a kernel that needs more local memory than a GPU has; None: it fits."""
    if needed_bytes <= room_bytes:
        return None
    return KernelRefusal(
        f"a kernel is too large: {kernel} needs {needed_bytes} bytes of local memory, and the GPU has {room_bytes}",
        _MEMORY_HINT,
    )


def place(session: PhoneSession, daemon: DaemonChannel, placement: ThreadPlacement) -> ThreadPlacement:
    """Set the pool's threads, then their cores; returns the placement with the number of threads in force.

    The pool's threads begin with its first use, and TVM binds each to a core: a mask counts only after that.
    """
    wanted = placement.threads or placement.mask.bit_count()
    with on_phone("setting the threads"):
        if wanted:
            session.raw.get_function("runtime.config_threadpool")(FASTEST_FIRST, wanted)
        threads = int(session.raw.get_function("runtime.NumThreads")())
    if placement.threads > threads:
        raise UserError(
            f"TVM's pool on this phone has {threads} thread{'s' * (threads != 1)}, too few for {placement.threads}",
            Code.NO_SUCH_CORES,
            hint=f"--threads {threads}; on x86 phones TVM takes half of the cores",
        )
    if placement.mask or placement.top_app:
        daemon.call("place", mask=placement.mask, top_app=placement.top_app)
    return ThreadPlacement(threads, placement.mask, placement.top_app)
