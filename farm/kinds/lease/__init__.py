"""Kind `lease`: a phone for a person, with a TVM key and an adb server that shows only that phone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from farm.common.limits import MAX_LEASE_S
from farm.model.requests import LeaseClass
from farm.model.specs import Attempts, Bounds, Flag, Help, JobSpec, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSpec(JobSpec):
    """A phone in a person's or a script's hands: a TVM key of their own and an adb server that shows only it."""

    kind: ClassVar[str] = "lease"
    worker: ClassVar[bool] = False
    traces: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    lease_field: ClassVar[str] = "seconds"

    seconds: Annotated[
        Seconds, Bounds(ge=1, le=MAX_LEASE_S), Help("How long: 30m, 2h, 1h30m.", flag="--for", form="duration")
    ] = 1800.0
    note: Annotated[str, Bounds(max_length=200), Help("What for; others see it.")] = ""
    tuning: Annotated[Flag, Help("Others may ask for the phone back: `yield_wanted` of `farm lease show --json`.")] = (
        False
    )
    # A person does not want another phone in the middle of their work: a lost phone ends the lease.
    max_attempts: Annotated[Attempts, Help("How many attempts at most.")] = 1

    def leased_as(self) -> LeaseClass:
        """A script that tunes yields as a tune job does."""
        return LeaseClass.TUNE if self.tuning else self.lease_class
