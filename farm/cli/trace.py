"""`farm trace ...`: a phone's health over time, kept as lines of JSON, shown, and played on virtual phones.

A line is `{"t": seconds since the first, "probe": what the phone printed, "health": what farm read in it}`.
"""

from __future__ import annotations

import json as json_
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import complete
from farm.cli.connection import JsonFlag, connect
from farm.cli.output import emit, print_note, table, terminal
from farm.common.durations import parse_duration
from farm.common.errors import FarmError, PhoneError, UserError

if TYPE_CHECKING:
    from farm.model.health import Health

app = typer.Typer(help="A phone's health over time: record it, show it; virtual phones replay it.")

ROWS = 40  # of a table; a longer trace is thinned out
WIDTH = 60  # characters of a line of the plot
MISSED_IN_A_ROW = 5  # probes; then the phone is away, and not just slow
_MAKE_ONE = "farm trace record DEVICE --out FILE makes one"


@app.command()
def record(
    device: Annotated[str, typer.Argument(help="A phone that is free or yours.", autocompletion=complete.devices)],
    out: Annotated[Path, typer.Option("--output", "-o", "--out", help="The file to write, a line of JSON per probe.")],
    last: Annotated[str, typer.Option("--for", help="How long.")] = "60s",
    every: Annotated[str, typer.Option(help="Time between two probes; a probe takes some 0.1 s of a phone.")] = "1s",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json: JsonFlag = False,
) -> None:
    """Record a phone's probes until the time is over or you press Ctrl-C."""
    for_s, every_s = parse_duration(last), parse_duration(every)
    if for_s < every_s:
        raise UserError(
            f"--for {last} is shorter than --every {every}: that is one probe and no trace",
            hint=f"--for {every} or more, or a shorter --every",
        )
    if out.exists() and not force:
        raise UserError(f"{out} is there already", hint="another --out, or --force to write over it")
    probes = failed = 0
    with connect() as client:
        first = client.call("device.probe", device=device)  # nothing is written when this fails
        try:
            with out.open("w", encoding="utf-8") as file:
                for at_s, answer in _probes(client, device, first, for_s, every_s):
                    if isinstance(answer, FarmError):
                        failed += 1
                        print_note(f"no probe at {at_s:.1f} s: {answer.message}")
                        continue
                    probes += 1
                    file.write(json_.dumps({"t": round(at_s, 3), **answer}, ensure_ascii=False) + "\n")
                    file.flush()
        except OSError as error:
            raise UserError(f"cannot write {out}: {error.strerror}", hint="name a file in a folder of yours") from error
        except KeyboardInterrupt:
            print_note("stopped")
    written = f"wrote {out}: {probes} probes{f', {failed} failed' if failed else ''}; farm trace show {out}"
    emit({"out": str(out), "probes": probes, "failed": failed}, written, json=json)


def _probes(
    client: Any, device: str, first: dict[str, Any], for_s: float, every_s: float
) -> Iterator[tuple[float, dict[str, Any] | FarmError]]:
    """Probes at their times: seconds since the first, and the answer or why there is none.

    Raises:
        FarmError: several in a row failed, or it is not the phone's fault (another user leased it meanwhile).
    """
    began = time.monotonic()
    yield 0.0, first
    due, missed = every_s, 0
    while due <= for_s:
        time.sleep(max(0.0, began + due - time.monotonic()))
        at_s = time.monotonic() - began
        try:
            answer = client.call("device.probe", device=device)
        except PhoneError as error:
            missed += 1
            if missed >= MISSED_IN_A_ROW:
                raise
            yield at_s, error
        else:
            missed = 0
            yield at_s, answer
        due = max(due + every_s, time.monotonic() - began)  # a slow phone gets fewer probes, not a queue of them


@app.command()
def show(file: Annotated[Path, typer.Argument(help="A trace.")], json: JsonFlag = False) -> None:
    """Temperatures and clocks of a trace as a table and a plot."""
    rows = _read(file)
    probes = [{"t": at_s, "health": asdict(health)} for at_s, health in rows]
    emit({"probes": probes}, _trace_lines(rows), json=json)


