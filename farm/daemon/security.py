"""Who may come in: accounts, the door for people elsewhere; and what is written down of leased adb."""

from __future__ import annotations

from dataclasses import dataclass

from farm.config import FarmConfig
from farm.control.accounts import Accounts
from farm.control.audit import OK, WRONG_KEY
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
    elsewhere: CurveEntrance | None  # None: nobody comes from elsewhere


def open_security(config: FarmConfig, memory: Memory, personal: LeaseExecutor) -> Security:
    """Build them; the door opens with the job door.

    `personal` tells what goes through the adb servers of leases.
    """
    accounts = Accounts(memory.store.accounts)
    elsewhere = None
    if config.control.listen:
        elsewhere = CurveEntrance(config.control.listen, accounts, config.state_dir / "keys" / "server.key")

        elsewhere.on_wrong_key = lambda place: memory.audit.tell_later(
            Caller("", Role.VIEWER, f"key of nobody from {place}"), "auth.key", "", WRONG_KEY
        )

    def adb_used(lease: Lease, service: str, allowed: bool) -> None:
        caller = Caller(lease.request.user, Role.USER, f"adb of {lease.id}")
        memory.audit.tell_later(caller, f"adb.{service}", lease.device, OK if allowed else NotAllowedError.code)

    personal.adb_used = adb_used
    return Security(accounts, elsewhere)
