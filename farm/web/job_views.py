"""Jobs as pages show them: which ones are wanted, words for what they are, what of them can be fetched. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from farm.core.durations import format_duration
from farm.core.job import FINAL, JobState
from farm.core.selector import Selector
from farm.jobs.spec_words import unusual, what

PAGE_JOBS = 50
LIVE = "live"  # in place of a state: whatever has not ended
STATES = (LIVE, *(state.value for state in JobState))
TONES = {
    "running": "busy", "queued": "going", "blocked": "hold", "held": "hold", "done": "good", "failed": "bad",
    "cancelled": "off", "yielded": "hold", "interrupted": "warn", "trusted": "good", "suspect": "warn",
    "rejected": "bad", "faster": "good", "slower": "bad", "same": "good", "cannot tell": "warn",
}  # fmt: skip
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs somebody wants to see; empty fields leave nothing out."""

    state: str = ""
    kind: str = ""
    user: str = ""
    text: str = ""
    selector: str = ""
    device: str = ""
    array: str = ""
    before: str = ""

    def asked(self) -> dict[str, Any]:
        """Fields of `job.list`.

        Raises:
            UserError: the selector cannot be read.
        """
        told: dict[str, Any] = {"limit": PAGE_JOBS, "user": self.user.strip(), "of_kind": self.kind}
        if self.state:
            told["state"] = (
                [state.value for state in JobState if state not in FINAL] if self.state == LIVE else [self.state]
            )
        if self.array:
            return {**told, "array": self.array, "before": self.before}
        selector = str(Selector.parse(self.selector)) if self.selector.strip() else ""
        return {**told, "text": self.text.strip(), "selector": selector, "device": self.device, "before": self.before}

    def query(self, **changes: str) -> str:
        """The address's query for this with `changes`; "" for none."""
        told = {name: value for name, value in {**asdict(self), **changes}.items() if value}
        return f"?{urlencode(told)}" if told else ""

    @property
    def narrow(self) -> bool:
        """Whether anything is left out."""
        return any(value for name, value in asdict(self).items() if name != "before")


@dataclass(frozen=True, slots=True)
class File:
    """Something of a job that can be downloaded. `name` is its part of the address."""

    name: str
    words: str
    filename: str
    sha256: str = ""  # of the artifact; "": it is in the result itself


class Told(dict[str, Any]):
    """An object of an answer in which what is missing is None: results of any release are shown by one template."""

    def __missing__(self, name: str) -> None:
        """Nothing."""


def told(value: Any) -> Any:
    """JSON with every object as `Told`."""
    if isinstance(value, Mapping):
        return Told({name: told(each) for name, each in value.items()})
    return [told(each) for each in value] if isinstance(value, list | tuple) else value


def tone(word: str) -> str:
    """The colour class of a job's or attempt's state, a verdict or an answer."""
    return TONES.get(word, "going")


def facts(shown: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a job's page says of it, beside its state."""
    return list(_facts(shown))


def _facts(shown: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    row, spec = shown["job"], shown["spec"]
    yield from what(row, spec)
    yield "priority", str(row["priority"])
    if options := ", ".join(unusual(spec)):
        yield "options", options


def took(began: str, ended: str | None) -> str:
    """How long something lasted; "" while it does."""
    if not ended:
        return ""
    seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def why(row: Mapping[str, Any]) -> str:
    """Why it waits, what it does, or how it failed: one line."""
    if row["state"] == "running":
        return str((row["progress"] or {}).get("step", ""))
    return str(row["waits"] or (row["error"] or {}).get("message") or "")


def files_of(shown: Mapping[str, Any]) -> list[File]:
    """What can be downloaded of a job."""
    result, job = shown["result"] or {}, shown["job"]["id"]
    found = [
        ("outputs", "outputs (NumPy)", "npz", result.get("outputs")),
        ("package", "tuned model (package)", "farm.tar", result.get("package")),
        ("records", "tuning records", "records.tar", _at(result, "records", "artifact")),
        ("samples", "raw samples (JSON)", "samples.json", _at(result, "certificate", "raw")),
    ]
    files = [File(name, words, f"{job}.{end}", sha) for name, words, end, sha in found if _is_hash(sha)]
    if "stdout" in result:
        files.append(File("stdout", "standard output", f"{job}.stdout.txt"))
    if result:
        files.append(File("result", "result (JSON)", f"{job}.result.json"))
    return [File(each.name, each.words, _UNSAFE.sub("_", each.filename), each.sha256) for each in files]


def may_act(caller: str, operator: bool, user: bool, owner: str) -> bool:
    """Whether a caller may cancel, hold or resume a job of `owner`."""
    return operator or (user and caller == owner)


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None
