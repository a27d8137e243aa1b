"""Talking to a lab process: synchronous, for tests, the demo and benchmarks."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from subprocess import PIPE, Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any

from farm.common.errors import Code, ExitCode, FarmError, Fault, HostError, PhoneError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Self

CONTROL_SOCKET = "control.sock"
EVERY_PHONE = "*"
READY_LINE = "lab ready"
TIMEOUT_S = 30.0
BOOT_TIMEOUT_S = 120.0  # a hundred phones on two loaded cores
STOP_TIMEOUT_S = 20.0
_ANSWER_MARGIN_S = 5.0  # beyond what the lab itself was told to wait


lab_unreachable_error = partial(HostError, code=Code.NO_LAB)


class LabClient:
    """One connection to a lab. Every method returns when the lab has carried it out.

    `phone` is a phone's name, or `*` for all of them. Raises `UserError` for orders without sense, `PhoneError` and
    `HostError` for those that did not work, `HostError` when there is no lab.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._last = 0
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._socket.connect(os.fspath(directory / CONTROL_SOCKET))
        except OSError as error:
            self._socket.close()
            raise lab_unreachable_error(
                f"no lab answers in {directory}", hint="start it: python -m farm.simulation.lab", evidence=str(error)
            ) from error
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; the lab continues."""
        self._lines.close()
        self._socket.close()

    # -- the lab -----------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, PhoneStatus]:
        """Every phone by its name."""
        return {row["name"]: PhoneStatus(**row) for row in self._call("status")}

    def phone(self, name: str) -> PhoneStatus:
        """One phone."""
        rows = self.status()
        if name not in rows:
            raise UserError(f"no such phone: {name}", hint=f"the lab has {', '.join(rows) or 'none'}")
        return rows[name]

    def services(self, phone: str) -> list[str]:
        """Requests to a phone's adbd since it booted, oldest first: `shell,v2:ls`, `sync:`, `tcp:5000`, ..."""
        asked: list[str] = self._call("services", phone=phone)
        return asked

    def add(self, name: str, profile: str, place: str = "") -> PhoneStatus:
        """Boot one more phone, on that USB place if any."""
        return PhoneStatus(**self._call("add", name=name, profile=profile, place=place))

    def remove(self, phone: str) -> None:
        """Take a phone away for good; its folder stays."""
        self._call("remove", phone=phone)

    def swap(self, phone: str, other: str) -> None:
        """Two unplugged phones swap their serials: once plugged in, adb lists each as the other was."""
        self._call("swap", phone=phone, other=other)

    def wait(self, phone: str, condition: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until a phone is `online`, `not_online`, `off`, `on`, `unplugged` or `key_shown` (lab.CONDITIONS)."""
        self._call("wait", phone=phone, condition=condition, timeout_s=timeout_s, answer_within_s=timeout_s)

    def unplug_hub(self, hub: str) -> None:
        """Pull the cable of a USB hub, with all that hangs on it."""
        self._call("hub", hub=hub, plugged=False)

    def plug_hub(self, hub: str) -> None:
        """Put a hub's cable back."""
        self._call("hub", hub=hub, plugged=True)

    # -- faults (faults.FAULTS says what each means and has more of them) ----------------------------------------------

    def fault(self, phone: str, name: str, **arguments: object) -> dict[str, Any]:
        """Cause a fault by its name; returns each phone's answer."""
        given = {key: value for key, value in arguments.items() if value is not None}
        result: dict[str, Any] = self._call("fault", phone=phone, name=name, arguments=given)
        return result

    def unplug(self, phone: str) -> None:
        """Pull the cable."""
        self.fault(phone, "unplug")

    def plug(self, phone: str) -> None:
        """Put the cable back; ends `offline` as well. Returns at once: wait for `online`."""
        self.fault(phone, "plug")

    def offline(self, phone: str, mode: str = "offline") -> None:
        """Make the link dead: `offline`, `silent` or `refuse`."""
        self.fault(phone, "offline", mode=mode)

    def accept(self, phone: str) -> None:
        """Accept the key shown; wait for `key_shown` first."""
        self.fault(phone, "accept")

    def cut_push(self, phone: str, after_bytes: int, *, replug_after_s: float | None = None) -> None:
        """Pull the cable in the middle of the next push."""
        self.fault(phone, "cut_push", after_bytes=after_bytes, replug_after_s=replug_after_s)

    def full_disk(self, phone: str, free_bytes: int = 0) -> None:
        """Fill /data up."""
        self.fault(phone, "full_disk", free_bytes=free_bytes)

    def free_disk(self, phone: str) -> None:
        """End `full_disk`."""
        self.fault(phone, "free_disk")

    def server_crash(self, phone: str) -> int:
        """SIGKILL every tvm_rpc; how many there were, on all phones named."""
        return sum(self.fault(phone, "server_crash").values())

    def server_hang(self, phone: str) -> int:
        """SIGSTOP every tvm_rpc; how many there were."""
        return sum(self.fault(phone, "server_hang").values())

    def ignore_sigterm(self, phone: str) -> None:
        """Kernels hang from now on, deaf to SIGTERM."""
        self.fault(phone, "ignore_sigterm")

    def good_kernels(self, phone: str) -> None:
        """End `segfault`, `ignore_sigterm` and `wrong_numbers`."""
        self.fault(phone, "good_kernels")

    def reboot(self, phone: str, *, down_s: float | None = None) -> None:
        """Reboot; returns when it is down."""
        self.fault(phone, "reboot", down_s=down_s)

    def heat(
        self,
        phone: str,
        skin_c: float,
        *,
        cpu_c: float | None = None,
        gpu_c: float | None = None,
        battery_c: float | None = None,
        ramp_s: float = 0.0,
    ) -> None:
        """Heat the phone up; with `ramp_s`, returns at once and takes that long."""
        self.fault(phone, "heat", skin_c=skin_c, cpu_c=cpu_c, gpu_c=gpu_c, battery_c=battery_c, ramp_s=ramp_s)

    def cool(self, phone: str, *, ramp_s: float = 0.0) -> None:
        """Back to an idle phone's temperatures."""
        self.fault(phone, "cool", ramp_s=ramp_s)

    def battery(self, phone: str, level: int, *, charging: bool = False, temp_c: float | None = None) -> None:
        """Set the charge in per cent."""
        self.fault(phone, "battery", level=level, charging=charging, temp_c=temp_c)

    # -- plumbing ----------------------------------------------------------------------------------------------------

    def _call(self, action: str, *, answer_within_s: float = 0.0, **fields: object) -> Any:
        self._last += 1
        order = {"id": self._last, "do": action, **fields}
        self._socket.settimeout(max(TIMEOUT_S, answer_within_s + _ANSWER_MARGIN_S))
        try:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise lab_unreachable_error(f"the lab in {self.directory} did not answer", evidence=str(error)) from error
        if not line:
            raise lab_unreachable_error(f"the lab in {self.directory} ended")
        reply = json.loads(line)
        if reply["ok"]:
            return reply["value"]
        raise _error_of(reply["error"])


def _error_of(record: Mapping[str, str]) -> FarmError:
    if record["code"] == PhoneOffError.code:
        return PhoneOffError(record["message"], hint=record["hint"])
    kinds: dict[str, type[FarmError]] = {Fault.USER: UserError, Fault.PHONE: PhoneError, Fault.HOST: HostError}
    return kinds.get(record["fault"], FarmError)(record["message"], hint=record["hint"])


@contextmanager
def running_lab(
    directory: Path,
    phones: Mapping[str, str],
    *,
    adb_socket: str = "",
    isolation: str | None = None,
    data_bytes: int | None = None,
    expose_python: bool = False,
    arm64: Path | None = None,
    opencl: Path | None = None,
    plugged: bool = True,
    places: Mapping[str, str] | None = None,
    owns_adb: bool = False,
) -> Iterator[LabClient]:
    """Start a lab with `phones` (name -> profile), yield a client, end the lab. It also ends when this process dies.

    `places` are the USB places of some: name -> `1-4.2`. `owns_adb`: the adb server is this process's and must not
    outlive it: the lab ends it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "farm.simulation.lab", "--lifeline", "--dir", os.fspath(directory)]
    for name, profile in phones.items():
        place = (places or {}).get(name, "")
        command += ["--phone", f"{name}={profile}" + (f"@{place}" if place else "")]
    options = {
        "--adb-socket": adb_socket,
        "--isolation": isolation,
        "--data-bytes": data_bytes,
        "--arm64": arm64,
        "--opencl": opencl,
    }
    for option, value in options.items():
        if value:
            command += [option, str(value)]
    if expose_python:
        command.append("--expose-python")
    if not plugged:
        command.append("--unplugged")
    if owns_adb:
        command.append("--owns-adb")
    log_path = directory / "lab.log"
    with log_path.open("ab") as log:
        began = log.tell()
        process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=log, env=_environment())
    try:
        if not _is_ready(process):
            _stop(process)
            with log_path.open("rb") as log:
                log.seek(began)
                raise _start_error(process.returncode, log.read().decode("utf-8", "replace").strip())
        with LabClient(directory) as client:
            yield client
    finally:
        _stop(process)


def _environment() -> dict[str, str]:
    """Ours, with this very package found first: tests and the demo run from a source tree too."""
    paths = [path for path in sys.path if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _is_ready(process: Popen[bytes]) -> bool:
    """Wait for the line that says all phones are up; False when it ended or took too long."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], BOOT_TIMEOUT_S)
    return bool(ready) and process.stdout.readline().strip() == READY_LINE.encode()


def _start_error(exit_code: int, output: str) -> FarmError:
    first = next((line.removeprefix("error: ") for line in output.splitlines() if line.startswith("error: ")), "")
    if exit_code == ExitCode.USAGE and first:
        return UserError(first, evidence=output)
    return lab_unreachable_error(first or f"the lab did not come up (exit code {exit_code})", evidence=output)


def _stop(process: Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except TimeoutExpired:
            process.kill()  # the kernel ends its phones with it
            process.wait(STOP_TIMEOUT_S)
    for pipe in (process.stdout, process.stdin):  # not before: an end of its input means that this process was killed
        if pipe is not None:
            pipe.close()


class PhoneOffError(PhoneError):
    """The virtual phone is off, or went down before it had carried out the order."""

    code = "phone_off"


@dataclass(frozen=True, slots=True)
class PhoneStatus:
    """A phone's state in the lab."""

    name: str
    profile: str
    serial: str  # as adb lists it when the lab plugs it in
    hardware_serial: str  # ro.serialno
    address: str  # host:port its adbd listens on, for `adb connect`
    directory: str
    isolation: str
    pid: int  # of the phone's init on this host; 0 when it is off
    powered: bool
    plugged: bool
    online: bool  # an adb server completed the handshake
    boots: int
    key_shown: str  # the key a person at the phone is asked to accept
    fault: str  # the link's mode, `normal` when nothing is wrong with it
