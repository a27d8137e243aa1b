"""The trace of a job for Perfetto: its samples, and the sessions of other phones on the same hub."""

from __future__ import annotations

from json import loads
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from farm.cli.connection import call
from farm.cli.output import write_file
from farm.common.errors import UserError
from farm.kinds import KINDS
from farm.model.device import parse_place
from farm.model.job import MEASURING_KINDS

if TYPE_CHECKING:
    from farm.client import Client
    from farm.client.model import Outcome

TRACE_SUFFIX = ".pftrace"
NEWEST = 200  # events of a phone that are asked for: a trace made much later lacks other phones' sessions


def write_trace(farm: Client, outcome: Outcome, raw: str, to: Path) -> None:
    """Write the trace of a job of a kind that keeps samples over time. `raw`: the artifact with the samples.

    Raises:
        UserError: its kind keeps no samples over time.
    """
    from farm.results.neighbours import session_tracks

    kind = KINDS.kinds["bench" if outcome.job.kind in MEASURING_KINDS else outcome.job.kind]
    if not kind.has("trace"):
        raise no_trace_error(outcome)
    with TemporaryDirectory(prefix="farm-trace-") as folder:
        farm.get_file(raw, Path(folder, "raw"))
        taken = loads(Path(folder, "raw").read_bytes())
    trace = kind.part("trace")
    beside = session_tracks(_sessions_beside(outcome.device), *trace.span_of(outcome.result))
    write_file(to, trace.trace_of(outcome.result, taken, beside))


def no_trace_error(outcome: Outcome) -> UserError:
    """The job is of a kind without traces."""
    return UserError(
        f"a {outcome.job.kind} job has no trace",
        hint=f"farm job show {outcome.job.id}; benches and sustained runs have traces",
    )


def _sessions_beside(device: str) -> dict[str, list[dict[str, Any]]]:
    """By name of each other phone on the same hub: the events of its sessions, newest first."""
    rows = call("status")["devices"]
    hubs = {row["name"]: (row.get("host"), place.hub) for row in rows if (place := parse_place(row["usb"])) is not None}
    names = [name for name, hub in hubs.items() if name != device and hub == hubs.get(device)]
    return {
        name: call("events.newest", subject=name, limit=NEWEST, topics=["session"])["events"] for name in sorted(names)
    }
