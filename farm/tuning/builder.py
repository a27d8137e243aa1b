"""FarmBuilder: a MetaSchedule builder that forks a child for each candidate from a process that imported TVM once.

<cache>/candidates/<hash>.so     a built candidate; the hash is over everything that shapes it
<cache>/building/<owner>/<n>/    the path a runner gets: a hard link, which MetaSchedule deletes with its folder
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import select
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tvm
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder

from farm.common.errors import FarmError, ProtocolError
from farm.common.frames import FrameReader, frame
from farm.common.install import cache_home
from farm.compiler.files import drop_unused
from farm.compiler.targets import abi_of
from farm.tuning.build_process import BuildError, BuildServerProcess, LocalBuilds, build_identity, started_server
from farm.tuning.build_server import processors
from farm.tuning.candidate import cannot_build_error
from farm.tuning.placement_rules import Place, Placement
from farm.tuning.runner import PoolRunner

_Base: Any = PyBuilder._tvm_metadata["cls"]  # noqa: SLF001 - what derived_object would derive from
POLL_S = 0.5  # between two looks for late answers
SILENT_S = 5.0  # the process says every second how many slots there are
SEND_LIMIT_S = 2.0
CONNECT_EVERY_S = 5.0
READ_BYTES = 1 << 18


class FarmBuilder(_Base):  # type: ignore[misc]
    """Builds candidates, at most one per core at a time. Close it, or use it as a context manager."""

    __slots__ = ("__dict__",)

    def __init__(
        self,
        runner: PoolRunner | None = None,
        *,
        cache: Path | None = None,
        timeout_s: float = 30.0,
        server: BuildServerProcess | None = None,
        builders: str = "",
    ) -> None:
        """Start the build server.

        Args:
            runner: whose candidates these are. `build` then returns before they are built and the runner waits for
                each: phones measure while the next ones are compiled. Without it `build` waits for all.
            cache: the folder of built candidates; None: $XDG_CACHE_HOME/farm, or ~/.cache/farm.
            timeout_s: of building one candidate; it is killed then.
            server: a server that runs already (`forked_server`).
            builders: the unix socket of the farm's builders; "": there are none.
        """
        cache = cache or cache_home() / "farm"
        try:
            server = server or started_server()
            self._build = BuildOwner(runner, cache, timeout_s, server, builders)
        except OSError as error:
            if server is not None:
                server.link.close()
            raise cannot_build_error(error.errno or 0, cache) from error
        self.__init_handle_by_constructor__(_ffi_api.BuilderPyBuilder, self._build.build)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, given: Any) -> Future[Path]:
        """Have one candidate (a BuilderInput) built.

        The answer is its library, a BuildError, or a HostError when this host cannot build and nothing is its fault.
        """
        return self._build.submit(given)

    def counts(self) -> Mapping[str, int]:
        """Candidates that were built so far, by where: "local", "remote"; those in the cache are none."""
        return dict(self._build.counts)

    def close(self) -> None:
        """End the server and its builds. May be called twice."""
        self._build.close()


@dataclass(slots=True, eq=False)
class _Pending:
    fields: Mapping[str, Any]  # of its order
    module: bytes
    cached: Path
    link: Path
    built: Future[Path]


class BuildOwner:
    """A run's candidates: described, looked for in the cache, built once each wherever there is room, delivered."""

    def __init__(
        self,
        runner: PoolRunner | None,
        cache: Path,
        timeout_s: float,
        server: BuildServerProcess,
        builders: str = "",
    ) -> None:
        self._runner, self._timeout_s = runner, timeout_s
        self._cache = cache / "candidates"
        self._cache.mkdir(parents=True, exist_ok=True)
        building = cache / "building"
        building.mkdir(exist_ok=True)
        drop_unused(self._cache.iterdir())
        _drop_left(building)
        self._own = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=building))
        self._numbers = itertools.count(1)
        self.counts = Counter({"local": 0, "remote": 0})
        self._lock = threading.Lock()  # over what follows
        self._pending: dict[int, _Pending] = {}
        self._by_key: dict[str, list[_Pending]] = {}  # the same candidate twice is built once
        self._placement = Placement(processors())
        self._local = LocalBuilds(server, cache, timeout_s, self._on_local)
        self._remote = RemoteBuilds(builders, self._on_slots, self._on_remote) if builders else None

    def build(self, inputs: Sequence[Any]) -> list[Any]:
        """MetaSchedule's Builder.build."""
        ordered = [self._order(each) for each in inputs]
        if self._runner is not None:
            for pending in ordered:
                self._runner.expect(str(pending.link), pending.built)
            return [BuilderResult(str(pending.link), None) for pending in ordered]
        return [_result(pending) for pending in ordered]

    def submit(self, given: Any) -> Future[Path]:
        """One candidate."""
        return self._order(given).built

    def close(self) -> None:
        """End the server; unbuilt candidates fail."""
        if self._remote is not None:
            self._remote.close()
        self._local.close()
        with self._lock:
            left = list(self._pending)
            self._placement.waiting.clear()
        for number in left:
            self._finish(number, self._local.over)
        shutil.rmtree(self._own, ignore_errors=True)

    def _order(self, given: Any) -> _Pending:
        number = next(self._numbers)
        place = self._own / str(number)
        built: Future[Path] = Future()
        try:
            place.mkdir()
            fields, module = self._describe(given, number)
        except Exception as error:  # noqa: BLE001 - of one candidate: TVM raises its own kinds
            built.set_exception(self._error_of(error))
            return _Pending({}, b"", Path(), place / "none.so", built)
        key = fields["key"]
        pending = _Pending(fields, module, self._cache / f"{key}.so", place / f"{key}.so", built)
        if _has_bytes(pending.cached):
            self._deliver(pending, None)
            return pending
        with self._lock:
            twins = self._by_key.setdefault(key, [])
            twins.append(pending)
            if len(twins) == 1:
                self._pending[number] = pending
                self._placement.waiting.append(number)
        self._place()
        return pending

    def _error_of(self, error: Exception) -> Exception:
        """Why a candidate is not even ordered: the host's fault, or its own."""
        if isinstance(error, OSError):
            return cannot_build_error(error.errno or 0, self._cache.parent)
        return error if isinstance(error, FarmError) else BuildError(str(error))

    def _describe(self, given: Any, number: int) -> tuple[dict[str, Any], bytes]:
        """The order's fields, and the module."""
        module = tvm.ir.save_json(given.mod).encode()
        target = given.target
        abi, platform = abi_of(target)
        identity, _ = build_identity(abi, platform)
        shaped_by = {"identity": identity, "target": json.loads(str(target))}
        key = hashlib.sha256(json.dumps(shaped_by, sort_keys=True).encode() + b"\n" + module).hexdigest()
        if self._remote is not None:
            self._remote.begin(identity)
        return {
            **shaped_by, "number": number, "key": key, "abi": str(abi), "platform": str(platform),
            "folder": str(self._own), "output": str(self._cache / f"{key}.so"), "timeout_s": self._timeout_s,
        }, module  # fmt: skip

    def _place(self, decide: Callable[[], Sequence[Place]] = tuple) -> None:
        """Have candidates built where there is room: those that are decided, those that wait, and late ones."""
        failed = {}
        with self._lock:
            for each in (*decide(), *self._placement.place(time.monotonic())):
                pending = self._pending[each.number]
                if each.remote and self._remote is not None:
                    self._remote.order(pending.fields, pending.module)
                elif (over := self._local.order(pending.fields, pending.module)) is not None:
                    failed[each.number] = over
        for number, why in failed.items():
            self._finish(number, why)

    def _on_local(self, number: int, error: Exception | None) -> None:
        self._finish(number, error, "local")

    def _on_slots(self, slots: int) -> None:
        """So many candidates may be at builders now; late ones, and those lost with all builders, are built here."""
        self._place(lambda: self._placement.grant(slots))

    def _on_remote(self, number: int, library: bytes, build_error: str) -> None:
        """A builder's library; without one it is built here: no other machine says that a candidate cannot be built."""
        if not library and not build_error:
            self._place(lambda: self._placement.not_built(number))
            return
        with self._lock:
            pending = self._pending.get(number)
            self._placement.answered(number, time.monotonic())
        if pending is None:
            return
        error: Exception | None = BuildError(build_error)
        if library:
            try:
                part = self._own / f"{number}.part"
                part.write_bytes(library)
                part.rename(pending.cached)
                error = None
            except OSError as failure:
                error = self._error_of(failure)
        self._finish(number, error, "remote")

    def _finish(self, number: int, error: Exception | None, where: str = "") -> None:
        """The end of a candidate and its twins; without an error it is a good one."""
        with self._lock:
            pending = self._pending.pop(number, None)
            twins = self._by_key.pop(pending.fields["key"], []) if pending else []
            at_builder = self._placement.ended(number)
            if pending and not error and where:
                self.counts[where] += 1
        for twin in twins:
            self._deliver(twin, error)
        if at_builder and where == "local" and self._remote is not None:
            self._remote.cancel(number)
        self._place()

    def _deliver(self, pending: _Pending, error: Exception | None) -> None:
        if error is None:
            try:
                os.utime(pending.cached)
                os.link(pending.cached, pending.link)
            except OSError as failure:
                error = self._error_of(failure)
        if error is not None:
            pending.built.set_exception(error)
        else:
            pending.built.set_result(pending.link)


