"""A virtual phone's machine: boots it, hands it connections, reboots it, and leaves nothing behind.

Per phone three processes, forked from the lab (so they share its memory):

- *hardware* stays outside the phone's pid namespace and survives reboots; it holds /data when that is a tmpfs;
- *init* is pid 1 of the phone: it reaps, and ends when adbd ends or a process on the phone runs `reboot`;
- *adbd* runs the caller's `main` as uid 2000 (shell), as on a phone.

Each is killed by the kernel when the one above it dies, and the end of init ends every process and mount of the phone.
docs/virtual-phone.md describes the three levels of isolation.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from farm.common.errors import HostError
from farm.simulation import phone_processes
from farm.simulation.machine import (
    CONNECTION_MESSAGE,
    DRIVER_FOLDER,
    VENDOR_DRIVER,
    VENDOR_HOST,
    ConnectionSource,
    LabLine,
    line_pair,
)
from farm.simulation.namespaces import Isolation, detect_isolation
from farm.simulation.phone_processes import RUN, PhoneExit, PhonePlan
from farm.simulation.profiles import ARM64_ABI, VIRTUAL_ABI, format_properties, load_profile, serial_of
from farm.simulation.sensors import DUMPSYS, SYS, apply_state, render_constant, write_files, write_links
from farm.simulation.state import PhoneState, new_boot_id, read_state, state_folder, write_state
from farm.simulation.system_image import build_system, device_programs, find_userland, superuser_program

if TYPE_CHECKING:
    from collections.abc import Callable


_BOOT_LIMIT_S = 30.0  # an idle host needs 0.05; thirty phones booting on two loaded cores take their time
_END_LIMIT_S = 10.0
_MESSAGE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A phone to boot. Everything it keeps is under `directory` on the host; `name` decides its serial number."""

    name: str
    directory: Path
    profile: str
    isolation: Isolation | None = None  # None: the best this host allows
    data_bytes: int | None = None  # /data is a tmpfs of this size: `df` and ENOSPC are real. None: a folder of the host
    expose_python: bool = False  # the runtime bundle is the Python launcher, which needs the host's interpreter
    arm64: Path | None = None  # an arm64 phone: the folder of `farm.simulation.arm64`, shown at its own path
    rooted: bool = False  # its shell is root, as after `adb root`: clocks can be set
    opencl: Path | None = None  # a phone with an OpenCL device: the folder of `farm.simulation.opencl`, for /vendor

    @property
    def serial(self) -> str:
        """The phone's serial number (ro.serialno)."""
        return serial_of(self.name, load_profile(self.profile))


class Booted:
    """A phone that was booted. Call from the thread that booted it; close it in the end."""

    def __init__(self, spec: WorldSpec, isolation: Isolation, control: socket.socket, hardware_pid: int) -> None:
        self.spec = spec
        self.isolation = isolation
        self.pid = 0  # of the phone's init, on the host; 0 while the phone is off
        self.exit_code: int | None = None  # of the last run (PhoneExit, or 128 + signal)
        self._control = control
        self._hardware_pid = hardware_pid
        self._line: LabLine | None = None

    @property
    def running(self) -> bool:
        """Whether the phone is on, as far as its events have been read."""
        return self.pid != 0

    def start(self) -> None:
        """Switch the phone on: fresh namespaces, new boot id, same /data."""
        _begin_boot(self.spec)
        ours, theirs = line_pair()
        with theirs:
            socket.send_fds(self._control, [b"boot"], [theirs.fileno()])
        event = self._next_event(_BOOT_LIMIT_S)
        if "up" not in event:
            ours.close()
            raise HostError(
                f"virtual phone {self.spec.name} did not boot",
                hint=f"see {self.spec.directory / phone_processes.CONSOLE}",
                evidence=str(event.get("failed", event)),
            )
        self._line, self.pid, self.exit_code = LabLine(ours), int(str(event["up"])), None

    @property
    def line(self) -> LabLine:
        """The lab's end of the line to adbd."""
        if self._line is None:
            raise HostError(f"virtual phone {self.spec.name} is off")
        return self._line

    def pass_connection(self, connection: socket.socket) -> None:
        """Give a connected socket to adbd; the caller still has to close its own copy."""
        self.line.send(CONNECTION_MESSAGE, connection)

    def fileno(self) -> int:
        """For an event loop: readable when `read_event` has something."""
        return self._control.fileno()

    def read_event(self) -> None:
        """Take the event that made `fileno()` readable: the phone ended by itself; `exit_code` says how."""
        self._went_down(self._next_event(0.0))

    def kill(self) -> None:
        """Power cut: every process of the phone dies at once, /data stays. Returns when it is down."""
        if not self.running:
            return
        # It may have gone down by itself a moment ago: then its event is on the way.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._went_down(self._next_event(_END_LIMIT_S))

    def reboot(self) -> None:
        """Power cut and start. Every socket the phone had is gone."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Switch off for good and take the hardware away; the folder stays. May be called twice."""
        if self._hardware_pid == 0:
            return
        try:
            self.kill()
        finally:
            self._control.close()  # the hardware process ends at once
            os.waitpid(self._hardware_pid, 0)
            self._hardware_pid = 0

    def _went_down(self, event: dict[str, object]) -> None:
        self.exit_code = int(str(event["down"]))
        self.pid = 0
        if self._line is not None:
            self._line.close()
            self._line = None

    def _next_event(self, limit_s: float) -> dict[str, object]:
        ready, _, _ = select.select([self._control], [], [], limit_s)
        data = self._control.recv(_MESSAGE_BYTES) if ready else b""
        if not data:
            raise HostError(
                f"virtual phone {self.spec.name}: its hardware process "
                f"{'is gone' if ready else f'did not answer in {limit_s:.0f} s'}",
                evidence=f"pid {self._hardware_pid}",
            )
        event: dict[str, object] = json.loads(data)
        return event


