"""The check worker: golden kernels on one phone. `main` runs in the zygote's fork."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from farm.bundle.model import KIND_OPENCL, CheckResult
from farm.common.errors import Code, ModelError, PhoneError
from farm.worker.channel import DaemonChannel
from farm.worker.golden import run_golden
from farm.worker.session import PhoneSession, on_phone, opened


def main(payload: Mapping[str, Any], daemon: DaemonChannel) -> dict[str, Any]:
    """Run the bundle's golden kernels: for the CPU, and for OpenCL if it has any and the phone a driver.

    A phone without an OpenCL driver is a healthy phone; the detail says so.
    """
    daemon.progress("opening a session")
    with opened(daemon.open_session()) as session:
        golden = Path(payload["golden"])
        daemon.progress("running the golden kernels")
        with on_phone("golden kernels"):
            found = run_golden(session.raw, golden)
        if found.ok and KIND_OPENCL in payload["kinds"]:
            found = _with_opencl(found, session, golden, daemon)
        elif found.ok:
            found = replace(found, detail=f"{found.detail}; its bundle has none for OpenCL")
    return asdict(found)


def _with_opencl(cpu: CheckResult, session: PhoneSession, golden: Path, daemon: DaemonChannel) -> CheckResult:
    if not session.has_device("opencl"):
        return replace(cpu, detail=f"{cpu.detail}; no OpenCL driver, so its golden kernels were not run")
    daemon.progress("running the golden kernels for OpenCL")
    try:
        with on_phone("golden kernels for OpenCL"):
            gpu = run_golden(session.raw, golden, KIND_OPENCL)
    except ModelError as error:  # any driver in order builds these kernels
        raise PhoneError(error.message, Code.SESSION_FAILED, evidence=error.evidence) from error
    if not gpu.ok:
        return gpu
    return CheckResult(True, f"{cpu.detail}; {gpu.detail}", {**cpu.fastest_s, **gpu.fastest_s})
