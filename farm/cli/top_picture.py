"""The picture of `farm top`: answers of the daemon in, a snapshot out; a snapshot in, lines of the screen's size out.

No clock, no terminal: tests hand it values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from rich.text import Text

from farm.cli.output import escaped, plots, style_of
from farm.cli.output.terminal import Glyphs
from farm.cli.status import host_in_brief, short_age
from farm.common.durations import format_duration
from farm.common.selector import natural
from farm.model.event_words import event_words

PhoneOrder = Literal["state", "name", "heat", "battery", "holder"]
MAX_EVENTS = 200  # kept for the ticker
SHOWN_BY_ROWS = frozenset({"device.pushing", "job.progress"})  # rows of phones and jobs show these
CELL = 30  # columns of a phone where all of them stand beside each other
WIDE = 100  # columns from which on there is room for what a phone is and why
BAR = 10
LOW_BATTERY_PERCENT = 20
# Column -> its width; 0: the rest of the line.
PHONE_COLUMNS = {
    "PHONE": 20, "HOST": 10, "STATE": 12, "HEAT": 7, "BATT": 5, "SOC": 14, "GPU": 14, "HOLDER": 12, "AGE": 8,
    "REASON": 0,
}  # fmt: skip
WIDE_COLUMNS = ("SOC", "GPU", "REASON")
RIGHT_COLUMNS = ("HEAT", "BATT")
# Column -> the most characters of its cells in a line of text; 0: no limit. 80 columns show the step.
JOB_COLUMNS = {"JOB": 0, "STATE": 0, "PHONE": 16, "STEP": 40, "NAME": 20, "USER": 10}


@dataclass(frozen=True, slots=True)
class PhoneRow:
    """One phone and its holder."""

    name: str
    state: str
    reason: str
    soc: str
    gpu: str
    celsius: float | None
    battery: int | None
    heat: str  # of the heat policy: ok, warm, hot
    user: str  # "": free
    what: str  # job or key it is used for
    held_s: float | None
    session: bool  # a TVM session is open
    host: str = ""  # of a lab; "": there is one host
    read: str = ""  # the age of the temperature, its largest unit: 2h; "": it is of now


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job that has not ended."""

    id: str
    kind: str
    name: str
    user: str
    state: str
    device: str
    step: str
    done: float | None  # part of the whole, 0 to 1; None: unknown
    waits: str
    submitted: str  # ISO 8601


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A request without a phone."""

    user: str
    selector: str
    job: str
    priority: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as one line."""

    seq: int
    at: datetime
    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The farm at one moment."""

    version: str
    tracker: str
    at: datetime
    phones: tuple[PhoneRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    waiting: tuple[WaitingRow, ...] = ()
    waiting_more: int = 0
    jobs_more: bool = False
    news: tuple[EventRow, ...] = ()  # oldest first
    problems: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()  # of a lab, each with its state
    seq: int = 0
    starts: int = 0  # of the daemon since the first snapshot, seen by its process number
    pid: int = 0

    def counts(self) -> dict[str, int]:
        """Phones by state."""
        return Counter(phone.state.partition(",")[0] for phone in self.phones)


def snapshot(status: Mapping[str, Any], leases: Mapping[str, Any], jobs: Mapping[str, Any], at: datetime) -> Snapshot:
    """The answers of `status`, `lease.list` and `job.list` as one."""
    held = {row["device"]: row for row in leases["leases"]}
    return Snapshot(
        version=status["version"],
        tracker=f"{status['tracker']['host']}:{status['tracker']['port']}",
        at=at,
        phones=tuple(_phone(row, held.get(row["name"])) for row in status["devices"]),
        jobs=tuple(_job(row) for row in jobs["jobs"]),
        jobs_more=jobs["more"],
        waiting=tuple(
            WaitingRow(row["user"], row["selector"], row["job"] or "", row["priority"], row["waited_s"])
            for row in leases["waiting"]
        ),
        waiting_more=leases["waiting_more"],
        problems=tuple(status["problems"]),
        hosts=tuple(map(host_in_brief, status.get("hosts", ()))),
        seq=status["seq"],
        pid=status["pid"],
    )


def followed(before: Snapshot | None, now: Snapshot, events: Iterable[Mapping[str, Any]]) -> Snapshot:
    """`now` with the earlier events and those since."""
    known = before.news if before else ()
    last = known[-1].seq if known else 0
    fresh = [_news(event) for event in events if event["kind"] not in SHOWN_BY_ROWS and event["seq"] > last]
    starts = 0 if before is None else before.starts + (now.pid != before.pid)
    return replace(now, news=(*known, *fresh)[-MAX_EVENTS:], starts=starts)


def sorted_phones(phones: Sequence[PhoneRow], by: PhoneOrder, wanted: str = "") -> list[PhoneRow]:
    """Phones that have all the words of `wanted`, in order; by state those that need a look go first."""
    words = wanted.lower().split()
    shown = [phone for phone in phones if all(word in _words(phone) for word in words)]
    match by:
        case "name":
            return sorted(shown, key=lambda phone: natural(phone.name))
        case "heat":
            return sorted(shown, key=lambda phone: (-(phone.celsius or -273.0), natural(phone.name)))
        case "battery":
            return sorted(
                shown, key=lambda phone: (101 if phone.battery is None else phone.battery, natural(phone.name))
            )
        case "holder":
            return sorted(shown, key=lambda phone: (phone.user == "", phone.user, natural(phone.name)))
        case "state":
            return sorted(shown, key=lambda phone: (_rank(phone.state), natural(phone.name)))


def sorted_jobs(jobs: Sequence[JobRow], wanted: str = "") -> list[JobRow]:
    """Jobs that have all the words of `wanted`: running ones first, then waiting ones, the oldest first."""
    words = wanted.lower().split()
    order = {"running": 0, "queued": 1, "blocked": 2, "held": 3}
    shown = [
        job
        for job in jobs
        if all(word in f"{job.id} {job.kind} {job.name} {job.user} {job.device} {job.state}".lower() for word in words)
    ]
    return sorted(shown, key=lambda job: (order.get(job.state, 4), job.submitted))


def _phone(row: Mapping[str, Any], lease: Mapping[str, Any] | None) -> PhoneRow:
    return PhoneRow(
        name=row["name"], state=row["state"], reason=row.get("reason") or "", soc=row.get("soc") or "",
        gpu=row.get("gpu") or "", celsius=row.get("temperature_c"), battery=row.get("battery_percent"),
        heat=row.get("heat") or "ok", user=lease["user"] if lease else row.get("holder") or "",
        what=(lease["job"] or lease["key"] or lease["note"] or "") if lease else "",
        held_s=lease["held_s"] if lease else None, session=bool(lease and lease.get("session")),
        host=row.get("host", ""), read=short_age(row.get("read_age_s")),
    )  # fmt: skip


def _job(row: Mapping[str, Any]) -> JobRow:
    progress = row.get("progress") or {}
    done, of = progress.get("done"), progress.get("of")
    return JobRow(
        id=row["id"], kind=row["kind"], name=row["name"], user=row["user"], state=row["state"],
        device=row["on"] or row["device"] or "", step=str(progress.get("step") or ""),
        done=done / of if done is not None and of else None, waits=row["waits"] or "",
        submitted=row["submitted_at"],
    )  # fmt: skip


def _news(event: Mapping[str, Any]) -> EventRow:
    host = event["data"].get("host")
    text = f"{event_words(event)}{f', at {host}' if host else ''}"
    return EventRow(event["seq"], datetime.fromisoformat(event["at"]), event["kind"], event["subject"], text)


def _words(phone: PhoneRow) -> str:
    words = (phone.name, phone.host, phone.state, phone.soc, phone.gpu, phone.user, phone.what, phone.reason)
    return " ".join(words).lower()


def _rank(state: str) -> int:
    """Broken phones go first, then those on their way, at work, free."""
    ranks = {"quarantined": 0, "unauthorized": 0, "recovering": 1, "busy": 3, "ready": 4, "maintenance": 5, "gone": 6}
    return ranks.get(state.partition(",")[0], 2)


def age(seconds: float | None) -> str:
    """A duration; empty when it is unknown."""
    return "" if seconds is None else format_duration(seconds)


@dataclass(frozen=True, slots=True)
class TopView:
    """Size, characters, order and filter of the picture."""

    width: int
    height: int
    marks: Glyphs
    by: PhoneOrder = "state"
    wanted: str = ""
    away: str = ""  # why the daemon does not answer; "" when it does


def lines_of(farm: Snapshot | None, view: TopView) -> list[Text]:
    """The whole picture."""
    if farm is None:
        return [_cut(Text(view.away or "asking the daemon ..."), view)]
    lines = heading(farm, view)
    room = max(0, view.height - len(lines))
    phones = sorted_phones(farm.phones, view.by, view.wanted)
    jobs = sorted_jobs(farm.jobs, view.wanted)
    waiting = [each for each in farm.waiting if not each.job]  # jobs that wait are among the jobs
    # Each part gets what it needs as far as there is room: phones first, then jobs, then what waits, the ticker last.
    for_news = min(len(farm.news), max(0, min(8, room // 5)))
    for_jobs = min(len(jobs) + 1, max(0, (room - for_news) // 3)) if jobs else 0
    for_waiting = min(len(waiting) + 1, max(0, (room - for_news - for_jobs) // 4)) if waiting else 0
    for_phones = max(0, room - for_news - for_jobs - for_waiting - bool(for_news))
    table = phone_lines(phones, view, for_phones)
    spare = for_phones - len(table)
    for_jobs = min(len(jobs) + 1, for_jobs + spare) if jobs else 0
    lines += table
    lines += _jobs(jobs, farm, view, for_jobs)
    lines += _waiting(farm, for_waiting, view.marks)
    left = view.height - len(lines)
    if farm.news and left >= 2:
        lines.append(Text("EVENTS", "bold"))
        lines += [_event(each) for each in farm.news[-(left - 1) :]]
    return [_cut(line, view) for line in lines[: view.height]]


def phone_lines(phones: Sequence[PhoneRow], view: TopView, room: int) -> list[Text]:
    """Phones as a table, or as cells where that is too high or too wide; phones that do not fit are counted."""
    if not phones:
        none = (
            f"no phone has the words {escaped(view.wanted)}"
            if view.wanted
            else "no phones: plug one in, or `farm doctor`"
        )
        return [Text(none, "dim")][:room]
    if room < 2:
        return []
    wide = view.width >= WIDE
    columns = phone_columns(wide=wide, hosts=any(phone.host for phone in phones))
    titles = [Text(name, "bold") for name in columns]
    table = (titles, *(phone_cells(phone, wide=wide) for phone in phones))
    lines = [_phone_line(cells, columns, view.marks) for cells in table]
    if len(lines) <= room and (wide or all(len(line) <= view.width for line in lines)):
        return lines
    across = max(1, view.width // CELL)
    rows = -(-len(phones) // across)
    shown_rows = min(rows, room if rows <= room else room - 1)
    lines = []
    for row in range(shown_rows):
        line = Text()
        for phone in phones[row * across : (row + 1) * across]:
            line.append_text(_cell(phone, view))
        lines.append(line)
    missing = len(phones) - shown_rows * across
    if missing > 0:
        lines.append(Text(f"{view.marks.more} {missing} phones more", "dim"))
    return lines


def heading(farm: Snapshot, view: TopView) -> list[Text]:
    """Version, tracker, phones by state, the time, and problems."""
    first = Text.assemble((f"farm {farm.version}", "bold"), f"  tracker {farm.tracker}  ")
    number = len(farm.phones)
    phones = Text(f"{number} {'phone' if number == 1 else 'phones'}{': ' if number else ''}")
    for state, count in sorted(farm.counts().items(), key=lambda each: -each[1]):
        phones.append(f"{count} {state}  ", style_of(state))
    fits = len(first) + len(phones.plain.rstrip()) <= view.width
    waiting = len(farm.waiting) + farm.waiting_more
    running = sum(job.state == "running" for job in farm.jobs)
    second = Text(f"{farm.at.astimezone():%H:%M:%S}  running jobs: {running}, waiting for a phone: {waiting}")
    if farm.starts:
        times = f" {farm.starts} times" if farm.starts > 1 else ""
        second.append(f"  the daemon was restarted{times}", "yellow")
    if view.wanted:
        second.append(f"  only: {escaped(view.wanted)}", "yellow")
    lines = [first.append_text(phones), second] if fits else [first, phones, second]
    if farm.hosts:
        lines.append(Text(f"hosts: {', '.join(farm.hosts)}"))
    if view.away:
        lines.append(Text(escaped(f"this is how it was: {view.away}"), "bold red"))
    return lines + [Text(f"warning: {escaped(problem)}", "yellow") for problem in farm.problems[:2]]


def phone_cells(phone: PhoneRow, *, wide: bool) -> list[Text]:
    """Cells of PHONE_COLUMNS."""
    why = phone.reason or (f"session of {phone.what}" if phone.session else phone.what)
    return [
        Text(phone.name),
        *((Text(phone.host),) if phone.host else ()),
        Text(phone.state, style_of(phone.state)),
        _celsius(phone),
        _battery(phone),
        *((Text(phone.soc or "-"), Text(phone.gpu or "-")) if wide else ()),
        Text(escaped(phone.user) or "-"),
        Text(age(phone.held_s)),
        *((Text(escaped(why), "dim"),) if wide else ()),
    ]


def _heat_style(phone: PhoneRow) -> str:
    return "" if phone.heat == "ok" else style_of(phone.heat)


def _celsius(phone: PhoneRow) -> Text:
    """The temperature: an old one dim, with its age; none of a phone that is gone."""
    if phone.celsius is None or phone.state == "gone":
        return Text("-")
    if phone.read:
        return Text(f"{phone.celsius:.0f}C {phone.read}", "dim")
    return Text(f"{phone.celsius:.1f}C", _heat_style(phone))


def _battery(phone: PhoneRow) -> Text:
    """The battery: an old reading dim (its age stands beside the temperature); none of a phone that is gone."""
    if phone.battery is None or phone.state == "gone":
        return Text("-")
    if phone.read:
        return Text(f"{phone.battery}%" + (f" {phone.read}" if phone.celsius is None else ""), "dim")
    return Text(f"{phone.battery}%", "red" if phone.battery < LOW_BATTERY_PERCENT else "")


def phone_columns(*, wide: bool, hosts: bool) -> tuple[str, ...]:
    """Titles of `phone_cells`; `hosts`: the farm is a lab of several."""
    return tuple(name for name in PHONE_COLUMNS if (wide or name not in WIDE_COLUMNS) and (hosts or name != "HOST"))


def _phone_line(cells: Sequence[Text], columns: Sequence[str], marks: Glyphs) -> Text:
    line = Text()
    for name, cell in zip(columns, cells, strict=True):
        width = PHONE_COLUMNS[name]
        room = max(0, width - len(cell))
        if name in WIDE_COLUMNS and width:
            cut(cell, width, marks)
        (cell.pad_left if name in RIGHT_COLUMNS else cell.pad_right)(room)
        line.append_text(cell).append(" ")
    line.rstrip()
    return line


def _cell(phone: PhoneRow, view: TopView) -> Text:
    celsius = "" if phone.celsius is None or phone.state == "gone" else f"{phone.celsius:.0f}C"
    name = phone.name if len(phone.name) <= 15 else phone.name[:14] + view.marks.more
    cell = Text(f"{view.marks.dot} ", style_of(phone.state) or "yellow")
    cell.append(f"{name:<15} ")
    cell.append(f"{celsius:>4} ", "dim" if phone.read else _heat_style(phone))
    cell.append(f"{(escaped(phone.user) or phone.state)[:6]:<6} ", "" if phone.user else "dim")
    return cell


def job_cells(job: JobRow, marks: Glyphs) -> list[Text]:
    """Cells of JOB_COLUMNS."""
    bar = "" if job.done is None else f"{plots.bar(job.done, BAR, marks)} {job.done:4.0%} "
    return [
        Text(job.id),
        Text(job.state, style_of(job.state)),
        Text(job.device or "-"),
        Text.assemble((bar, "cyan"), (escaped(job.step if job.state == "running" else job.waits), "dim")),
        Text(escaped(job.name)),
        Text(escaped(job.user)),
    ]


def _jobs(jobs: Sequence[JobRow], farm: Snapshot, view: TopView, room: int) -> list[Text]:
    if room < 2:
        return []
    lines = [Text("JOBS" + (" (the newest)" if farm.jobs_more else ""), "bold")]
    fits = room - 1
    shown = jobs[:fits] if len(jobs) <= fits else jobs[: fits - 1]
    rows = [job_cells(job, view.marks) for job in shown]
    for row in rows:
        for cell, limit in zip(row, JOB_COLUMNS.values(), strict=True):
            cut(cell, limit or len(cell), view.marks)
    lines += aligned(rows)
    if len(jobs) > len(shown):
        lines.append(Text(f"{view.marks.more} {len(jobs) - len(shown)} jobs more", "dim"))
    return lines


def aligned(rows: Sequence[Sequence[Text]]) -> list[Text]:
    """A line for each row, with aligned columns; empty columns take no room."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        shown = [(cell, width) for cell, width in zip(row, widths, strict=True) if width]
        for cell, width in shown:
            cell.pad_right(width - len(cell))
        lines.append(Text("  ").join(cell for cell, _ in shown))
    return lines


def _waiting(farm: Snapshot, room: int, marks: Glyphs) -> list[Text]:
    if room < 2:
        return []
    waiting = [each for each in farm.waiting if not each.job][: room - 1]
    lines = [Text("WAITING FOR A PHONE", "bold")]
    for each in waiting:
        line = Text()
        for text, width in ((each.user, 12), (each.selector, 30)):
            cut(cell := Text(escaped(text)), width, marks)
            cell.pad_right(width - len(cell))
            line.append_text(cell).append(" ")
        lines.append(line.append(f"priority {each.priority}  {age(each.waited_s)}"))
    return lines


def _event(event: EventRow) -> Text:
    return Text(f"{event.at.astimezone():%H:%M:%S} {escaped(event.text)}", "dim")


def _cut(line: Text, view: TopView) -> Text:
    cut(line, view.width, view.marks)
    return line


def cut(text: Text, width: int, marks: Glyphs) -> None:
    """Cut a text to `width` columns. The last column marks the cut."""
    text.rstrip()
    if text.cell_len > width:
        text.truncate(width - 1)
        text.append(marks.more)
