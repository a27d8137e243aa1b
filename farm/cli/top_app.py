"""`farm top` with keys and panes: phones, jobs, and what is asked about the one that is selected. Needs textual."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from farm.cli.context import connect, shown
from farm.cli.top_screen import HEAT_STYLES, STYLES, WIDE
from farm.cli.top_state import Farm, Phone, Running, Sort, age, sorted_jobs, sorted_phones
from farm.core.errors import ExitCode, FarmError

if TYPE_CHECKING:
    from farm.cli.top import Watcher
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
        watcher: Watcher,
        *,
        by: Sort = Sort.STATE,
        wanted: str = "",
        connected: Callable[[], ControlClient] = connect,
    ) -> None:
        """`connected` gives a client for what is asked about one phone or job."""
        super().__init__()
        self._watcher = watcher
        self._by = by
        self._wanted = wanted
        self._connected = connected
        self._wide = False
        self._ticker = 0  # newest event that is shown

    def compose(self) -> ComposeResult:
        """Head, filter, phones, jobs beside events, details."""
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
        """Begin to listen."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the terminal must be left as it was
            asyncio.get_running_loop().add_signal_handler(number, self.action_interrupt)
        self._phone_columns()
        self._table("jobs").add_columns("JOB", "STATE", "NAME", "PHONE", "STEP", "USER")
        self._watcher.on_news = lambda: self.call_from_thread(self.refresh_farm)
        self.refresh_farm()
        self._table("phones").focus()

    def on_resize(self, event: Resize) -> None:
        """As many columns as there is room for."""
        wide = event.size.width >= WIDE
        if wide != self._wide:
            self._wide = wide
            self._phone_columns()
            self.refresh_farm()

    def on_unmount(self) -> None:
        """The watcher outlives the screen."""
        self._watcher.on_news = self._watcher.news.set

    def refresh_farm(self) -> None:
        """Show what was seen last; rows that are selected stay so."""
        farm = self._watcher.farm
        if farm is None:
            return
        self.query_one("#head", Static).update(_head(farm, self._watcher.away, self._by, self._wanted))
        _fill(self._table("phones"), self._phone_rows(farm))
        _fill(self._table("jobs"), self._job_rows(farm))
        events = self.query_one("#events", RichLog)
        for news in farm.news:
            if news.seq > self._ticker:
                self._ticker = news.seq
                events.write(
                    Text(f"{news.at.astimezone():%H:%M:%S} {news.kind} {shown(news.subject)} {shown(news.text)}")
                )

    def action_interrupt(self) -> None:
        """Leave as Ctrl-C does."""
        self.exit(return_code=ExitCode.INTERRUPTED)

    def action_sort(self) -> None:
        """The next order of phones."""
        orders = list(Sort)
        self._by = orders[(orders.index(self._by) + 1) % len(orders)]
        self.refresh_farm()

    def action_filter(self) -> None:
        """Type words."""
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
        """Close what was opened last: the details, then the filter."""
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
        """Why it is as it is."""
        what, name = self._selected()
        if name:
            self._ask(f"explain {what} {name}", lambda: self._explained(what, name))

    def action_logs(self) -> None:
        """What the latest attempt of the selected job, or of the selected phone's job, said."""
        what, name = self._selected()
        farm = self._watcher.farm
        if what == "device" and farm is not None:
            name = next((job.id for job in farm.jobs if job.device == name and job.state == "running"), "")
        if name:
            self._ask(f"logs {name}", lambda: self._logged(name))
        else:
            self.notify("no job runs there")

    def action_help_keys(self) -> None:
        """What can be pressed."""
        self._show("keys", [f"{each.key_display or each.key:<8} {each.description}" for each in self.BINDINGS])

    # -- inside --------------------------------------------------------------------------------------------------------

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}", DataTable)

    def _phone_columns(self) -> None:
        hardware = ("SOC", "GPU") if self._wide else ("SOC",)
        self._table("phones").clear(columns=True).add_columns(
            "PHONE", "STATE", "HEAT", "BATT", *hardware, "HOLDER", "AGE", "REASON"
        )

    def _selected(self) -> tuple[str, str]:
        """`device` or `job`, and which; by the pane that has the focus."""
        what, table = (
            ("job", self._table("jobs")) if self.focused is self._table("jobs") else ("device", self._table("phones"))
        )
        if not table.row_count:
            return what, ""
        return what, str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)

    def _phone_rows(self, farm: Farm) -> Iterator[tuple[str, list[Text]]]:
        for phone in sorted_phones(farm.phones, self._by, self._wanted):
            yield phone.name, _phone_cells(phone, wide=self._wide)

    def _job_rows(self, farm: Farm) -> Iterator[tuple[str, list[Text]]]:
        for job in sorted_jobs(farm.jobs, self._wanted):
            yield job.id, _job_cells(job)

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
            text.write(Text(shown(line)))
        self.query_one("#detail").add_class("shown")

    def _explained(self, what: str, name: str) -> list[str]:
        with self._connected() as client:
            return [str(line) for line in client.call("explain", what=what, name=name)["lines"]]

    def _logged(self, job: str) -> list[str]:
        lines: list[dict[str, Any]] = []
        with self._connected() as client:
            for page in client.stream("job.logs", job=job, follow=False):
                lines = [*lines, *page.get("lines", ())][-LOG_LINES:]
        return [f"{line['at'][11:19]} {line['source']}: {line['text']}" for line in lines] or [
            "it has not said anything"
        ]


