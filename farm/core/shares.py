"""Who has used how much: decaying device-seconds, weighted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """What a user may have, and how much they count."""

    weight: float = 1.0  # beside other users of the same priority; above 0
    devices: int = 0  # held at once; 0: no limit
