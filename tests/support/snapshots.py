"""Text as a reviewer reads it, in a file beside its test: `REWRITE=1 pytest PATH` writes the files again.

What a command prints or a page shows is checked whole, once, and here; other tests check facts and codes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

REWRITE = "REWRITE"
REWRITES = bool(os.environ.get(REWRITE))


class Snapshot:
    """Compares text with `shown/<module>/<test or name>.txt` beside the test."""

    def __init__(self, node: pytest.Item) -> None:
        case = getattr(node, "callspec", None)
        self.name = case.id if case else node.name.removeprefix("test_")
        self.folder = node.path.parent / "shown" / node.path.stem.removeprefix("test_")

    def __call__(self, text: str, name: str = "") -> None:
        """Fail unless `text` is what the file has."""
        path: Path = self.folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name or self.name)}.txt"
        text = "\n".join(line.rstrip() for line in text.strip("\n").split("\n")) + "\n"
        if REWRITES:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        known = path.read_text("utf-8") if path.exists() else ""
        assert text == known, f"{path} differs; after a look at the difference: {REWRITE}=1 pytest, then git diff"
