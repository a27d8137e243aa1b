"""How large a difference comparisons look for."""

from __future__ import annotations

FIND_EFFECT = 0.03
MOST = 0.9  # relative


def find_effect_of(min_effect: float) -> float:
    """The difference that a comparison takes pairs enough to find: 3 %, or three times the least that counts."""
    return min(MOST, max(FIND_EFFECT, 3 * min_effect))
