"""`farm lease ...`: a phone of one's own for a while, and who holds which."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import work
from farm.cli.context import JsonFlag, call, print_json, print_table, say
from farm.core.durations import format_duration, parse_duration
from farm.core.errors import FarmError, UserError

if TYPE_CHECKING:
    from farm.client import Client, Submitted

app = typer.Typer(help="A phone of your own for a while: TVM key, adb server; who holds which phone.")

GRANTED = "granted"  # step of job.progress (farm.jobs.lease)
NOT_FOUND, NOT_EXECUTABLE, SIGNALLED = 127, 126, 128  # exit codes as shells give them
END_LIMIT_S = 10.0  # for a command whose lease has ended: then it is killed

Which = Annotated[str, typer.Argument(help="A lease's id, its job's, or the device's name.")]
Duration = Annotated[str, typer.Option("--for", help="How long: 30m, 2h, 1h30m.")]
Note = Annotated[str, typer.Option(help="What for; others see it.")]


@app.command()
def acquire(
    on: work.Selector,
    duration: Duration = "30m",
    note: Note = "",
    priority: work.Priority = work.PRIORITY,
    env: Annotated[
        bool, typer.Option("--env", help='Print shell exports: eval "$(farm lease acquire ... --env)"')
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Wait for a phone and hold it until its time is over or it is released. Ctrl-C while waiting withdraws.

    Nobody else gets the phone meanwhile; afterwards it is cleaned and checked.
    """
    if env and json:
        raise UserError("--env and --json exclude each other", hint="choose one")
    with work.client() as farm:
        held = _acquire(farm, on, duration, note, priority, quiet=json)
    if json:
        print_json(held)
    elif env:
        for name, value in environment_of(held).items():
            typer.echo(f"export {name}={quote(value)}")
        say(_until(held))
    else:
        _print(held)


@app.command(context_settings={"ignore_unknown_options": True})
def run(
    on: work.Selector,
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    duration: Duration = "30m",
    note: Note = "",
    priority: work.Priority = work.PRIORITY,
) -> None:
    """Run a command that has a phone: adb and TVM find it in the environment. Its exit code is this command's.

    The phone is released when the command ends; the command is ended when the lease is.
    """
    with work.client() as farm:
        held = _acquire(farm, on, duration, note or command[0], priority, quiet=False)
        say(_until(held))
        try:
            code = _run(farm, held, command)
        finally:
            _give_back(held["job"])
    raise typer.Exit(code)


@app.command()
def show(lease: Which, json: JsonFlag = False) -> None:
    """What is needed to use a lease of yours, its key included."""
    held = call("lease.show", lease=lease)
    if json:
        print_json(held)
    else:
        _print(held)


@app.command()
def extend(
    lease: Which,
    duration: Annotated[str, typer.Option("--for", help="How much longer: 30m, 2h.")],
    json: JsonFlag = False,
) -> None:
    """Keep a phone longer."""
    answer = call("lease.extend", lease=lease, seconds=parse_duration(duration))
    if json:
        print_json(answer)
    else:
        typer.echo(f"{answer['lease']} ends {_when(answer['expires_at'])}")


@app.command()
def release(lease: Which, json: JsonFlag = False) -> None:
    """Give a phone back: it is cleaned and checked for the next user."""
    answer = call("lease.release", lease=lease)
    if json:
        print_json(answer)
    else:
        typer.echo(f"released {answer['lease']}")


@app.command("list")
def list_leases(json: JsonFlag = False) -> None:
    """Phones in someone's hands, and what waits."""
    answer = call("lease.list")
    if json:
        print_json(answer)
        return
    print_table(
        ("DEVICE", "LEASE", "USER", "DOOR", "FOR", "HELD", "ENDS", "SESSION"),
        (
            (
                row["device"], row["id"], row["user"], row["door"], row["note"] or row["key"] or row["job"] or "-",
                format_duration(row["held_s"]), _when(row["expires_at"]) if row["expires_at"] else "-",
                "open" if row["session"] else "-",
            )
            for row in answer["leases"]
        ),
    )  # fmt: skip
    for row in answer["waiting"]:
        typer.echo(f"waiting: {row['user']} for {row['selector']}, {format_duration(row['waited_s'])}")
    if answer["waiting_more"]:
        typer.echo(f"waiting: {answer['waiting_more']} more")


