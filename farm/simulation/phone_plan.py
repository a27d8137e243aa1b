"""What a virtual phone's processes need to know: where its parts are on the host, and what is made of them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from farm.simulation.isolation import Isolation
from farm.simulation.machine import ARM64_DATA, ARM64_PRELOAD, Machine
from farm.simulation.namespaces import RootPlan
from farm.simulation.plain import PlainPhone
from farm.simulation.sensors import DUMPSYS, PROC, SYS
from farm.simulation.state import STATE_ENVIRONMENT, state_folder
from farm.simulation.system_image import SHELL_UID, superuser_program

RUN = "run"  # folder under the phone's directory where its programs say what the lab must know, until the next boot
# As adbd sets it, /system/xbin first where Android has it last on the list of old releases.
_PATH = (
    "/product/bin:/apex/com.android.runtime/bin:/apex/com.android.art/bin:/system_ext/bin:/system/bin:/system/xbin"
    ":/odm/bin:/vendor/bin:/vendor/xbin"
)


@dataclass(frozen=True, slots=True)
class PhonePlan:
    """What the processes need to know. Paths are on the host."""

    directory: Path
    isolation: Isolation
    system: Path | None
    data_bytes: int | None
    expose_python: bool
    arm64: Path | None
    rooted: bool

    @property
    def plain(self) -> PlainPhone:
        """The same for a phone without namespaces."""
        return PlainPhone(self.directory)


def make_data_folders(plan: PhonePlan) -> None:
    """What Android keeps on /data, owned by the shell where the shell may write."""
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
    )


def _python_folders() -> tuple[Path, ...]:
    """The host's interpreter, its library and its packages: what the Python launcher of tvm_rpc needs."""
    wanted = [Path("/usr"), Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()]
    return tuple(
        folder for folder in dict.fromkeys(wanted) if not any(folder != o and folder.is_relative_to(o) for o in wanted)
    )


def machine_of(plan: PhonePlan) -> Machine:
    """What its adbd runs on."""
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
