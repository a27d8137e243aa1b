"""One RPC session to the attempt's phone, through the gate. What fails in it is held to be the phone's fault."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvm import relax, rpc

from farm.compiler.targets import TargetError
from farm.compiler.tvm_errors import first_line
from farm.core.errors import FarmError, PhoneError
from farm.jobs.attempt import SessionOffer

_DEVICES = {"cpu": "cpu", "llvm": "cpu", "c": "cpu", "opencl": "opencl", "vulkan": "vulkan"}


class PhoneSessionError(PhoneError):
    """The phone failed in a session."""

    code = "session"


class PhoneSession:
    """A session with a phone's RPC server."""

    def __init__(self, session: Any) -> None:
        self.raw = session  # tvm.rpc.RPCSession

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
def on_phone(step: str) -> Iterator[None]:
    """Turn whatever TVM raises while talking to a phone into one error that names the step."""
    try:
        yield
    except FarmError:
        raise
    except Exception as error:
        raise PhoneSessionError(f"{step} failed: {_said(error)}", evidence=str(error)[-2000:]) from error


def _said(error: BaseException) -> str:
    text = str(error)
    if "kShutdown" in text:
        return "the phone's RPC worker died (a crash of the kernel, or the session was cut)"
    return first_line(error)
