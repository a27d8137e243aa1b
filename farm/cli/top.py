"""`farm top`: phones, jobs and events as they change."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from farm.cli.connection import JsonFlag, connect
from farm.cli.output import OutputError, now_of, print_json, print_json_line, print_note, terminal
from farm.cli.output.terminal import interruptible
from farm.cli.top_picture import PhoneOrder, Snapshot, followed, snapshot
from farm.common.durations import parse_duration, within
from farm.common.errors import DaemonUnreachableError, ExitCode, FarmError

if TYPE_CHECKING:
    from farm.control.client import ControlClient

INTERVAL_S = 2.0
FIRST_EVENTS = 50  # from before the first snapshot
JOBS = 200  # of those that have not ended
LIVE_STATES = ("running", "queued", "blocked", "held")
WHOLE_COLUMNS = 200  # not at a terminal: hardly anything is cut off
FRAME_S = 0.5  # a new size is seen at the latest then
LEAVE_S = 1.0  # for the poller's thread


def top(
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Time between two pictures.")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Print one picture, and stop.")] = False,
    sort: Annotated[PhoneOrder, typer.Option(help="Order of phones; state: what needs a look goes first.")] = "state",
    only: Annotated[str, typer.Option(help="Only phones and jobs that have these words.")] = "",
    json: JsonFlag = False,
) -> None:
    """Show phones, jobs and events as they change.

    It adapts to the terminal's size: where a table has no room, phones stand side by side. If the daemon restarts, it
    waits. Not at a terminal it prints one picture; with --json one document per picture, a line each.
    """
    interval_s = within("--interval", interval, parse_duration(interval), 0.2, 3600)
    reader = FarmReader()
    farm = reader.read()  # a daemon that never answered is an error, one that goes away later is not
    if json or once or not terminal.is_lively(sys.stdout):
        with contextlib.closing(reader):
            if not json:
                _print_once(farm, sort, only)
            elif once:
                print_json(asdict(farm))
            else:
                _print_documents(reader, farm, interval_s)
        return
    try:
        with interruptible(), Poller(reader, interval_s) as poller:
            _draw(poller, sort, only)
    except (KeyboardInterrupt, OSError, OutputError):  # the terminal is gone
        raise typer.Exit(ExitCode.INTERRUPTED) from None


class FarmReader:
    """Asks the daemon for the farm and keeps the latest snapshot."""

    def __init__(self, connected: Callable[[], ControlClient] = connect) -> None:
        """`connected` gives a client of the daemon."""
        self._connected = connected
        self._client: ControlClient | None = None
        self._seq: int | None = None
        self.farm: Snapshot | None = None

    def read(self) -> Snapshot:
        """The farm now.

        Raises:
            DaemonUnreachableError: the daemon does not answer.
        """
        self._client = client = self._client or self._connected()
        try:
            status = client.call("status")
            leases = client.call("lease.list")
            jobs = client.call("job.list", state=list(LIVE_STATES), limit=JOBS)
            since = max(0, int(status["seq"]) - FIRST_EVENTS) if self._seq is None else self._seq
            events: list[dict[str, Any]] = []
            self._seq = int(client.call("events", since=since, follow=False, on_progress=events.append)["seq"])
        except FarmError:
            self.close()
            raise
        self.farm = followed(self.farm, snapshot(status, leases, jobs, now_of(status)), events)
        return self.farm

    def close(self) -> None:
        """Disconnect; the next read connects again."""
        if self._client is not None:
            self._client.close()
            self._client = None


class Poller:
    """Reads the farm again and again in a thread of its own: a daemon that is away never holds up the screen."""

    def __init__(self, reader: FarmReader, interval_s: float) -> None:
        """Not started yet."""
        self._reader = reader
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="farm top", daemon=True)
        self.changed = threading.Event()  # set after each read
        self.farm = reader.farm
        self.away = ""  # why the daemon does not answer; "" while it does

    def __enter__(self) -> Self:
        self._reader.close()  # a client is for one thread
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_S)  # a question that is under way may take long

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.farm = self._reader.read()
                self.away = ""
            except DaemonUnreachableError as error:
                self.away = error.message
            except FarmError as error:
                self.away = f"{error.message} ({error.hint})" if error.hint else error.message
            except Exception as error:  # noqa: BLE001 (a picture that stands still must say why)
                self._reader.close()
                self.away = f"a mistake of farm top itself: {type(error).__name__}: {error}"
            if self._stopped.is_set():
                break
            self.changed.set()
            self._stopped.wait(self._interval_s)
        self._reader.close()


def _draw(poller: Poller, by: PhoneOrder, wanted: str) -> None:
    from rich.console import Group
    from rich.live import Live

    from farm.cli.top_picture import TopView, lines_of

    out, marks = terminal.console(sys.stdout), terminal.glyphs(sys.stdout)

    def frame() -> Group:
        return Group(*lines_of(poller.farm, TopView(out.width, out.height, marks, by, wanted, poller.away)))

    with Live(
        get_renderable=frame, console=out, screen=True, auto_refresh=False, vertical_overflow="crop",
        redirect_stdout=False, redirect_stderr=False,
    ) as live:  # fmt: skip
        while True:
            poller.changed.wait(FRAME_S)
            poller.changed.clear()
            live.refresh()


def _print_once(farm: Snapshot, by: PhoneOrder, wanted: str) -> None:
    from farm.cli.top_picture import TopView, lines_of

    rows = len(farm.phones) + len(farm.jobs) + len(farm.waiting) + len(farm.problems) + 60
    width = terminal.columns() if sys.stdout.isatty() or "COLUMNS" in os.environ else WHOLE_COLUMNS
    out = terminal.console(sys.stdout)
    for line in lines_of(farm, TopView(width, rows * 2, terminal.glyphs(sys.stdout), by, wanted)):
        out.print(line, soft_wrap=True)


def _print_documents(reader: FarmReader, farm: Snapshot, interval_s: float) -> None:
    with interruptible():
        try:
            while True:
                print_json_line(asdict(farm))
                time.sleep(interval_s)
                farm = _read_again(reader)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _read_again(reader: FarmReader) -> Snapshot:
    """The farm, once the daemon answers; stderr says that it is waited for."""
    waited = False
    while True:
        try:
            farm = reader.read()
        except DaemonUnreachableError as error:
            if not waited:
                print_note(f"{error.message}; waiting for it to come back")
            waited = True
            time.sleep(INTERVAL_S)
        else:
            if waited:
                print_note("the farm daemon is back")
            return farm
