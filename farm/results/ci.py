"""Answers for a CI system: what became slower or worse on which phones, as a JUnit file and as Markdown."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any
from xml.etree import ElementTree as ET

from farm.common.durations import many
from farm.common.errors import UserError
from farm.measure.conditions import reasons_of
from farm.measure.metrics import LATENCY
from farm.measure.regression import MAX_RESULTS, MIN_RESULTS, ratio_to_baseline
from farm.results.series import COMPARABLE_BY, changes_in, is_judged, metric_of, point_of, series_key

LIMIT_HINT = '--fail-if "slower by 2 %", or "worse by 2 %"'
MAX_PERCENT = 1000.0
_LIMIT = re.compile(r"(slower|worse) by (\d+(?:\.\d+)?) ?%")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
DIRTY = "-dirty"  # behind a commit: the folder had changes that are in no commit
# What results that are not comparable differ in, in words; the model's file differs with each commit.
_DIFFERENCES = {
    "epoch": "system version of the phone", "target": "target", "precision": "precision", "tuned": "use of records",
    "textures": "use of textures", "inputs": "shapes and types of inputs",
    "placement": "threads and cores", "ran_on": "placement of its work", "method": "way to measure",
    "kernel": "reference kernel",
}  # fmt: skip


class CiAnswer(StrEnum):
    """What is known of one model on one phone."""

    WITHIN = "within"  # the whole interval is below the limit
    SLOWER = "slower"  # the whole interval is beyond the limit, `slower by N %`
    WORSE = "worse"  # likewise, beyond `worse by N %`
    CANNOT_TELL = "cannot tell"  # the limit is inside the interval, or the result is not trusted
    NO_BASELINE = "no baseline"
    FAILED = "failed"  # the phone failed, computed wrong numbers, or ran too much on its CPU


BEYOND = frozenset({CiAnswer.SLOWER, CiAnswer.WORSE})


@dataclass(frozen=True, slots=True)
class FailLimit:
    """By how much a result may be slower, or worse."""

    text: str
    ratio: float  # above 1
    beyond: CiAnswer = CiAnswer.SLOWER

    @classmethod
    def parse(cls, text: str) -> FailLimit:
        """The limit of `slower by 2 %`, or of `worse by 2 %`.

        Raises:
            UserError: it is none.
        """
        found = _LIMIT.fullmatch(" ".join(text.split()))
        if found is None:
            raise UserError(f"{text[:60]!r} is no condition for --fail-if", hint=LIMIT_HINT)
        percent = float(found[2])
        if not 0 <= percent <= MAX_PERCENT:
            raise UserError(f"--fail-if {text[:60]!r} is beyond {MAX_PERCENT:g} %", hint=LIMIT_HINT)
        return cls(f"{found[1]} by {percent:g} %", 1 + percent / 100, CiAnswer(found[1]))


@dataclass(frozen=True, slots=True)
class CiCase:
    """One metric of one model on one phone."""

    model: str
    device: str
    answer: CiAnswer
    about: str  # the baseline, or why there is none
    ratio: float | None = None  # its value over the baseline's
    low: float | None = None  # of the interval of 99 %
    high: float | None = None
    metric: str = LATENCY.name  # "": the job measured nothing

    @property
    def place(self) -> str:
        """The phone, with the metric where it is not latency."""
        return self.device if self.metric in ("", LATENCY.name) else f"{self.device}, {self.metric}"

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
        return limit.beyond
    return CiAnswer.WITHIN if high <= limit.ratio else CiAnswer.CANNOT_TELL


def compared(found: Mapping[str, Any], model: str, device: str, against: str, limit: FailLimit) -> CiCase:
    """The answer of a comparison in turns, `comparison` in the job's result."""
    answer = answer_of(found["low"], found["high"], limit)
    if answer in BEYOND and found["answer"] != "slower":  # of too few pairs, or below the least effect
        answer = CiAnswer.CANNOT_TELL
    about = f"{against}, in {found['pairs']} pairs"
    return CiCase(model, device, answer, about, found["ratio"], found["low"], found["high"])


def confirmed(first: CiCase, second: CiCase | None) -> CiCase:
    """What two jobs say together, by the first of which it was slower or worse: a single such result may be chance.

    `second` None: there was no phone for it.
    """
    once = f"{first.answer} once, {first.change}"
    if second is None:
        return replace(first, answer=CiAnswer.CANNOT_TELL, about=f"{once}, and no phone to measure it again")
    if second.answer is CiAnswer.FAILED:
        return second
    if second.answer not in BEYOND:
        return replace(second, answer=CiAnswer.CANNOT_TELL, about=f"{once}, which a second job did not confirm")
    return min(first, second, key=lambda case: abs(math.log(case.ratio or 1.0)))