def _trace_lines(rows: Sequence[tuple[float, Health]]) -> Iterator[str]:
    thinned = rows[:: -(-len(rows) // ROWS)]
    yield from table(
        ("TIME", "SKIN", "CPU", "GPU", "BATTERY", "CHARGE", "THROTTLE", "CLOCKS", "GPU CLOCK", "LOAD"),
        (_cells(at_s, health) for at_s, health in thinned),
    )
    for name, unit, values in _curves(rows):
        known = [value for value in values if value is not None]
        if known:
            yield from ("", f"{name}: {min(known):.4g} to {max(known):.4g} {unit}", _plot(values))


def _read(file: Path) -> list[tuple[float, Health]]:
    """The probes of a trace, parsed again: a later farm may read more in them.

    Raises:
        UserError: it cannot be read, is none, or has no probes.
    """
    from farm.devices.health.probe.parse import parse_probe
    from farm.simulation.trace import parse_trace, torn_line

    try:
        data = file.read_bytes()
        text, torn = torn_line(data.decode("utf-8", errors="surrogateescape"))
        text.encode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}", hint=_MAKE_ONE) from error
    except UnicodeError as error:
        raise UserError(f"{file} is no trace: it is no text", hint=_MAKE_ONE) from error
    try:
        parse_trace(text)
    except UserError as error:
        raise UserError(f"{file}: {error.message}", hint=error.hint or _MAKE_ONE) from error
    if torn:
        print_note(f"the last line of {file} is incomplete and left out: the recording was cut")
    lines = [json_.loads(line) for line in text.split("\n") if line.strip()]
    rows = [(float(line["t"]), parse_probe(line["probe"].encode())) for line in lines if line.get("probe")]
    if not rows:
        raise UserError(f"{file} has no probes", hint="only traces of `farm trace record` can be shown")
    return rows


def _cells(at_s: float, health: Health) -> Sequence[str]:
    clocks = " ".join(
        f"{each.khz / 1e6:.2f}/{each.max_khz / 1e6:.2f}" for each in health.cpu if each.khz and each.max_khz
    )
    gpu = health.gpu.clock_hz
    return (
        f"{at_s:.1f}s",
        *(_degrees(health, group) for group in ("skin", "cpu", "gpu", "battery")),
        "-" if health.battery.percent is None else f"{health.battery.percent}%",
        "-" if health.throttle is None else health.throttle.name.lower(),
        f"{clocks} GHz" if clocks else "-",
        "-" if gpu is None else f"{gpu / 1e6:.0f} MHz",
        "-" if health.load_1min is None else f"{health.load_1min:.2f}",
    )


def _degrees(health: Health, group: str) -> str:
    found = _hottest(health, group)
    return "-" if found is None else f"{found:.1f}C"


def _hottest(health: Health, group: str) -> float | None:
    return max((each.celsius for each in health.temperatures if each.group == group), default=None)


def _curves(rows: Sequence[tuple[float, Health]]) -> Iterator[tuple[str, str, list[float | None]]]:
    """The plotted series: name, unit, a value per probe."""
    for group in ("skin", "cpu", "gpu", "battery"):
        yield f"{group} temperature", "°C", [_hottest(health, group) for _, health in rows]
    clocked = ([each for each in health.cpu if each.max_khz] for _, health in rows)
    fastest = [max(cpus, key=lambda each: each.hardware_max_khz or each.max_khz or 0, default=None) for cpus in clocked]
    yield "fastest cluster's highest clock", "GHz", [_over(1e6, each.max_khz if each else None) for each in fastest]
    yield "GPU clock", "MHz", [_over(1e6, health.gpu.clock_hz) for _, health in rows]


def _over(unit: float, figure: int | None) -> float | None:
    return None if figure is None else figure / unit


def _plot(values: Sequence[float | None]) -> str:
    """One line of bars, the lowest value the lowest bar; a gap is a space."""
    bars = terminal.glyphs().steps
    known = [value for value in values if value is not None]
    low, span = min(known), max(known) - min(known)
    count = min(WIDTH, len(values))
    cells = []
    for number in range(count):
        part = values[number * len(values) // count : (number + 1) * len(values) // count]
        there = [value for value in part if value is not None]
        share = (max(there) - low) / span if there and span else 0.0
        cells.append(bars[round(share * (len(bars) - 1))] if there else " ")
    return "".join(cells)
