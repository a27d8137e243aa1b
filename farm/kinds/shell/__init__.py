"""Kind `shell`: run a line in the shells of phones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from farm.model.specs import QUEUE, Attempts, Bounds, Help, JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSpec(JobSpec):
    """Run a line in the phone's shell, as adb's shell user. A non-zero exit code fails the job."""

    kind: ClassVar[str] = "shell"
    traces: ClassVar[bool] = True
    once: ClassVar[bool] = True

    command: Annotated[str, Bounds(min_length=1, max_length=8192), Help("The line.", option=False)]
    # A line has side effects: what may have happened once is not done again unless its owner says that it may be.
    max_attempts: Annotated[Attempts, Help("How many attempts at most.", group=QUEUE)] = 1
