"""`farm device ...`: list phones, let them in, take them out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli import complete
from farm.cli.bars import Bars, Pushes
from farm.cli.battery import print_battery
from farm.cli.context import (
    JsonFlag,
    act,
    call,
    connect,
    local_time,
    print_json,
    print_table,
    step_of,
    tell,
    write_file,
)
from farm.cli.given import writable
from farm.cli.status import print_devices, print_devices_long
from farm.control.client import ControlClient
from farm.core.errors import PhoneError, UserError

app = typer.Typer(help="Phones: list, adopt, change, remove.")
STUCK = frozenset({"device.quarantined", "device.unauthorized", "device.gone"})  # a person must act

Name = Annotated[str, typer.Argument(help="A device's name or adb serial.", autocompletion=complete.devices)]
Labels = Annotated[list[str] | None, typer.Option("--label", help="KEY=VALUE; an empty value removes it. Repeatable.")]


@app.command("list")
def list_devices(
    long: Annotated[bool, typer.Option("--long", help="Also place, bundle and what probes find wrong.")] = False,
    json: JsonFlag = False,
) -> None:
    """Every phone adb lists or the farm knows."""
    devices = call("status")["devices"]
    if json:
        print_json(devices)
    elif long:
        print_devices_long(devices)
    else:
        print_devices(devices)


@app.command()
def show(name: Name, json: JsonFlag = False) -> None:
    """Everything known about one phone."""
    device = call("device.show", device=name)
    if json:
        print_json(device)
        return
    print_table(("FACT", "VALUE"), _facts(device))


def _facts(device: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a person wants to know of a device, with where each fact of its hardware comes from."""
    for name in ("name", "serial", "state", "reason", "pool", "usb", "holder", "bundle"):
        if device[name]:
            yield name, str(device[name])
    if device["since"]:
        yield "since", local_time(device["since"])
    if device["temperature_c"] is not None:
        yield "temperature", f"{device['temperature_c']:.1f}C ({device['temperature_of']})"
    if device["battery_percent"] is not None:
        yield "battery", f"{device['battery_percent']}%"
    if device["checked"]:
        yield "check", device["checked"]
    for each in device["findings"]:
        yield "finding", f"{each['what']} ({each['hint']})" if each["hint"] else each["what"]
    yield "keys", ", ".join(device["aliases"])
    identity = device["identity"]
    if identity:
        yield "model", f"{identity['vendor']} {identity['model']}"
        yield "android", f"{identity['android_release']} (SDK {identity['sdk']}), {identity['fingerprint']}"
        yield "abi", f"{identity['abi']} (claims {', '.join(identity['abis'])})"
        for part in ("soc", "gpu"):
            fact = identity[part]
            said = " ".join(filter(None, (fact["model"], fact.get("name"))))
            yield part, f"{said} ({fact['confidence']}, from {fact['source']})" if said else "unknown"
        for cluster in identity["cpu"]:
            clock = f" at {cluster['max_khz'] / 1e6:.2f} GHz" if cluster["max_khz"] else ""
            yield "cpu", f"{cluster['cores']} x {cluster['name'] or 'unknown'}{clock}, LLVM {cluster['mcpu'] or '-'}"
    for name, value in device["labels"].items():
        yield f"label {name}", value
    for name, value in device["targets"].items():
        yield f"target {name}", str(value)


@app.command()
def adopt(
    name: Name,
    pool: Annotated[str, typer.Option(help="The pool it joins.")] = "",
    rename: Annotated[str, typer.Option("--as", help="The name it gets.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Show its way to ready; exit code 1 if it gets stuck.")] = False,
    json: JsonFlag = False,
) -> None:
    """Let a phone into the farm: only then is anything but read-only commands run on it."""
    with connect() as client:
        since = client.call("status")["seq"] if wait else 0
        answer = client.call("device.adopt", device=name, pool=pool, rename=rename)
        if json:
            print_json(answer)
        else:
            tell(f"adopted {answer['name']}")
        if wait:
            _follow(client, answer["name"], since)


def _follow(client: ControlClient, name: str, since: int) -> None:
    """Print a phone's steps until it is ready, or rests in a state that needs a person."""
    pushes = Pushes(Bars())
    for event in client.stream("events", since=since):
        if event["subject"] == name and event["kind"].startswith("device."):
            data = event["data"]
            pushes.step(event["kind"], step_of(event), data.get("sent_bytes", 0), data.get("total_bytes", 0))
            if event["kind"] == "device.ready":
                return
            if event["kind"] in STUCK:
                raise PhoneError(f"{name} does not become ready", hint=f"farm explain device {name}")


@app.command()
def add(
    address: Annotated[str, typer.Argument(help="HOST:PORT of adb over the network.")], json: JsonFlag = False
) -> None:
    """Add a network phone; the farm reconnects to it for ever."""
    act("device.add", "added {address}; it appears in `farm device list` once it answers", json=json, address=address)


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
    if json:
        print_json(answer)
        return
    labels = [f"label {key}={value}" if value else f"label {key} removed" for key, value in answer["changed"].items()]
    tell(", ".join((f"name {answer['name']}", f"pool {answer['pool'] or '(none)'}", *labels)))


@app.command()
def drain(name: Name, json: JsonFlag = False) -> None:
    """Hand it out no more; running leases go on."""
    _service(name, "draining", json)


@app.command()
def maintain(name: Name, json: JsonFlag = False) -> None:
    """Take it out for a person's hands."""
    _service(name, "maintenance", json)


