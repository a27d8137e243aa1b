"""Checks phones for the fleet: golden kernels in a worker of their own per check.

One forked child per check instead of one long-lived checker with threads: it costs a few milliseconds, and a phone that
hangs takes down its own check only. The child is killed at the time limit like any other worker.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from farm.bundle.model import Bundle, CheckResult
from farm.common.errors import Code, HostError, PhoneError
from farm.jobs.attempt import AttemptTimeoutError, SessionOffer, Task
from farm.jobs.supervisor import Supervisor

WORKER = "farm.worker.checker"
CHECK_LIMIT_S = 30.0  # 0.1 s on a healthy phone; a cold GPU driver compiles OpenCL kernels for several seconds
MAX_AT_ONCE = 8  # a hub of phones comes up at once; more workers than this only share the same cores

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Host:
    """The daemon's side of a check's worker."""

    device: str
    key: Callable[[str], str]
    gate: Callable[[], tuple[str, int]]
    step: str = "starting"  # the latest: where a check hangs, as in a GPU's driver that does not return

    async def open_session(self, lease: str) -> SessionOffer:  # noqa: ARG002 - a check has one phone
        host, port = self.gate()
        return SessionOffer(host, port, self.key(self.device))

    async def abort_session(self, lease: str, reason: str) -> None:
        """Nothing to cut: the phone is the fleet's, which acts on the report."""

    def progressed(self, step: str, fields: Mapping[str, Any]) -> None:  # noqa: ARG002
        self.step = step

    def logged(self, text: str, level: str) -> None:
        """Failures are in the report; the rest helps only to find a fault in farm."""
        logger.debug("check of %s: %s %s", self.device, level, text)

    def yield_wanted(self) -> bool:
        """No job waits for a phone that is being checked: it is the fleet's."""
        return False


class FarmChecker:
    """Implements farm.devices.agent_work.Checker."""

    def __init__(
        self,
        workers: Supervisor,
        *,
        key: Callable[[str], str],
        gate: Callable[[], tuple[str, int]],
        gate_gone_at: Callable[[], float] = lambda: -math.inf,
        limit_s: float = CHECK_LIMIT_S,
    ) -> None:
        """`key`: a match key for a phone that is being checked (Leasing.checking_key). `gate`: the TVM server.

        `gate_gone_at`: when it was last away, in the loop's time.
        """
        self._workers = workers
        self._key = key
        self._gate = gate
        self._gate_gone_at = gate_gone_at
        self._limit_s = limit_s
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    async def check(self, device: str, bundle: Bundle) -> CheckResult:
        """Run the bundle's golden kernels on a phone: the CPU's, and OpenCL's where bundle and phone have it.

        Raises:
            PhoneError: the phone hangs, or the phone failed in the session.
            HostError: the worker or its toolchain failed, or the gate was away.
        """
        async with self._places:
            payload = {"golden": str(bundle.golden_dir), "kinds": [*bundle.golden_kinds]}
            task = Task(f"check-{secrets.token_hex(6)}", 0, WORKER, payload, self._limit_s)
            host, began_s = _Host(device, self._key, self._gate), asyncio.get_running_loop().time()
            try:
                found = await self._workers.run(bundle.toolchain, task, host)
            except AttemptTimeoutError as error:
                raise PhoneError(
                    f"{device} did not finish the golden kernels within {self._limit_s:g} s ({host.step})",
                    Code.CHECK_TIMEOUT,
                    evidence=error.message,
                ) from error
            except PhoneError as error:
                if self._gate_gone_at() < began_s:
                    raise
                raise HostError(code=Code.GATE_GONE, evidence=error.message) from error
            return CheckResult(**found)
