"""`farm top`: phones, jobs and events as they change; with the extra `tui` keys and panes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import terminal
from farm.cli.context import JsonFlag, connect, print_json, print_json_line, say
from farm.cli.interrupts import interruptible
from farm.cli.top_state import Farm, Sort, as_json, farm_from, followed
from farm.core.errors import DaemonUnreachableError, ExitCode, FarmError
from farm.core.extras import pip_install

if TYPE_CHECKING:
    from farm.cli.top_screen import View
    from farm.control.client import ControlClient

INTERVAL_S = 2.0
FIRST_EVENTS = 50  # what happened before the watcher came, for the ticker
JOBS = 200  # of those that have not ended
LIVE_STATES = ("running", "queued", "blocked", "held")
WHOLE_COLUMNS = 200  # where nobody looks at a screen, hardly anything is cut off
FRAME_S = 0.5  # a new size is seen at the latest then
LEAVE_S = 1.0  # for the thread that asks
HINT = f"keys and panes in farm top: {pip_install('tui')}"


def top(
    interval: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two looks.")] = INTERVAL_S,
    once: Annotated[bool, typer.Option("--once", help="One picture, and stop.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="No keys and panes, with the extra `tui`, too.")] = False,
    sort: Annotated[Sort, typer.Option(help="Order of phones; state: what needs a look goes first.")] = Sort.STATE,
    only: Annotated[str, typer.Option(help="Only phones and jobs that have these words.")] = "",
    json: JsonFlag = False,
) -> None:
    """Show phones, jobs and events as they change.

    It adapts to the terminal's size: where a table has no room, phones stand side by side. A daemon that restarts is
    waited for. With the extra `tui` there are keys: `?` lists them. Not at a terminal it
    prints one picture; with --json one document per look, a line each.
    """
    eyes = Eyes()
    eyes.look()  # a daemon that was never there is an error, one that goes away later is not
    live = terminal.lively(sys.stdout) and not once
    if json:
        with contextlib.closing(eyes):
            _print_documents(eyes, interval, once=once)
    elif not live:
        with contextlib.closing(eyes):
            _print_once(eyes, sort, only)
    else:
        keys = not plain and sys.stdin.isatty() and importlib.util.find_spec("textual") is not None
        code = 0
        try:
            with interruptible(), contextlib.ExitStack() as stack:
                watcher = stack.enter_context(watching(eyes, interval))
                if keys:
                    from farm.cli.top_app import TopApp

                    screen = TopApp(watcher, by=sort, wanted=only)
                    screen.run()
                    code = screen.return_code or 0
                else:
                    _draw(watcher, sort, only)
        except (KeyboardInterrupt, OSError) as error:  # OSError: the terminal is gone
            if not keys and not plain and isinstance(error, KeyboardInterrupt):
                _hint_once()
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        raise typer.Exit(code)


class Eyes:
    """Looks at the farm: asks the daemon, and keeps what it saw last."""

    def __init__(self, connected: Callable[[], ControlClient] = connect) -> None:
        """`connected` gives a client of the daemon."""
        self._connected = connected
        self._client: ControlClient | None = None
        self._seq: int | None = None
        self.farm: Farm | None = None

    def look(self) -> Farm:
        """The farm now.

        Raises:
            DaemonUnreachableError: nobody answers.
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
        self.farm = followed(self.farm, farm_from(status, leases, jobs, datetime.now(UTC)), events)
        return self.farm

    def close(self) -> None:
        """Leave; the next look connects again."""
        if self._client is not None:
            self._client.close()
            self._client = None


class Watcher:
    """Eyes in a thread of their own: the screen is never kept waiting by a daemon that is away."""

    def __init__(self, eyes: Eyes, interval_s: float) -> None:
        """Not started yet."""
        self._eyes = eyes
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="farm top", daemon=True)
        self.news = threading.Event()  # set with each look
        self.on_news: Callable[[], object] = self.news.set
        self.farm = eyes.farm
        self.away = ""  # what is wrong; "" while the daemon answers

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; a question that is under way is not waited for for long."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_S)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.farm = self._eyes.look()
                self.away = ""
            except DaemonUnreachableError as error:
                self.away = error.message
            except FarmError as error:
                self.away = f"{error.message} ({error.hint})" if error.hint else error.message
            except Exception as error:  # noqa: BLE001 (a picture that stands still, and does not say so, is a lie)
                self._eyes.close()
                self.away = f"a mistake of farm top itself: {type(error).__name__}: {error}"
            if self._over.is_set():
                break
            self.on_news()
            self._over.wait(self._interval_s)
        self._eyes.close()


@contextlib.contextmanager
def watching(eyes: Eyes, interval_s: float) -> Iterator[Watcher]:
    """A watcher at work."""
    eyes.close()  # a client is for one thread
    watcher = Watcher(eyes, interval_s)
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.stop()


def _draw(watcher: Watcher, by: Sort, wanted: str) -> None:
    from rich.console import Group
    from rich.live import Live

    from farm.cli.top_screen import lines_of

    out = terminal.console(sys.stdout)
    view = _view(out.width, out.height, by, wanted)

    def frame() -> Group:
        now = replace(view, width=out.width, height=out.height, away=watcher.away)
        return Group(*lines_of(watcher.farm, now))

    before = signal.signal(signal.SIGWINCH, lambda *_: watcher.news.set())
    try:
        with Live(
            get_renderable=frame, console=out, screen=True, auto_refresh=False, vertical_overflow="crop",
            redirect_stdout=False, redirect_stderr=False,
        ) as live:  # fmt: skip
            while True:
                watcher.news.wait(FRAME_S)
                watcher.news.clear()
                live.refresh()
    finally:
        signal.signal(signal.SIGWINCH, before)


def _view(width: int, height: int, by: Sort, wanted: str) -> View:
    from farm.cli.top_screen import View

    return View(width, height, terminal.glyphs(sys.stdout), by, wanted)


def _print_once(eyes: Eyes, by: Sort, wanted: str) -> None:
    from farm.cli.top_screen import lines_of

    assert eyes.farm is not None
    tall = len(eyes.farm.phones) + len(eyes.farm.jobs) + len(eyes.farm.waiting) + len(eyes.farm.problems) + 60
    view = _view(
        terminal.columns() if sys.stdout.isatty() or "COLUMNS" in os.environ else WHOLE_COLUMNS, tall * 2, by, wanted
    )
    out = terminal.console(sys.stdout)
    for line in lines_of(eyes.farm, view):
        out.print(line, soft_wrap=True)


def _print_documents(eyes: Eyes, interval_s: float, *, once: bool) -> None:
    assert eyes.farm is not None
    if once:
        print_json(as_json(eyes.farm))
        return
    with interruptible():
        try:
            while True:
                print_json_line(as_json(eyes.farm))
                time.sleep(interval_s)
                _looked_again(eyes)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _looked_again(eyes: Eyes) -> None:
    """What could not be asked is told on stderr; the next line comes when the daemon is back."""
    told = False
    while True:
        try:
            eyes.look()
        except DaemonUnreachableError as error:
            if not told:
                say(f"{error.message}; waiting for it to come back")
            told = True
            time.sleep(INTERVAL_S)
        else:
            if told:
                say("the farm daemon is back")
            return


def _hint_once() -> None:
    """Once in a person's life."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "farm"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "told-of-tui").open("x").close()
    except OSError:
        return
    say(HINT)