@app.command()
def release(name: Name, json: JsonFlag = False) -> None:
    """Put a drained, maintained or quarantined phone back into service: both, when it is both."""
    _service(name, "in", json)


def _service(name: str, service: str, json: bool) -> None:
    answer = call("device.service", device=name, service=service)
    if json:
        print_json(answer)
        return
    for line in service_lines(answer):
        tell(line)


_ORDERS = {"draining": "is draining", "maintenance": "is in maintenance", "in": "is in service"}


def service_lines(answer: dict[str, Any]) -> Iterator[str]:
    """What an order about a phone's service changed, and what it did not."""
    name, service, before = answer["name"], answer["service"], answer["before"]
    released, kept = answer["released"], answer["quarantine"]
    if service == before and not released:
        yield (
            f"{name} was not out of service: nothing to release"
            if service == "in"
            else f"{name} {_ORDERS[service]} already"
        )
    elif service == "in":
        undone = [f"{before} is over"] * (before != "in") + [f"its quarantine is over ({kept})"] * released
        yield f"{name} is back in service: {' and '.join(undone)}"
    else:
        yield f"{name} {_ORDERS[service]}" + (f" (it was {before} before)" if before not in ("in", service) else "")
    if released:
        yield "it is checked before anybody gets it"
    for each in answer["still"]:
        yield f"beware: {each}. It is not taken out for that again until it says something else"
    if service != "in" and kept:
        yield f"it also stays in quarantine: {kept}"
    elif service == "in" and not released and answer["life"] != "ready":
        yield f"it is {answer['life']}: farm explain device {name}"
    if service != "in" and answer["holder"]:
        yield f"{answer['holder']} still has it; it is free when that lease ends (farm lease kick {name})"


@app.command()
def quarantine(
    name: Name,
    reason: Annotated[str, typer.Option(help="What is wrong with it, for whoever looks next.")],
    force: Annotated[bool, typer.Option("--force", help="Even while someone holds it; they lose it.")] = False,
    json: JsonFlag = False,
) -> None:
    """Keep it away from users until `farm device release`, over unplugging and restarts too."""
    answer = call("device.quarantine", device=name, reason=reason, force=force)
    if json:
        print_json(answer)
        return
    tell(f"{answer['name']} is in quarantine: {answer['reason']}")
    if answer["holder"]:
        tell(f"{answer['holder']} had it: that lease ends")


Force = Annotated[bool, typer.Option("--force", help="Even while someone holds it, or would be hurt.")]


@app.command()
def reboot(name: Name, force: Force = False, json: JsonFlag = False) -> None:
    """Reboot it; refused while someone holds it."""
    act("device.reboot", "{name} reboots", json=json, device=name, force=force)


@app.command("power-cycle")
def power_cycle(name: Name, force: Force = False, json: JsonFlag = False) -> None:
    """Cut the power of its USB port for a moment; refused while someone holds it or a phone that would lose power."""
    answer = call("device.power_cycle", device=name, force=force)
    if json:
        print_json(answer)
        return
    beside = f"; also without power for a moment: {', '.join(answer['beside'])}" if answer["beside"] else ""
    tell(f"the power of {answer['name']} is cut for a moment{beside}")


@app.command()
def forget(
    name: Name,
    clean: Annotated[bool, typer.Option("--clean", help="Also remove everything farm put on it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even while someone holds it; that lease ends.")] = False,
    json: JsonFlag = False,
) -> None:
    """Remove a phone from the farm; refused while someone holds it."""
    act("device.forget", "forgot {name}", json=json, device=name, clean=clean, force=force)


@app.command()
def screenshot(name: Name, out: Annotated[Path, typer.Argument(help="The PNG file to write.")]) -> None:
    """Save the screen of a phone that nobody else holds as PNG."""
    writable(out)
    with connect() as client:
        answer = client.call("device.screenshot", device=name)
        write_file(out, client.get_artifact(answer["artifact"]))
    tell(f"wrote {out}: {answer['width']} x {answer['height']}")


@app.command()
def pull(
    name: Name,
    path: Annotated[str, typer.Argument(help="A file on the phone.")],
    out: Annotated[Path, typer.Argument(help="The file to write.")],
) -> None:
    """Copy a file from a phone that nobody else holds."""
    writable(out)
    with connect() as client:
        answer = client.call("device.pull", device=name, path=path)
        write_file(out, client.get_artifact(answer["artifact"]))
    tell(f"wrote {out}: {answer['size_bytes']} bytes")


@app.command()
def install(name: Name, package: Annotated[Path, typer.Argument(help="An .apk file.")]) -> None:
    """Install or replace an app on a phone."""
    with connect() as client:
        on_bytes = partial(Bars().transfer, package.name)
        artifact = client.put_artifact(package, on_progress=on_bytes)
        client.call("device.install", device=name, package=artifact, name=package.name)
    tell(f"installed {package.name} on {name}")


@app.command()
def battery(name: Name, json: JsonFlag = False) -> None:
    """A phone's battery now and day by day: charge, temperature, wear."""
    answer = call("device.battery", device=name)
    if json:
        print_json(answer)
    else:
        print_battery(answer)


@app.command("adb")
def adb_facts(name: Name, json: JsonFlag = False) -> None:
    """What adb says of a phone: transport, features, USB path."""
    facts = call("device.adb", device=name)
    if json:
        print_json(facts)
    else:
        print_table(("FACT", "VALUE"), facts.items())
