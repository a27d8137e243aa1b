"""What tells compile targets apart."""

from __future__ import annotations

import hashlib
import json


def target_key(target: object) -> str:
    """The hash of a target's canonical JSON: of a TVM tag, or a target dict in whatever order."""
    said = json.dumps(target, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()[:16]
