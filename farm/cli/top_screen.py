"""`farm top` as lines of text: values in, lines out, none wider than the screen and no more than it is high."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from farm.cli import plots
from farm.cli.context import shown
from farm.cli.terminal import Glyphs
from farm.cli.top_state import Farm, News, Phone, Running, Sort, age, sorted_jobs, sorted_phones

STYLES = {
    "ready": "green", "busy": "cyan", "quarantined": "bold red", "unauthorized": "bold red", "gone": "dim",
    "recovering": "yellow", "draining": "yellow", "maintenance": "magenta", "running": "cyan", "queued": "blue",
    "held": "magenta", "blocked": "magenta", "cooling": "yellow", "hot": "red", "warm": "yellow",
}  # fmt: skip
HEAT_STYLES = {"warm": "yellow", "cooling": "yellow", "hot": "red"}
CELL = 30  # columns of a phone where all of them stand beside each other
WIDE = 100  # columns from which on there is room for what a phone is and why
BAR = 10


@dataclass(frozen=True, slots=True)
class View:
    """How to look at it."""

    width: int
    height: int
    marks: Glyphs
    by: Sort = Sort.STATE
    wanted: str = ""
    away: str = ""  # what is wrong with the daemon; "" when it answers


def lines_of(farm: Farm | None, view: View) -> list[Text]:
    """The whole picture."""
    if farm is None:
        return [_cut(Text(view.away or "asking the daemon ..."), view)]
    lines = _head(farm, view)
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
    lines += _waiting(farm, for_waiting)
    left = view.height - len(lines)
    if farm.news and left >= 2:
        lines.append(Text("EVENTS", "bold"))
        lines += [_event(each) for each in farm.news[-(left - 1) :]]
    return [_cut(line, view) for line in lines[: view.height]]


def phone_lines(phones: Sequence[Phone], view: View, room: int) -> list[Text]:
    """Phones as a table, or as cells where that is too high or too wide; what does not fit is counted."""
    if not phones:
        none = (
            f"no phone has the words {shown(view.wanted)}"
            if view.wanted
            else "no phones: plug one in, or `farm doctor`"
        )
        return [Text(none, "dim")][:room]
    if room < 2:
        return []
    table = [_phone_head(view), *(_phone(phone, view) for phone in phones)]
    if len(table) <= room and (view.width >= WIDE or all(len(line.plain.rstrip()) <= view.width for line in table)):
        return table
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


def _head(farm: Farm, view: View) -> list[Text]:
    counts = farm.counts()
    first = Text.assemble((f"farm {farm.version}", "bold"), f"  tracker {farm.tracker}  ")
    number = len(farm.phones)
    phones = Text(f"{number} {'phone' if number == 1 else 'phones'}{': ' if number else ''}")
    for state, count in sorted(counts.items(), key=lambda each: -each[1]):
        phones.append(f"{count} {state}  ", STYLES.get(state, ""))
    fits = len(first) + len(phones.plain.rstrip()) <= view.width
    waiting = len(farm.waiting) + farm.waiting_more
    running = sum(job.state == "running" for job in farm.jobs)
    second = Text(f"{farm.at.astimezone():%H:%M:%S}  running jobs: {running}, waiting for a phone: {waiting}")
    if farm.starts:
        second.append(
            f"  the daemon was restarted {farm.starts} times" if farm.starts > 1 else "  the daemon was restarted",
            "yellow",
        )
    if view.wanted:
        second.append(f"  only: {shown(view.wanted)}", "yellow")
    lines = [first.append_text(phones), second] if fits else [first, phones, second]
    if view.away:
        lines.append(Text(shown(f"{view.away}; this is how it was"), "bold red"))
    lines += [Text(f"warning: {shown(problem)}", "yellow") for problem in farm.problems[:2]]
    return lines


def _phone_head(view: View) -> Text:
    wide = f"{'SOC':<14} {'GPU':<14} " if view.width >= WIDE else ""
    why = "REASON" if view.width >= WIDE else ""
    return Text(
        f"{'PHONE':<20} {'STATE':<12} {'HEAT':>7} {'BATT':>5} {wide}{'HOLDER':<12} {'AGE':<8} {why}".rstrip(), "bold"
    )


def _phone(phone: Phone, view: View) -> Text:
    wide = view.width >= WIDE
    celsius = "-" if phone.celsius is None else f"{phone.celsius:.1f}C"
    battery = "-" if phone.battery is None else f"{phone.battery}%"
    line = Text(f"{phone.name:<20} ")
    line.append(f"{phone.state:<12} ", STYLES.get(phone.state.partition(",")[0], ""))
    line.append(f"{celsius:>7} ", HEAT_STYLES.get(phone.heat, ""))
    line.append(f"{battery:>5} ", "red" if phone.battery is not None and phone.battery < 20 else "")
    if wide:
        line.append(f"{phone.soc or '-':<14.14} {phone.gpu or '-':<14.14} ")
    line.append(f"{shown(phone.user) or '-':<12} {age(phone.held_s):<8} ")
    why = phone.reason or (f"session of {phone.what}" if phone.session else phone.what)
    if wide and why:
        line.append(shown(why), "dim")
    return line


def _cell(phone: Phone, view: View) -> Text:
    celsius = "" if phone.celsius is None else f"{phone.celsius:.0f}C"
    name = phone.name if len(phone.name) <= 15 else phone.name[:14] + view.marks.more
    cell = Text(f"{view.marks.dot} ", STYLES.get(phone.state.partition(",")[0], "yellow"))
    cell.append(f"{name:<15} ")
    cell.append(f"{celsius:>4} ", HEAT_STYLES.get(phone.heat, ""))
    cell.append(f"{(shown(phone.user) or phone.state)[:6]:<6} ", "" if phone.user else "dim")
    return cell


def _jobs(jobs: Sequence[Running], farm: Farm, view: View, room: int) -> list[Text]:
    if room < 2:
        return []
    lines = [Text("JOBS" + (" (the newest)" if farm.jobs_more else ""), "bold")]
    fits = room - 1
    shown_jobs = jobs[:fits] if len(jobs) <= fits else jobs[: fits - 1]
    for job in shown_jobs:
        line = Text(f"{job.id:<20} ")
        line.append(f"{job.state:<8} ", STYLES.get(job.state, ""))
        line.append(f"{shown(job.name):<20.20} {shown(job.user):<10.10} {job.device or '-':<16.16} ")
        if job.done is not None:
            line.append(f"{plots.bar(job.done, BAR, view.marks)} {job.done:4.0%} ", "cyan")
        line.append(shown(job.step if job.state == "running" else job.waits), "dim")
        lines.append(line)
    if len(jobs) > len(shown_jobs):
        lines.append(Text(f"{view.marks.more} {len(jobs) - len(shown_jobs)} jobs more", "dim"))
    return lines


def _waiting(farm: Farm, room: int) -> list[Text]:
    if room < 2:
        return []
    waiting = [each for each in farm.waiting if not each.job][: room - 1]
    rows = (
        f"{shown(each.user):<12.12} {shown(each.selector):<30.30} priority {each.priority}  {age(each.waited_s)}"
        for each in waiting
    )
    return [Text("WAITING FOR A PHONE", "bold"), *map(Text, rows)]


def _event(event: News) -> Text:
    return Text(f"{event.at.astimezone():%H:%M:%S} {event.kind:<20} {shown(event.subject)}  {shown(event.text)}", "dim")


def _cut(line: Text, view: View) -> Text:
    line.truncate(view.width, overflow="ellipsis" if view.marks.more == "…" else "crop")
    line.rstrip()
    return line
