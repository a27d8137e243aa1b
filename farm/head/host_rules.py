"""The state of a host of a lab, for people. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from farm.head.beats import BEAT_EVERY_S, LOST_AFTER
from farm.model.device import DeviceState, Life

SILENT_S = 2 * BEAT_EVERY_S  # without a beat

Device = TypeVar("Device", bound=DeviceState)


class HostState(StrEnum):
    """The state of a host in one word."""

    OK = "ok"  # its beats come in time
    DRAINED = "drained"  # an operator wants that its phones are not handed out
    SILENT = "silent"  # its latest beat is late
    LOST = "lost"  # the head hands its work to others
    STOPPED = "stopped"  # its daemon was stopped in order, or never started
    REMOVED = "removed"  # the head is ending its leases and attempts
    UNKNOWN = "unknown"  # the database does not answer


AWAY = frozenset({HostState.LOST, HostState.STOPPED, HostState.REMOVED})  # nothing there can be reached


def state_of(beat_age_s: float | None, *, drained: bool, removed: bool) -> HostState:
    """The state of a host by the age of its latest beat, in seconds; None: it does not run."""
    if removed:
        return HostState.REMOVED
    if beat_age_s is None:
        return HostState.STOPPED
    if beat_age_s > BEAT_EVERY_S * (LOST_AFTER + 1):
        return HostState.LOST
    if beat_age_s > SILENT_S:
        return HostState.SILENT
    return HostState.DRAINED if drained else HostState.OK


def gone_with_host(device: Device, host: str, state: HostState, beat_at: datetime | None = None) -> Device:
    """A phone of a host that is away, in this state since this beat: gone."""
    since = f" since {beat_at:%Y-%m-%d %H:%M:%S} UTC" if beat_at else ""
    return replace(device, life=Life.GONE, reason=f"its host {host} is {state}{since}")
