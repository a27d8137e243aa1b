"""`farm device ...`: list phones, let them in, take them out."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli import complete, work
from farm.cli.connection import JsonFlag, call, call_and_emit, connect
from farm.cli.output import device_step, emit, local_time, print_line, print_note, table, write_file
from farm.cli.output.terminal import TransferBars, is_lively
from farm.cli.status import age_of, device_table, long_device_table
from farm.common.causes import cause_of
from farm.common.durations import format_duration
from farm.common.errors import NoPhoneError, PhoneError, UserError
from farm.common.files import check_writable, checked_file
from farm.control.client import ControlClient
from farm.model.device import Service
from farm.model.identity import target_typed

app = typer.Typer(help="Phones: list, adopt, change, remove.")
STUCK = frozenset({"device.quarantined", "device.unauthorized", "device.gone"})  # a person must act
LINES_PER_PUSH = 10
ZIP_MAGIC = b"PK"

Name = Annotated[str, typer.Argument(help="A device's name or adb serial.", autocompletion=complete.devices)]
Labels = Annotated[list[str] | None, typer.Option("--label", help="KEY=VALUE; an empty value removes it. Repeatable.")]


@app.command("list")
def list_devices(
    long: Annotated[bool, typer.Option("--long", help="Also show place, bundle and findings of probes.")] = False,
    json: JsonFlag = False,
) -> None:
    """Every phone that adb lists or the farm knows."""
    devices = call("device.list")["devices"]
    emit({"devices": devices}, (long_device_table if long else device_table)(devices), json=json)


@app.command()
def show(name: Name, json: JsonFlag = False) -> None:
    """Everything known about one phone."""
    device = call("device.show", device=name)
    emit(device, table(("FACT", "VALUE"), _facts(device)), json=json)


def _facts(device: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A device's facts; those of its hardware with their sources."""
    for name in ("name", "host", "serial", "state", "reason", "pool", "usb", "holder", "bundle"):
        if device.get(name):
            yield name, str(device[name])
    if device["since"]:
        yield "since", local_time(device["since"])
    if device["temperature_c"] is not None:
        yield "temperature", f"{device['temperature_c']:.1f}C ({device['temperature_of']})"
    if device["battery_percent"] is not None:
        yield "battery", f"{device['battery_percent']}%"
    if device["read_at"]:
        yield "probed", f"{local_time(device['read_at'])}{age_of(device['read_age_s'])}"
    if device["checked"]:
        yield "check", device["checked"]
    for each in device["findings"]:
        yield "finding", f"{cause_of(each)} ({each['hint']})" if each["hint"] else cause_of(each)
    yield "keys", ", ".join(device["aliases"])
    identity = device["identity"]
    if identity:
        yield "model", f"{identity['vendor']} {identity['model']}"
        yield "android", f"{identity['android_release']} (SDK {identity['sdk']}), {identity['fingerprint']}"
        yield "abi", f"{identity['abi']} (claims {', '.join(identity['abis'])})"
        for part in ("soc", "gpu"):
            fact = identity[part]
            model = " ".join(filter(None, (fact["model"], fact.get("name"))))
            yield part, f"{model} ({fact['confidence']}, from {fact['source']})" if model else "unknown"
        for cluster in identity["cpu"]:
            clock = f" at {cluster['max_khz'] / 1e6:.2f} GHz" if cluster["max_khz"] else ""
            yield "cpu", f"{cluster['cores']} x {cluster['name'] or 'unknown'}{clock}, LLVM {cluster['mcpu'] or '-'}"
    for name, value in device["labels"].items():
        yield f"label {name}", value
    for name, value in device["targets"].items():
        yield f"target {name}", target_typed(value)


