"""The check worker: golden kernels on one phone. `main` is a zygote child's task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.worker.daemon import Daemon
from farm.worker.golden import run_golden
from farm.worker.session import on_phone, opened


def main(payload: Mapping[str, Any], daemon: Daemon) -> dict[str, Any]:
    """Run the golden kernels for the CPU.

    Raises:
        PhoneError: the phone failed in the session.
        HostError: the bundle's golden files are damaged.
    """
    daemon.progress("opening a session")
    with opened(daemon.open_session()) as session:
        daemon.progress("running the golden kernels")
        with on_phone("running the golden kernels"):
            found = run_golden(session.raw, Path(payload["golden"]))
    return {"ok": found.ok, "detail": found.detail, "max_abs_error": min(found.max_abs_error, 1e300)}
