"""The program of a builder: dask's worker, whose only task is `build`, around today's build server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from distributed import Worker

from farm import __version__
from farm.builders.membership import Membership, is_refused, membership
from farm.builders.tls import NO_DASHBOARD, LabSecurity, use_settings
from farm.common.durations import BackOff
from farm.common.errors import HostError, NotAllowedError
from farm.common.tasks import at_most, end_tasks
from farm.compiler.files import drop_unused, locked
from farm.lab.identity import LabIdentity, open_identity
from farm.tuning.build_process import LocalBuilds, build_identities, started_server

SLOT = "slot"  # dask's resource beside the identities: a candidate takes one, or all when it must be alone
TIMEOUT_S = 60.0  # of a candidate, for noticing a server that hangs; each order has its own
BACK_OFF = BackOff(1.0, 30.0)  # between two tries to connect
CLOSE_S = 5.0  # for the end of a connection
SCRATCH, LOCK = "farm-builder-", "lock"  # of the folders for what is built
FACTS = "farm"  # in dask's startup information

_builds: list[CandidateBuilds] = []  # of this process; dask calls `build` by its name


async def build(fields: Mapping[str, Any], module: bytes) -> dict[str, Any]:
    """Dask's task: an answer as farm.builders.table_policy.checked reads it."""
    return await _builds[0].build(fields, module)


class CandidateBuilds:
    """Candidates at this machine's build server."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for everything that is made."""
        self._folder = folder
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Exception | None]] = {}
        self._local = LocalBuilds(started_server(), folder, TIMEOUT_S, self._ended)

    @property
    def over(self) -> Exception | None:
        """Why nothing is built here any more."""
        return self._local.over

    async def build(self, fields: Mapping[str, Any], module: bytes) -> dict[str, Any]:
        """One candidate."""
        number = next(self._numbers)
        output = self._folder / f"{number}.so"
        ended = self._waiting[number] = Future()
        ended.set_running_or_notify_cancel()  # it ends however its caller does
        own = {"number": number, "folder": str(self._folder), "output": str(output)}
        try:
            error = self._local.order({**fields, **own}, module) or await asyncio.wrap_future(ended)
            if error is not None:
                return {"key": fields["key"], "error": str(error), "host_fault": isinstance(error, HostError)}
            library = output.read_bytes()
            return {"key": fields["key"], "library": library, "sha256": hashlib.sha256(library).hexdigest()}
        except OSError as error:
            return {"key": fields["key"], "error": str(error), "host_fault": True}
        finally:
            del self._waiting[number]
            output.unlink(missing_ok=True)

    def close(self) -> None:
        """End the server."""
        self._local.close()

    def _ended(self, number: int, error: Exception | None) -> None:
        if (ended := self._waiting.get(number)) is not None:
            ended.set_result(error)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for libraries, removed at the end; folders of killed builders are removed after a week."""
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as name, locked(Path(name) / LOCK):
        drop_unused(Path(name).parent.glob(f"{SCRATCH}*"), lock=LOCK)
        yield Path(name)


async def run(folder: Path, slots: int, port: int, say: Callable[[str], None]) -> None:
    """Build for the farm that `folder` has a membership of, until SIGTERM or SIGINT.

    Args:
        folder: as `join` has left it.
        slots: candidates at once.
        port: where this machine listens for the host; 0: the kernel chooses.
        say: called with one line for each change.

    Raises:
        HostError: this machine cannot build.
        UserError: it has no membership, or one that the farm does not know any more.
    """
    about = membership(folder)
    identity = open_identity(folder, about.name)
    use_settings()
    identities = await asyncio.to_thread(build_identities)
    if not identities:
        raise HostError("this machine has no linker: nothing can be built", hint="pip install ziglang")
    with scratch_folder() as place:
        _builds[:] = [CandidateBuilds(place)]
        connected = asyncio.create_task(
            _keep_connected(lambda: _worker(about, identity, identities, slots, port, place), about, identity, say)
        )
        stop = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((connected, stopping), return_when=asyncio.FIRST_COMPLETED)
            if connected.done():
                await connected
        finally:
            await end_tasks(connected, stopping, again_s=2 * CLOSE_S)  # dask loses some in asyncio.wait_for
            await asyncio.to_thread(_builds.pop().close)


async def _keep_connected(
    new: Callable[[], Worker], about: Membership, identity: LabIdentity, say: Callable[[str], None]
) -> None:
    """Connect again and again; the first failure is said, repeats are not.

    Raises:
        NotAllowedError: the farm does not know the builder any more.
    """
    failures, said = 0, ""
    await _check_known(about, identity)
    while True:
        failures += 1
        try:
            worker = await new()
            try:
                say(f"builds for the farm at {about.scheduler} as {worker.name}: {worker.state.nthreads} at once")
                await worker.finished()
                failures, said = 1, ""
            finally:
                async with at_most(CLOSE_S):
                    await worker.close()
            problem = f"the farm at {about.scheduler} has ended the connection"
        except (OSError, RuntimeError, ValueError) as error:  # dask's own are among them
            problem = f"cannot connect to {about.scheduler}: {_root(error)}"
        if isinstance(over := _builds[0].over, HostError):
            raise over
        await _check_known(about, identity)
        if problem != said:
            said = problem
            say(f"{problem}; it tries again until it is stopped")
        await asyncio.sleep(BACK_OFF.delay_s(failures))


async def _check_known(about: Membership, identity: LabIdentity) -> None:
    if await asyncio.to_thread(is_refused, about, identity):
        raise NotAllowedError(
            f"the farm at {about.scheduler} does not know the builder {about.name}: it was removed",
            hint="with a token of its operator (farm builder token NAME): farm builder join",
        )


def _worker(
    about: Membership, identity: LabIdentity, identities: Mapping[str, Mapping[str, Any]], slots: int, port: int,
    place: Path,
) -> Worker:  # fmt: skip
    facts = next(iter(identities.values()))
    versions = {"tvm": facts["tvm"], "ffi": facts["ffi"], "farm": __version__}
    return Worker(
        about.scheduler,
        security=LabSecurity(identity, [about.host_certificate]),
        name=f"{about.name}/{socket.gethostname()}-{os.getpid()}",
        nthreads=slots,
        resources={SLOT: slots, **dict.fromkeys(identities, slots)},
        startup_information={FACTS: lambda _: versions},
        port=port,
        memory_limit=0,
        local_directory=str(place),
        dashboard_address=NO_DASHBOARD,
    )


def _root(error: BaseException) -> str:
    """The first cause: dask says of any failure that it could not connect in time."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error).partition("\n")[0] or type(error).__name__
