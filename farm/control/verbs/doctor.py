"""The verb `doctor`: what only the daemon knows of its host; `farm doctor` shows it beside its own findings."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from farm.control.artifact_budget import GB
from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Role
from farm.control.forms import Verbs, verb
from farm.core.doctor_findings import FAIL, OK, WARN, Finding, judge_folder
from farm.core.shared_look import SharedLook
from farm.peers import user_name

NEARLY_FULL = 0.9  # of the artifact budget, or of the database's size: old things go from here on soon
KEPT_S = 5.0  # a look reads up to 256 MB of database and asks every hub, for anybody who may look
MB = 10**6


class Health(Protocol):
    """The store, as far as its health goes."""

    @property
    def problem(self) -> str:
        """Why nothing can be written now; empty while all is well."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """What is looked at."""

    artifacts: ArtifactFolder
    store: Health
    database: Path | None  # a SQLite file; None: a server
    max_database_bytes: int
    worker_user: str  # whom workers become; "": nobody else
    state_dir: Path
    damage: Callable[[], str] = lambda: ""  # what is wrong with the database's pages; blocks
    blocked: Path | None = None  # the folder on whose account they do not become whom they should


class DoctorVerbs(Verbs):
    """The one verb."""

    def __init__(self, host: Host, look_at_usb: Callable[[], Awaitable[Sequence[Finding]]]) -> None:
        self._host = host
        self._look_at_usb = look_at_usb
        self._shared = SharedLook(self._look, keep_s=KEPT_S)

    @verb("doctor", Role.VIEWER)
    async def doctor(self) -> Mapping[str, Any]:
        """Look at everything, or tell what was found just now."""
        return await self._shared(None)

    async def _look(self, _: None) -> Mapping[str, Any]:
        findings = [*await asyncio.to_thread(look, self._host), *await self._look_at_usb()]
        return {"findings": [asdict(finding) for finding in findings]}


def look(host: Host) -> Sequence[Finding]:
    """Every finding. Blocking: it looks at files."""
    return [finding for check in (_state, _artifacts, _database, _workers) for finding in check(host)]


def _state(host: Host) -> Iterator[Finding]:
    yield judge_folder("state folder", host.state_dir, shutil.disk_usage(host.state_dir).free)


def _artifacts(host: Host) -> Iterator[Finding]:
    used, budget = host.artifacts.used_bytes, host.artifacts.rules.budget_bytes
    detail = f"{used / GB:.1f} of {budget / GB:.1f} GB used, {host.artifacts.rules.keep_s / 86400:g} days kept"
    if used > NEARLY_FULL * budget:
        yield Finding("artifacts", WARN, detail, "raise [artifacts] budget_gb; the unused longest go first")
    else:
        yield Finding("artifacts", OK, detail)


def _database(host: Host) -> Iterator[Finding]:
    if host.store.problem:
        yield Finding(
            "database", FAIL, host.store.problem, "free space on its disk (df -h): jobs and leases wait for it"
        )
        return
    if host.database is None:
        yield Finding("database", OK, "on a server, writable")
        return
    size = sum(path.stat().st_size for path in host.database.parent.glob(f"{host.database.name}*") if _ours(host, path))
    detail = f"{host.database}, {size / MB:.1f} of {host.max_database_bytes / MB:g} MB, writable"
    if wrong := host.damage():
        yield Finding("database", FAIL, f"{host.database}: {wrong}", "farm store check, then a backup: docs/service.md")
        return
    nearly = size > NEARLY_FULL * host.max_database_bytes
    fix = "the oldest ended jobs go first: raise [store] max_mb to keep them" if nearly else ""
    yield Finding("database", WARN if nearly else OK, detail, fix)


def _ours(host: Host, path: Path) -> bool:
    """Whether a file is the database or its log; copies beside it do not count."""
    assert host.database is not None
    return path.name.removeprefix(host.database.name) in ("", "-wal", "-shm")


def _workers(host: Host) -> Iterator[Finding]:
    if host.worker_user:
        yield Finding("workers", OK, f"run as {host.worker_user}")
        return
    own = user_name(os.geteuid())
    detail = f"run as {own}, like the daemon: a model that breaks out of its compiler could read the farm's files"
    fix = "farm install-service (it makes the user farm-job), then restart the daemon"
    if host.blocked is not None:
        fix = f"let others pass that folder, then restart the daemon: chmod o+x {host.blocked}"
        detail += f" ({host.blocked} is closed to the workers' own user)"
    elif os.geteuid() != 0:
        fix = "run it as a service: sudo farm install-service (docs/service.md)"
    yield Finding("workers", WARN, detail, fix)
