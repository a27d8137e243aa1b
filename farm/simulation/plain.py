"""A phone without namespaces: a folder of the host that commands take for the phone's root, and back.

There the kernel separates nothing. What a phone's root would do is done to text: paths of the phone in a command line
get the folder in front, and the folder's name disappears from whatever the command prints.
docs/virtual-phone.md says what such a phone lacks.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm.simulation.machine import Machine
from farm.simulation.sensors import DUMPSYS, PROC, SYS
from farm.simulation.state import STATE_ENVIRONMENT, state_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What commands name and such a phone keeps in its folder; everything else is the host's.
_PHONE_PATHS = (
    "data", "sdcard", "storage", "system", "vendor", "sys/class", "sys/devices", "dev/farm", "dev/__properties__",
    "dev/socket", "proc/cpuinfo", "proc/loadavg", "proc/meminfo", "proc/sys/kernel/random/boot_id",
)  # fmt: skip
_PHONE_PATH = re.compile(
    rf"(?<![\w./:-])/(?:{'|'.join(map(re.escape, _PHONE_PATHS))})(?![\w-])"
    r"|(?<=\bcd )/(?![^\s;&|])"  # the root alone: anywhere else it may be a division or part of a pattern
)
_BOOT_ID_FILE = "FARM_BOOT_ID_FILE"  # device_scripts/processes.sh: a pushed script is not rewritten
_NAME_BYTE = rb"[\w.-]"


@dataclass(frozen=True, slots=True)
class PlainPhone:
    """Where such a phone is. `directory` is absolute, without symbolic links."""

    directory: Path

    @property
    def root(self) -> Path:
        """The folder that stands for the phone's `/`."""
        return self.directory / "root"

    @property
    def links(self) -> Mapping[str, Path]:
        """The root's entries, each with its folder on the host."""
        directory = self.directory
        return {
            "data": directory / "data",
            "sys": directory / SYS,
            "sdcard": directory / "data/media/0",
            "storage/self/primary": directory / "data/media/0",
            "dev/farm/state": state_folder(directory),
            "dev/farm/dumpsys": directory / DUMPSYS,
            "dev/farm/run": directory / "run",
            "dev/__properties__": directory / "properties",
            "proc/cpuinfo": directory / PROC / "cpuinfo",
            "proc/loadavg": directory / PROC / "loadavg",
            "proc/meminfo": directory / PROC / "meminfo",
            "proc/sys/kernel/random/boot_id": directory / PROC / "boot_id",
            "system/bin/sh": Path("/bin/sh"),
        }

    def lay_out(self, programs: Mapping[str, str]) -> None:
        """Fill the root: links to its parts, and the phone's programs for the host's shell."""
        for name in ("system/bin", "vendor/lib64", "dev/farm", "dev/socket", "proc/sys/kernel/random", "storage/self"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name, target in self.links.items():
            link = self.root / name
            if not link.is_symlink():
                link.symlink_to(target)
        for name, text in programs.items():
            program = self.root / "system/bin" / name
            program.write_text(text, "utf-8")
            program.chmod(0o755)
        (self.root / "dev/socket/farm_init").unlink(missing_ok=True)

    def machine(self, environment: Mapping[str, str]) -> Machine:
        """For adbd. `environment` is a phone's; variables that name paths are replaced."""
        root = str(self.root)
        inside = {
            **environment,
            "PATH": f"{root}/system/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": f"{root}/data/local/tmp",
            "TMPDIR": f"{root}/data/local/tmp",
            STATE_ENVIRONMENT: str(state_folder(self.directory)),
            _BOOT_ID_FILE: f"{root}/proc/sys/kernel/random/boot_id",
        }
        names = self._names_outside()

        def shell_argv(command: str) -> Sequence[str]:
            # A phone's shell starts in /, and relative paths must not end up in the lab's folder.
            rest = rewrite_paths(command, root) if command else "exec /bin/sh -"
            return ["/bin/sh", "-c", f"cd {shlex.quote(root)}; {rest}"]

        def translate(path: bytes) -> bytes:
            return os.fsencode(root) + path if path.startswith(b"/") else os.fsencode(root) + b"/" + path

        return Machine(inside, shell_argv, translate, lambda: PathFilter(names))

    def _names_outside(self) -> Mapping[bytes, bytes]:
        """The host's name of each folder -> the phone's."""
        names = {os.fsencode(self.root): b"/"}
        for inside, outside in self.links.items():
            # What is below /data/media is below /data.
            if outside.is_relative_to(self.directory) and not outside.is_relative_to(self.directory / "data/media"):
                names[os.fsencode(outside)] = b"/" + os.fsencode(inside)
        return names


def rewrite_paths(command: str, root: str) -> str:
    """Put `root` before every absolute path of the phone in a command line."""
    return _PHONE_PATH.sub(lambda match: root + match[0].rstrip("/"), command)


class PathFilter:
    """Gives the host's names of a phone's folders in a stream of bytes back their names on the phone.

    A name may arrive in pieces: what could become one is kept until the next bytes decide. Bytes that hold no such
    name pass unchanged, binary or not.
    """

    def __init__(self, names: Mapping[bytes, bytes]) -> None:
        self._names = names
        self._longest = max(map(len, names))
        alternatives = b"|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        self._pattern = re.compile(rb"(?:" + alternatives + rb")(?!" + _NAME_BYTE + rb")")
        self._kept = b""

    @property
    def pending(self) -> bool:
        """Whether bytes are kept back."""
        return bool(self._kept)

    def feed(self, data: bytes) -> bytes:
        """The next bytes; returns those that are final by now."""
        data = self._kept + data
        start = self._undecided(data)
        self._kept = data[start:]
        return self._replace(data[:start])

    def flush(self) -> bytes:
        """The kept bytes, unchanged: nothing more comes, or not soon."""
        kept, self._kept = self._kept, b""
        return self._replace(kept)

    def _undecided(self, data: bytes) -> int:
        """Where the first name begins that the end of `data` may have cut, or whose next byte is not known."""
        start = data.find(b"/", max(0, len(data) - self._longest))
        while start >= 0:
            tail = data[start:]
            if any(name.startswith(tail) for name in self._names):
                # A name right before it needs its next byte too.
                return start - max((len(name) for name in self._names if data.endswith(name, 0, start)), default=0)
            start = data.find(b"/", start + 1)
        return len(data)

    def _replace(self, data: bytes) -> bytes:
        return self._pattern.sub(self._inside, data)

    def _inside(self, match: re.Match[bytes]) -> bytes:
        name = self._names[match[0]]
        below = match.string[match.end() : match.end() + 1] == b"/"
        return name.rstrip(b"/") if below else name
