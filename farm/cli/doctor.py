"""`farm doctor`: problems of this host that keep the farm from working, each with its remedy.

`farm.cli.doctor_host` has the checks of this host that need no daemon; here are those of addresses, and those of
folders, database and bundles while no daemon answers. What only the daemon knows, its verb `doctor` finds. A check
reads facts and hands them to a function `judge_*`, which decides and needs no host.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shutil
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from farm.cli import doctor_host
from farm.cli.connection import JsonFlag, call, connect
from farm.cli.daemon import GATE_SOCKET
from farm.cli.output import emit, print_note, table
from farm.common.doctor_findings import FAIL, OK, WARN, Diagnosis, DoctorVerdict, judge_folder, of_error
from farm.common.errors import DaemonUnreachableError, ExitCode, FarmError
from farm.common.files import short_hash
from farm.common.install import pip_install
from farm.common.peers import user_name

if TYPE_CHECKING:
    from farm.config import FarmConfig
    from farm.control.address import Remote

CUT_TIMEOUT_S = 300.0  # off, on, booted, identified, checked; a slow phone boots for two minutes
WHOLE_CHECK_BYTES = 256 << 20  # a check of every page takes seconds up to here
RUN_CODE = "run code on every phone"  # who reaches the TVM port
READ = "read everything, act with a token"  # who reaches the page
GATE = "farm gate"  # in place of the setting: a gate of its own has no file of the daemon's
SYSTEMD_PID = 1
NO_GATE = Diagnosis(
    "gate", FAIL, "the farm gate is not there: no TVM client can connect",
    "systemctl start farm-gate.socket, or: farm gate (docs/service.md)",
)  # fmt: skip


def doctor(
    config: Annotated[Path | None, typer.Option(help="TOML file; /etc/farm/farm.toml by default.")] = None,
    cut_power: Annotated[
        str,
        typer.Option(
            metavar="PHONE", help="Cut the power of this phone's USB port, and check that the phone comes back."
        ),
    ] = "",
    json: JsonFlag = False,
) -> None:
    """Check this host: adb, USB, TVM, linkers, clock, ports, units, folders, database, bundles, the daemon.

    Exit code 1 when something must be fixed. It works without a daemon; with one, it shows the daemon's own findings
    too. It changes nothing, except with `--cut-power PHONE`, which is refused while the phone is leased, or a neighbour
    on a hub that can only be cut as a whole.
    """
    from farm.config import load
    from farm.control.address import SERVICE_SOCKET, find

    of_unit = doctor_host.service_settings() if find() == SERVICE_SOCKET else {}
    findings = [*checks(load(config, environ={**os.environ, **of_unit}))]
    if cut_power:
        findings.append(_cut(cut_power))
    rows = table(("CHECK", "VERDICT", "DETAIL"), ((f.check, f.verdict, f.detail) for f in findings))
    fixes = (f"fix {finding.check}: {finding.fix}" for finding in findings if finding.fix)
    emit({"findings": [asdict(finding) for finding in findings]}, (*rows, *fixes), json=json)
    raise typer.Exit(ExitCode.FAILED if any(f.verdict is FAIL for f in findings) else ExitCode.OK)


def _daemon(config: FarmConfig) -> Iterator[Diagnosis]:
    """The daemon; of a remote one only its own findings, since this host is another one."""
    from farm.control.address import Remote, find

    if isinstance(where := find(), Remote):
        yield from (replace(finding, check=f"lab: {finding.check}") for finding in _remote_daemon(where))
    else:
        yield from _local_daemon(config)


def _remote_daemon(where: Remote) -> Iterator[Diagnosis]:
    try:
        status = call("status")
    except DaemonUnreachableError as error:
        yield of_error("daemon", FAIL, error)
        return
    yield Diagnosis("host", OK, f"{where}: lines without `lab:` are about this host")
    yield from _found_by_daemon(status)


def _found_by_daemon(status: Mapping[str, Any]) -> Iterator[Diagnosis]:
    yield from map(judge_toolchain, call("toolchain.list")["toolchains"])
    yield from _bundles_of_daemon()
    yield Diagnosis("daemon", OK, f"pid {status['pid']}, version {status['version']}")
    if status["tracker"]["pid"] == 0:
        yield NO_GATE
    for problem in status["problems"]:
        yield Diagnosis("daemon", WARN, problem, "journalctl -u farm; docs/troubleshooting.md")
    yield from (
        Diagnosis(f["check"], DoctorVerdict(f["verdict"] or WARN), f["detail"], f["fix"])
        for f in call("doctor")["findings"]
    )


def _local_daemon(config: FarmConfig) -> Iterator[Diagnosis]:
    socket, needed, found = config.adb_socket, os.access(config.state_dir, os.F_OK), []
    try:
        status = call("status")
    except DaemonUnreachableError as error:
        # Without a state folder no daemon has ever run here: this host is being set up.
        yield of_error("daemon", FAIL if needed else WARN, error)
        yield from doctor_host.usb(Path(config.usb.sysfs))
        yield from folders(config)
        yield from listeners(config)
        unusable = [*_unusable(config)]  # a look at root's database makes more files of root's
        yield from unusable or database(config)
        yield from bundles(config)
    else:
        socket, needed = status["adb"]["socket"], True
        addresses = (*addresses_in(status), *guarded_addresses(config))
        yield from map(judge_address, addresses)
        yield from of_process(status["pid"] or 0, {address.port for address in addresses})
        found = [*_found_by_daemon(status)]
        yield from found
    if all(finding.check != "adb server" for finding in found):
        yield from doctor_host.adb_server(config, socket, needed=needed)
    yield from doctor_host.other_adb(socket)


def judge_toolchain(row: Mapping[str, Any]) -> Diagnosis:
    """`row`: of the verb `toolchain.list`."""
    check, versions = f"toolchain {row['name']}", row["versions"]
    if not row["up"]:
        fix = f"farm status says why; {pip_install('tvm', row['python'])}"
        return Diagnosis(check, WARN, f"does not run (yet): {row['python']}", fix)
    versions_found = f"apache-tvm {versions.get('apache-tvm', '?')}, ffi {versions.get('apache-tvm-ffi', '?')}"
    return Diagnosis(check, OK, f"{versions_found} in {row['python']}")


def _bundles_of_daemon() -> Iterator[Diagnosis]:
    bundles = call("bundle.list")["bundles"]
    damages = [
        f"{short_hash(bundle['hash'])}: {difference}"
        for bundle in bundles
        for difference in call("bundle.verify", bundle=bundle["hash"])["differences"]
    ]
    yield judge_bundles([name for bundle in bundles for name in bundle["names"]], damages)


def _cut(phone: str) -> Diagnosis:
    """Cut a phone's USB port and see it come back; an error is a finding, so that the other findings are shown too."""
    try:
        since = call("status")["seq"]
        name = call("device.power_cycle", device=phone, force=False)["name"]
        print_note(f"the power of {name}'s port is being cut; it takes a minute or two ...")
        with connect() as client:
            for event in client.stream("events", CUT_TIMEOUT_S, since=since):
                about, data = (event.get("kind"), event.get("subject")), event.get("data", {})
                if about == ("recovery.ended", name) and data["action"] == "power-cycle":
                    return _judge_cut(name, data["outcome"], data["detail"])
        detail, fix = "the daemon ended meanwhile", "farm status; then once more"
    except TimeoutError:
        detail, fix = f"nothing is known of it after {CUT_TIMEOUT_S:.0f} s", f"farm explain device {phone}"
    except FarmError as error:
        detail, fix = error.message, error.hint or f"farm explain device {phone}"
    return Diagnosis("power cut", FAIL, f"{phone}: {detail}", fix)


