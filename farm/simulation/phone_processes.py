"""The processes of a virtual phone (world.py names them), each forked from the one before.

Everything below runs in a forked child: nothing returns to the caller, errors travel as text to the process above.
"""

from __future__ import annotations

import asyncio
import ctypes
import encodings.idna  # noqa: F401 - looked up by name at the first connect, when Python's files are out of sight
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from farm.simulation import namespaces
from farm.simulation.machine import ARM64_DATA, ARM64_PRELOAD, OPENCL_CACHE, ConnectionSource, Machine
from farm.simulation.namespaces import Isolation, RootPlan, enter_machine, enter_phone
from farm.simulation.plain import PlainPhone
from farm.simulation.sensors import DUMPSYS, PROC, SYS
from farm.simulation.state import STATE_ENVIRONMENT, state_folder
from farm.simulation.system_image import SHELL_GROUPS, SHELL_UID, superuser_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    AdbdMain = Callable[[ConnectionSource], None]

CONSOLE = "console.log"  # under the phone's directory: what its processes print
_REQUEST_BYTES = 1024
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_LIMIT_S = 5.0
VENDOR = "vendor"  # folder under the phone's directory with an OpenCL driver
RUN = "run"  # folder under the phone's directory where its programs say what the lab must know, until the next boot
# As adbd sets it, /system/xbin first where Android has it last on the list of old releases.
_PATH = (
    "/product/bin:/apex/com.android.runtime/bin:/apex/com.android.art/bin:/system_ext/bin:/system/bin:/system/xbin"
    ":/odm/bin:/vendor/bin:/vendor/xbin"
)


class PhoneExit(IntEnum):
    """How a phone ended (else: 128 + the signal that ended its init)."""

    ADBD_ENDED = 0  # `main` returned
    ADBD_FAILED = 70  # `main` raised: see the console log
    REBOOT = 75  # somebody on the phone asked for a reboot


def run_hardware(plan: PhonePlan, control: socket.socket, main: AdbdMain, lab: int) -> NoReturn:
    """Boot the phone whenever asked through `control`, and tell when it ends; end with the lab."""
    try:
        if plan.isolation is not Isolation.NONE:
            # Without a pid namespace a kill would end us alone; there, the closed control socket tells us to sweep.
            namespaces.die_with_parent(lab)
        _leave_lab(plan, keep=control.fileno())
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        namespaces.set_process_name("phone-hardware")
        if plan.isolation is not Isolation.NONE:
            enter_machine(plan.isolation)
            if plan.data_bytes is not None:
                data = plan.directory / "data"
                namespaces.mount("tmpfs", data, "tmpfs", namespaces.Mount.NO_DEV, f"size={plan.data_bytes},mode=0771")
        make_data_folders(plan)
        while True:
            # recv_fds would not set close-on-exec on what it receives; nothing is executed here.
            request, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 1)
            if not request:
                os._exit(0)
            _boot_once(plan, control, socket.socket(fileno=descriptors[0]), main)
    except BaseException as error:  # noqa: BLE001 - a forked child must not run on into its parent's code
        _report_and_exit(control, error)


def _boot_once(plan: PhonePlan, control: socket.socket, line: socket.socket, main: AdbdMain) -> None:
    """One run of the phone, from its init's birth until its last process is gone."""
    ready, ready_init = os.pipe()
    if plan.isolation is Isolation.NONE:
        pid = os.fork()
        if pid == 0:
            _run_init(plan, line, main, ready_init, os.getppid())
    else:
        pid = _fork_into_namespaces(plan, line, main, ready_init)
    os.close(ready_init)
    line.close()
    with os.fdopen(ready, "rb") as pipe:
        answer = pipe.read().decode("utf-8", "replace")
    if answer == "ok":
        control.send(json.dumps({"up": pid}).encode())
    else:
        control.send(json.dumps({"failed": answer or "init died at once"}).encode())
    lifeline = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(control, select.POLLHUP)  # the lab closed its end: switch off
    for descriptor, _ in poll.poll():
        if descriptor == control.fileno():
            os.kill(pid, signal.SIGKILL)
    os.close(lifeline)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _sweep()
    if answer == "ok":
        control.send(json.dumps({"down": code if code >= 0 else 128 - code}).encode())


