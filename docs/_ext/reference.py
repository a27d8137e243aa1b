"""Sphinx: a line `<!-- generated: NAME -->` of a page becomes what generate.py makes of the code."""

from __future__ import annotations

import re
from typing import Any

import generate
from sphinx.application import Sphinx

MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def fill(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Put generated parts into a page before it is parsed."""
    source[0] = MARK.sub(lambda found: generate.PARTS[found[1]](), source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx's entry point."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
