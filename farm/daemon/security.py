"""Who may come in and what is written down of them: accounts, the audit log, the door for people elsewhere."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from farm.config import FarmConfig
from farm.control.accounts import Accounts
from farm.control.audit import AuditTrail
from farm.control.curve_entrance import CurveEntrance
from farm.daemon.memory import Memory


@dataclass(frozen=True, slots=True)
class Security:
    """The parts that know people."""

    accounts: Accounts
    audit: AuditTrail
    elsewhere: CurveEntrance | None  # None: nobody comes from elsewhere


def open_security(config: FarmConfig, stack: contextlib.AsyncExitStack, memory: Memory) -> Security:
    """Build them; the door opens with the job door."""
    accounts = Accounts(memory.store.accounts)
    audit = AuditTrail(memory.store.audit)
    stack.push_async_callback(audit.close)
    elsewhere = None
    if config.control.listen:
        elsewhere = CurveEntrance(config.control.listen, accounts, config.state_dir / "keys" / "server.key")
    return Security(accounts, audit, elsewhere)
