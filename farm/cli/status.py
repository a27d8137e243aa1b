"""`farm status`, the phones at a glance, and `farm explain`, why one of them, a key or a job has to wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from farm.cli import complete
from farm.cli.connection import JsonFlag, call, connect
from farm.cli.output import emit, side_by_side, table
from farm.common.causes import cause_of
from farm.common.durations import format_duration, many, reading_age
from farm.common.errors import ExitCode
from farm.common.files import short_hash
from farm.control.address import Remote

REASON_CHARS = 120
# Columns that a narrow terminal leaves out: a phone's name ends with its host's, `farm device show` has the others.
SPARE = ("GPU", "HOST", "BUNDLE", "SOC")
NO_PHONES = "no phones: plug one in, or `farm device add HOST:PORT`; `farm doctor` checks this host"


def status(json: JsonFlag = False) -> None:
    """The tracker's queue and every phone: state, reason, SoC, GPU, temperature, holder.

    TEMP is the hottest that the phone's thermal service reads (mostly a core; without one: any zone). Its sensor, and
    what gates look at: `farm explain device NAME`.
    """
    with connect() as client:
        answer = client.call("status")
    emit(answer, status_lines(answer, client.where.host if isinstance(client.where, Remote) else ""), json=json)


def status_lines(answer: dict[str, Any], lab: str = "") -> Iterator[str]:
    """The status answer: addresses, keys, the phones' table, problems; `lab`: the host of a remote daemon."""
    tracker = answer["tracker"]
    yield f"Tracker address {tracker['host']}:{tracker['port']}"
    if answer.get("web"):
        yield f"Web page {answer['web']}"
    if (builders := answer.get("builders", {})).get("builders"):
        yield f"{many(builders['builders'], 'builder')}: {builders['building']} of {builders['slots']} slots build"
    if lab:
        yield tunnel_hint(answer, lab)
    if hosts := answer.get("hosts"):
        yield f"Hosts {', '.join(map(host_in_brief, hosts))}"
    yield ""
    yield from key_lines(answer["keys"], [device["name"] for device in answer["devices"]])
    yield ""
    yield from device_table(answer["devices"])
    for problem in answer["problems"]:
        yield ""
        yield f"warning: {problem}"


def key_lines(keys: Sequence[dict[str, Any]], names: Sequence[str], width: int | None = None) -> Iterator[str]:
    """The tracker's keys side by side: how many phones are free, of how many, and how many clients wait.

    Args:
        keys: of the tracker.
        names: of phones; the key of one phone is left out while nobody waits for it, as the phones' table has it.
        width: of the lines; None: the terminal's.
    """
    if not keys:
        yield "no keys: no phone is in service and no client waits"
        return
    shown = [row for row in keys if row["pending"] or row["key"] not in names]
    words = [
        f"{row['key']} {row['free']}/{row['total']}"
        + (f", {row['pending']} waiting" if row["pending"] else "")
        + (": no phone has this key" if row["pending"] and not row["total"] else "")
        for row in shown
    ]
    if words:
        yield "Keys (free/all):"
    yield from side_by_side(words, width)


def tunnel_hint(answer: dict[str, Any], lab: str) -> str:
    """How this host reaches the addresses of a remote daemon."""
    ports = [answer["tracker"]["port"]]
    if answer.get("web"):
        ports.append(int(answer["web"].rstrip("/").rpartition(":")[2]))
    ways = " ".join(f"-L {port}:127.0.0.1:{port}" for port in ports)
    host = "LAB" if lab in ("localhost", "[::1]") or lab.startswith("127.") else lab  # a tunnel's end is not its host
    return f"  as on the lab's own host; from here: ssh {ways} {host}"


def device_table(devices: list[dict[str, Any]], width: int | None = None) -> Iterator[str]:
    """One row per phone; the reason stands beside the state it explains. `width` None: the terminal's."""
    rows = (
        (
            device["name"], *_host(device), device["state"],
            (device["soc"] or "-") + (" (virtual)" if device["virtual"] else ""),
            device["gpu"] or "-", *figures(device), device["holder"] or "-", brief(device["reason"]),
        )
        for device in devices
    )  # fmt: skip
    titles = ("STATE", "SOC", "GPU", "TEMP", "BATTERY", "HOLDER", "REASON")
    columns = ("DEVICE", *_host_title(devices), *titles)
    return table(columns, rows, none=NO_PHONES, width=width, below="REASON", spare=SPARE)


def host_in_brief(host: dict[str, Any]) -> str:
    """A host of the lab with its state; of one that is away also the age of its latest beat."""
    away = f" for {format_duration(host['silent_s'])}" if host["state"] in ("lost", "silent") else ""
    return f"{host['name']} {host['state']}{away}"


def _host(device: dict[str, Any]) -> tuple[str, ...]:
    """The column of a phone's host; none outside of a lab."""
    return (device["host"],) if "host" in device else ()


def _host_title(devices: list[dict[str, Any]]) -> tuple[str, ...]:
    return ("HOST",) if any("host" in device for device in devices) else ()


def brief(reason: str) -> str:
    """The beginning of a reason that would push everything else out of sight; `farm explain device` has all of it."""
    return reason if len(reason) <= REASON_CHARS else f"{reason[: REASON_CHARS - 3].rstrip()}..."


def long_device_table(devices: list[dict[str, Any]]) -> Iterator[str]:
    """Where each phone is plugged in, its condition, its bundle, and the findings of probes."""
    rows = (
        (
            device["name"], *_host(device), device["serial"], device["state"], device["usb"] or "-", *figures(device),
            short_hash(device["bundle"]) or "-", device["holder"] or "-",
            "; ".join(cause_of(each) for each in device["findings"]) or "-",
        )
        for device in devices
    )  # fmt: skip
    titles = ("SERIAL", "STATE", "PLACE", "TEMP", "BATTERY", "BUNDLE", "HOLDER", "FINDINGS")
    return table(("DEVICE", *_host_title(devices), *titles), rows, none=NO_PHONES, below="FINDINGS", spare=SPARE)


def figures(device: Mapping[str, Any]) -> tuple[str, str]:
    """Temperature and battery, with their age if they are old; of a phone that is gone they say nothing."""
    if device["state"] == "gone":
        return "-", "-"
    celsius, percent = device["temperature_c"], device["battery_percent"]
    age = f" {short} ago" if (short := short_age(device["read_age_s"])) else ""
    return "-" if celsius is None else f"{celsius:.1f}C{age}", "-" if percent is None else f"{percent}%{age}"


def short_age(seconds: float | None) -> str:
    """The age of old readings in its largest unit, "2h"; "" if they are current, or none."""
    return reading_age(seconds).partition(" ")[0]


def age_of(seconds: float | None) -> str:
    """The age of old readings, " (2h 5m ago)"; "" if they are current, or none."""
    age = reading_age(seconds)
    return f" ({age} ago)" if age else ""


def explain(
    what: Annotated[Literal["device", "key", "job"], typer.Argument(help="device, key or job.")],
    name: Annotated[
        str,
        typer.Argument(help="A device's name, a key or selector, or a job's id.", autocompletion=complete.explainable),
    ],
    json: JsonFlag = False,
) -> None:
    """Say why a phone is not handed out, why a request for a key waits, or why a job does not run.

    Exit code 3 for a key that no phone answers to.
    """
    answer = call("explain", what=what, name=name)
    emit(answer, answer["lines"], json=json)
    if not answer.get("matches", True):
        raise typer.Exit(ExitCode.NO_PHONE)
