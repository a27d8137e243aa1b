"""The farm from Python: `from farm import Client` (or `AsyncClient`). docs/scripts.md has the examples.

Results (`farm.client.model`) and specs (`farm.model.specs`) need numpy and pydantic; they are imported when a
client first uses them.
"""

from __future__ import annotations

from farm.client.asynchronous import AsyncClient
from farm.client.blocking import Client, Lease
from farm.client.lease import AsyncLease
from farm.client.model import AttemptInfo, DeviceInfo, FarmStatus, JobInfo, LogLine, Submitted, Usage
from farm.common.events import Event

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "AttemptInfo",
    "Client",
    "DeviceInfo",
    "Event",
    "FarmStatus",
    "JobInfo",
    "Lease",
    "LogLine",
    "Submitted",
    "Usage",
]
