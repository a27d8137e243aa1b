"""A worker and the daemon: the verbs as methods, the heartbeat, and `run`, which carries out an attempt.

`run` greets the daemon, calls the `main` of the task's module, and reports its result or error. A task's `early`, where
it has one, is called before anything else: the process has a single thread until then, and may fork.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from farm.common.errors import Code, FarmError, HostError, UserError, error_to_wire
from farm.common.os_errors import free_in, hint_for, host_errno, lacking
from farm.compiler.tvm_errors import first_line
from farm.control.client import ControlClient
from farm.jobs.attempt import SILENCE_LIMIT_S, SessionOffer, YieldedError, check_report
from farm.jobs.messages import Spawn
from farm.jobs.progress_schema import MAX_TEXT_CHARS
from farm.measure.conditions import PhoneCondition
from farm.tuning.phones import PooledPhone, PoolState

HEARTBEAT_S = 1.0  # the daemon gives a worker up after SILENCE_LIMIT_S without one
LEAVE_S = 2.0


class DaemonChannel:
    """The daemon, as one attempt's worker sees it. Use it as a context manager: the heart beats inside.

    For an attempt with a pool it is the PhoneSource of farm.tuning.phones.
    """

    def __init__(self, order: Spawn) -> None:
        self._client = _client(order)
        # A socket is for one thread; the heart has its own thread because the main one may be deep in TVM.
        self._heart = _client(order)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LEAVE_S)
        with self._lock:
            self._client.close()

    def call(self, verb: str, /, **fields: Any) -> dict[str, Any]:
        """Ask the daemon. From any thread, one call at a time."""
        with self._lock:
            return self._client.call(verb, **fields)

    def hello(self, **facts: Any) -> None:
        """Report that this worker runs."""
        self.call("hello", **facts)

    def progress(self, step: str, **facts: Any) -> None:
        """Report the step that begins."""
        self.call("progress", step=step, **facts)

    def open_session(self, lease: str = "") -> SessionOffer:
        """Ask for a way to the attempt's phone, or to that of one of its leases."""
        offer = self.call("session.open", lease=lease)
        return SessionOffer(offer["host"], offer["port"], offer["key"])

    def abort_session(self, lease: str, reason: str) -> None:
        """Have the session cut and the phone cleaned and checked; `lease` is "" without a pool."""
        self.call("session.abort", reason=reason[:MAX_TEXT_CHARS], lease=lease)

    def state(self) -> PoolState:
        """The pool's phones now."""
        pool = self.call("pool")
        return PoolState(tuple(PooledPhone(**each) for each in pool["phones"]), pool["wanted"], pool["waits"])

    def search(self, *, on: bool) -> None:
        """Have all the phones in the pool that the job asks for, or only one: the others are given back."""
        self.call("pool.search", on=on)

    def give_back(self, lease: str) -> None:
        """Let others have a phone of the pool; another one is asked for by itself."""
        self.call("pool.give_back", lease=lease)

    def poisoned(self, artifacts: Sequence[str]) -> frozenset[str]:
        """Those of these libraries (SHA-256) that must not be run: they killed their process twice."""
        return frozenset(self.call("poison.check", artifacts=list(artifacts))["poisoned"])

    def report_poison(self, artifact: str, device: str, what: str) -> None:
        """Report a library that killed its process on `device` twice, the second time alone; `what` is one line."""
        self.call("poison.report", artifact=artifact, device=device, what=what[:MAX_TEXT_CHARS], kills=2)

    def suspect(self, artifact: str, what: str) -> bool:
        """Ask whether a library killed the phone's process; if so, the daemon remembers it. `what`: one line about it.

        Returns after the phone's check (seconds), when its session is over. False: the cause may have been a cable.
        """
        return bool(self.call("poison.suspect", artifact=artifact, what=what[:MAX_TEXT_CHARS])["killed"])

    def keep_records(
        self, *, model: str, name: str, target: object, artifact: str, records: int, best: Mapping[str, Any]
    ) -> int:
        """Keep a set of tuning records; returns its version.

        Args:
            model: ImportedModel.key.
            name: what people call the model.
            target: a TVM tag or target dict.
            artifact: the records.
            records: how many.
            best: what is shown of them, as JSON.
        """
        kept = self.call(
            "records.keep", model=model, name=name, target=target, artifact=artifact, records=records, best=dict(best)
        )
        return int(kept["version"])

    def use_bundle(self, bundle: str) -> None:
        """Start the phone's RPC server from that bundle (a hash), with no session open; returns when it is ready."""
        self.call("bundle.use", bundle=bundle)

    def conditions(self) -> PhoneCondition:
        """The phone's condition now, in an attempt that measures; a field is None where the daemon does not know it."""
        known = self.call("conditions")
        return PhoneCondition(**{each.name: known.get(each.name) for each in fields(PhoneCondition)})

    def log(self, text: str, level: str = "info") -> None:
        """Keep a line in the attempt's log."""
        self.call("log", text=text[:MAX_TEXT_CHARS], level=level)

    def yield_wanted(self) -> bool:
        """Whether others wait for this phone. An attempt that can continue later then raises YieldedError."""
        return bool(self.call("yield")["yield"])

    def artifact(self, sha256: str) -> bytes:
        """Fetch an artifact."""
        with self._lock:
            return self._client.get_artifact(sha256)

    def put_artifact(self, source: Path | bytes) -> str:
        """Keep a file or bytes as an artifact; returns its SHA-256."""
        with self._lock:
            return self._client.put_artifact(source)

    def succeed(self, value: dict[str, Any]) -> None:
        """Report the attempt's result."""
        check_report(value)
        self.call("result", value=value)

    def fail(self, error: BaseException) -> None:
        """Report why there is no result."""
        self.call("result", error=error_to_wire(error))

    def _beat(self) -> None:
        answered_s = time.monotonic()
        try:
            while not self._over.wait(HEARTBEAT_S):
                try:
                    self._heart.call("heartbeat")
                    answered_s = time.monotonic()
                except HostError:  # the daemon is stuck, or has too much to do
                    if time.monotonic() - answered_s > SILENCE_LIMIT_S:
                        raise
        except FarmError as error:  # refused, or the daemon is gone: it will end this worker; nothing to save here
            print(f"heartbeat ended: {error}", flush=True)  # noqa: T201 - the attempt's log
        finally:
            self._heart.close()


