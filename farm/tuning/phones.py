"""The phones of a tuning run, as the runner sees them, whoever holds them.

Three sources exist: a job's pool (`farm.worker.daemon_phones`), leases of a user's own script
(`farm.client.tuning_phones`), and this very host (`farm.tuning.host_phone`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from farm.jobs.attempt import SessionOffer

__all__ = ["PhoneSource", "PoolState", "PooledPhone", "SessionOffer"]


@dataclass(frozen=True, slots=True)
class PooledPhone:
    """A phone the run may measure on now.

    Attributes:
        lease: What the source knows it by; a phone that was lost and came back may have another.
        device: The phone's name; results are told apart by it.
        yield_wanted: Others wait for it: `give_back` when the candidate at hand is done.
    """

    lease: str
    device: str
    yield_wanted: bool = False


@dataclass(frozen=True, slots=True)
class PoolState:
    """The phones there are now.

    Attributes:
        phones: Those that may be measured on; one that is being cleaned after an abort is not among them.
        wanted: How many the run asked for.
        waits: One sentence: why there are fewer than wanted; empty when there are not.
        over: One sentence: why there will never be one again, which ends the run; empty else.
    """

    phones: tuple[PooledPhone, ...]
    wanted: int
    waits: str = ""
    over: str = ""


class PhoneSource(Protocol):
    """Where a tuning run has its phones from. Called from several threads; each call may raise FarmError."""

    def state(self) -> PoolState:
        """The phones there are now. Cheap: asked every 0.2 s."""
        ...

    def open_session(self, lease: str) -> SessionOffer:
        """A way to one phone, good for one session.

        Raises:
            FarmError: the phone is not (or no longer) this run's, or cannot serve now: ask `state` again.
        """
        ...

    def abort_session(self, lease: str, reason: str) -> None:
        """Cut the session and kill what it left on the phone, which comes back under the same lease when it is fit."""
        ...

    def give_back(self, lease: str) -> None:
        """Let others have the phone; the source asks for another one by itself."""
        ...

    def poisoned(self, artifacts: Sequence[str]) -> frozenset[str]:
        """Of these candidate libraries (SHA-256 of the file, hex), those that are known to kill what runs them."""
        ...

    def tell_poison(self, artifact: str, device: str, what: str) -> None:
        """A candidate library killed its process on `device` twice, the second time alone: `what` happened."""
        ...