def _fill(table: DataTable[Text], rows: Iterator[tuple[str, list[Text]]]) -> None:
    """New rows in place of those there are; the cursor stays on what it was on."""
    before = table.cursor_row
    key = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value if table.row_count else None
    table.clear()
    at = 0
    for index, (name, cells) in enumerate(rows):
        table.add_row(*cells, key=name)
        if name == key:
            at = index
    if key is not None and table.row_count:
        found = any(str(each.value) == key for each in table.rows)
        table.move_cursor(row=at if found else min(before, table.row_count - 1), animate=False)


def _head(farm: Farm, away: str, by: Sort, wanted: str) -> Text:
    line = Text(f"farm {farm.version}  tracker {farm.tracker}  {len(farm.phones)} phones: ")
    for state, count in sorted(farm.counts().items(), key=lambda each: -each[1]):
        line.append(f"{count} {state}  ", STYLES.get(state, ""))
    line.append(f"by {by.value}", "dim")
    if wanted:
        line.append(f"  only: {wanted}", "yellow")
    if farm.starts:
        line.append("  the daemon was restarted", "yellow")
    if away:
        line.append(f"\n{shown(away)}; this is how it was", "bold red")
    for problem in farm.problems[:2]:
        line.append(f"\nwarning: {shown(problem)}", "yellow")
    return line


def _phone_cells(phone: Phone, *, wide: bool) -> list[Text]:
    return [
        Text(phone.name),
        Text(phone.state, STYLES.get(phone.state.partition(",")[0], "")),
        Text("-" if phone.celsius is None else f"{phone.celsius:.1f}C", HEAT_STYLES.get(phone.heat, "")),
        Text("-" if phone.battery is None else f"{phone.battery}%"),
        Text(phone.soc or "-"),
        *([Text(phone.gpu or "-")] if wide else []),
        Text(shown(phone.user) or "-"),
        Text(age(phone.held_s)),
        Text(shown(phone.reason or phone.what), "dim"),
    ]


def _job_cells(job: Running) -> list[Text]:
    part = "" if job.done is None else f"{job.done:.0%} "
    return [
        Text(job.id),
        Text(job.state, STYLES.get(job.state, "")),
        Text(shown(job.name)),
        Text(job.device or "-"),
        Text(part + shown(job.step if job.state == "running" else job.waits), "dim"),
        Text(shown(job.user)),
    ]
