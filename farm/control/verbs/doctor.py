"""The verb `doctor`: facts about the host, its USB hubs and its phones' places that only the daemon has.

`farm doctor` shows it beside its own findings (farm.cli.doctor).
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from farm.adb.devices import AdbDevice, AdbState
from farm.common.doctor_findings import FAIL, OK, WARN, Diagnosis, judge_folder, judge_usb, of_error
from farm.common.peers import user_name
from farm.common.tasks import SharedCall
from farm.common.verbs import verb
from farm.control.artifact_rules import GB
from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Role
from farm.control.verbs import VerbGroup
from farm.devices.power.power import PortStatus, PowerError
from farm.devices.power.power_rules import PowerConfig
from farm.devices.power.switchboard import Switchboard, unplaced
from farm.model.device import DeviceView
from farm.store.store import Store

NEARLY_FULL = 0.9  # of the artifact budget, or of the database's size: old things go from here on soon
KEPT_S = 5.0  # a check reads up to 256 MB of database and asks every hub, and any viewer may ask for it
MB = 10**6
USB_POWER = "usb power"


@dataclass(frozen=True, slots=True)
class DoctorHost:
    """The parts of the host that are checked."""

    artifacts: ArtifactFolder
    store: Store
    database: Path | None  # a SQLite file; None: a server
    max_database_bytes: int
    worker_user: str  # that workers become; "": the daemon's own
    state_dir: Path
    damage: Callable[[], str] = lambda: ""  # what is wrong with the database's pages; blocks
    blocked: Path | None = None  # the folder that keeps workers from becoming their user
    workers_apart: bool = True  # each user's have a uid of their own


class DoctorVerbs(VerbGroup):
    """The one verb."""

    def __init__(
        self, host: DoctorHost, check_usb: Callable[[], Awaitable[Sequence[Diagnosis]]],
        check_lab: Callable[[], Awaitable[Sequence[Diagnosis]]] | None = None,
    ) -> None:  # fmt: skip
        """`check_lab`: the findings about the lab; None: there is no lab."""
        self._host = host
        self._check_usb = check_usb
        self._check_lab = check_lab
        self._shared = SharedCall(self._check, keep_s=KEPT_S)

    @verb("doctor", Role.VIEWER)
    async def doctor(self) -> Mapping[str, Any]:
        """Check everything, or repeat the findings of a moment ago."""
        return await self._shared(None)

    async def _check(self, _: None) -> Mapping[str, Any]:
        findings = [*await asyncio.to_thread(host_findings, self._host), *await self._check_usb()]
        if self._check_lab is not None:
            findings += await self._check_lab()
        return {"findings": [asdict(finding) for finding in findings]}


def host_findings(host: DoctorHost) -> Sequence[Diagnosis]:
    """Every finding. Blocking: it looks at files."""
    return [finding for check in (_state, _artifacts, _database, _workers) for finding in check(host)]


def _state(host: DoctorHost) -> Iterator[Diagnosis]:
    yield judge_folder("state folder", host.state_dir, shutil.disk_usage(host.state_dir).free)


def _artifacts(host: DoctorHost) -> Iterator[Diagnosis]:
    used, budget = host.artifacts.used_bytes, host.artifacts.rules.budget_bytes
    detail = f"{used / GB:.1f} of {budget / GB:.1f} GB used, {host.artifacts.rules.keep_s / 86400:g} days kept"
    if used > NEARLY_FULL * budget:
        yield Diagnosis("artifacts", WARN, detail, "raise [artifacts] budget_gb; the unused longest go first")
    else:
        yield Diagnosis("artifacts", OK, detail)


def _database(host: DoctorHost) -> Iterator[Diagnosis]:
    if host.store.problem:
        yield Diagnosis(
            "database",
            FAIL,
            host.store.problem,
            "free space on its disk (df -h): jobs and leases wait for it"
            if host.store.server is None
            else "farm writes again by itself once that is mended; docs/many-hosts.md",
        )
        return
    if host.store.server is not None:
        yield from host.store.server.findings()
        return
    assert host.database is not None
    size = sum(path.stat().st_size for path in host.database.parent.glob(f"{host.database.name}*") if _ours(host, path))
    detail = f"{host.database}, {size / MB:.1f} of {host.max_database_bytes / MB:g} MB, writable"
    if wrong := host.damage():
        yield Diagnosis(
            "database", FAIL, f"{host.database}: {wrong}", "farm store check, then a backup: farm store restore FILE"
        )
        return
    nearly = size > NEARLY_FULL * host.max_database_bytes
    fix = "the oldest ended jobs go first: raise [store] max_mb to keep them" if nearly else ""
    yield Diagnosis("database", WARN if nearly else OK, detail, fix)


def _ours(host: DoctorHost, path: Path) -> bool:
    """Whether a file is the database or its log; copies beside it do not count."""
    assert host.database is not None
    return path.name.removeprefix(host.database.name) in ("", "-wal", "-shm")


def _workers(host: DoctorHost) -> Iterator[Diagnosis]:
    if host.worker_user and host.workers_apart:
        yield Diagnosis("workers", OK, f"run as {host.worker_user}, with a uid for each user")
        return
    if host.worker_user:
        detail = f"those of all users run as {host.worker_user}: a model of one user can change another's results"
        fix = "set [jobs] first_uid to the first of 10,000 uids and gids that this host or container has"
        yield Diagnosis("workers", WARN, detail, fix)
        return
    own = user_name(os.geteuid())
    detail = f"run as {own}, like the daemon: a model that breaks out of its compiler could read the farm's files"
    fix = "farm install-service (it makes the user farm-job), then restart the daemon"
    if host.blocked is not None:
        fix = f"let others pass that folder, then restart the daemon: chmod o+x {host.blocked}"
        detail += f" ({host.blocked} is closed to the workers' own user)"
    elif os.geteuid() != 0:
        fix = "run it as a service: sudo farm install-service (docs/service.md)"
    yield Diagnosis("workers", WARN, detail, fix)


async def usb_findings(
    config: PowerConfig, board: Switchboard, views: Sequence[DeviceView], listed: Sequence[AdbDevice]
) -> list[Diagnosis]:
    """Check the hubs and the phones that adb lists.

    Args:
        config: `[power]`.
        board: the switches of it.
        views: every device.
        listed: adb's list.
    """
    ports: tuple[PortStatus, ...] = ()
    error: PowerError | None = None
    placed = [view for view in views if view.place is not None]
    by_uhubctl = [view for view in placed if view.place and config.rule_for(view.place).switch == "uhubctl"]
    if board.uhubctl.find() or by_uhubctl:
        try:
            ports = await board.uhubctl.ports()
        except PowerError as failed:
            error = failed
    closed = [device.serial for device in listed if device.state is AdbState.NO_PERMISSIONS]
    return [
        *_uhubctl(ports, error, by_uhubctl),
        *_places(listed, views),
        *judge_usb(sum(bool(device.devpath) for device in listed), closed, "the adb server may not open"),
    ]


def _uhubctl(ports: Sequence[PortStatus], error: PowerError | None, views: Sequence[DeviceView]) -> Iterator[Diagnosis]:
    """The ports that uhubctl can switch, and the phones whose ports it cannot."""
    if error is not None:
        if not views:
            yield Diagnosis(USB_POWER, OK, error.message)
            return
        found = of_error(USB_POWER, WARN, error)
        yield replace(found, detail=f"{found.detail}; {_names(views)} cannot be power-cycled")
        return
    if not ports:
        return
    smart = Counter(port.hub for port in ports)
    yield Diagnosis(
        USB_POWER, OK, f"uhubctl switches {', '.join(f'{hub} ({count} ports)' for hub, count in smart.items())}"
    )
    beyond = [view for view in views if view.place and view.place.hub.removeprefix("usb") not in smart]
    if beyond:
        fix = "move them to a hub that uhubctl lists, or name their switch: [power.hub] in docs/configuration.md"
        yield Diagnosis(USB_POWER, WARN, f"{_names(beyond)}: their hub cannot switch its ports one by one", fix)
    unpowered = {(port.hub, port.port) for port in ports if not port.powered}
    for view in views:
        if view.place and (view.place.hub.removeprefix("usb"), view.place.port) in unpowered:
            where = f"-l {view.place.hub.removeprefix('usb')} -p {view.place.port}"
            yield Diagnosis(USB_POWER, WARN, f"the port of {view.name} has no power", f"uhubctl {where} -a on")


def _places(listed: Sequence[AdbDevice], views: Sequence[DeviceView]) -> Iterator[Diagnosis]:
    places = {view.serial: view.place for view in views if view.place is not None}
    virtual = {view.serial for view in views if view.identity and view.identity.virtual}
    lost = [serial for serial in unplaced([device.serial for device in listed], places) if serial not in virtual]
    if lost:
        fix = f'say where: [usb.places] "{lost[0]}" = "1-4.2" (ls /sys/bus/usb/devices/*/serial)'
        yield Diagnosis("usb places", WARN, f"the USB port of {', '.join(lost)} is not known", fix)


def _names(views: Sequence[DeviceView]) -> str:
    return ", ".join(view.name for view in views)
