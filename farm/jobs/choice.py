"""Which phones a bench means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farm.core.device import DeviceView, Life, Service
from farm.core.errors import NoPhoneError
from farm.core.selector import Selector
from farm.jobs.model import BenchSpec

# A phone in one of these states is ready, or will be without anybody's help.
READY_OR_SOON = frozenset(
    {Life.READY, Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING}
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which phones a job runs on, and which others could stand in."""

    chosen: tuple[DeviceView, ...]
    spare: tuple[DeviceView, ...]


def choose(spec: BenchSpec, devices: Sequence[DeviceView]) -> Choice:
    """The phones a spec means: every usable match, or the first `devices` of them with ready ones first.

    Raises:
        SelectorError: the selector does not follow the grammar.
        NoPhoneError: none matches (the nearest is named), or none of those is usable now (each reason is said).
    """
    selector = Selector.parse(spec.selector)
    adopted = [view for view in devices if view.adopted]
    matching = [view for view in adopted if selector.matches(view.labels, view.aliases)]
    strangers = [view.name for view in devices if view.life is Life.NEW]
    if strangers and not adopted:
        raise NoPhoneError(
            f"no phone matches {selector}: none is adopted yet", hint=f"let one in: farm device adopt {strangers[0]}"
        )
    if not matching:
        raise selector.no_match((view.labels, view.aliases) for view in adopted)
    usable = [view for view in matching if is_usable(view)]
    if not usable:
        raise NoPhoneError(
            f"no phone that matches {selector} can be used now: {'; '.join(map(_why_not, matching))}",
            hint="`farm device list` shows every phone's state",
        )
    usable.sort(key=lambda view: (not view.leasable, view.name))
    most = len(usable) if spec.devices is None else spec.devices
    return Choice(tuple(usable[:most]), tuple(usable[most:]))


def _why_not(view: DeviceView) -> str:
    state = view.life if view.service is Service.IN else view.service
    return f"{view.name} is {state}" + (f" ({view.reason})" if view.reason else "")


def is_usable(view: DeviceView) -> bool:
    """Whether a job may wait for that phone."""
    return view.service is Service.IN and view.life in READY_OR_SOON
