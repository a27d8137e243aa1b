"""A job's spec as text, for `farm job show` and the web page alike. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from farm.common.durations import format_duration
from farm.common.files import short_hash
from farm.kinds import KINDS
from farm.model.specs import fields_of

# Shown on lines of their own, not among the options.
_SHOWN_APART = frozenset({"kind", "on", "name", "model", "command", "seconds", "note", "priority", "after", "hold"})


def described(row: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The work and its phones, as (name, text). `row`, `spec`: of a job, from `job.show`."""
    if "model" in spec:
        yield "model", f"{spec['name']} ({short_hash(spec['model'])})"
    if "command" in spec:
        yield "command", spec["command"]
    if "seconds" in spec:
        yield "for", format_duration(spec["seconds"]) + (f": {spec['note']}" if spec.get("note") else "")
    yield "selector", row["selector"] + (f"; phone {row['device']}" if row["device"] else "")


def unusual(spec: Mapping[str, Any]) -> Iterator[str]:
    """Options that differ from their defaults; artifacts by the beginning of their hash.

    The spec may be of another release: an unknown option is shown as it is.
    """
    known = fields_of(KINDS[kind]) if (kind := spec.get("kind", "")) in KINDS else {}
    for name, value in spec.items():
        declared = known.get(name)
        if name in _SHOWN_APART or (declared is not None and value == declared.default):
            continue
        if declared is not None and declared.artifact is not None:
            yield f"{name} {short_hash(str(value))}"
        elif isinstance(value, Mapping):
            yield from (f"{name.removesuffix('s')} {key}:{_plain(each)}" for key, each in value.items())
        else:
            yield f"{name} {_plain(value)}"


def _plain(value: object) -> str:
    return str(list(value)).replace(" ", "") if isinstance(value, list | tuple) else str(value)