def boot(spec: WorldSpec, main: Callable[[ConnectionSource], None]) -> Booted:
    """Make a phone and switch it on; `main` runs as its adbd, and the phone ends with it.

    Call from a thread that lives as long as the phone shall (the main thread): the kernel kills the phone with it.
    `main` must have imported everything it needs beforehand: inside, Python's own files are out of sight.
    """
    isolation = spec.isolation or detect_isolation()
    plan = _prepare(spec, isolation)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lab = os.getpid()
    pid = os.fork()
    if pid == 0:
        phone_processes.run_hardware(plan, theirs, main, lab)
    theirs.close()
    booted = Booted(spec, isolation, ours, pid)
    try:
        booted.start()
    except BaseException:
        booted.close()
        raise
    return booted


def _prepare(spec: WorldSpec, isolation: Isolation) -> PhonePlan:
    """Lay out the phone's folder on the host."""
    profile = load_profile(spec.profile)
    directory = spec.directory.resolve()
    for name in ("root", "data", SYS, DUMPSYS, "properties/set", RUN):
        (directory / name).mkdir(parents=True, exist_ok=True)
    write_files(directory, render_constant(profile))
    write_links(directory, profile)
    system: Path | None = None
    if isolation is not Isolation.NONE:
        userland = find_userland()
        if userland is None:
            raise HostError(
                "mksh and toybox are needed for phones in namespaces",
                hint="apt install mksh toybox, or --isolation none",
            )
        system = build_system(directory.parent, userland)
    plan = PhonePlan(
        directory=directory,
        isolation=isolation,
        system=system,
        data_bytes=spec.data_bytes,
        expose_python=spec.expose_python,
        arm64=spec.arm64,
        rooted=spec.rooted,
        vendor=_install_driver(spec, isolation),
    )
    if isolation is Isolation.NONE:
        programs = device_programs("/bin/sh", root=str(plan.plain.root))
        if spec.rooted:
            programs["su"] = superuser_program("/bin/sh")
        plan.plain.lay_out(programs)
    return plan


def _install_driver(spec: WorldSpec, isolation: Isolation) -> dict[str, Path]:
    """Copy the OpenCL driver, which a fault may replace, to the phone's /vendor; returns what is shown there."""
    if spec.opencl is None:
        return {}
    if isolation is Isolation.NONE:
        raise HostError(
            f"virtual phone {spec.name} cannot have an OpenCL driver without namespaces",
            hint="apt install mksh toybox, or leave out +opencl",
        )
    vendor = spec.directory.resolve() / phone_processes.VENDOR
    shutil.copytree(spec.opencl, vendor, dirs_exist_ok=True)
    shown = {"": vendor, VENDOR_HOST: Path("/usr")}
    if (named := vendor / DRIVER_FOLDER).exists():
        shown[VENDOR_DRIVER] = Path(named.read_text("utf-8"))
    for name in shown:
        (vendor / name).mkdir(exist_ok=True)
    return shown


def _begin_boot(spec: WorldSpec) -> None:
    """Make the files that are new at every boot: boot id, uptime, properties."""
    profile = load_profile(spec.profile)
    directory = spec.directory.resolve()
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    folder = state_folder(directory)
    state = read_state(folder) if (folder / "state.json").is_file() else PhoneState()
    state = replace(state, boot_id=new_boot_id(), booted_at_s=now, knobs={}, gpu_resets=0, kernel_log=())
    write_state(directory, state)
    apply_state(directory, profile, state)
    properties = directory / "properties"
    text = format_properties(
        profile.properties(
            spec.serial,
            ARM64_ABI if spec.arm64 else VIRTUAL_ABI,
            rooted=spec.rooted,
            opencl=spec.opencl is not None,
        )
    )
    (properties / "all").write_bytes(text.encode("utf-8", "surrogateescape"))
    for stale in (properties / "set").iterdir():
        stale.unlink()


__all__ = ["Booted", "ConnectionSource", "Isolation", "PhoneExit", "WorldSpec", "boot"]
