"""Sphinx: the first use of a glossary term on a page leads to the glossary. GitHub's readers see plain text."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

GLOSSARY = "glossary"
ROW = re.compile(r"^\| (\*\*.*?\*\*(?:, \*\*.*?\*\*)*) \|", re.MULTILINE)
WORD = re.compile(r"\*\*(.+?)\*\*")
# Words of everyday speech, which would be underlined everywhere.
COMMON = frozenset([
    "device", "line", "name", "key", "hub", "place", "check", "event", "share", "target", "life", "quiet", "note",
    "heat", "service", "round", "pair", "session", "job", "closed",
])  # fmt: skip


def anchor(term: str) -> str:
    """Where a term is in the glossary."""
    return "term-" + re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


@cache
def terms(folder: str) -> dict[str, str]:
    """The glossary's terms, and where each is."""
    text = (Path(folder) / f"{GLOSSARY}.md").read_text("utf-8")
    found = [word for row in ROW.findall(text) for word in WORD.findall(row)]
    return {word: anchor(word) for word in found}


def name_rows(app: Sphinx, tree: nodes.document) -> None:
    """Give every term of the glossary its anchor."""
    if app.env.current_document.docname != GLOSSARY:
        return
    known = terms(str(app.srcdir))
    for word in tree.findall(nodes.strong):
        if (where := known.get(word.astext())) is not None and where not in tree.ids:
            word["ids"].append(where)
            tree.ids[where] = word


def link(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Make a reference of the first use of each term in a page's running text."""
    if page in (GLOSSARY, "index") or page.startswith("reference-"):
        return
    known = {word: where for word, where in terms(str(app.srcdir)).items() if word.lower() not in COMMON}
    pattern = re.compile(r"\b(" + "|".join(re.escape(each) for each in sorted(known, key=len, reverse=True)) + r")\b")
    seen: set[str] = set()
    for text in list(tree.findall(nodes.Text)):
        parent = text.parent
        if not isinstance(parent, nodes.paragraph) or not (parts := _split(app, page, text, pattern, known, seen)):
            continue
        at = parent.index(text)
        parent.remove(text)
        parent[at:at] = parts


def _split(
    app: Sphinx, page: str, text: nodes.Text, pattern: re.Pattern[str], known: dict[str, str], seen: set[str]
) -> list[nodes.Node]:
    """The text with references in it; nothing when it stays as it is."""
    words, parts, done = str(text), [], 0
    for found in pattern.finditer(words):
        term = found[1]
        if term in seen:
            continue
        seen.add(term)
        parts.append(nodes.Text(words[done : found.start()]))
        reference = make_refnode(app.builder, page, GLOSSARY, known[term], nodes.Text(term))
        reference["classes"].append("term")
        parts.append(reference)
        done = found.end()
    return [*parts, nodes.Text(words[done:])] if parts else []


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx's entry point."""
    app.connect("doctree-read", name_rows)
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