def junit_file(cases: Sequence[CiCase], limit: FailLimit) -> bytes:
    """A JUnit file: a test case for each model on each phone; those without an answer are skipped, with the reason."""
    counts = {
        "tests": len(cases),
        "failures": sum(case.answer in BEYOND for case in cases),
        "errors": sum(case.answer is CiAnswer.FAILED for case in cases),
        "skipped": sum(case.answer in (CiAnswer.CANNOT_TELL, CiAnswer.NO_BASELINE) for case in cases),
    }
    words = {name: str(count) for name, count in counts.items()}
    root = ET.Element("testsuites", words)
    suite = ET.SubElement(root, "testsuite", {"name": "farm", **words})
    for case in cases:
        place = {"classname": _xml(case.model), "name": _xml(case.place)}
        element = ET.SubElement(suite, "testcase", place)
        ET.SubElement(element, "system-out").text = _xml(f"{case.answer}: {case.change}; {case.about}")
        if kind := _ELEMENTS.get(case.answer):
            message = f"{limit.text} or more: {case.change}" if kind == "failure" else f"{case.answer}: {case.about}"
            ET.SubElement(element, kind, {"message": _xml(message)})
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


_ELEMENTS = {
    CiAnswer.SLOWER: "failure", CiAnswer.WORSE: "failure", CiAnswer.FAILED: "error",
    CiAnswer.CANNOT_TELL: "skipped", CiAnswer.NO_BASELINE: "skipped",
}  # fmt: skip


def markdown(cases: Sequence[CiCase], limit: FailLimit) -> str:
    """A summary for a pull request: a table with a line for each model on each phone."""
    count = Counter(case.answer for case in cases)
    title = f"{sum(count[each] for each in BEYOND)} of {len(cases)} {limit.text} or more"
    for answer in (CiAnswer.FAILED, CiAnswer.CANNOT_TELL, CiAnswer.NO_BASELINE):
        title += f", {count[answer]} {answer}" if count[answer] else ""
    lines = [f"### farm: {title}", "", "| model | phone | answer | change (99 % interval) | |", "|---|---|---|---|---|"]
    lines += [
        "| " + " | ".join(map(_cell, (case.model, case.place, case.answer, case.change, case.about))) + " |"
        for case in cases
    ]
    return "\n".join(lines) + "\n"


def _xml(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)


def _cell(text: str) -> str:
    escaped = re.sub(r"([\\`*_{}\[\]<>|#&])", r"\\\1", text)
    return " ".join(escaped.split())


def judged(new: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], branch: str, limit: FailLimit) -> CiCase:
    """A new result against the baseline among stored results of its phone.

    Args:
        new: a row of `by_metric`.
        rows: such rows, newest first.
        branch: whose results are the baseline.
        limit: by how much the new result may be slower, or worse.
    """
    metric = metric_of(new)
    case = CiCase(str(new["name"]), str(new["device"]), CiAnswer.CANNOT_TELL, "", metric=metric.name)
    if new["verdict"] != "trusted" or not is_judged(new):
        why = _gravest(new.get("reasons", ())) or "it has no finite median"
        return replace(case, about=f"the result is {new['verdict']}: {why}")
    baseline, why = baseline_of(new, rows, branch)
    if why:
        return replace(case, answer=CiAnswer.NO_BASELINE, about=why)
    found = ratio_to_baseline([point_of(row) for row in baseline], point_of(new))
    worse = (1 / found.high, 1 / found.low) if metric.higher else (found.low, found.high)
    about = f"{branch}, {found.results} results"
    return replace(
        case, answer=answer_of(*worse, limit), about=about, ratio=found.ratio, low=found.low, high=found.high
    )


def baseline_of(
    new: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], branch: str
) -> tuple[list[Mapping[str, Any]], str]:
    """The results of a branch to compare a new one with, oldest first; or none, and a sentence that says why.

    They are of the same model name, phone, system version, metric and kind of build, trusted, of other commits than the
    new one and of those without further changes, and at the level since the last change of level. `rows` are newest
    first.
    """
    where = f"of {new['name']} on {new['device']}"
    found = [
        row for row in rows
        if row["name"] == new["name"] and row["device"] == new["device"] and metric_of(row) is metric_of(new)
        and row.get("branch") == branch and row["job"] != new["job"] and row.get("commit") != new.get("commit")
        and is_judged(row)
    ]  # fmt: skip
    if not found:
        return [], f"{branch} has no result {where}: this command on that branch makes one"
    alike = [row for row in found if _key(row) == _key(new)]
    if not alike:
        return [], f"the results of {branch} {where} are of another {_difference(found[0], new)}"
    sound = [row for row in alike if row["verdict"] == "trusted" and not str(row.get("commit", "")).endswith(DIRTY)]
    if not sound:
        return [], f"no result of {branch} {where} is trusted and of a clean commit"
    oldest_first = sound[::-1]
    changed = changes_in(oldest_first)
    level = oldest_first[changed[-1].index if changed else 0 :][-MAX_RESULTS:]
    if len(level) < MIN_RESULTS:
        since = " since its level changed" if changed else ""
        return [], f"{branch} has {len(level)} of {MIN_RESULTS} results {where} that a baseline needs{since}"
    return level, ""


def _gravest(reasons: Sequence[Mapping[str, Any]]) -> str:
    """The gravest reason of a verdict, and how many more there are; "" if there is none."""
    causes = [each.cause for each in reasons_of(reasons)]
    return "".join(causes[:1]) + (f" (and {many(len(causes) - 1, 'more reason')})" if len(causes) > 1 else "")


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return series_key(row, [name for name in COMPARABLE_BY if name != "model"])


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return " and ".join(
        words for name, words in _DIFFERENCES.items() if series_key(old, [name]) != series_key(new, [name])
    )
