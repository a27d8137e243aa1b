"""The program that a virtual phone's shell user cannot kill; needs a lab that is root, and a C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from farm.core.errors import HostError
from farm.simulation.state import state_folder

_SOURCE = Path(__file__).with_name("stuck_driver.c")
_COMPILE_LIMIT_S = 60.0


def install_stuck_driver(phone_directory: Path) -> None:
    """Put it where the phone's programs find it, set-uid root. For phones whose shell is another user than the lab.

    Raises:
        HostError: there is no C compiler, or it fails.
    """
    target = state_folder(phone_directory) / "stuck_driver"
    if target.exists():
        return
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        raise HostError("there is no C compiler on this host", hint="apt install gcc")
    temporary = target.with_name(".stuck_driver")
    command = [compiler, "-O1", "-x", "c", str(_SOURCE), "-o", str(temporary)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError("cannot compile stuck_driver.c", hint="is libc6-dev installed?", evidence=str(error)) from error
    temporary.chmod(0o4755)
    temporary.replace(target)