def _client(order: Spawn) -> ControlClient:
    # A worker's work is worth more than a person's two seconds: it waits as long as the daemon waits for it.
    return ControlClient(
        Path(order.socket),
        token=order.token,
        attempt=order.attempt,
        fence=order.fence,
        silent_after_s=SILENCE_LIMIT_S,
    )


_HOST_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENFILE, errno.ENOMEM)  # no worker's bug
Main = Callable[[Mapping[str, Any], DaemonChannel], dict[str, Any]]


def run(order: Spawn) -> None:
    """Carry out one spawn order in this process."""
    early(order.task)
    with DaemonChannel(order) as daemon:
        daemon.hello(pid=os.getpid())
        try:
            main: Main = importlib.import_module(order.task).main
            daemon.succeed(main(order.payload, daemon))
        except YieldedError as error:
            daemon.fail(error)
        except UserError as error:  # no bug: the message is enough
            sys.stderr.write(f"{error.message}\n")
            daemon.fail(error)
        except FarmError as error:
            traceback.print_exc()
            daemon.fail(error)
        except Exception as error:  # noqa: BLE001 - reported to the daemon, which decides; the trace is the evidence
            traceback.print_exc()
            daemon.fail(_unforeseen(error, order))


def _unforeseen(error: Exception, order: Spawn) -> FarmError:
    """The error for an unforeseen exception of a worker: the host's if it has run out of something."""
    folder, evidence = Path(order.folder), traceback.format_exc()
    number = host_errno(error)
    if number not in _HOST_ERRNOS:
        number = lacking(folder)  # TVM and linkers say in words of their own that a disk is full
    if number in _HOST_ERRNOS:
        what = f"{os.strerror(number)} in {folder} ({free_in(folder)})"
        return HostError(what, hint=hint_for(number), evidence=evidence)
    what = f"{order.task} failed: {type(error).__name__}: {first_line(error)}"
    return FarmError(what, Code.WORKER_BUG, evidence=evidence)


def early(task: str) -> None:
    """Do the part of a task that must precede threads. `run` reports a task that cannot be imported."""
    try:
        getattr(importlib.import_module(task), "early", lambda: None)()
    except Exception:  # noqa: BLE001 - the task does without; the trace goes into the attempt's log
        traceback.print_exc()