@app.command()
def adopt(
    name: Name,
    pool: Annotated[str, typer.Option(help="The pool it joins.")] = "",
    rename: Annotated[str, typer.Option("--as", help="Its new name.")] = "",
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="[DURATION]",
            help="Show its steps until it is ready, at most so long; exit code 1 if it gets stuck, 3 if it is late.",
            show_default=False,
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Let a phone into the farm; before that farm runs only read-only commands on it."""
    limit_s = work.wait_s(wait)
    with connect() as client:
        since = 0 if wait is None else client.call("status")["seq"]
        answer = client.call("device.adopt", device=name, pool=pool, rename=rename)
        emit(answer, f"adopted {answer['name']}", json=json)
        if wait is not None:
            try:
                _follow(client, answer["name"], since, math.inf if limit_s is None else limit_s)
            except TimeoutError as error:
                late = f"{answer['name']} was not ready within {format_duration(limit_s or 0.0)}"
                raise NoPhoneError(late, hint=f"farm explain device {answer['name']}") from error


def _follow(client: ControlClient, name: str, since: int, limit_s: float) -> None:
    """Print a phone's steps until it is ready, or stuck until a person acts.

    Pushing is a bar at a terminal, elsewhere a line for each tenth.

    Raises:
        TimeoutError: neither within `limit_s`.
    """
    bars, printed = TransferBars(), -1
    for event in client.stream("events", limit_s, since=since):
        kind, data = event.get("kind", ""), event.get("data", {})
        if event.get("subject") != name or not kind.startswith("device."):
            continue
        if kind == "device.pushing":
            bars.update("pushing", data["sent_bytes"], data["total_bytes"])
            tenth = data["sent_bytes"] * LINES_PER_PUSH // max(1, data["total_bytes"])
            if is_lively(sys.stderr) or tenth == printed:
                continue
            printed = tenth
        print_note(device_step(event))
        if kind == "device.ready":
            return
        if kind in STUCK:
            raise PhoneError(f"{name} does not become ready", hint=f"farm explain device {name}")


@app.command()
def add(
    address: Annotated[str, typer.Argument(help="HOST:PORT of adb over the network.")], json: JsonFlag = False
) -> None:
    """Add a network phone; the farm reconnects to it forever."""
    call_and_emit(
        "device.add", "added {address}; it appears in `farm device list` once it answers", json=json, address=address
    )


@app.command("set")
def set_device(
    name: Name,
    rename: Annotated[str | None, typer.Option("--name", help="A new name.")] = None,
    pool: Annotated[str | None, typer.Option(help="A new pool.")] = None,
    label: Labels = None,
    json: JsonFlag = False,
) -> None:
    """Change a phone's name, pool or labels."""
    if rename is None and pool is None and not label:
        raise UserError("nothing to change", hint="give --name, --pool or --label")
    answer = call("device.set", device=name, rename=rename, pool=pool, labels=label or [])
    labels = [f"label {key}={value}" if value else f"label {key} removed" for key, value in answer["changed"].items()]
    emit(answer, ", ".join((f"name {answer['name']}", f"pool {answer['pool'] or '(none)'}", *labels)), json=json)


@app.command()
def drain(name: Name, json: JsonFlag = False) -> None:
    """Start no new lease on it; its running lease continues, others wait or use other phones.

    Until `farm device release`, restarts included. All phones of the host, for an upgrade: `farm drain`.
    """
    _service(name, "draining", json)


@app.command()
def maintain(name: Name, json: JsonFlag = False) -> None:
    """Take it out of service for maintenance."""
    _service(name, "maintenance", json)


@app.command()
def release(name: Name, json: JsonFlag = False) -> None:
    """Put a drained, maintained or quarantined phone back into service: both, when it is both."""
    _service(name, "in", json)


def _service(name: str, service: str, json: bool) -> None:
    answer = call("device.service", device=name, service=service)
    emit(answer, service_lines(answer), json=json)


def service_lines(answer: dict[str, Any]) -> Iterator[str]:
    """The effect of a change of a phone's service, and its limits."""
    name, service, before = answer["name"], answer["service"], answer["before"]
    released, kept = answer["released"], answer["quarantine"]
    if service == before and not released:
        yield (
            f"{name} was not out of service: nothing to release"
            if service == "in"
            else f"{name} is {Service(service).words} already"
        )
    elif service == "in":
        undone = [f"{before} is over"] * (before != "in") + [f"its quarantine is over ({kept})"] * released
        yield f"{name} is back in service: {' and '.join(undone)}"
    else:
        earlier = "" if before in ("in", service) else f" (it was {Service(before).words} before)"
        yield f"{name} is {Service(service).words}{earlier}"
    if released:
        yield "it is checked before its next lease"
    for each in answer["still"]:
        yield f"warning: {each}. The phone is not taken out for that again until this changes"
    if service != "in" and kept:
        yield f"it also stays in quarantine: {kept}"
    elif service == "in" and not released and answer["life"] != "ready":
        yield f"it is {answer['life']}: farm explain device {name}"
    if service != "in" and answer["holder"]:
        yield f"{answer['holder']} still has it; it is free when that lease ends (farm lease kick {name})"


@app.command()
def quarantine(
    name: Name,
    reason: Annotated[str, typer.Option(help="What is wrong with it; others see it.")],
    force: Annotated[bool, typer.Option("--force", help="Even while it is leased; that lease ends.")] = False,
    json: JsonFlag = False,
) -> None:
    """Keep it away from users until `farm device release`, over unplugging and restarts too."""
    answer = call("device.quarantine", device=name, reason=reason, force=force)
    ended = [f"{answer['holder']} had it: that lease ends"] if answer["holder"] else []
    emit(answer, [f"{answer['name']} is in quarantine: {answer['reason']}", *ended], json=json)


Force = Annotated[bool, typer.Option("--force", help="Even while it is leased, or another lease would suffer.")]


@app.command()
def reboot(name: Name, force: Force = False, json: JsonFlag = False) -> None:
    """Reboot it; refused while it is leased."""
    call_and_emit("device.reboot", "{name} reboots", json=json, device=name, force=force)


@app.command("power-cycle")
def power_cycle(name: Name, force: Force = False, json: JsonFlag = False) -> None:
    """Cut the power of its USB port for a moment; refused while it, or a phone that would lose power too, is leased."""
    answer = call("device.power_cycle", device=name, force=force)
    beside = f"; also without power for a moment: {', '.join(answer['beside'])}" if answer["beside"] else ""
    emit(answer, f"the power of {answer['name']} is cut for a moment{beside}", json=json)


@app.command()
def forget(
    name: Name,
    clean: Annotated[bool, typer.Option("--clean", help="Also remove everything that farm put on it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even while it is leased; that lease ends.")] = False,
    json: JsonFlag = False,
) -> None:
    """Remove a phone from the farm; refused while it is leased."""
    call_and_emit("device.forget", "forgot {name}", json=json, device=name, clean=clean, force=force)


@app.command()
def screenshot(name: Name, out: Annotated[Path, typer.Argument(help="The PNG file to write.")]) -> None:
    """Save the screen of a phone as PNG; the phone is free or yours."""
    check_writable(out)
    with connect() as client:
        answer = client.call("device.screenshot", device=name)
        write_file(out, client.get_artifact(answer["artifact"]))
    print_line(f"wrote {out}: {answer['width']} x {answer['height']}")


@app.command()
def pull(
    name: Name,
    path: Annotated[str, typer.Argument(help="A file on the phone.")],
    out: Annotated[Path, typer.Argument(help="The file to write.")],
) -> None:
    """Copy a file from a phone that is free or yours."""
    check_writable(out)
    with connect() as client:
        answer = client.call("device.pull", device=name, path=path)
        write_file(out, client.get_artifact(answer["artifact"]))
    print_line(f"wrote {out}: {answer['size_bytes']} bytes")


@app.command()
def install(name: Name, package: Annotated[Path, typer.Argument(help="An .apk file.")]) -> None:
    """Install or replace an app on a phone."""
    with checked_file(package).open("rb") as file:
        if file.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
            raise UserError(f"{package} is no .apk file", hint="an .apk is a ZIP archive; `unzip -l FILE` lists it")
    with connect() as client:
        on_bytes = partial(TransferBars().update, package.name)
        artifact = client.put_artifact(package, on_progress=on_bytes)
        client.call("device.install", device=name, package=artifact, name=package.name)
    print_line(f"installed {package.name} on {name}")


@app.command()
def battery(name: Name, json: JsonFlag = False) -> None:
    """A phone's battery now and day by day: charge, temperature, wear."""
    answer = call("device.battery", device=name)
    emit(answer, _battery_lines(answer), json=json)


def _battery_lines(answer: dict[str, Any]) -> Iterator[str]:
    yield from table(("FACT", "VALUE"), _battery_facts(answer))
    if answer["days"]:
        yield ""
        rows = (
            (
                day["day"], _or_dash(day["percent_min"], f"{day['percent_min']}-{day['percent_max']}%"),
                _or_dash(day["celsius_max"], f"{day['celsius_max'] or 0:.1f}C"),
                _or_dash(day["cycles"], str(day["cycles"])),
                _or_dash(day["capacity"], f"{day['capacity'] or 0:.0%} of new"), day["health"] or "-",
            )
            for day in answer["days"]
        )  # fmt: skip
        yield from table(("DAY", "CHARGE", "HOTTEST", "CYCLES", "CAPACITY", "HEALTH"), rows)


def _battery_facts(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    battery = answer["battery"] or {}
    units = {"percent": "%", "celsius": " °C", "voltage_mv": " mV", "current_ma": " mA into it", "cycles": ""}
    for name, unit in units.items():
        if battery.get(name) is not None:
            yield name.partition("_")[0], f"{battery[name]}{unit}"
    for name in ("health", "status"):
        if battery.get(name):
            yield name, battery[name]
    if battery.get("powered_by"):
        yield "powered by", ", ".join(battery["powered_by"])
    if answer["held"]:
        yield "charging", f"held back by {answer['held']}"
    elif answer["refused"]:
        yield "charging", f"cannot be held back: {answer['refused']}"
    else:
        yield "charging", "as the phone likes" + ("" if answer["window"] == "off" else "; farm keeps its window")
    for sign in answer["signs"]:
        yield "sign of swelling", sign


def _or_dash(value: object, text: str) -> str:
    return "-" if value is None else text


@app.command("adb")
def adb_facts(name: Name, json: JsonFlag = False) -> None:
    """Show adb's facts about a phone: transport, features, USB path."""
    facts = call("device.adb", device=name)
    emit(facts, table(("FACT", "VALUE"), facts.items()), json=json)
