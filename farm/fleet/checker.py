"""What the fleet wants of whoever checks a phone before it is handed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from farm.bundle.manifest import Bundle


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found. `detail` is one line for a person."""

    ok: bool
    detail: str
    seconds: float


class Checker(Protocol):
    """Runs a bundle's golden kernels on a phone."""

    async def check(self, device: str, bundle: Bundle) -> CheckReport:
        """Check one phone; several at once are fine. Never waits for ever.

        Raises:
            FarmError: the check could not be made; `fault` says whether the phone or the host is to blame.
        """
