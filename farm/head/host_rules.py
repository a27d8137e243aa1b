"""The state of a host of a lab, for people. Pure."""

from __future__ import annotations

from enum import StrEnum

from farm.head.beats import BEAT_EVERY_S, LOST_AFTER

SILENT_S = 2 * BEAT_EVERY_S  # without a beat


class HostState(StrEnum):
    """One word about a host; `ok` needs no one."""

    OK = "ok"
    DRAINED = "drained"  # an operator wants that its phones are not handed out
    SILENT = "silent"  # its latest beat is late
    LOST = "lost"  # the head hands its work to others
    STOPPED = "stopped"  # in good order, or it was never started
    REMOVED = "removed"  # the head ends what it had


def state_of(beat_age_s: float | None, *, drained: bool, removed: bool) -> HostState:
    """The state of a host whose latest beat is so old, seconds; None: it does not run."""
    if removed:
        return HostState.REMOVED
    if beat_age_s is None:
        return HostState.STOPPED
    if beat_age_s > BEAT_EVERY_S * (LOST_AFTER + 1):
        return HostState.LOST
    if beat_age_s > SILENT_S:
        return HostState.SILENT
    return HostState.DRAINED if drained else HostState.OK
