"""What tells compile targets apart: for the farm a hash, for people a word or two."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping


def target_key(target: object) -> str:
    """The hash of a target's canonical JSON: of a TVM tag, or a target dict in whatever order."""
    said = json.dumps(target, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def target_words(target: object) -> str:
    """A target in a word or two."""
    if not isinstance(target, Mapping):
        return str(target)
    return " ".join(str(target[key]) for key in ("tag", "kind", "mtriple", "mcpu") if key in target)
