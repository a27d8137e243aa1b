"""Jobs as pages show them: the filters, the words for their states, their files. Pure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any
from urllib.parse import urlencode

from farm.common.durations import format_duration
from farm.common.files import is_sha256
from farm.common.selector import Selector, natural
from farm.common.tones import tone
from farm.kinds.spec_text import described, unusual
from farm.model.job import FINAL, JobState
from farm.results.formats import cell
from farm.results.series import list_why, list_words
from farm.web.rendering import Value, in_order

PAGE_JOBS = 50
SORTED_JOBS = 200  # a page of sorted jobs: the newest that match
LIVE = "live"  # in place of a state: whatever has not ended
STATES = (LIVE, *(state.value for state in JobState))
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs to show; empty fields leave nothing out."""

    state: str = ""
    kind: str = ""
    user: str = ""
    text: str = ""
    selector: str = ""
    device: str = ""
    array: str = ""
    before: str = ""
    mine: str = ""  # "1": only the reader's own, whatever `user` says
    sort: str = ""  # a column of `COLUMNS`, with `-` before it from high to low; "": the newest first

    def asked(self, reader: str = "") -> dict[str, Any]:
        """Fields of `job.list` for a reader, "" for one who is not signed in.

        Raises:
            UserError: the selector cannot be read.
        """
        user = (self.mine and reader) or self.user.strip()
        limit = SORTED_JOBS if self.sort else PAGE_JOBS
        fields: dict[str, Any] = {"limit": limit, "user": user, "of_kind": self.kind}
        if self.state:
            fields["state"] = (
                [state.value for state in JobState if state not in FINAL] if self.state == LIVE else [self.state]
            )
        if self.array:
            return {**fields, "array": self.array, "before": self.before}
        selector = str(Selector.parse(self.selector)) if self.selector.strip() else ""
        return {**fields, "text": self.text.strip(), "selector": selector, "device": self.device, "before": self.before}

    def query(self, **changes: str) -> str:
        """The address's query for this with `changes`; "" for none."""
        fields = {name: value for name, value in {**asdict(self), **changes}.items() if value}
        return f"?{urlencode(fields)}" if fields else ""

    @property
    def narrow(self) -> bool:
        """Whether anything is left out."""
        return any(value for name, value in asdict(self).items() if name not in ("before", "sort"))

    def in_order(self, jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The jobs of a page sorted."""
        return in_order(jobs, COLUMNS, self.sort)


@dataclass(frozen=True, slots=True)
class File:
    """Something of a job that can be downloaded. `name` is its part of the address."""

    name: str
    words: str
    filename: str
    sha256: str = ""  # of the artifact; "": it is in the result itself


class LenientResult(dict[str, Any]):
    """An object of an answer whose missing fields are None: one template shows results of any release."""

    def __missing__(self, name: str) -> None:
        """Nothing."""


def lenient(value: Any) -> Any:
    """JSON with every object as `LenientResult`."""
    if isinstance(value, Mapping):
        return LenientResult({name: lenient(each) for name, each in value.items()})
    return [lenient(each) for each in value] if isinstance(value, list | tuple) else value


def seconds_of(row: Mapping[str, Any]) -> float | None:
    """How long the latest attempt of a job lasted, s; None: it continues, or there is none."""
    if not row["started_at"] or not row["ended_at"]:
        return None
    return (datetime.fromisoformat(row["ended_at"]) - datetime.fromisoformat(row["started_at"])).total_seconds()


def job_tone(row: Mapping[str, Any]) -> str:
    """The colour class of a job: a job that is done has the colour of its result."""
    word = list_words(row.get("result") or {})[1]
    return tone(word if row["state"] == "done" and word else row["state"])


def outcome_words(row: Mapping[str, Any]) -> str:
    """The verdict or answer of a job; of a comparison as a sentence about B."""
    word = list_words(row.get("result") or {})[1]
    return f"B is {word}" if row["kind"] == "compare" and word in ("faster", "slower", "same") else word


def reasons(explained: Mapping[str, Any]) -> list[str]:
    """Why a job waits, from the answer of `explain`: each reason once, with all its devices."""
    devices: dict[str, list[str]] = {}
    for each in explained["devices"]:
        devices.setdefault(each["reason"], []).append(each["device"])
    of_all = filter(None, (explained["waits"], *explained["limits"]))
    return [*of_all, *(f"{', '.join(names)}: {reason}" for reason, names in devices.items())]


def facts(shown: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Facts on a job's page beside its state."""
    row, spec = shown["job"], shown["spec"]
    yield from described(row, spec)
    yield "priority", str(row["priority"])
    if options := ", ".join(unusual(spec)):
        yield "options", options


def result_facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The plain values of a result, for a kind without a page.html; times in words."""
    plain = [(name, value) for name, value in result.items() if isinstance(value, str | int | float)]
    return [(name.removesuffix("_s").replace("_", " "), _fact(name, value)) for name, value in plain]


def _fact(name: str, value: str | float) -> str:
    return format_duration(value) if name.endswith("_s") and isinstance(value, float) else str(value)


def why(row: Mapping[str, Any]) -> str:
    """Its step while it runs, else the reason of its wait, its failure or its verdict: one line."""
    return str((row["progress"] or {}).get("step", "")) if row["state"] == "running" else list_why(row)


def _number(row: Mapping[str, Any], *path: str) -> Any:
    """A figure of its result; None where it has none."""
    found = _at(row, "result", *path)
    return found if isinstance(found, int | float) else None


COLUMNS: Mapping[str, Value] = {
    "job": itemgetter("id"),
    "state": itemgetter("state"),
    "what": lambda row: (row["name"] or row["kind"]).lower(),
    "result": lambda row: _number(row, "estimate", "median_ms"),
    "verdict": outcome_words,
    "took": seconds_of,
    "phone": lambda row: natural(row["on"] or row["device"]),
    "user": itemgetter("user"),
    "tries": itemgetter("attempts"),
    "submitted": itemgetter("submitted_at"),
}
_CSV: Mapping[str, Value] = {
    **{name: itemgetter(name) for name in ("id", "kind", "name", "user", "state", "selector")},
    "phone": lambda row: row["on"] or row["device"],
    "median_ms": lambda row: _number(row, "estimate", "median_ms"),
    "times_as_fast": lambda row: _number(row, "speedup", "times"),
    "b_over_a": lambda row: _number(row, "comparison", "ratio"),
    "exit_code": lambda row: _number(row, "exit_code"),
    "verdict": outcome_words,
    "took_s": seconds_of,
    **{name: itemgetter(name) for name in ("attempts", "submitted_at", "started_at", "ended_at")},
    "why": why,
}


def csv_of(jobs: Iterable[Mapping[str, Any]]) -> str:
    """A table with a line of titles (RFC 4180)."""
    text = io.StringIO()
    writer = csv.writer(text)
    for cells in (_CSV, *([value(row) for value in _CSV.values()] for row in jobs)):
        writer.writerow(map(cell, cells))
    return text.getvalue()


def files_of(shown: Mapping[str, Any]) -> list[File]:
    """The downloads of a job."""
    result, job = shown["result"] or {}, shown["job"]["id"]
    found = [
        ("outputs", "outputs (NumPy)", "npz", result.get("outputs")),
        ("package", "package", "farm.tar", result.get("package")),
        ("records", "tuning records", "records.tar", _at(result, "records", "artifact")),
        ("samples", "raw samples (JSON)", "samples.json", _at(result, "certificate", "raw")),
    ]
    files = [File(name, words, f"{job}.{end}", sha) for name, words, end, sha in found if is_sha256(sha)]
    if "stdout" in result:
        files.append(File("stdout", "standard output", f"{job}.stdout.txt"))
    if result:
        files.append(File("result", "result (JSON)", f"{job}.result.json"))
    return [File(each.name, each.words, _UNSAFE.sub("_", each.filename), each.sha256) for each in files]


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
