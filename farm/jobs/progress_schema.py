"""The facts that a worker may report beside its step: checked, since they are published and models are untrusted.

Rules of this file: pure; `check_facts` returns or raises ProtocolError, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from farm.common.errors import ProtocolError

MAX_FACTS_BYTES = 512 << 10  # as JSON: a search's rows and a whole curve of 10,000 points fit
MAX_UNREAD_BYTES = 4 << 10  # as JSON, of facts that farm does not read
MAX_TEXT_CHARS = 4096  # of a step or a line that a worker reports; a longer one is a mistake
_KNOWN = ConfigDict(extra="forbid")

Count = Annotated[int, Field(strict=True, ge=0, le=1 << 53)]  # JSON readers keep 53 bits
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True, max_length=MAX_TEXT_CHARS)]
Point = Annotated[list[Number], Field(min_length=3, max_length=3)]  # trial, seconds of search, estimate in seconds


@checked(frozen=True, slots=True, kw_only=True, config=_KNOWN)
class TaskFacts:
    """farm.tuning.progress.TaskProgress on the wire."""

    name: Text
    weight: Count
    trials: Count
    failed: Count
    default_ms: Number | None
    best_ms: Number | None
    best_gflops: Number | None
    latest_gflops: Number | None


@checked(frozen=True, slots=True, kw_only=True, config=_KNOWN)
class TuningFacts:
    """A search, as it stands, with its tasks' rows and the curve's points from `points_from` on."""

    trials: Count
    wanted: Count
    estimate_s: Number | None  # the model's latency with the best schedules; None: not known
    phones: list[Text]
    busy: Count
    waits: Text
    spent_s: Number
    eta_s: Number | None
    left_out: Count  # tasks of which no candidate ran yet: the estimate is without them
    of_tasks: Count
    tasks: list[TaskFacts]
    points: list[Point]
    points_from: Count
    builds: dict[Literal["local", "remote"], Count]  # candidates by where they were built


@checked(frozen=True, slots=True, kw_only=True, config=_KNOWN)
class TimingFacts:
    """A bench's interval so far (farm.kinds.bench.worker)."""

    count: Count
    median_ms: Number | None
    low_ms: Number | None
    high_ms: Number | None
    half_width: Number | None
    wanted_half_width: Number | None
    samples_ms: list[Number | None]


@checked(frozen=True, slots=True, kw_only=True, config=_KNOWN)
class Facts:
    """The facts that farm reads. A worker may report more, which is passed on unread."""

    tuning: TuningFacts | None = None
    timing: TimingFacts | None = None


_FACTS = TypeAdapter(Facts)
_READ = tuple(each.name for each in fields(Facts))


def check_facts(facts: Mapping[str, Any]) -> None:
    """Whether a worker's facts may be published.

    Raises:
        ProtocolError: they are too large, or not what workers report.
    """
    try:
        unread = {name: fact for name, fact in facts.items() if name not in _READ}
        for some, most in ((facts, MAX_FACTS_BYTES), (unread, MAX_UNREAD_BYTES)):
            if (size := len(json.dumps(some))) > most:
                raise ProtocolError(f"the worker's progress has {size:,} bytes as JSON; at most {most:,}")
        _FACTS.validate_python({name: facts[name] for name in _READ if name in facts})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:200]
        raise ProtocolError(f"the worker's progress: {place}: {first['msg']}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the worker's progress is no JSON: {error}"[:500]) from error
