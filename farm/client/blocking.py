"""`farm.Client`: the farm from Python. Each method is `farm.AsyncClient`'s, run on an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from farm.client.asynchronous import AsyncClient
from farm.client.connection import RESTART_S, OnNotice, OnTransfer, logger
from farm.client.lease import AsyncLease, HeldPhone

P = ParamSpec("P")
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
        ended, tasks = threading.Event(), list[asyncio.Task[T]]()

        def begin() -> None:
            tasks.append(asyncio.ensure_future(coroutine))
            tasks[0].add_done_callback(over)

        def over(task: asyncio.Task[T]) -> None:
            if not task.cancelled():
                task.exception()  # seen, though an interrupted caller will not ask
            ended.set()

        def cancel() -> None:
            # The loop calls back in order: `begin` has been called, or never will be.
            if tasks:
                tasks[0].cancel()
            else:
                coroutine.close()
                ended.set()

        try:
            self._loop.call_soon_threadsafe(begin)
            ended.wait()
        except BaseException:  # a signal may come before it is known whether `begin` was handed over
            self._loop.call_soon_threadsafe(cancel)
            ended.wait()
            raise
        return tasks[0].result()

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

    def ended(self) -> None:
        """As `AsyncLease.ended`."""
        self.loop.run(self.inner.ended())

    def release(self) -> None:
        """As `AsyncLease.release`."""
        self.loop.run(self.inner.release())


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The same method, without `await`."""

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Client, P], Generator[T, None, None]]:
    """The same method, for a plain `for`."""

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return self._loop.iterate(method(self._client, *args, **kwargs))

    return call


def _holding(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, AsyncLease]],
) -> Callable[Concatenate[Client, P], Lease]:
    """The same method; so is the lease it returns."""

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Lease:
        return Lease.of(self._loop.run(method(self._client, *args, **kwargs)), self._loop)

    return call


class Client:
    """The farm's daemon. Any number of threads may use one client at once; a forked process needs its own.

    Each of its users acts as this process's user, by what the kernel says; of a lab elsewhere as the key's account.
    """

    def __init__(
        self,
        socket: Path | str | None = None,
        *,
        key: Path | str | None = None,
        restart_s: float = RESTART_S,
        on_notice: OnNotice = logger.warning,
        on_transfer: OnTransfer | None = None,
    ) -> None:
        """As `AsyncClient`; `on_notice` and `on_transfer` are called from another thread."""
        self._loop = LoopThread()
        self._client = AsyncClient(socket, key=key, restart_s=restart_s, on_notice=on_notice, on_transfer=on_transfer)
        self._finalizer = weakref.finalize(self, _end, self._loop, self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave. Jobs continue; `wait` for them with another client."""
        self._finalizer()

    # -- jobs --------------------------------------------------------------------------------------------------------

    submit = _blocking(AsyncClient.submit)
    check = _blocking(AsyncClient.check)
    submit_file = _blocking(AsyncClient.submit_file)
    wait = _blocking(AsyncClient.wait)
    watch = _iterating(AsyncClient.watch)
    jobs = _blocking(AsyncClient.jobs)
    job = _blocking(AsyncClient.job)
    cancel = _blocking(AsyncClient.cancel)
    hold = _blocking(AsyncClient.hold)
    resume = _blocking(AsyncClient.resume)
    logs = _iterating(AsyncClient.logs)

    # -- work: submit, wait, results -----------------------------------------------------------------------------------

    spec = _blocking(AsyncClient.spec)
    outcomes = _blocking(AsyncClient.outcomes)
    bench = _blocking(AsyncClient.bench)
    compare = _blocking(AsyncClient.compare)
    tune = _blocking(AsyncClient.tune)
    run = _blocking(AsyncClient.run)
    shell = _blocking(AsyncClient.shell)

    # -- phones of one's own -------------------------------------------------------------------------------------------

    acquire = _holding(AsyncClient.acquire)
    lease_show = _holding(AsyncClient.lease_show)

    @contextmanager
    def lease(self, *, on: str, seconds: float = 1800.0, note: str = "", **options: Any) -> Iterator[Lease]:
        """As `AsyncClient.lease`."""
        held = self._client.lease(on=on, seconds=seconds, note=note, **options)
        lease = Lease.of(self._loop.run(held.__aenter__()), self._loop)
        try:
            yield lease
        finally:
            self._loop.run(_leave(held))

    # -- the farm ------------------------------------------------------------------------------------------------------

    events = _iterating(AsyncClient.events)
    status = _blocking(AsyncClient.status)
    devices = _blocking(AsyncClient.devices)
    explain = _blocking(AsyncClient.explain)
    needs_operator = _blocking(AsyncClient.needs_operator)
    usage = _blocking(AsyncClient.usage)

    # -- files: `on_bytes` is called from another thread ---------------------------------------------------------------

    put_file = _blocking(AsyncClient.put_file)
    get_file = _blocking(AsyncClient.get_file)


async def _next(items: AsyncGenerator[T, None], end: object) -> T | object:
    return await anext(items, end)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    with suppress(RuntimeError):  # a caller interrupted twice left it running: it was cancelled, and ends by itself
        await items.aclose()


async def _leave(held: Any) -> None:
    await held.__aexit__(None, None, None)


def _end(loop: LoopThread, client: AsyncClient) -> None:
    loop.run(client.close())
    loop.stop()