def _fork_into_namespaces(plan: PhonePlan, line: socket.socket, main: AdbdMain, ready: int) -> int:
    """Start init as pid 1 of fresh namespaces; returns its pid as seen from here.

    A process can make only one pid namespace for its children, so a helper does it and leaves init to us (we are the
    subreaper).
    """
    reading_end, writing_end = os.pipe()
    adopted, adopt = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            os.close(reading_end)
            os.close(adopt)
            enter_phone()
            init = os.fork()
            if init == 0:
                os.close(writing_end)
                # Wait for the end of the file: only a parent that stays may become the one we die with.
                os.read(adopted, 1)
                os.close(adopted)
                _run_init(plan, line, main, ready, 0)
            os.write(writing_end, str(init).encode())
        except OSError as error:
            os.write(ready, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing_end)
    os.close(adopted)
    with os.fdopen(reading_end, "rb") as pipe:
        pid = pipe.read()
    os.waitpid(helper, 0)  # from here on init is our child
    os.close(adopt)
    if not pid:
        raise OSError("the kernel refuses new namespaces")
    return int(pid)


def _run_init(plan: PhonePlan, line: socket.socket, main: AdbdMain, ready: int, parent: int) -> NoReturn:
    """Be init: build the root, start adbd, reap whatever ends, end with adbd."""
    code = int(PhoneExit.ADBD_FAILED)
    try:
        # Inside a pid namespace the parent's pid reads 0.
        namespaces.die_with_parent(parent)
        os.setsid()
        namespaces.set_process_name("init")
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        root = Path("/")
        if plan.isolation is Isolation.NONE:
            root = plan.plain.root
        else:
            namespaces.unshare(namespaces.CLONE_NEWNS)
            namespaces.enter_root(root_plan(plan))
            namespaces.raise_loopback()
            socket.sethostname("localhost")
        _restore_properties(root)
        buttons = namespaces.make_fifo(root / "dev/socket/farm_init")
        waker, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        machine = machine_of(plan)
        adbd = os.fork()
        if adbd == 0:
            signal.set_wakeup_fd(-1)
            for descriptor in (buttons, waker, wake):
                os.close(descriptor)
            _run_adbd(plan, line, machine, main, ready)
        os.close(ready)
        line.close()
        code = _reap_until_end(adbd, buttons, waker)
    except BaseException as error:  # noqa: BLE001 - as above
        traceback.print_exc()
        _report(ready, f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _reap_until_end(adbd: int, buttons: int, waker: int) -> int:
    poll = select.poll()
    poll.register(buttons, select.POLLIN)
    poll.register(waker, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            pressed = os.read(descriptor, _REQUEST_BYTES)
            if descriptor == buttons and b"reboot" in pressed:
                return PhoneExit.REBOOT
        while (ended := _collect_child()) is not None:
            pid, code = ended
            if pid == adbd:
                return code


def _collect_child() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return pid, code if code >= 0 else 128 - code


def _run_adbd(plan: PhonePlan, line: socket.socket, machine: Machine, main: AdbdMain, ready: int) -> NoReturn:
    code = PhoneExit.ADBD_FAILED
    try:
        namespaces.set_process_name("adbd")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(machine.environment)
        if plan.isolation is Isolation.FULL and not plan.rooted:
            os.setgroups(SHELL_GROUPS)
            os.setresgid(SHELL_UID, SHELL_UID, SHELL_UID)
            os.setresuid(SHELL_UID, SHELL_UID, SHELL_UID)
            _prctl(_PR_SET_DUMPABLE, 1)  # dropped with the uid; without it /proc/self is root's
        _report(ready, "ok")
        main(ConnectionSource(line, machine))
        code = PhoneExit.ADBD_ENDED
    except BaseException:  # noqa: BLE001 - as above
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# ---- surroundings --------------------------------------------------------------------------------------------------


def _leave_lab(plan: PhonePlan, keep: int) -> None:
    """Let go of everything the lab has: descriptors (another phone's cable must end when the lab pulls it), signals."""
    asyncio._set_running_loop(None)  # noqa: SLF001 - documented for whoever implements loops; after a fork we must
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    gc.freeze()
    console = os.open(plan.directory / CONSOLE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(console, 1)
    os.dup2(console, 2)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, keep)
    os.closerange(keep + 1, limit)
    # The lab may have redirected these objects (pytest does); they shall mean the console again.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)


def _restore_properties(root: Path) -> None:
    """Properties that survive a reboot (persist.*) are set again."""
    target = root / "dev/__properties__/set"
    for saved in (root / "data/property").iterdir():
        (target / saved.name).write_bytes(saved.read_bytes())


def _sweep() -> None:
    """End the processes that a phone without namespaces left: as the subreaper we inherited them."""
    deadline = time.monotonic() + _SWEEP_LIMIT_S
    while time.monotonic() < deadline:
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _report(pipe: int, text: str) -> None:
    """Answer once, and close: the reader waits for the end of the file."""
    try:
        os.write(pipe, text.encode())
        os.close(pipe)
    except OSError:
        return  # reported before


def _report_and_exit(control: socket.socket, error: BaseException) -> NoReturn:
    traceback.print_exc()
    sys.stderr.flush()
    try:
        control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
    finally:
        os._exit(1)


@dataclass(frozen=True, slots=True)
class PhonePlan:
    """Settings of the phone's processes. Paths are on the host."""

    directory: Path
    isolation: Isolation
    system: Path | None
    data_bytes: int | None
    expose_python: bool
    arm64: Path | None
    rooted: bool
    vendor: Mapping[str, Path]  # of a phone with an OpenCL driver: path below /vendor -> folder shown there

    @property
    def plain(self) -> PlainPhone:
        """The same for a phone without namespaces."""
        return PlainPhone(self.directory)


def make_data_folders(plan: PhonePlan) -> None:
    """Make Android's folders on /data, owned by the shell where the shell may write."""
    data = plan.directory / "data"
    modes = {
        "": 0o771,
        "local": 0o751,
        "local/tmp": 0o771,
        "app": 0o771,
        "media": 0o770,
        "media/0": 0o770,
        "property": 0o700,
        "system": 0o775,
        "system/settings": 0o771,
    }
    if plan.vendor:
        modes |= {str(parent): 0o771 for parent in (Path(OPENCL_CACHE).parent, Path(OPENCL_CACHE))}
    for name, mode in modes.items():
        folder = data / name
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
        if plan.isolation is Isolation.FULL and not plan.rooted and name not in ("", "local", "system"):
            os.chown(folder, SHELL_UID, SHELL_UID)
    for name in ("properties", "properties/set", RUN):
        if plan.isolation is Isolation.FULL:
            os.chown(plan.directory / name, SHELL_UID, SHELL_UID)


def root_plan(plan: PhonePlan) -> RootPlan:
    """The phone's root."""
    assert plan.system is not None
    directory = plan.directory
    return RootPlan(
        mount_point=directory / "root",
        system=plan.system,
        data=directory / "data",
        sys=directory / SYS,
        state=state_folder(directory),
        dumpsys=directory / DUMPSYS,
        run=directory / RUN,
        # Where the shell has another uid than the files, the kernel says "Permission denied", as on a phone.
        sys_writable=plan.rooted or plan.isolation is Isolation.FULL,
        programs={"su": superuser_program()} if plan.rooted else {},
        properties=directory / "properties",
        proc_files={
            "cpuinfo": directory / PROC / "cpuinfo",
            "loadavg": directory / PROC / "loadavg",
            "meminfo": directory / PROC / "meminfo",
            "sys/kernel/random/boot_id": directory / PROC / "boot_id",
        },
        host_folders=(*(_python_folders() if plan.expose_python else ()), *filter(None, [plan.arm64])),
        vendor=plan.vendor,
    )


def _python_folders() -> tuple[Path, ...]:
    """The host's interpreter, its library and its packages, for the Python launcher of tvm_rpc."""
    wanted = [Path("/usr"), Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()]
    return tuple(
        folder for folder in dict.fromkeys(wanted) if not any(folder != o and folder.is_relative_to(o) for o in wanted)
    )


def machine_of(plan: PhonePlan) -> Machine:
    """The machine that its adbd runs on."""
    environment = {
        "PATH": _PATH,
        "ANDROID_ROOT": "/system",
        "ANDROID_DATA": "/data",
        "ANDROID_STORAGE": "/storage",
        "EXTERNAL_STORAGE": "/sdcard",
        "HOME": "/",
        "HOSTNAME": "localhost",
        "LOGNAME": "shell",
        "USER": "shell",
        "SHELL": "/bin/sh",
        "TMPDIR": "/data/local/tmp",
        STATE_ENVIRONMENT: "/dev/farm/state",
    }
    if plan.arm64 is not None:
        data = plan.directory / "data" if plan.isolation is Isolation.NONE else Path("/data")
        environment |= {"LD_PRELOAD": str(plan.arm64 / ARM64_PRELOAD), ARM64_DATA: str(data)}
    return plan.plain.machine(environment) if plan.isolation is Isolation.NONE else Machine(environment=environment)
