"""`farm.Client`: the farm from Python. Each method is `farm.AsyncClient`'s, run on an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from farm.client.asynchronous import AsyncClient
from farm.client.door import RESTART_S, OnNotice, logger
from farm.client.files import OnBytes
from farm.client.lease import AsyncLease, HeldPhone
from farm.client.model import DeviceInfo, FarmStatus, JobInfo, JobRefs, LogLine, Submitted, Usage
from farm.core.events import Event

if TYPE_CHECKING:
    from farm.client.outcomes import BenchOutcome, Outcome, RunOutcome, ShellOutcome
    from farm.client.specs import BenchOptions, InputSource, JobOptions, LabelSource, ModelSource, RunOptions
    from farm.jobs.specs import AnySpec, BenchSpec, RunSpec

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own: works under Jupyter's loop too, and Ctrl-C reaches the caller."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="farm client", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result. Interrupted (Ctrl-C), it is cancelled, and has ended when this returns."""
        if self._stopped or threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("this client is closed" if self._stopped else "a client's callback may not use it")
        ended = threading.Event()

        async def run() -> T:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Its items; closing the generator closes it."""
        end = object()
        try:
            while (item := self.run(_next(items, end))) is not end:
                yield item  # type: ignore[misc]  # the only other object is `end`
        finally:
            if not self._stopped:  # closing the client closed what it still iterated over
                self.run(_close(items))

    def stop(self) -> None:
        """End the loop and its thread."""
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(HeldPhone):
    """A phone held by a `Client`."""

    inner: AsyncLease = field(repr=False)
    loop: LoopThread = field(repr=False)

    @classmethod
    def of(cls, inner: AsyncLease, loop: LoopThread) -> Self:
        """The same lease, without `await`."""
        facts = {name: getattr(inner, name) for name in HeldPhone.__dataclass_fields__}
        return cls(**facts, inner=inner, loop=loop)

    def extend(self, seconds: float) -> datetime:
        """As `AsyncLease.extend`."""
        return self.loop.run(self.inner.extend(seconds))

    def release(self) -> None:
        """As `AsyncLease.release`."""
        self.loop.run(self.inner.release())


class Client:
    """The farm's daemon. Any number of threads may use one client at once; a forked process needs its own.

    Everybody who uses it acts as this process's user: the daemon knows its callers by what the kernel says of them.
    """

    def __init__(
        self,
        socket: Path | str | None = None,
        *,
        restart_s: float = RESTART_S,
        on_notice: OnNotice = logger.warning,
    ) -> None:
        """As `AsyncClient`; `on_notice` is called from another thread."""
        self._loop = LoopThread()
        self._client = AsyncClient(socket, restart_s=restart_s, on_notice=on_notice)
        self._finalizer = weakref.finalize(self, _end, self._loop, self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave. Jobs go on; `wait` for them with another client."""
        self._finalizer()

    # -- jobs --------------------------------------------------------------------------------------------------------

    def submit(self, spec: AnySpec, *, key: str = "", must_match: bool = False) -> Submitted:
        """As `AsyncClient.submit`."""
        return self._loop.run(self._client.submit(spec, key=key, must_match=must_match))

    def submit_file(self, path: Path | str, *, key: str = "", must_match: bool = False) -> tuple[Submitted, ...]:
        """As `AsyncClient.submit_file`."""
        return self._loop.run(self._client.submit_file(path, key=key, must_match=must_match))

    def wait(self, jobs: JobRefs, *, timeout_s: float | None = None, fetch_outputs: bool = True) -> tuple[Outcome, ...]:
        """As `AsyncClient.wait`."""
        return self._loop.run(self._client.wait(jobs, timeout_s=timeout_s, fetch_outputs=fetch_outputs))

    def watch(self, jobs: JobRefs, *, since: int = 0, idle_s: float | None = None) -> Iterator[Event | None]:
        """As `AsyncClient.watch`."""
        return self._loop.iterate(self._client.watch(jobs, since=since, idle_s=idle_s))

    def jobs(
        self,
        *,
        state: tuple[str, ...] = (),
        user: str = "",
        kind: str = "",
        array: str = "",
        before: str = "",
        limit: int = 50,
    ) -> tuple[JobInfo, ...]:
        """As `AsyncClient.jobs`."""
        return self._loop.run(
            self._client.jobs(state=state, user=user, kind=kind, array=array, before=before, limit=limit)
        )

    def job(self, job: str, *, fetch_outputs: bool = True) -> Outcome:
        """As `AsyncClient.job`."""
        return self._loop.run(self._client.job(job, fetch_outputs=fetch_outputs))

    def cancel(self, jobs: JobRefs) -> tuple[JobInfo, ...]:
        """As `AsyncClient.cancel`."""
        return self._loop.run(self._client.cancel(jobs))

    def hold(self, jobs: JobRefs) -> tuple[JobInfo, ...]:
        """As `AsyncClient.hold`."""
        return self._loop.run(self._client.hold(jobs))

    def resume(self, jobs: JobRefs) -> tuple[JobInfo, ...]:
        """As `AsyncClient.resume`."""
        return self._loop.run(self._client.resume(jobs))

    def logs(self, job: str, *, attempt: int | None = None, follow: bool = False) -> Iterator[LogLine]:
        """As `AsyncClient.logs`."""
        return self._loop.iterate(self._client.logs(job, attempt=attempt, follow=follow))

    # -- work: submit, wait, results -----------------------------------------------------------------------------------

    def bench_spec(
        self, model: ModelSource, *, on: str, inputs: InputSource | None = None, **options: Unpack[BenchOptions]
    ) -> BenchSpec:
        """As `AsyncClient.bench_spec`."""
        return self._loop.run(self._client.bench_spec(model, on=on, inputs=inputs, **options))

    def run_spec(
        self,
        model: ModelSource,
        *,
        on: str,
        inputs: InputSource | None = None,
        labels: LabelSource | None = None,
        **options: Unpack[RunOptions],
    ) -> RunSpec:
        """As `AsyncClient.run_spec`."""
        return self._loop.run(self._client.run_spec(model, on=on, inputs=inputs, labels=labels, **options))

    def bench(
        self, model: ModelSource, *, on: str, inputs: InputSource | None = None, **options: Unpack[BenchOptions]
    ) -> tuple[BenchOutcome, ...]:
        """As `AsyncClient.bench`."""
        return self._loop.run(self._client.bench(model, on=on, inputs=inputs, **options))

    def run(
        self,
        model: ModelSource,
        *,
        on: str,
        inputs: InputSource | None = None,
        labels: LabelSource | None = None,
        **options: Unpack[RunOptions],
    ) -> tuple[RunOutcome, ...]:
        """As `AsyncClient.run`."""
        return self._loop.run(self._client.run(model, on=on, inputs=inputs, labels=labels, **options))

    def shell(self, command: str, *, on: str, **options: Unpack[JobOptions]) -> tuple[ShellOutcome, ...]:
        """As `AsyncClient.shell`."""
        return self._loop.run(self._client.shell(command, on=on, **options))

    @contextmanager
    def lease(
        self, *, on: str, seconds: float = 1800.0, note: str = "", **options: Unpack[JobOptions]
    ) -> Iterator[Lease]:
        """As `AsyncClient.lease`."""
        held = self._client.lease(on=on, seconds=seconds, note=note, **options)
        inner = self._loop.run(held.__aenter__())
        try:
            yield Lease.of(inner, self._loop)
        finally:
            self._loop.run(_leave(held))

    # -- the farm ------------------------------------------------------------------------------------------------------

    def events(self, *, since: int | None = None, subject: str = "", follow: bool = True) -> Iterator[Event]:
        """As `AsyncClient.events`."""
        return self._loop.iterate(self._client.events(since=since, subject=subject, follow=follow))

    def status(self) -> FarmStatus:
        """As `AsyncClient.status`."""
        return self._loop.run(self._client.status())

    def devices(self) -> tuple[DeviceInfo, ...]:
        """As `AsyncClient.devices`."""
        return self._loop.run(self._client.devices())

    def explain(self, what: str, name: str) -> tuple[str, ...]:
        """As `AsyncClient.explain`."""
        return self._loop.run(self._client.explain(what, name))

    def usage(
        self, since: datetime, until: datetime | None = None, *, by: Literal["user", "device", "door"] = "user"
    ) -> tuple[Usage, ...]:
        """As `AsyncClient.usage`."""
        return self._loop.run(self._client.usage(since, until, by=by))

    # -- files ---------------------------------------------------------------------------------------------------------

    def put_file(self, source: Path | str | bytes, *, on_bytes: OnBytes | None = None) -> str:
        """As `AsyncClient.put_file`; `on_bytes` is called from another thread."""
        return self._loop.run(self._client.put_file(source, on_bytes=on_bytes))

    def get_file(self, sha256: str, target: Path | str, *, on_bytes: OnBytes | None = None) -> int:
        """As `AsyncClient.get_file`; `on_bytes` is called from another thread."""
        return self._loop.run(self._client.get_file(sha256, target, on_bytes=on_bytes))


async def _next(items: AsyncGenerator[T, None], end: object) -> T | object:
    return await anext(items, end)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def _leave(held: Any) -> None:
    await held.__aexit__(None, None, None)


def _end(loop: LoopThread, client: AsyncClient) -> None:
    loop.run(client.close())
    loop.stop()
