"""`farm lease acquire`, `run` and `show`: wait for a phone, use it, and release it, whatever ends the command."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from farm.cli import work
from farm.cli.connection import JsonFlag
from farm.cli.lease import Which
from farm.cli.output import print_json, print_line, print_note, when
from farm.cli.spec_options import spec_options
from farm.client import AsyncClient, AsyncLease
from farm.client.lease import HeldPhone
from farm.common.durations import format_duration
from farm.common.errors import ExitCode, FarmError, UserError
from farm.common.tasks import end_tasks
from farm.kinds.lease import LeaseSpec

if TYPE_CHECKING:
    from farm.kinds.outcomes import LeaseOutcome

T = TypeVar("T")

NOT_FOUND, NOT_EXECUTABLE, SIGNALLED = 127, 126, 128  # exit codes as shells give them
END_LIMIT_S = 10.0  # for a command whose lease has ended: then it is killed


app = typer.Typer()  # joined to the commands of farm/cli/lease.py
NOT_OFFERED = ("devices", "timeout_s", "deadline_s", "max_attempts", "after", "hold")  # options of jobs in the queue


@app.command()
@spec_options(LeaseSpec, leave_out=NOT_OFFERED)
def acquire(
    fields: dict[str, Any],
    wait: work.Wait = None,
    env: Annotated[
        bool, typer.Option("--env", help='Print shell exports: eval "$(farm lease acquire ... --env)"')
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Wait for a phone and hold it until its time is over or it is released. Ctrl-C while waiting withdraws.

    No other user gets the phone meanwhile; afterwards it is cleaned and checked.
    """
    if env and json:
        raise UserError("--env and --json exclude each other", hint="choose one")
    limit_s = work.wait_s(wait)

    async def acquired() -> AsyncLease:
        async with AsyncClient(on_notice=print_note) as farm:
            return await _acquire(farm, fields, limit_s, quiet=json)

    held = _to_its_end(acquired())  # a client that gives up waiting leaves no job
    if json:
        print_json(facts_of(held))
    elif env:
        for name, value in held.environment.items():
            print_line(f"export {name}={quote(value)}")
        print_note(until(held))
    else:
        print_lease(held)


@app.command(context_settings={"ignore_unknown_options": True})
@spec_options(LeaseSpec, leave_out=(*NOT_OFFERED, "tuning"))
def run(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    fields: dict[str, Any],
    wait: work.Wait = None,
) -> None:
    """Run a command that has a phone: adb and TVM find it in the environment. Its exit code is this command's.

    The phone is released when the command ends; the command is ended when the lease is.
    """
    limit_s = work.wait_s(wait)
    if shutil.which(command[0]) is None and not os.access(command[0], os.F_OK):  # before a phone is waited for
        print_note(f"error: {command[0]}: command not found")
        raise typer.Exit(NOT_FOUND)

    async def ran() -> int:
        async with AsyncClient(on_notice=print_note) as farm:
            held = await _acquire(farm, {**fields, "note": fields["note"] or command[0]}, limit_s, quiet=False)
            print_note(until(held))
            try:
                return await _run(held, command)
            finally:
                await _give_back(held)

    raise typer.Exit(_to_its_end(ran()))


def until(held: AsyncLease) -> str:
    """The holder of the phone, and for how long."""
    return f"{held.device} is yours until {when(held.expires_at, held.now)} (lease {held.lease})"


async def _acquire(farm: AsyncClient, fields: Mapping[str, Any], limit_s: float | None, *, quiet: bool) -> AsyncLease:
    """Wait for the phone; why there is none yet goes to stderr."""
    on_wait = None if quiet else lambda reason: print_note(f"waits: {reason}")
    try:
        return await farm.acquire(**fields, on_wait=on_wait, wait_s=limit_s, for_operator=limit_s is not None)
    except asyncio.CancelledError:
        print_note("cancelled 1 job")
        raise


def _to_its_end(main: Coroutine[Any, Any, T]) -> T:
    """Its result. Ctrl-C, `kill` and a closed terminal end it in order, so that no lease stays behind unknown."""

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        with _on_signals(lambda _: task.cancel(), signal.SIGTERM, signal.SIGHUP):
            return await main

    try:
        return asyncio.run(run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(ExitCode.INTERRUPTED) from None


async def _run(held: AsyncLease, command: list[str]) -> int:
    """The command's exit code, as a shell would give it."""

    def pass_on(number: signal.Signals) -> None:
        if number is not signal.SIGINT:  # the terminal's Ctrl-C reaches the command by itself
            process.send_signal(number)

    with _on_signals(pass_on, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        try:
            # At once: the loop cannot handle a signal before it knows the process that it is for.
            process = subprocess.Popen(command, env={**os.environ, **held.environment})  # noqa: ASYNC220
        except OSError as error:
            print_note(f"error: {command[0]}: {error.strerror}")
            return NOT_EXECUTABLE
        lease = asyncio.ensure_future(_over(held, command[0]))
        child = asyncio.ensure_future(asyncio.to_thread(process.wait))
        try:
            await asyncio.wait((lease, child), return_when=asyncio.FIRST_COMPLETED)
            if not child.done() and lease.result():
                print_note(f"the lease on {held.device} has ended: {command[0]} is ended too")
                process.terminate()
                await asyncio.wait((child,), timeout=END_LIMIT_S)
                if not child.done():
                    process.kill()
            code = await child
        finally:
            await end_tasks(lease)
    return code if code >= 0 else SIGNALLED - code


async def _over(held: AsyncLease, command: str) -> bool:
    """Whether the lease is over; False: that cannot be known any more."""
    try:
        await held.ended()
    except FarmError as error:
        print_note(f"{error.message}; {command} continues, though its phone may be lost")
        return False
    return True


async def _give_back(held: AsyncLease) -> None:
    """The command has its own exit code, whatever becomes of this."""
    try:
        await held.release()
    except FarmError as error:
        print_note(f"{held.device} is not given back: {error.message}; its lease ends when its time is over")


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


@app.command()
def show(lease: Which, json: JsonFlag = False) -> None:
    """Show how to use a lease of yours: its addresses and its key."""
    with work.client() as farm:
        held = farm.lease_show(lease)
    if json:
        print_json(facts_of(held))
    else:
        print_lease(held.inner)


def facts_of(held: HeldPhone) -> dict[str, Any]:
    """A lease as JSON, its key included."""
    facts = {field.name: getattr(held, field.name) for field in fields(HeldPhone)}
    return {**facts, "expires_at": held.expires_at.isoformat()}


def print_lease(held: AsyncLease) -> None:
    """Print the facts needed to use a lease."""
    rows = {
        "device": f"{held.device} ({held.serial})",
        "lease": f"{held.lease}, job {held.job}",
        "until": when(held.expires_at, held.now),
        "tvm": f'rpc.connect("{held.tvm_host}", {held.tvm_port}, key="{held.tvm_key}")',
        "adb": f"export ANDROID_ADB_SERVER_PORT={held.adb_port}",
    }
    for name, value in rows.items():
        print_line(f"{name:<8}{value}")


def print_job(outcome: LeaseOutcome, _record_set: Mapping[str, Any] | None) -> None:
    """Print the outcome of one lease, for `farm job show`."""
    held = "" if outcome.held_s is None else f"held for {format_duration(outcome.held_s)}"
    print_line(": ".join(filter(None, (held, outcome.reason))))