def _judge_cut(phone: str, outcome: str, detail: str) -> Diagnosis:
    if outcome == "repaired":
        return Diagnosis("power cut", OK, f"{phone} went, and came back: its port can be cut")
    fix = f"farm explain device {phone}; uhubctl; a hub that really switches its ports (docs/health.md)"
    return Diagnosis("power cut", FAIL, f"{phone}: {outcome}: {detail}", fix)


def checks(config: FarmConfig) -> Iterator[Diagnosis]:
    """Everything; the daemon's finding about a toolchain in place of one by this shell's configuration."""
    of_daemon = [*_daemon(config)]
    yield doctor_host.python()
    yield doctor_host.adb_program(config)
    names = {finding.check for finding in of_daemon}
    yield from (finding for finding in doctor_host.toolchains(config) if finding.check not in names)
    yield from doctor_host.linkers()
    yield from doctor_host.clock()
    yield from doctor_host.tools(config)
    yield from doctor_host.units()
    yield from of_daemon


def folders(config: FarmConfig) -> Iterator[Diagnosis]:
    """Whether the disks of the state and runtime folders have room."""
    for name, path in (("state folder", config.state_dir), ("runtime folder", config.runtime_dir)):
        existing = next(parent for parent in (path, *path.parents) if os.access(parent, os.F_OK))
        yield judge_folder(name, path, shutil.disk_usage(existing).free, exists=existing == path)


