"""Where the daemon's folders are by default. Imported by `farm status`, so the standard library must do."""

from __future__ import annotations

import os
from pathlib import Path


def default_state_dir() -> Path:
    """/var/lib/farm for root, else the user's state folder."""
    if os.geteuid() == 0:
        return Path("/var/lib/farm")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "farm"


def default_runtime_dir() -> Path:
    """/run/farm for root, else the user's runtime folder."""
    if os.geteuid() == 0:
        return Path("/run/farm")
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "farm" if base else Path(f"/tmp/farm-{os.geteuid()}")  # noqa: S108 (farm.control.runtime_folder checks its owner)
