"""Answers for a CI system: which phones became slower, as a JUnit file and as Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any
from xml.etree import ElementTree as ET

from farm.common.errors import UserError

LIMIT_HINT = '--fail-if "slower by 2 %"'
MAX_PERCENT = 1000.0
_LIMIT = re.compile(r"slower by (\d+(?:\.\d+)?) ?%")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class CiAnswer(StrEnum):
    """What is known of one model on one phone."""

    WITHIN = "within"  # the whole interval is below the limit
    SLOWER = "slower"  # the whole interval is beyond the limit
    CANNOT_TELL = "cannot tell"  # the limit is inside the interval, or the result is not trusted
    NO_BASELINE = "no baseline"
    FAILED = "failed"  # the phone failed, or computed wrong numbers


@dataclass(frozen=True, slots=True)
class FailLimit:
    """By how much a result may be slower."""

    text: str
    ratio: float  # above 1

    @classmethod
    def parse(cls, text: str) -> FailLimit:
        """The limit of `slower by 2 %`.

        Raises:
            UserError: it is none.
        """
        found = _LIMIT.fullmatch(" ".join(text.split()))
        if found is None:
            raise UserError(f"{text[:60]!r} is no condition for --fail-if", hint=LIMIT_HINT)
        percent = float(found[1])
        if not 0 <= percent <= MAX_PERCENT:
            raise UserError(f"--fail-if {text[:60]!r} is beyond {MAX_PERCENT:g} %", hint=LIMIT_HINT)
        return cls(f"slower by {percent:g} %", 1 + percent / 100)


@dataclass(frozen=True, slots=True)
class CiCase:
    """One model on one phone."""

    model: str
    device: str
    answer: CiAnswer
    about: str  # the baseline, or why there is none
    ratio: float | None = None  # its time over the baseline's
    low: float | None = None  # of the interval of 99 %
    high: float | None = None

    @property
    def change(self) -> str:
        """The change with its interval, in percent; "-" if there is none."""
        if self.ratio is None or self.low is None or self.high is None:
            return "-"
        return f"{self.ratio - 1:+.1%} ({self.low - 1:+.1%} .. {self.high - 1:+.1%})"

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**asdict(self), "answer": str(self.answer)}


def answer_of(low: float, high: float, limit: FailLimit) -> CiAnswer:
    """What an interval of the ratio says of the limit."""
    if low > limit.ratio:
        return CiAnswer.SLOWER
    return CiAnswer.WITHIN if high <= limit.ratio else CiAnswer.CANNOT_TELL


def compared(found: Mapping[str, Any], model: str, device: str, against: str, limit: FailLimit) -> CiCase:
    """The answer of a comparison in turns, `comparison` in the job's result."""
    answer = answer_of(found["low"], found["high"], limit)
    if answer is CiAnswer.SLOWER and found["answer"] != "slower":  # of too few pairs, or below the least effect
        answer = CiAnswer.CANNOT_TELL
    about = f"{against}, in {found['pairs']} pairs"
    return CiCase(model, device, answer, about, found["ratio"], found["low"], found["high"])


def confirmed(first: CiCase, second: CiCase | None) -> CiCase:
    """What two benches say together, the first of which was slower: a single slow result may be chance.

    `second` None: there was no phone for it.
    """
    once = f"slower once, {first.change}"
    if second is None:
        return replace(first, answer=CiAnswer.CANNOT_TELL, about=f"{once}, and no phone to bench it again")
    if second.answer is CiAnswer.FAILED:
        return second
    if second.answer is not CiAnswer.SLOWER:
        return replace(second, answer=CiAnswer.CANNOT_TELL, about=f"{once}, which a second bench did not confirm")
    return min(first, second, key=lambda case: case.ratio or 0.0)


def junit_file(cases: Sequence[CiCase], limit: FailLimit) -> bytes:
    """A JUnit file: a test case for each model on each phone; those without an answer are skipped, with the reason."""
    counts = {
        "tests": len(cases),
        "failures": sum(case.answer is CiAnswer.SLOWER for case in cases),
        "errors": sum(case.answer is CiAnswer.FAILED for case in cases),
        "skipped": sum(case.answer in (CiAnswer.CANNOT_TELL, CiAnswer.NO_BASELINE) for case in cases),
    }
    words = {name: str(count) for name, count in counts.items()}
    root = ET.Element("testsuites", words)
    suite = ET.SubElement(root, "testsuite", {"name": "farm", **words})
    for case in cases:
        place = {"classname": _xml(case.model), "name": _xml(case.device)}
        element = ET.SubElement(suite, "testcase", place)
        ET.SubElement(element, "system-out").text = _xml(f"{case.answer}: {case.change}; {case.about}")
        if kind := _ELEMENTS.get(case.answer):
            message = f"{limit.text} or more: {case.change}" if kind == "failure" else f"{case.answer}: {case.about}"
            ET.SubElement(element, kind, {"message": _xml(message)})
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


_ELEMENTS = {
    CiAnswer.SLOWER: "failure", CiAnswer.FAILED: "error", CiAnswer.CANNOT_TELL: "skipped",
    CiAnswer.NO_BASELINE: "skipped",
}  # fmt: skip


def markdown(cases: Sequence[CiCase], limit: FailLimit) -> str:
    """A summary for a pull request: a table with a line for each model on each phone."""
    count = Counter(case.answer for case in cases)
    title = f"{count[CiAnswer.SLOWER]} of {len(cases)} {limit.text} or more"
    for answer in (CiAnswer.FAILED, CiAnswer.CANNOT_TELL, CiAnswer.NO_BASELINE):
        title += f", {count[answer]} {answer}" if count[answer] else ""
    lines = [f"### farm: {title}", "", "| model | phone | answer | change (99 % interval) | |", "|---|---|---|---|---|"]
    lines += [
        "| " + " | ".join(map(_cell, (case.model, case.device, case.answer, case.change, case.about))) + " |"
        for case in cases
    ]
    return "\n".join(lines) + "\n"


def _xml(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)


def _cell(text: str) -> str:
    escaped = re.sub(r"([\\`*_{}\[\]<>|#&])", r"\\\1", text)
    return " ".join(escaped.split())
