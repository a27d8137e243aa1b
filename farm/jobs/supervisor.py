"""Keeps one zygote per toolchain alive and runs attempts in their children.

Whatever a worker does (crash, hang, ignore SIGTERM, outlive its time), `run` ends: with its result or a typed error,
and with nothing of its process group left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.common.durations import BackOff
from farm.common.errors import HOST_STANDS, Code, HostError, UserError
from farm.common.os_errors import lacking
from farm.common.tasks import at_most, end_tasks
from farm.jobs.attempt import (
    AttemptHost,
    AttemptTimeoutError,
    HeartbeatWatch,
    LiveAttempt,
    Task,
    WorkerListener,
    next_check_s,
    overdue,
)
from farm.jobs.messages import Exited, Spawn
from farm.jobs.worker_output import WorkerOutput
from farm.jobs.worker_user import AS_THE_DAEMON, RunAs, UserFolders, WorkerUser, remove_tree
from farm.jobs.zygote import START_LIMIT_S, ToolchainError, Zygote, ZygoteDiedError
from farm.model.toolchain import Toolchain

TERM_GRACE_S = 1.0  # a worker that ends in good order needs milliseconds; one stuck in a driver ignores SIGTERM
KILL_LIMIT_S = 5.0  # after SIGKILL only a process in uninterruptible sleep is left
POLL_S = 1.0  # a message of the worker can bring the next limit nearer
LEAVE_LIMIT_S = 3.0  # from a worker's result to its exit
CPU_SPARE_S = 60  # above timeout x cores: the CPU limit is only the net under the time limit
DATA_LIMIT_BYTES = 8 << 30  # private memory of one worker; a host's RAM is shared by daemon, adb and several workers
LACKS_HINT = "does it lack room, open files (ulimit -n) or memory? `farm doctor` looks"
RESTART = BackOff(0.2, 30.0)
STEADY_S = 60.0  # a zygote that lived this long starts the back-off again

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Slot:
    """A toolchain and its current zygote."""

    toolchain: Toolchain
    zygote: Zygote | None = None
    problem: ToolchainError | None = None  # why its latest start failed
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    keeper: asyncio.Task[None] | None = None
    busy: int = 0  # attempts under way


class Supervisor:
    """Runs attempts. `start` begins importing TVM in the background; `run` waits for it if it must."""

    def __init__(
        self,
        toolchains: Sequence[Toolchain],
        folder: Path,
        listener: WorkerListener,
        *,
        run_as: RunAs = AS_THE_DAEMON,
        patience_s: float = START_LIMIT_S,
    ) -> None:
        """`folder`: logs, one folder per attempt, and one per user. `run_as`: whom workers become.

        `patience_s`: how long an attempt waits for a toolchain that is not up.
        """
        self._slots = {toolchain.name: _Slot(toolchain) for toolchain in toolchains}
        self._folder = folder
        self._listener = listener
        self._users = UserFolders(folder / "cache", run_as.user, run_as.first_id)
        self._patience_s = patience_s
        self.starts: Counter[str] = Counter()  # zygotes that came up, by toolchain
        self.ends: Counter[tuple[str, str]] = Counter()  # workers, by toolchain and how they ended

    async def start(self) -> None:
        """Start every zygote in the background."""
        self._make_folders()
        await asyncio.to_thread(self._clear)
        for slot in self._slots.values():
            slot.keeper = asyncio.create_task(self._keep(slot), name=f"zygote {slot.toolchain.name}")

    async def stop(self) -> None:
        """End every zygote and every worker."""
        await end_tasks(*(slot.keeper for slot in self._slots.values() if slot.keeper))

    async def add(self, toolchain: Toolchain) -> None:
        """Start the zygote of one more toolchain, or of one that has changed, in the background."""
        await self.remove(toolchain.name)
        slot = self._slots[toolchain.name] = _Slot(toolchain)
        slot.keeper = asyncio.create_task(self._keep(slot), name=f"zygote {toolchain.name}")

    async def remove(self, name: str) -> None:
        """End a toolchain's zygote.

        Raises:
            UserError: attempts run in it.
        """
        slot = self._slots.get(name)
        if slot is None:
            return
        if slot.busy:
            raise UserError(
                f"toolchain {name} has {slot.busy} attempts under way",
                Code.TOOLCHAIN_IN_USE,
                hint="wait for their end: farm job list",
            )
        del self._slots[name]
        if slot.keeper is not None:
            await end_tasks(slot.keeper)

    def standing(self) -> Mapping[str, tuple[bool, int]]:
        """Whether each toolchain's zygote is up, and how many attempts are under way in it."""
        return {name: (slot.zygote is not None, slot.busy) for name, slot in self._slots.items()}

    def problems(self) -> list[str]:
        """One line for each toolchain whose latest start failed."""
        return [f"toolchain {name}: {slot.problem}" for name, slot in self._slots.items() if slot.problem]

    def versions(self, toolchain: str) -> Mapping[str, str]:
        """Versions in a toolchain; empty while it is not up."""
        slot = self._slots.get(toolchain)
        return slot.zygote.versions if slot and slot.zygote else {}

    async def versions_when_up(self, toolchain: str, host: AttemptHost) -> Mapping[str, str]:
        """Versions in a toolchain, which is waited for if it is not up.

        Raises:
            ToolchainError: it did not come up.
        """
        return (await _ready(self._slot(toolchain), host, self._patience_s)).versions

    def cache_folder(self, toolchain: str, user: str) -> Path:
        """The folder for a toolchain's compiled libraries of a user, which workers make."""
        return self._users.path(user) / toolchain

    async def run(self, toolchain: str, task: Task, host: AttemptHost) -> Mapping[str, Any]:
        """Run one attempt in a fresh worker and return its result.

        Raises:
            HostError, AttemptTimeoutError: what became of the worker.
            ToolchainError: the toolchain did not come up; no work was begun.
            FarmError: what the worker itself reported.
        """
        slot = self._slot(toolchain)
        slot.busy += 1
        try:
            zygote = await _ready(slot, host, self._patience_s)  # no part of the attempt's time
            return await self._run(zygote, task, host)
        finally:
            slot.busy -= 1

    async def _run(self, zygote: Zygote, task: Task, host: AttemptHost) -> Mapping[str, Any]:
        now_s = asyncio.get_running_loop().time()
        attempt = LiveAttempt(task, host, HeartbeatWatch(now_s, now_s))
        try:
            output = WorkerOutput(lambda text: host.logged(text, "info"))
            try:
                folder, user = await asyncio.to_thread(self._attempt_folder, task)
            except BaseException:
                output.close()
                raise
        except OSError as error:
            message = f"this host cannot start a worker: {error.strerror or error}"
            raise HostError(message, Code.HOST_IMPAIRED, hint=LACKS_HINT) from error
        token = self._listener.admit(task.attempt, task.fence, attempt)
        try:
            pid = await zygote.spawn(self._order(task, token, folder, user), output.writer)
            output.handed_on()
            logger.debug("attempt %s runs as pid %d", task.attempt, pid)
            return await _believed(self._outcome(attempt, zygote, output), self._folder)
        finally:
            self.ends[zygote.toolchain.name, _how_ended(sys.exception())] += 1
            self._listener.dismiss(task.attempt)
            if attempt.result.done() and not attempt.result.cancelled():
                attempt.result.exception()  # seen, even if something else ended the attempt first
            await asyncio.shield(_clean_up(zygote, attempt, output, folder, user))

    async def _outcome(self, attempt: LiveAttempt, zygote: Zygote, output: WorkerOutput) -> Mapping[str, Any]:
        task = attempt.task
        exited = asyncio.ensure_future(zygote.exited(task.attempt))
        look_by_s = math.inf
        try:
            while True:
                now_s = asyncio.get_running_loop().time()
                if now_s - look_by_s > POLL_S:
                    attempt.watch.add_standstill(now_s - look_by_s, now_s)
                problem = overdue(attempt.watch, task.timeout_s, now_s)
                if problem is not None:
                    problem.evidence = output.tail
                    raise problem
                wait_s = min(POLL_S, max(0.0, next_check_s(attempt.watch, task.timeout_s) - now_s))
                look_by_s = now_s + wait_s
                await asyncio.wait((attempt.result, exited), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if attempt.result.done():
                    return attempt.result.result()
                if exited.done():
                    await output.end()
                    raise _died(attempt, exited.result(), output.tail)
        finally:
            exited.cancel()

    def _order(self, task: Task, token: str, folder: Path, user: WorkerUser | None) -> Spawn:
        cores = os.cpu_count() or 1
        return Spawn(
            attempt=task.attempt,
            fence=task.fence,
            task=task.module,
            token=token,
            socket=self._listener.socket_path,
            folder=str(folder),
            payload=task.payload,
            cpu_limit_s=int(task.timeout_s * cores) + CPU_SPARE_S,
            data_limit_bytes=DATA_LIMIT_BYTES,
            uid=user.uid if user else None,
            gid=user.gid if user else None,
            groups=user.groups if user else (),
        )

    def _attempt_folder(self, task: Task) -> tuple[Path, WorkerUser | None]:
        """Make the attempt's folder; returns it and its owner, whom the worker becomes."""
        self._make_folders()
        user = self._users.open(task.user)
        folder = self._folder / "attempts" / task.attempt
        if folder.exists():
            remove_tree(folder, self._users.owner(folder))  # left by a daemon that was killed
        folder.mkdir(mode=0o700)
        if user is not None:
            user.give(folder)
        return folder, user

    def _make_folders(self) -> None:
        """Make the folders of all work, again where a person removed them: no phone could be checked any more."""
        for part in (self._folder, self._folder / "attempts", self._folder / "cache"):
            part.mkdir(parents=True, exist_ok=True)
            part.chmod(0o711)

    def _clear(self) -> None:
        """Delete useless caches and the folders that attempts of a killed daemon left."""
        for left in (self._folder / "attempts").iterdir():
            remove_tree(left, self._users.owner(left))
        self._users.tidy()

    def _slot(self, name: str) -> _Slot:
        if name not in self._slots:
            known = ", ".join(self._slots) or "none"
            raise UserError(f"there is no toolchain {name!r}", hint=f"toolchains: {known}")
        return self._slots[name]

    async def _keep(self, slot: _Slot) -> None:
        """Start the zygote, wait for its death, start it again: later and later while it does not stay up."""
        failures = 0
        while True:
            started_s = time.monotonic()
            try:
                self._make_folders()
                zygote = await Zygote.start(slot.toolchain, self._folder)
                self.starts[slot.toolchain.name] += 1
                await _change(slot, zygote, None)
                try:
                    await zygote.ended.wait()
                finally:
                    await zygote.stop()
                logger.warning("the zygote of toolchain %s died; starting another", slot.toolchain.name)
                await _change(slot, None, None)
            except ToolchainError as error:
                if str(error) != str(slot.problem):  # told once, not at each try
                    logger.warning("%s", error)
                await _change(slot, None, error)
            except OSError as error:  # out of descriptors, processes ...: the next may succeed
                problem = ToolchainError(f"cannot keep a zygote: {error}")
                if str(problem) != str(slot.problem):
                    logger.warning("cannot keep a zygote of toolchain %s: %s", slot.toolchain.name, error)
                await _change(slot, None, problem)
            except Exception as error:  # a mistake of ours
                logger.exception("cannot keep a zygote of toolchain %s", slot.toolchain.name)
                await _change(slot, None, ToolchainError(f"cannot keep a zygote: {error}"))
            failures = 1 if time.monotonic() - started_s > STEADY_S else failures + 1
            await asyncio.sleep(RESTART.delay_s(failures))


async def _believed(report: Awaitable[Mapping[str, Any]], folder: Path) -> Mapping[str, Any]:
    """A worker's report. That the host stops workers is a user's word until it finds the same in `folder`."""
    try:
        return await report
    except HostError as error:
        if await asyncio.to_thread(lacking, folder):
            error.code = Code.HOST_IMPAIRED.value
        elif error.code in HOST_STANDS:
            raise HostError(error.message, hint=error.hint, evidence=error.evidence) from error
        raise


def _how_ended(error: BaseException | None) -> str:
    """One of a few words; `failed`: the worker reported it."""
    match error:
        case None:
            return "done"
        case asyncio.CancelledError():
            return "cancelled"
        case ZygoteDiedError() | HostError(code=Code.WORKER_DIED):
            return "died"
        case HostError(code=Code.WORKER_SILENT):
            return "silent"
        case AttemptTimeoutError():
            return "timeout"
    return "failed"


async def _ready(slot: _Slot, host: AttemptHost, limit_s: float) -> Zygote:
    """A toolchain's zygote. A failed start is no reason not to wait for the next one."""
    name = slot.toolchain.name
    try:
        async with asyncio.timeout(limit_s), slot.changed:
            while slot.zygote is None or slot.zygote.ended.is_set():
                host.progressed(f"waiting for toolchain {name}" + (f": {slot.problem}" if slot.problem else ""), {})
                await slot.changed.wait()
            return slot.zygote
    except TimeoutError as error:
        raise slot.problem or ToolchainError(f"toolchain {name} is not up after {limit_s:g} s") from error


async def _change(slot: _Slot, zygote: Zygote | None, problem: ToolchainError | None) -> None:
    async with slot.changed:
        slot.zygote, slot.problem = zygote, problem
        slot.changed.notify_all()


async def _clean_up(
    zygote: Zygote, attempt: LiveAttempt, output: WorkerOutput, folder: Path, user: WorkerUser | None
) -> None:
    """Leave nothing of an attempt that has come to its end: no process, no pipe, no folder."""
    try:
        await _end(zygote, attempt.task.attempt, polite=attempt.result.done())
        output.handed_on()
        await output.end()
    finally:
        output.close()
        await asyncio.to_thread(remove_tree, folder, user)


async def _end(zygote: Zygote, attempt: str, *, polite: bool) -> None:
    """See an attempt's child out: wait if it has nothing more to do, then SIGTERM, then SIGKILL to its group."""
    steps: list[tuple[int | None, float]] = [(signal.SIGTERM, TERM_GRACE_S), (signal.SIGKILL, KILL_LIMIT_S)]
    if polite:
        steps.insert(0, (None, LEAVE_LIMIT_S))
    with contextlib.suppress(ZygoteDiedError, KeyError):  # KeyError: it was never forked
        for signum, limit_s in steps:
            if signum is not None:
                zygote.kill(attempt, signum)
            async with at_most(limit_s):
                await zygote.exited(attempt)
                break
        else:
            logger.error("attempt %s survives SIGKILL: a process in uninterruptible sleep?", attempt)
    zygote.forget(attempt)


def _died(attempt: LiveAttempt, exited: Exited, output: str) -> HostError:
    if exited.signal is not None:
        try:
            how = f"was killed by {signal.Signals(exited.signal).name}"
        except ValueError:
            how = f"was killed by signal {exited.signal}"
    else:
        how = f"exited with code {exited.code}"
    return HostError(
        f"the worker {how} without a result; it was at: {attempt.watch.step}",
        Code.WORKER_DIED,
        hint="SIGKILL often means the host ran out of memory" if exited.signal == signal.SIGKILL else "",
        evidence=output,
    )
