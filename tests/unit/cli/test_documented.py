"""Words of the glossary."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_a_word_has_one_meaning():
    rows = [line for line in (DOCS / "glossary.md").read_text().splitlines() if line.startswith("| **")]
    words = [word for row in rows for word in re.findall(r"\*\*([^*]+)\*\*", row.split("|")[1])]
    assert [word for word in words if words.count(word) > 1] == []