def _unusable(config: FarmConfig) -> Iterator[Diagnosis]:
    from farm.store.files import unusable_paths

    with contextlib.suppress(OSError):
        if paths := [*map(str, unusable_paths(config.state_dir))]:
            owner = user_name(config.state_dir.stat().st_uid)
            fix = f"chown {owner}: {' '.join(paths)} && chmod u+rw {' '.join(paths)}; farm store restore does it right"
            yield Diagnosis("database", FAIL, f"{owner}, whose state folder it is, may not use {', '.join(paths)}", fix)


def database(config: FarmConfig) -> Iterator[Diagnosis]:
    """Whether the database is sound; for when no daemon serves: one that does is asked by `farm store check`."""
    path = config.state_dir / "farm.db"
    if config.store.url:
        from farm.store.server_opening import look_at_server

        yield from look_at_server(config.store.url, config.lab.host if config.lab.head_apart else "")
        return
    if not os.access(path, os.R_OK):
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            what = "integrity_check(1)" if path.stat().st_size <= WHOLE_CHECK_BYTES else "schema_version"
            found = str(connection.execute(f"PRAGMA {what}").fetchone()[0])
    except sqlite3.Error as error:
        found = str(error)
    yield judge_database(path, found)


def judge_database(path: Path, found: str) -> Diagnosis:
    """`found`: SQLite's answer: ok, a number (it was only opened), or the damage."""
    if found == "ok" or found.isdecimal():
        return Diagnosis(
            "database", OK, f"{path} is sound" if found == "ok" else f"{path} opens; all of it: farm store check"
        )
    return Diagnosis(
        "database", FAIL, f"{path}: {found}", "farm store check, then go back to a backup: farm store restore FILE"
    )


def bundles(config: FarmConfig) -> Iterator[Diagnosis]:
    """Whether each bundle is whole: every file by its hash, every library that another needs."""
    folder = config.state_dir / "bundles"
    if not os.access(folder, os.R_OK | os.X_OK) or not (folder / "objects").is_dir():
        return
    from farm.bundle.library import BundleLibrary

    try:
        library = BundleLibrary(folder)
        stored = library.list()
        damages = [f"{bundle.short_hash}: {each}" for bundle in stored for each in library.verify(bundle.hash)]
        names = [name for bundle in stored for name in bundle.names]
    except FarmError as error:
        yield of_error("bundles", WARN, error)
        return
    yield judge_bundles(names, damages)


def judge_bundles(names: Iterable[str], damages: Sequence[str]) -> Diagnosis:
    """Names of bundles, and their defects."""
    if damages:
        return Diagnosis("bundles", FAIL, "; ".join(damages), "add it again: farm bundle add FOLDER")
    listed = sorted(filter(None, names))
    if not listed:
        return Diagnosis(
            "bundles",
            WARN,
            "none: no phone can serve",
            "farm bundle build main, or farm bundle add FOLDER (docs/bundles.md)",
        )
    return Diagnosis("bundles", OK, f"{', '.join(listed)}: complete, every file as it was added")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address that the configuration or a separate gate opens."""

    key: str  # of the configuration; or GATE
    host: str
    port: int
    exposes: str  # what a client that reaches it can do
    guard: str = ""  # what a client must show first; "": nothing


def addresses_of(config: FarmConfig, tvm: Sequence[ListenAddress] = ()) -> tuple[ListenAddress, ...]:
    """Every TCP address that the farm would listen on: as configured, but for `tvm`, a gate that is there."""
    found = list(tvm)
    if not tvm and not config.tvm.gate:
        found = [ListenAddress("tvm.host", config.tvm.host, config.tvm.port, RUN_CODE)]
    if config.web.enabled:
        found.append(ListenAddress("web.host", config.web.host, config.web.port, READ))
    return (*found, *guarded_addresses(config))


def guarded_addresses(config: FarmConfig) -> Iterator[ListenAddress]:
    """The configured addresses for other hosts, which ask each client who it is."""
    from farm.config.consistency import address_of

    for key, listen, exposes, guard in (
        ("control.listen", config.control.listen, "ask", "a key of `farm auth new`"),
        ("builders.listen", config.builders.listen, "build", "a builder's certificate or token"),
        ("lab.listen", config.lab.listen, "ask as a host", "a host's certificate"),
    ):
        if (address := address_of(listen)) is not None:
            yield ListenAddress(key, *address, exposes, guard)


def addresses_in(status: Mapping[str, Any]) -> tuple[ListenAddress, ...]:
    """The TVM port and the page of a daemon that serves: this shell may have another configuration."""
    tracker, page = status["tracker"], urlsplit(status["web"])
    key = "tvm.host" if status["pid"] in (tracker["pid"], _parent_of(tracker["pid"] or 0)) else GATE
    tvm = ListenAddress(key, tracker["bound"], tracker["port"], RUN_CODE)
    return (tvm, ListenAddress("web.host", page.hostname, page.port or 0, READ)) if page.hostname else (tvm,)


def _parent_of(pid: int) -> int:
    """The parent's process id; 0 when there is no such process."""
    import psutil

    try:
        return int(psutil.Process(pid).ppid())
    except psutil.Error:
        return 0


