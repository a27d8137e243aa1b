"""Verbs about the hosts of a lab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.control.callers import Role
from farm.control.verbs import VerbGroup, json_of, verb
from farm.leasing.lab_view import HostView, LabView


class HostVerbs(VerbGroup):
    """The one verb; `host.drain` is with the leases that it holds back."""

    def __init__(self, lab: LabView) -> None:
        self._lab = lab

    @verb("host.list", Role.VIEWER)
    async def hosts(self) -> Mapping[str, Any]:
        """Every host, and the unused tokens; `own` is this host's name, "" outside of a lab."""
        picture = await self._lab.look()
        return {
            "own": self._lab.own,
            "hosts": [host_row(each) for each in picture.hosts],
            "tokens": [json_of(each, "name", "expires_at", "made_by") for each in picture.tokens],
        }


def host_row(view: HostView) -> dict[str, Any]:
    """A host in `host.list` and `status`."""
    return json_of(view, "name", "state", "address", "beat_at", "silent_s", "phones", "version", "protocol", "drained")
