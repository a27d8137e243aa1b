"""What a job is to do, in words: for `farm job show` and the web page alike. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from farm.core.durations import format_duration
from farm.jobs.specs import KINDS

SHORT_HASH = 12  # characters of an artifact's hash: enough to tell two apart
# Told on lines of their own, not among the options.
_TOLD = frozenset({"kind", "on", "name", "model", "command", "seconds", "note", "priority", "after", "hold"})
_ARTIFACTS = frozenset({"inputs", "labels", "records", "records_b", "model_b", "prior"})


def what(row: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is to be done and on which phones, as (name, words). `row`, `spec`: of a job as `job.show` tells it."""
    if "model" in spec:
        yield "model", f"{spec['name']} ({spec['model'][:SHORT_HASH]})"
    if "command" in spec:
        yield "command", spec["command"]
    if "seconds" in spec:
        yield "for", format_duration(spec["seconds"]) + (f": {spec['note']}" if spec.get("note") else "")
    yield "wants", row["selector"] + (f", only {row['device']}" if row["device"] else "")


def unusual(spec: Mapping[str, Any]) -> Iterator[str]:
    """Options that are not as they would be unasked; artifacts by the beginning of their hash.

    The spec may be of another release: what is not known is told as it is.
    """
    kind = KINDS.get(spec.get("kind", ""))
    usual = {each.name: each.default for each in fields(kind) if each.default is not MISSING} if kind else {}
    for name, value in spec.items():
        if name in _TOLD or value == usual.get(name, {}):
            continue
        if name in _ARTIFACTS:
            yield f"{name} {str(value)[:SHORT_HASH]}"
        elif isinstance(value, Mapping):
            yield from (f"{name.removesuffix('s')} {key}:{_plain(each)}" for key, each in value.items())
        else:
            yield f"{name} {_plain(value)}"


def _plain(value: object) -> str:
    return str(list(value)).replace(" ", "") if isinstance(value, list | tuple) else str(value)