@app.command()
def kick(device: Annotated[str, typer.Argument(help="A device or lease id.")], json: JsonFlag = False) -> None:
    """End a lease now (operators): its session is cut, the phone is cleaned and checked."""
    answer = call("lease.kick", device=device)
    if json:
        print_json(answer)
    else:
        typer.echo(f"ended lease {answer['id']} on {answer['device']}")


def environment_of(held: Mapping[str, Any]) -> dict[str, str]:
    """What lets adb and TVM find the phone.

    ADB_SERVER_SOCKET names the same place as ANDROID_ADB_SERVER_PORT: with a host in it, adb never starts a server of
    its own there once the lease is over (docs/leases.md).
    """
    return {
        "ANDROID_ADB_SERVER_PORT": str(held["adb_port"]),
        "ADB_SERVER_SOCKET": f"tcp:127.0.0.1:{held['adb_port']}",
        "ANDROID_SERIAL": held["serial"],
        "TVM_TRACKER_HOST": held["tvm_host"],
        "TVM_TRACKER_PORT": str(held["tvm_port"]),
        "TVM_TRACKER_KEY": held["tvm_key"],
        "FARM_LEASE": held["lease"],
        "FARM_DEVICE": held["device"],
    }


def _acquire(farm: Client, on: str, duration: str, note: str, priority: int, *, quiet: bool) -> dict[str, Any]:
    """Submit and wait for the phone; whoever gives up waiting leaves no job."""
    from farm.jobs.specs import LeaseSpec

    seconds = parse_duration(duration)
    spec = LeaseSpec.from_wire({"on": on, "seconds": seconds, "note": note, "priority": priority})
    submitted = work.submit(farm, spec)
    with work.cancelled_by_ctrl_c(farm, [submitted]):
        return _granted(farm, submitted, quiet=quiet)


def _granted(farm: Client, submitted: Submitted, *, quiet: bool) -> dict[str, Any]:
    """What is needed to use the phone, once it is there; why it waits goes to stderr.

    Raises:
        FarmError: the job ended without a phone.
    """
    (job,) = submitted.ids
    said = ""
    for event in farm.watch(submitted, idle_s=work.IDLE_S):
        if event is None:
            waits = call("job.show", job=job)["job"]["waits"]
            if waits and waits != said and not quiet:
                say(f"waits: {waits}")
            said = waits
        elif event.kind == "job.progress" and event.data.get("step") == GRANTED:
            return call("lease.show", lease=job)
    farm.job(job).raise_for_error()
    raise FarmError(f"{job} has ended without a phone", hint=f"farm job show {job}")


def _run(farm: Client, held: Mapping[str, Any], command: list[str]) -> int:
    """The command's exit code, as a shell would give it."""
    try:
        process = subprocess.Popen(command, env={**os.environ, **environment_of(held)})
    except FileNotFoundError:
        say(f"error: {command[0]}: command not found")
        return NOT_FOUND
    except OSError as error:
        say(f"error: {command[0]}: {error.strerror}")
        return NOT_EXECUTABLE
    with _signals_passed_on(process):
        for _ in farm.watch([held["job"]], idle_s=0.1):
            if process.poll() is not None:
                break
        else:
            say(f"the lease on {held['device']} has ended: {command[0]} is ended too")
            process.terminate()
        try:
            code = process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    return code if code >= 0 else SIGNALLED - code


@contextmanager
def _signals_passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The terminal's Ctrl-C reaches the command by itself; SIGTERM to us is meant for it."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _give_back(job: str) -> None:
    try:
        call("lease.release", lease=job)
    except UserError:
        return  # it has ended already


def _print(held: Mapping[str, Any]) -> None:
    rows = {
        "device": f"{held['device']} ({held['serial']})",
        "lease": f"{held['lease']}, job {held['job']}",
        "until": _when(held["expires_at"]),
        "tvm": f'rpc.connect("{held["tvm_host"]}", {held["tvm_port"]}, key="{held["tvm_key"]}")',
        "adb": f"export ANDROID_ADB_SERVER_PORT={held['adb_port']}",
    }
    for name, value in rows.items():
        typer.echo(f"{name:<8}{value}")


def _until(held: Mapping[str, Any]) -> str:
    return f"{held['device']} is yours until {_when(held['expires_at'])} (lease {held['lease']})"


def _when(text: str) -> str:
    """A moment as people read it, and how far it is."""
    moment, now = datetime.fromisoformat(text).astimezone(), datetime.now().astimezone()
    clock = f"{moment:%H:%M:%S}" if moment.date() == now.date() else f"{moment:%Y-%m-%d %H:%M}"
    return f"{clock} (in {format_duration((moment - now).total_seconds())})"
