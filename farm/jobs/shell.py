"""Jobs of kind `shell`: a line in a phone's shell, over the daemon's own adb client.

No worker takes part: workers have no access to adb, and a stream that is read with limits is no danger to the daemon.
Closing the stream sends SIGHUP to the shell. What ignores that, or was left in the background, and the files it left
are removed before the next user gets the phone: the phone is noted before and cleaned after, as for a person's lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from farm.adb.client import AdbClient
from farm.adb.shell import ShellStream
from farm.core.errors import UserError
from farm.fleet.fleet import Fleet
from farm.jobs.attempt import AttemptTimeoutError
from farm.jobs.executor import FailedWithResultError, Running
from farm.jobs.lines import Lines
from farm.jobs.phone_work import about_phone
from farm.jobs.specs import ShellSpec

TAIL_BYTES = 64 << 10  # of each stream, kept in the result; the log has more
EVIDENCE_CHARS = 2000
PORTION_BYTES = 8 << 10  # at worst 8,000 lines for the log: some 20 ms
PAUSE_S = 0.02  # between two chunks of what is dropped: the phone is slowed down, the daemon does not notice


class CommandFailedError(FailedWithResultError):
    """The command's exit code is not 0."""

    code = "command_failed"


class ShellExecutor:
    """Runs attempts of kind `shell`."""

    def __init__(self, client: AdbClient, phones: Fleet) -> None:
        self._client = client
        self._phones = phones

    async def run(self, running: Running) -> Mapping[str, Any]:
        """Run the line to its end; the result has its exit code and the end of what it printed.

        Raises:
            CommandFailedError: its exit code is not 0.
            AttemptTimeoutError: it did not end in time.
            PhoneError: the phone or its link went away.
            HostError: the adb server did.
        """
        spec = running.spec
        assert isinstance(spec, ShellSpec)
        if "\0" in spec.command:
            raise UserError("a shell's line has no NUL characters", hint="use printf '\\0' on the phone")
        started_s = time.monotonic()
        stdout = Lines(partial(running.log, source="stdout"), tail_bytes=TAIL_BYTES)
        stderr = Lines(partial(running.log, source="stderr"), tail_bytes=TAIL_BYTES)
        try:
            async with asyncio.timeout(spec.timeout_s):
                running.progress("noting what is on the phone")
                await self._phones.note_before_lease(running.lease.device)
                running.progress("running the command")
                exit_code = await self._to_the_end(running.view.serial, spec.command, stdout, stderr)
        except TimeoutError as error:
            raise AttemptTimeoutError(
                f"the command did not end within {spec.timeout_s:g} s",
                hint="a longer --timeout",
                evidence=_evidence(stdout, stderr),
            ) from error
        finally:
            stdout.finish()
            stderr.finish()
        result = {
            **about_phone(running.view),
            "exit_code": exit_code,
            "stdout": stdout.tail,
            "stderr": stderr.tail,
            "truncated": not (stdout.tail_is_all and stderr.tail_is_all),
            "seconds": time.monotonic() - started_s,
        }
        if exit_code != 0:
            failed = CommandFailedError(
                f"the command's exit code is {exit_code}",
                hint=f"what it printed: farm logs {running.job.id}",
                evidence=_evidence(stdout, stderr),
            )
            failed.result = result
            raise failed
        return result

    async def _to_the_end(self, serial: str, command: str, stdout: Lines, stderr: Lines) -> int:
        stream: ShellStream
        async with await self._client.open_shell(serial, command, on_stderr=partial(_heard, stderr)) as stream:
            await stream.close_stdin()
            while chunk := await stream.read():
                await _heard(stdout, chunk)
        assert stream.exit_code is not None  # read() ends in no other way
        return stream.exit_code


async def _heard(lines: Lines, data: bytes) -> None:
    """Take what came; even a phone that prints as fast as its link allows lets others have their turn."""
    for start in range(0, len(data), PORTION_BYTES):
        lines.feed(data[start : start + PORTION_BYTES])
        await asyncio.sleep(0)
    if lines.deaf:
        await asyncio.sleep(PAUSE_S)


def _evidence(stdout: Lines, stderr: Lines) -> str:
    return (stderr.tail.strip() or stdout.tail.strip())[-EVIDENCE_CHARS:]
