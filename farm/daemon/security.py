"""Who may come in and what is written down of them: accounts, the audit log, the door for people elsewhere."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from farm.config import FarmConfig
from farm.control.accounts import Accounts
from farm.control.audit import OK, AuditTrail
from farm.control.callers import Caller, Role
from farm.control.curve_entrance import CurveEntrance
from farm.core.errors import NotAllowedError
from farm.core.requests import Lease
from farm.daemon.memory import Memory
from farm.jobs.lease import LeaseExecutor


@dataclass(frozen=True, slots=True)
class Security:
    """The parts that know people."""

    accounts: Accounts
    audit: AuditTrail
    elsewhere: CurveEntrance | None  # None: nobody comes from elsewhere


def open_security(
    config: FarmConfig, stack: contextlib.AsyncExitStack, memory: Memory, personal: LeaseExecutor
) -> Security:
    """Build them; the door opens with the job door.

    `personal` tells what goes through the adb servers of leases.
    """
    accounts = Accounts(memory.store.accounts)
    audit = AuditTrail(memory.store.audit)
    stack.push_async_callback(audit.close)
    elsewhere = None
    if config.control.listen:
        elsewhere = CurveEntrance(config.control.listen, accounts, config.state_dir / "keys" / "server.key")

    def adb_used(lease: Lease, service: str, allowed: bool) -> None:
        caller = Caller(lease.request.user, Role.USER, f"adb of {lease.id}")
        audit.tell_later(caller, f"adb.{service}", lease.device, OK if allowed else NotAllowedError.code)

    personal.adb_used = adb_used
    return Security(accounts, audit, elsewhere)
