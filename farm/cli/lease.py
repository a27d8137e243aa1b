"""`farm lease ...`: a phone of one's own for a while, and who holds which."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from farm.cli import work
from farm.cli.context import JsonFlag, call, print_json, print_table, say
from farm.core.durations import format_duration, parse_duration
from farm.core.errors import ExitCode, FarmError, UserError

if TYPE_CHECKING:
    from farm.client import AsyncClient, AsyncLease
    from farm.client.lease import HeldPhone

T = TypeVar("T")

app = typer.Typer(help="A phone of your own for a while: TVM key, adb server; who holds which phone.")

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

    async def acquired() -> AsyncLease:
        async with work.async_client() as farm:
            return await _acquire(farm, on, duration, note, priority, quiet=json)

    held = _to_its_end(acquired())
    if json:
        print_json(_facts(held))
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

    async def ran() -> int:
        async with work.async_client() as farm:
            held = await _acquire(farm, on, duration, note or command[0], priority, quiet=False)
            say(_until(held))
            try:
                return await _run(held, command)
            finally:
                await _give_back(held)

    raise typer.Exit(_to_its_end(ran()))


@app.command()
def show(lease: Which, json: JsonFlag = False) -> None:
    """What is needed to use a lease of yours, its key included."""
    with work.client() as farm:
        held = farm.lease_show(lease)
    if json:
        print_json(_facts(held))
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
        typer.echo(f"{answer['lease']} ends {_when(datetime.fromisoformat(answer['expires_at']))}")


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
                format_duration(row["held_s"]),
                _when(datetime.fromisoformat(row["expires_at"])) if row["expires_at"] else "-",
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


def environment_of(held: HeldPhone) -> dict[str, str]:
    """What lets adb and TVM find the phone.

    ADB_SERVER_SOCKET names the same place as ANDROID_ADB_SERVER_PORT: with a host in it, adb never starts a server of
    its own there once the lease is over (docs/leases.md).
    """
    return {
        "ANDROID_ADB_SERVER_PORT": str(held.adb_port),
        "ADB_SERVER_SOCKET": f"tcp:127.0.0.1:{held.adb_port}",
        "ANDROID_SERIAL": held.serial,
        "TVM_TRACKER_HOST": held.tvm_host,
        "TVM_TRACKER_PORT": str(held.tvm_port),
        "TVM_TRACKER_KEY": held.tvm_key,
        "FARM_LEASE": held.lease,
        "FARM_DEVICE": held.device,
    }


async def _acquire(farm: AsyncClient, on: str, duration: str, note: str, priority: int, *, quiet: bool) -> AsyncLease:
    """Wait for the phone; why there is none yet goes to stderr."""
    on_wait = None if quiet else lambda reason: say(f"waits: {reason}")
    seconds = parse_duration(duration)
    try:
        return await farm.acquire(on=on, seconds=seconds, note=note, priority=priority, on_wait=on_wait)
    except asyncio.CancelledError:
        say("cancelled 1 job")
        raise


def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Its result. Ctrl-C, `kill` and a closed terminal end it in order, so that no lease is left that nobody knows."""

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        with _on_signals(lambda _: task.cancel(), signal.SIGTERM, signal.SIGHUP):
            return await work

    try:
        return asyncio.run(run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(ExitCode.FAILED) from None


async def _run(held: AsyncLease, command: list[str]) -> int:
    """The command's exit code, as a shell would give it."""

    def pass_on(number: signal.Signals) -> None:
        if number is not signal.SIGINT:  # the terminal's Ctrl-C reaches the command by itself
            process.send_signal(number)

    with _on_signals(pass_on, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        try:
            # At once: the loop cannot hear of a signal before it knows the process that it is for.
            process = subprocess.Popen(command, env={**os.environ, **environment_of(held)})  # noqa: ASYNC220
        except FileNotFoundError:
            say(f"error: {command[0]}: command not found")
            return NOT_FOUND
        except OSError as error:
            say(f"error: {command[0]}: {error.strerror}")
            return NOT_EXECUTABLE
        lease = asyncio.ensure_future(_over(held, command[0]))
        child = asyncio.ensure_future(asyncio.to_thread(process.wait))
        try:
            await asyncio.wait((lease, child), return_when=asyncio.FIRST_COMPLETED)
            if not child.done() and lease.result():
                say(f"the lease on {held.device} has ended: {command[0]} is ended too")
                process.terminate()
                await asyncio.wait((child,), timeout=END_LIMIT_S)
                if not child.done():
                    process.kill()
            code = await child
        finally:
            lease.cancel()
            await asyncio.gather(lease, return_exceptions=True)
    return code if code >= 0 else SIGNALLED - code


async def _over(held: AsyncLease, command: str) -> bool:
    """Whether the lease is over; False: that cannot be known any more."""
    try:
        await held.ended()
    except FarmError as error:
        say(f"{error.message}; {command} goes on, though its phone may be lost")
        return False
    return True


async def _give_back(held: AsyncLease) -> None:
    """The command has its own exit code, whatever becomes of this."""
    try:
        await held.release()
    except FarmError as error:
        say(f"{held.device} is not given back: {error.message}; its lease ends when its time is over")


@contextmanager
def _on_signals(handle: Callable[[signal.Signals], object], *numbers: signal.Signals) -> Iterator[None]:
    """Let the loop handle signals; one that is ignored (nohup) stays so."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, lambda came, _: loop.call_soon_threadsafe(handle, signal.Signals(came)))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _facts(held: HeldPhone) -> dict[str, Any]:
    """A lease as JSON, its key included."""
    from farm.client.lease import HeldPhone

    facts = {field.name: getattr(held, field.name) for field in fields(HeldPhone)}
    return {**facts, "expires_at": held.expires_at.isoformat()}


def _print(held: HeldPhone) -> None:
    rows = {
        "device": f"{held.device} ({held.serial})",
        "lease": f"{held.lease}, job {held.job}",
        "until": _when(held.expires_at),
        "tvm": f'rpc.connect("{held.tvm_host}", {held.tvm_port}, key="{held.tvm_key}")',
        "adb": f"export ANDROID_ADB_SERVER_PORT={held.adb_port}",
    }
    for name, value in rows.items():
        typer.echo(f"{name:<8}{value}")


def _until(held: HeldPhone) -> str:
    return f"{held.device} is yours until {_when(held.expires_at)} (lease {held.lease})"


def _when(at: datetime) -> str:
    """A moment as people read it, and how far it is."""
    moment, now = at.astimezone(), datetime.now().astimezone()
    clock = f"{moment:%H:%M:%S}" if moment.date() == now.date() else f"{moment:%Y-%m-%d %H:%M}"
    return f"{clock} (in {format_duration((moment - now).total_seconds())})"
