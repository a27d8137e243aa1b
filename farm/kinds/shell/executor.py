"""Jobs of kind `shell`: a line in a phone's shell, over the daemon's own adb client.

No worker takes part: workers have no access to adb, and a stream that is read with limits is no danger to the daemon.
Closing the stream sends SIGHUP to the shell. What ignores that, or was left in the background, and the files it left
are removed before the next user gets the phone: the phone is noted before and cleaned after, as for a person's lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from farm.adb.shell import ShellStream
from farm.common.errors import Code, UserError
from farm.jobs.attempt import AttemptTimeoutError
from farm.jobs.executor import AttemptContext, Executor, FailedWithResultError
from farm.jobs.worker_output import LineSplitter
from farm.kinds.execution import ExecutorParts, about_phone
from farm.kinds.shell import ShellSpec

TAIL_BYTES = 64 << 10  # of each stream, kept in the result; the log has more
EVIDENCE_CHARS = 2000
PORTION_BYTES = 8 << 10  # at worst 8,000 lines for the log: some 20 ms
PAUSE_S = 0.02  # between two chunks of what is dropped: the phone is slowed down, the daemon does not notice


@dataclass(frozen=True, slots=True)
class ShellExecutor(Executor):
    """Runs attempts of kind `shell`."""

    parts: ExecutorParts

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """Run the line to its end; the result has its exit code and the end of its output."""
        spec = context.spec
        assert isinstance(spec, ShellSpec)
        if "\0" in spec.command:
            raise UserError("a shell's line has no NUL characters", hint="use printf '\\0' on the phone")
        started_s = time.monotonic()
        stdout = LineSplitter(partial(context.log, source="stdout"), tail_bytes=TAIL_BYTES)
        stderr = LineSplitter(partial(context.log, source="stderr"), tail_bytes=TAIL_BYTES)
        try:
            async with asyncio.timeout(spec.timeout_s):
                context.progress("noting what is on the phone")
                await self.parts.fleet.note_before_lease(context.lease.device)
                context.progress("running the command")
                exit_code = await self._to_the_end(context.view.serial, spec.command, stdout, stderr)
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
            **about_phone(context.view),
            "exit_code": exit_code,
            "stdout": stdout.tail,
            "stderr": stderr.tail,
            "truncated": not (stdout.tail_is_all and stderr.tail_is_all),
            "seconds": time.monotonic() - started_s,
        }
        if exit_code != 0:
            failed = FailedWithResultError(
                f"the command's exit code is {exit_code}",
                Code.COMMAND_FAILED,
                hint=f"what it printed: farm logs {context.job.id}",
                evidence=_evidence(stdout, stderr),
            )
            failed.result = result
            raise failed
        return result

    async def _to_the_end(self, serial: str, command: str, stdout: LineSplitter, stderr: LineSplitter) -> int:
        stream: ShellStream
        async with await self.parts.client.open_shell(
            serial, command, on_stderr=partial(_take_output, stderr)
        ) as stream:
            await stream.close_stdin()
            while chunk := await stream.read():
                await _take_output(stdout, chunk)
        assert stream.exit_code is not None  # read() ends in no other way
        return stream.exit_code


async def _take_output(lines: LineSplitter, data: bytes) -> None:
    """Take the new output; even a phone that prints as fast as its link allows lets others have their turn."""
    for start in range(0, len(data), PORTION_BYTES):
        lines.feed(data[start : start + PORTION_BYTES])
        await asyncio.sleep(0)
    if lines.full:
        await asyncio.sleep(PAUSE_S)


def _evidence(stdout: LineSplitter, stderr: LineSplitter) -> str:
    return (stderr.tail.strip() or stdout.tail.strip())[-EVIDENCE_CHARS:]
