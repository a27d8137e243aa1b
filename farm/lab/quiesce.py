"""Phones of other hosts made quiet for a measurement: the service `quiesce` of the link.

quiesce {lease, level, restore_after_s} -> {level, steps: [{name, detail, took}]}

A pool may have phones of several hosts, and only a phone's own host reaches its adb server. That host renews the quiet
state, and has the phone changed back when the lease has ended.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter, ValidationError

from farm.common.errors import NotAllowedError, ProtocolError
from farm.devices.quiesce import BEGIN_TIMEOUT_S, QuiesceController
from farm.devices.quiesce_policy import Level, QuiesceResult
from farm.lab.link import HostLink, LinkCall
from farm.leasing.leases import Leasing

SERVICE = "quiesce"
DIAL_S = 10.0  # beside the time that the phone may take

_RESULT = TypeAdapter(QuiesceResult)
_ASKED = TypeAdapter(tuple[str, Level, float])


class HostQuiesce:
    """Both sides of the service at this host."""

    def __init__(self, link: HostLink, leasing: Leasing, phones: QuiesceController) -> None:
        """Serve the other hosts from now on."""
        self._link = link
        self._leasing = leasing
        self._phones = phones
        link.serve(SERVICE, self._serve)

    async def begin(self, host: str, lease: str, level: Level, restore_after_s: float) -> QuiesceResult:
        """Have the phone under this lease at another host made quiet, for as long as the lease.

        Raises:
            FarmError: nothing was changed, or the changes are unknown.
        """
        asked = {"lease": lease, "level": str(level), "restore_after_s": restore_after_s}
        connection = await self._link.dial(host, SERVICE, asked, limit_s=BEGIN_TIMEOUT_S + DIAL_S)
        await connection.close()
        try:
            return _RESULT.validate_python(connection.fields)
        except ValidationError as error:
            raise ProtocolError(f"host {host} does not say what it has changed") from error

    async def _serve(self, call: LinkCall) -> None:
        lease_id, level, restore_after_s = _asked(call)
        lease = self._leasing.active.current(lease_id).lease
        if lease.request.holder_host != call.host:
            raise NotAllowedError(f"{lease_id} is no lease of host {call.host}")
        self._leasing.changed_phone(lease_id, changed=True)  # until its end: then the phone is cleaned and checked
        quiet = await self._phones.begin(lease.device, level, lease_id, restore_after_s)
        fields: dict[str, Any] = asdict(quiet)
        await call.accept(**fields)


def _asked(call: LinkCall) -> tuple[str, Level, float]:
    fields = call.fields
    try:
        return _ASKED.validate_python([fields.get(name) for name in ("lease", "level", "restore_after_s")])
    except ValidationError as error:
        raise ProtocolError("a phone is to be quiet without its lease and level") from error
