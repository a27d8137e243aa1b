"""One trial of a tuning run, and its outcome when something goes wrong. Decisions only: no I/O, no clock.

A candidate is answered exactly once, after a bounded number of tries. What goes wrong while its arguments are made on
the phone is charged to it as want of memory; a death only when its own code was on the phone; and it is called poison
only when it killed its process twice, the second time alone in a fresh session on a phone that is ready
again afterwards: then only the candidate can be at fault.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from farm.common.errors import HostError
from farm.common.os_errors import free_in, hint_for, host_errno

MAX_DEATHS = 2  # the second death is the last try
MAX_STARVED = 2  # tries to make its arguments, the second one alone in a fresh session
MAX_UNTOUCHED = 20  # tries that broke before anything of it was on a phone; phones that continue so are put out before
MAX_LOSSES = 3  # phones that left for good while it ran alone: by then it is more likely it than three cables


class TryEnd(StrEnum):
    """How one try on a phone ended."""

    MEASURED = "measured"
    REFUSED = "refused"  # the phone said why it cannot; the session is fine
    TIMEOUT = "timeout"  # it took too long, and the session was cut
    UNTOUCHED = "untouched"  # the session broke before anything of it was on the phone
    STARVED = "starved"  # the phone's process died, or said why it cannot, while its arguments were made
    DIED = "died"  # the session died with it
    LOST = "lost"  # the session died with it, and the phone did not come back


@dataclass(frozen=True, slots=True)
class CandidateTries:
    """The past tries of a candidate."""

    deaths: int = 0
    losses: int = 0
    starved: int = 0
    untouched: int = 0

    @property
    def alone(self) -> bool:
        """Whether it must run in a fresh session, nothing before and nothing after it."""
        return self.deaths + self.losses + self.starved > 0


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step: `again` with these tries, or it is answered: with its seconds, or with `error`."""

    again: CandidateTries | None = None
    error: str = ""
    poison: bool = False


def after_try(tries: CandidateTries, end: TryEnd, why: str, timeout_s: float) -> Decision:
    """The next step of a candidate after a try that ended so.

    Args:
        tries: what it had behind it before this try.
        end: how this try ended; `DIED` with `alone` means that the phone is ready again, see `LOST`.
        why: what the phone or TVM said, one line.
        timeout_s: its time limit, for the words.
    """
    match end:
        case TryEnd.MEASURED:
            return Decision()
        case TryEnd.REFUSED:
            return Decision(error=f"the phone could not run it: {why}")
        case TryEnd.TIMEOUT:
            return Decision(error=f"timeout: no result after {timeout_s:g} s")
        case TryEnd.UNTOUCHED:
            untouched = tries.untouched + 1
            if untouched >= MAX_UNTOUCHED:
                return Decision(error=f"no phone could take it, {untouched} times: {why}")
            return Decision(again=replace(tries, untouched=untouched))
        case TryEnd.STARVED:
            starved = tries.starved + 1
            if starved >= MAX_STARVED:
                return Decision(
                    error=f"out of memory: its arguments cannot be made on the phone, {starved} times: {why}"
                )
            return Decision(again=replace(tries, starved=starved))
        case TryEnd.LOST:
            losses = tries.losses + 1
            if losses >= MAX_LOSSES:
                return Decision(error=f"{losses} phones were lost while it ran alone on them", poison=True)
            return Decision(again=replace(tries, losses=losses))
    deaths = tries.deaths + 1
    # A death before which others ran in the session proves nothing yet, not even the second one.
    if tries.alone and deaths >= MAX_DEATHS:
        return Decision(error=f"it killed the process that ran it, twice, the second time alone: {why}", poison=True)
    return Decision(again=replace(tries, deaths=deaths))


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of one candidate on one phone.

    Attributes:
        path: The artifact's path as the builder gave it: what a MeasureCallback finds in its BuilderResult.
        artifact: SHA-256 of the library.
        device: The phone.
        at: When it was done, Unix seconds.
        seconds: Of each repeat, as the phone measured them.
        factor: This phone's speed beside the others': the runner answers `scaled`.
    """

    path: str
    artifact: str
    device: str
    at: float
    seconds: tuple[float, ...]
    factor: float

    @property
    def scaled(self) -> list[float]:
        """The seconds a phone of the run's common speed would have taken."""
        return [each / self.factor for each in self.seconds]


class CandidateError(Exception):
    """A candidate has no seconds; the message says why."""


class CannotBuildError(HostError):
    """This host cannot build candidates now."""

    code = "cannot_build"


@contextlib.contextmanager
def host_errors_reported(folder: Path) -> Iterator[None]:
    """Turn a host's lack of resources while `folder` is written into a HostError with a hint."""
    try:
        yield
    except (OSError, HostError) as error:
        number = host_errno(error)
        if not number or isinstance(error, CannotBuildError):
            raise
        message = f"cannot keep tuning records in {folder} ({free_in(folder)}): {os.strerror(number)}"
        raise HostError(message, hint=_hint(number)) from error


def cannot_build_error(number: int, folder: Path) -> CannotBuildError:
    """The error of a host on which errno `number` came up when a candidate was built in `folder`."""
    message = f"this host cannot build candidates in {folder} ({free_in(folder)}): {os.strerror(number)}"
    return CannotBuildError(message, hint=_hint(number))


def _hint(number: int) -> str:
    return f"{hint_for(number)}; what was measured is kept, and no candidate counts as failed"
