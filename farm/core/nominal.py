"""What a history says of results that it gives at another nominal speed than they were stored at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def scaled(rows: Sequence[Mapping[str, Any]]) -> str:
    """One sentence about rows of `history.list`; "" when all are as their jobs show them."""
    references = [row.get("reference") or {} for row in rows]
    pairs = [(each.get("nominal_s"), each.get("stored_at_s")) for each in references]
    others = sum(1 for now, then in pairs if now and then and not math.isclose(now, then, rel_tol=1e-3))
    return (
        f"at the phone's nominal speed as known now; {others} of {len(rows)} were stored at another" if others else ""
    )
