"""Which hosts of a lab are lost. Pure: its inputs are beats, and the moments in which the head itself could commit.

Each host writes a beat every `BEAT_EVERY_S`. The head reads all beats as often, each time in one transaction. A host
without a new beat in `LOST_AFTER` such looks is lost. A look that could not be committed resets the counts: while the
database is away, no host can beat.

At its first look a head counts one missed beat of a host that was silent for so long while another one beat: it died
together with the head before, or the database is just back from an outage and that host has not beaten yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

BEAT_EVERY_S = 2.0
LOST_AFTER = 3  # looks: 6 s without a beat


@dataclass(frozen=True, slots=True)
class BeatChanges:
    """The hosts that a look found lost or back, by name."""

    lost: tuple[str, ...] = ()
    back: tuple[str, ...] = ()


class BeatWatch:
    """The beats as the head has seen them. A host that first appears at a later look counts as alive."""

    def __init__(self) -> None:
        self._beats: dict[str, datetime] = {}
        self._missed: dict[str, int] = {}  # looks in a row
        self._counted_s: float | None = None  # when a look counted last

    @property
    def lost(self) -> frozenset[str]:
        """The hosts that are lost."""
        return frozenset(host for host, missed in self._missed.items() if missed >= LOST_AFTER)

    def observe(self, beats: Mapping[str, datetime], now_s: float) -> BeatChanges:
        """The head has committed a look.

        Args:
            beats: the latest one of each host; any change of it is a sign of life, also to an earlier time.
            now_s: monotonic seconds after the commit; a look too early after the one before counts no missed beat.
        """
        if self._counted_s is None:
            newest = max(beats.values(), default=datetime.max.replace(tzinfo=UTC))
            silent = timedelta(seconds=BEAT_EVERY_S * LOST_AFTER)
            self._missed = {host: int(newest - beat > silent) for host, beat in beats.items()}
            self._beats, self._counted_s = dict(beats), now_s
            return BeatChanges()
        before = self.lost
        counts = now_s - self._counted_s >= BEAT_EVERY_S
        if counts:
            self._counted_s = now_s
        self._missed = {
            host: self._missed[host] + counts if self._beats.get(host) == beat else 0 for host, beat in beats.items()
        }
        self._beats = dict(beats)
        now = self.lost
        return BeatChanges(tuple(sorted(now - before)), tuple(sorted((before - now) & beats.keys())))

    def look_failed(self) -> None:
        """The head could not commit: the counts of hosts that are not lost begin again."""
        self._missed = {host: missed if missed >= LOST_AFTER else 0 for host, missed in self._missed.items()}
