"""Where things of ours are on a phone: one folder, so that one removal leaves nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import farm

ROOT = "/data/local/tmp/farm"  # /data/local/tmp: the one place the shell user may write to and execute from
BIN = f"{ROOT}/bin"
BUNDLES = f"{ROOT}/bundles"
PROGRAMS = f"{ROOT}/programs"  # folders of programs' files and models, named by hash, and the work folder of an attempt
INCOMING = ".incoming-"  # prefix of a bundle's folder until it is complete
MARKER = ".complete"  # written last; holds the hash of what its folder should be
SUPERVISE = f"{BIN}/rpc_supervise.sh"
REAP = f"{BIN}/reap.sh"
LEASE = f"{BIN}/lease.sh"
QUIESCE = f"{BIN}/quiesce.sh"
CHARGE = f"{BIN}/charge.sh"
CORES = f"{BIN}/cores.sh"
MEMORY = f"{BIN}/memory.sh"
GAUGE = f"{BIN}/gauge.sh"
UNTETHERED = f"{BIN}/untethered.sh"
QUIESCE_LOCK = f"{ROOT}/quiesce.lock"  # there since the first measurement
LEDGER = f"{ROOT}/quiesce/ledger"  # exists while values on the phone differ from those before a measurement
NOTE = f"{ROOT}/lease/boot"  # there from `lease.sh begin` to the end of `lease.sh clean`

_SCRIPTS = (
    "processes.sh", "rpc_supervise.sh", "reap.sh", "lease.sh", "phone_values.sh", "quiesce.sh", "charge.sh",
    "cores.sh", "memory.sh", "gauge.sh", "untethered.sh",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """One of the device scripts shipped with farm."""

    name: str
    local: Path
    size: int  # bytes
    sha256: str


def scripts_folder() -> Path:
    """Where the device scripts are: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(farm.__file__).parent
    return next(place for place in (package / "device_scripts", package.parent / "device_scripts") if place.is_dir())


@cache
def scripts() -> tuple[Script, ...]:
    """The scripts that are kept on a phone, read once."""
    folder = scripts_folder()
    return tuple(_read(folder / name) for name in _SCRIPTS)


def scripts_hash() -> str:
    """It names their version."""
    return hashlib.sha256("".join(file.sha256 for file in scripts()).encode()).hexdigest()


def scripts_changed() -> bool:
    """Whether the files differ from those that were read: farm was upgraded under its daemon. Blocks."""
    try:
        return any(_read(file.local) != file for file in scripts())
    except OSError:
        return True


def _read(path: Path) -> Script:
    content = path.read_bytes()
    return Script(path.name, path, len(content), hashlib.sha256(content).hexdigest())


def bundle_folder(bundle_hash: str) -> str:
    """A complete bundle's folder."""
    return f"{BUNDLES}/{bundle_hash}"


def incoming_folder(bundle_hash: str) -> str:
    """The same bundle's folder while it is being pushed."""
    return f"{BUNDLES}/{INCOMING}{bundle_hash}"
