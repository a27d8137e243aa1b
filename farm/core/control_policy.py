"""The door for people elsewhere, as the configuration has it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

MAX_DAYS = 36_500
_LISTEN = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[0-9.]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """The door for people elsewhere, and how long it is remembered what people did."""

    listen: str = ""  # "tcp://127.0.0.1:9192": clients with a key (farm auth new) may come there; empty: no such door
    audit_days: float = 365.0  # how long the audit log is kept; never more than its latest 500,000 rows


def address_of(listen: str) -> tuple[str, int] | None:
    """Host and port of `listen`, None when it is no such address. Port 0: the kernel chooses."""
    found = _LISTEN.fullmatch(listen)
    if found is None or int(found[2]) > 65535:
        return None
    try:
        return str(ipaddress.ip_address(found[1].strip("[]"))), int(found[2])
    except ValueError:
        return None


def mistake(control: ControlConfig) -> tuple[str, str] | None:
    """What is wrong, and the way out."""
    if control.listen:
        address = address_of(control.listen)
        if address is None:
            return f"control.listen: {control.listen!r} is no address", '"tcp://127.0.0.1:9192"; a number, not a name'
        if ipaddress.ip_address(address[0]).is_unspecified:
            return f"control.listen: {control.listen!r} leads nowhere from elsewhere", "key files name it: one address"
    if not 0 < control.audit_days <= MAX_DAYS:
        return f"control.audit_days: {control.audit_days} is no such time", f"more than 0, at most {MAX_DAYS}"
    return None