def _result(pending: _Pending) -> Any:
    try:
        return BuilderResult(str(pending.built.result()), None)
    except BuildError as error:
        return BuilderResult(None, f"farm: it could not be built: {error}")


def _has_bytes(path: Path) -> bool:
    """Whether a candidate was built before. A power cut leaves empty files, which no phone could load."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _drop_left(building: Path) -> None:
    """Delete the files of killed owners."""
    for path in building.iterdir():
        if not Path("/proc", path.name.partition("-")[0]).exists():
            shutil.rmtree(path, ignore_errors=True)


class RemoteBuilds:
    """The link to the farm's builders. Begins with `begin`."""

    def __init__(
        self, path: str, on_slots: Callable[[int], None], on_answer: Callable[[int, bytes, str], None]
    ) -> None:
        """`path` is of the unix socket.

        `on_slots`: called now and then with the number of orders that may be at builders; 0: their orders are lost.
        `on_answer`: called with each order's number, library and error; with neither, it must be built here.
        """
        self._path, self._on_slots, self._on_answer = path, on_slots, on_answer
        self._identity = ""
        self._lock = threading.Lock()  # over writing
        self._link: socket.socket | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remote builds", daemon=True)

    def begin(self, identity: str) -> None:
        """Ask for slots at builders of this identity, the first time."""
        if not self._identity:
            self._identity = identity
            self._thread.start()

    def order(self, fields: Mapping[str, Any], module: bytes) -> None:
        """Have a candidate built."""
        self._send(frame(fields, module))

    def cancel(self, number: int) -> None:
        """No caller waits for it any more."""
        self._send(frame({"cancel": number}))

    def close(self) -> None:
        """End the link."""
        self._closed.set()
        with self._lock, contextlib.suppress(OSError):
            if self._link is not None:
                self._link.shutdown(socket.SHUT_RDWR)
        if self._identity:
            self._thread.join(CONNECT_EVERY_S)

    def _send(self, message: bytes) -> None:
        with self._lock:
            if self._link is None:
                return
            try:
                self._link.sendall(message)
            except OSError:  # it has ended, or reads nothing: the thread finds out
                with contextlib.suppress(OSError):
                    self._link.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError, ProtocolError, KeyError), self._connected() as link:
                self._read(link)
            self._on_slots(0)
            self._closed.wait(CONNECT_EVERY_S)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(SEND_LIMIT_S)
            link.connect(self._path)
            link.sendall(frame({"identity": self._identity}))
            with self._lock:
                self._link = link
            try:
                yield link
            finally:
                with self._lock:
                    self._link = None

    def _read(self, link: socket.socket) -> None:
        answers, slots, heard_s = FrameReader(), 0, time.monotonic()
        poll = select.poll()
        poll.register(link, select.POLLIN)
        while not self._closed.is_set() and time.monotonic() - heard_s < SILENT_S:
            if poll.poll(POLL_S * 1e3):
                if not (data := link.recv(READ_BYTES)):
                    return
                heard_s = time.monotonic()
                for fields, library in answers.feed(data):
                    if "slots" in fields:
                        slots = fields["slots"]
                    else:
                        self._on_answer(fields["number"], library, fields.get("error", ""))
            self._on_slots(slots)
