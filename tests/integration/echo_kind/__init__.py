"""A kind of job that the farm does not have: it gives back its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from farm.model.specs import Bounds, Help, JobSpec, Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoSpec(JobSpec):
    """Give back a text."""

    kind: ClassVar[str] = "echo"
    worker: ClassVar[bool] = False

    text: Annotated[str, Bounds(min_length=1, max_length=100), Help("The text.")]
    times: Annotated[Whole, Bounds(ge=1, le=3), Help("How often.")] = 1
