"""`farm top` with keys and panes: phones, jobs, and details of the selected one. Needs textual."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from farm.cli.connection import connect
from farm.cli.output import escaped
from farm.cli.output.terminal import glyphs
from farm.cli.top_picture import (
    JOB_COLUMNS,
    WIDE,
    PhoneOrder,
    TopView,
    heading,
    job_cells,
    phone_cells,
    phone_columns,
    sorted_jobs,
    sorted_phones,
)
from farm.common.errors import ExitCode, FarmError

if TYPE_CHECKING:
    from farm.cli.top import Poller
    from farm.control.client import ControlClient

LOG_LINES = 500  # the latest of an attempt's log


class TopApp(App[None]):
    """The farm at a glance, and a closer look at one phone or job."""

    CSS = """
    #head { height: auto; }
    #filter { display: none; }
    #filter.shown { display: block; }
    #phones { height: auto; max-height: 60%; }
    #lower { height: 1fr; border-top: solid $accent; }
    #jobs { width: 3fr; }
    #events { width: 2fr; border-left: solid $accent; }
    #lower.narrow { layout: vertical; }
    #lower.narrow #jobs { width: 1fr; height: 3fr; }
    #lower.narrow #events { width: 1fr; height: 2fr; border-left: none; border-top: solid $accent; }
    #detail { display: none; height: 1fr; border-top: solid $accent; }
    #detail.shown { display: block; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("q", "quit", "quit"),
        Binding("e", "explain", "explain"),
        Binding("l", "logs", "logs"),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "back", "back"),
        Binding("tab", "focus_next", "other pane", show=False),
        Binding("ctrl+c", "interrupt", "leave", show=False, priority=True),
        Binding("question_mark", "help_keys", "keys", key_display="?"),
    ]

    def __init__(
        self,
        poller: Poller,
        *,
        by: PhoneOrder = "state",
        wanted: str = "",
        connected: Callable[[], ControlClient] = connect,
    ) -> None:
        """`connected` gives a client for questions about one phone or job."""
        super().__init__()
        self._poller = poller
        self._by = by
        self._wanted = wanted
        self._connected = connected
        self._wide: bool | None = None  # None: not mounted, so tables have no columns yet
        self._columns: tuple[str, ...] = ()  # of phones
        self._marks = glyphs()
        self._newest = 0  # event that is shown

    def compose(self) -> ComposeResult:
        """Head, filter, phones, jobs, events beside or (in a narrow terminal) below the jobs, details."""
        yield Static(id="head", markup=False)
        yield Input(placeholder="words that phones and jobs must have", id="filter", value=self._wanted)
        yield DataTable(id="phones", cursor_type="row", zebra_stripes=True)
        with Horizontal(id="lower"):
            yield DataTable(id="jobs", cursor_type="row")
            yield RichLog(id="events", wrap=True, min_width=1, max_lines=200)
        with Vertical(id="detail"):
            yield RichLog(id="text", wrap=True, max_lines=2000)
        yield Footer()

    def on_mount(self) -> None:
        """Fill the tables and listen to the poller."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the terminal must be left as it was
            asyncio.get_running_loop().add_signal_handler(number, self.action_interrupt)
        self._show_phone_columns(wide=self.size.width >= WIDE)
        self._table("jobs").add_columns(*JOB_COLUMNS)
        self._poller.on_snapshot = lambda: self.call_from_thread(self.refresh_farm)
        self.refresh_farm()
        self._table("phones").focus()

    def on_resize(self, event: Resize) -> None:
        """Show the columns that have room. Where the driver knows its size at once, this comes before `on_mount`."""
        wide = event.size.width >= WIDE
        if self._wide is not None and wide != self._wide:
            self._show_phone_columns(wide=wide)
            self.refresh_farm()

    def on_unmount(self) -> None:
        """The poller goes on without the screen."""
        self._poller.on_snapshot = self._poller.changed.set

    def refresh_farm(self) -> None:
        """Show the latest snapshot; selected rows stay selected."""
        farm = self._poller.farm
        if farm is None or self._wide is None or not self.query("#head"):  # not mounted yet, or just left
            return
        view = TopView(self.size.width, self.size.height, self._marks, self._by, self._wanted, self._poller.away)
        head = Text("\n").join(heading(farm, view))
        self.query_one("#head", Static).update(head.append(f"\nphones by {self._by}", "dim"))
        phones = sorted_phones(farm.phones, self._by, self._wanted)
        self._show_phone_columns(wide=self._wide)
        _fill(self._table("phones"), {phone.name: phone_cells(phone, wide=self._wide) for phone in phones})
        jobs = sorted_jobs(farm.jobs, self._wanted)
        _fill(self._table("jobs"), {job.id: job_cells(job, self._marks) for job in jobs})
        events = self.query_one("#events", RichLog)
        for news in farm.news:
            if news.seq > self._newest:
                self._newest = news.seq
                events.write(Text(f"{news.at.astimezone():%H:%M:%S} {escaped(news.text)}"))

    def action_interrupt(self) -> None:
        """Leave as Ctrl-C does."""
        self.exit(return_code=ExitCode.INTERRUPTED)

    def action_sort(self) -> None:
        """The next order of phones."""
        orders = get_args(PhoneOrder)
        self._by = orders[(orders.index(self._by) + 1) % len(orders)]
        self.refresh_farm()

    def action_filter(self) -> None:
        """Open the field for words."""
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as it is typed."""
        self._wanted = event.value
        self.refresh_farm()

    def on_input_submitted(self) -> None:
        """Back to the phones."""
        self.query_one("#filter").remove_class("shown")
        self._table("phones").focus()

    async def action_back(self) -> None:
        """Close the details, or else the filter."""
        detail, field = self.query_one("#detail"), self.query_one("#filter", Input)
        if detail.has_class("shown"):
            detail.remove_class("shown")
        elif field.has_class("shown") or self._wanted:
            field.value = ""
            field.remove_class("shown")
        self._table("phones").focus()

    def on_data_table_row_selected(self) -> None:
        """Enter explains."""
        self.action_explain()

    def action_explain(self) -> None:
        """Explain the selected phone or job."""
        what, name = self._selected()
        if name:
            self._ask(f"explain {what} {name}", lambda: self._explained(what, name))

    def action_logs(self) -> None:
        """The log of the selected job, or of the job on the selected phone."""
        what, name = self._selected()
        farm = self._poller.farm
        if what == "device" and farm is not None:
            name = next((job.id for job in farm.jobs if job.device == name and job.state == "running"), "")
        if name:
            self._ask(f"logs {name}", lambda: self._logged(name))
        else:
            self.notify("no job runs there")

    def action_help_keys(self) -> None:
        """List the keys."""
        self._show("keys", [f"{each.key_display or each.key:<8} {each.description}" for each in self.BINDINGS])

    # -- inside --------------------------------------------------------------------------------------------------------

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}", DataTable)

    def _show_phone_columns(self, *, wide: bool) -> None:
        self._wide = wide
        self.query_one("#lower").set_class(not wide, "narrow")
        farm = self._poller.farm
        columns = phone_columns(wide=wide, hosts=farm is not None and any(each.host for each in farm.phones))
        if columns != self._columns:
            self._columns = columns
            self._table("phones").clear(columns=True).add_columns(*columns)

    def _selected(self) -> tuple[str, str]:
        """`device` or `job`, and which; by the pane that has the focus."""
        what, table = (
            ("job", self._table("jobs")) if self.focused is self._table("jobs") else ("device", self._table("phones"))
        )
        if not table.row_count:
            return what, ""
        return what, str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)

    def _ask(self, title: str, question: Callable[[], list[str]]) -> None:
        """In a thread: the daemon may take its time."""

        def asked() -> None:
            try:
                lines = question()
            except FarmError as error:
                lines = [f"error: {error.message}", *([f"  hint: {error.hint}"] if error.hint else [])]
            self.call_from_thread(self._show, title, lines)

        self.run_worker(asked, thread=True, exclusive=True)

    def _show(self, title: str, lines: list[str]) -> None:
        text = self.query_one("#text", RichLog)
        text.clear()
        text.write(Text(title, "bold"))
        for line in lines:
            text.write(Text(escaped(line)))
        self.query_one("#detail").add_class("shown")

    def _explained(self, what: str, name: str) -> list[str]:
        with self._connected() as client:
            return [str(line) for line in client.call("explain", what=what, name=name)["lines"]]

    def _logged(self, job: str) -> list[str]:
        lines: list[dict[str, Any]] = []
        with self._connected() as client:
            for page in client.stream("job.logs", job=job, follow=False):
                lines = [*lines, *page.get("lines", ())][-LOG_LINES:]
        return [f"{line['at'][11:19]} {line['source']}: {line['text']}" for line in lines] or ["its log is empty"]


def _fill(table: DataTable[Text], rows: Mapping[str, list[Text]]) -> None:
    """Replace all rows (key -> cells); the cursor stays on its row."""
    before = table.cursor_row
    key = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value if table.row_count else None
    table.clear()
    for name, cells in rows.items():
        table.add_row(*cells, key=name)
    if key is not None and rows:
        at = list(rows).index(key) if key in rows else min(before, len(rows) - 1)
        table.move_cursor(row=at, animate=False)
