"""One RPC session to the attempt's phone, through the gate. What fails in it is held to be the phone's fault."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvm import relax, rpc

from farm.compiler.targets import TargetError
from farm.compiler.tvm_errors import end_of, first_line
from farm.core.errors import FarmError, PhoneError
from farm.jobs.attempt import SessionOffer

# What is said when an allocation fails: C++ on the CPU, OpenCL's and Vulkan's status names on the GPU. Where Android's
# low memory killer ends the process instead, nothing is said: that is a worker which died.
_OUT_OF_MEMORY = re.compile(
    r"std::bad_alloc|CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_OUT_OF_(RESOURCES|HOST_MEMORY)|CL_INVALID_BUFFER_SIZE"
    r"|VK_ERROR_OUT_OF_(DEVICE|HOST|POOL)_MEMORY"
)
_DEVICES = {"cpu": "cpu", "llvm": "cpu", "c": "cpu", "opencl": "opencl", "vulkan": "vulkan"}


class PhoneSessionError(PhoneError):
    """The phone failed in a session."""

    code = "session"


class PhoneProcessError(PhoneSessionError):
    """The process that served the session is gone: it crashed, or the session was cut."""


class PhoneOutOfMemoryError(PhoneError):
    """The phone is out of memory."""

    code = "out_of_memory"


class PhoneSession:
    """A session with a phone's RPC server."""

    def __init__(self, session: Any) -> None:
        self.raw = session  # tvm.rpc.RPCSession
        self.suspect = ""  # SHA-256 of the library to blame, should the phone's process die now; "": nobody knows
        self.alone = True  # whether one library at most was loaded

    def device(self, kind: str) -> Any:
        """The phone's device for a TVM target kind (`llvm`, `opencl`).

        Raises:
            TargetError: the farm runs nothing on that kind.
            PhoneSessionError: the phone has none.
        """
        name = _DEVICES.get(kind)
        if name is None:
            raise TargetError(f"the farm cannot run code for {kind} on a phone")
        device = self.raw.device(name, 0)
        if name != "cpu":
            with on_phone(f"looking for {name}"):
                if not device.exist:
                    raise PhoneSessionError(f"the phone has no {name} device, or its driver does not load")
        return device

    def load(self, library: Path, name: str) -> Any:
        """Upload a library under `name` and load it there."""
        with on_phone("uploading the library"):
            self.raw.upload(bytearray(library.read_bytes()), name)  # by path, TVM never closes the file
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
    """Connect through the gate with the offered match key; close in the end.

    Raises:
        PhoneSessionError: the phone did not take the session.
    """
    with on_phone("opening the session"):
        session = PhoneSession(rpc.connect(offer.host, offer.port, key=offer.key))
    try:
        yield session
    finally:
        session.close()


@contextlib.contextmanager
def on_phone(step: str, needs_bytes: int = 0) -> Iterator[None]:
    """Turn whatever TVM raises while talking to a phone into one error that names the step.

    `needs_bytes`: memory that the step is known to need, 0 when unknown.

    Raises:
        PhoneOutOfMemoryError: the phone said that it has no memory left.
        PhoneSessionError: all else.
    """
    try:
        yield
    except FarmError:
        raise
    except Exception as error:
        text, evidence = str(error), end_of(error)
        if _OUT_OF_MEMORY.search(text):
            needs = f": needs at least {needs_bytes / 1e6:.0f} MB" if needs_bytes else ""
            raise PhoneOutOfMemoryError(
                f"{step} failed: the phone is out of memory{needs}",
                hint="a phone with more memory, --precision float16, or a smaller batch",
                evidence=evidence,
            ) from error
        if "kShutdown" in text:
            died = "the phone's RPC worker died (a crash of the kernel, or the session was cut)"
            raise PhoneProcessError(f"{step} failed: {died}", evidence=evidence) from error
        raise PhoneSessionError(f"{step} failed: {first_line(error)}", evidence=evidence) from error
