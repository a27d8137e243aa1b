"""Documents as tests read them: code blocks, commands with the output that a page promises, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.simulation.virtual_farm import VirtualFarm

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^( *)```([\w{}-]*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NUMBER = r"(?<![\w.])-?\d[\d.,:]*(?:e[-+]\d+)?"
ID = r"[0-9a-f]{12}"


@dataclass(frozen=True)
class Shown:
    """A command of a page, and the lines that it is said to print."""

    command: str
    output: tuple[str, ...]


def pages() -> list[Path]:
    """README, CONTRIBUTING and every document."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def section(page: Path, title: str) -> str:
    """The text of a page's section of the second level; the whole page without a title."""
    text = page.read_text("utf-8")
    return re.split(r"^## ", text.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0] if title else text


def blocks(page: Path, *languages: str, title: str = "") -> list[str]:
    """The code blocks of a page, or of one of its sections, in these languages."""
    return blocks_of(section(page, title), *languages)


def blocks_of(text: str, *languages: str) -> list[str]:
    """The code blocks of Markdown in these languages."""
    return [block for _, language, block in BLOCK.findall(text) if language in languages]


def shown(page: Path, title: str = "") -> list[Shown]:
    """The commands of a page's or a section's `console` blocks, in order."""
    found: list[Shown] = []
    for text in blocks(page, "console", title=title):
        for line in text.splitlines():
            if line.startswith("$ "):
                found.append(Shown(line.removeprefix("$ "), ()))
            elif found:
                found[-1] = Shown(found[-1].command, (*found[-1].output, line))
    return found


def run_shown(farm: VirtualFarm, page: str) -> int:
    """Run each command that a page of docs/ shows, and compare what it prints; how many these were."""
    steps = shown(ROOT / "docs" / page)
    for step in steps:
        done = farm.farm(*step.command.split()[1:])
        assert done.returncode == 0, f"{step.command}\n{done.stdout}{done.stderr}"
        assert not missing(step, done.stdout), f"{step.command}\n{done.stdout}{done.stderr}"
    return len(steps)


def missing(promised: Shown, output: str) -> str:
    """The first promised line that the output lacks, in order; "" when all were.

    Figures, units of times and blanks may differ.
    """
    lines = iter(output.splitlines())
    for line in promised.output:
        if line.strip() and line.strip() != "..." and not any(_pattern(line).fullmatch(each.strip()) for each in lines):
            return line
    return ""


def _pattern(line: str) -> re.Pattern[str]:
    parts = re.split(rf"(\.\.\.|\s+|{ID}|{NUMBER})", line.strip())
    return re.compile("".join(map(_piece, parts)))


def _piece(part: str) -> str:
    if part == "...":
        return ".*"
    if part and not part.strip():
        return r"\s*"
    if part in ("ms", "µs"):
        return "(ms|µs)"
    if re.fullmatch(ID, part):
        return ID
    return NUMBER if re.fullmatch(NUMBER, part) else re.escape(part)


def prose(page: Path) -> str:
    """A page without its code blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "``", BLOCK.sub("", page.read_text("utf-8")))


def links(page: Path) -> Iterator[str]:
    """Every relative link of a page, `file.md#heading`."""
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"[a-z]+:", target):
            yield target


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    text = BLOCK.sub("", page.read_text("utf-8"))
    found: set[str] = set()
    for title in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE):
        words = re.sub(r"[`*]|\]\([^)]*\)|\[", "", title).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found