def gate_addresses(port: int, socket: Path) -> tuple[ListenAddress, ...]:
    """The addresses of a separate gate at `port`, without asking it; () when no gate has the port.

    Until a client comes systemd holds the port, and only root learns which process does.
    """
    from farm.adb.program import port_addresses, port_holder

    holder = port_holder(port) if port else None
    if holder is None:
        return ()
    by_systemd = holder.pid in (None, SYSTEMD_PID) and socket.is_socket()
    if not by_systemd and not re.search(r"-m farm gate\b|/farm gate\b", holder.command):
        return ()
    return tuple(ListenAddress(GATE, host, port, RUN_CODE) for host in port_addresses(port))


def listeners(config: FarmConfig, gate_socket: Path = GATE_SOCKET) -> Iterator[Diagnosis]:
    """While no daemon answers: which program holds the farm's ports, and which ports other hosts could reach.

    Args:
        config: where the ports are configured.
        gate_socket: where a separate gate is, if the configuration has none.
    """
    from farm.adb.program import port_holder

    if config.tvm.gate and not doctor_host.listens(config.tvm.gate):
        yield NO_GATE
    for address in addresses_of(config, gate_addresses(config.tvm.port, Path(config.tvm.gate or gate_socket))):
        yield judge_address(address)
        holder = port_holder(address.port) if address.port and address.key != GATE else None
        if holder is not None:
            table, _, _ = address.key.partition(".")
            fix = f"stop it, or choose another: [{table}] port; sudo ss -ltnp 'sport = :{address.port}'"
            yield Diagnosis(f"port {address.port}", FAIL, f"taken by {holder}, and no daemon of ours answers", fix)


def judge_address(address: ListenAddress) -> Diagnosis:
    """Whether an address is this host's alone."""
    where = f"{address.key} {address.host} port {address.port or 'of the kernel'}"
    if is_loopback(address.host):
        return Diagnosis("exposure", OK, f"{where}: this host only")
    if address.key == GATE:
        fix = "systemctl edit farm-gate.socket, or farm gate --host; from elsewhere: ssh -L (docs/security.md)"
        return Diagnosis("exposure", WARN, f"{where}: a client that reaches it can {address.exposes}", fix)
    table, _, name = address.key.partition(".")
    fix = f'[{table}] {name} = "127.0.0.1"; from elsewhere: ssh -L (docs/security.md)'
    if address.guard:
        detail = f"{where}: with {address.guard}, from where the unit's IPAddressAllow lets in"
        return Diagnosis("exposure", OK, detail)
    return Diagnosis("exposure", WARN, f"{where}: a client that reaches it can {address.exposes}", fix)


def is_loopback(host: str) -> bool:
    """Whether only this host reaches a server there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def of_process(pid: int, judged: Collection[int] = ()) -> Iterator[Diagnosis]:
    """Sockets of the daemon and its processes beyond loopback, whatever is configured.

    `judged`: ports that have a finding already.
    """
    import psutil

    with contextlib.suppress(psutil.Error):
        daemon = psutil.Process(pid)
        ports = [each for process in (daemon, *daemon.children()) for each in process.net_connections(kind="tcp")]
        for connection in ports:
            beyond = connection.status == psutil.CONN_LISTEN and not is_loopback(connection.laddr.ip)
            if beyond and connection.laddr.port not in judged:
                where = f"{connection.laddr.ip} port {connection.laddr.port}"
                yield Diagnosis("exposure", WARN, f"the daemon listens on {where}", "see docs/security.md")
