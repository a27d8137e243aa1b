"""`farm doctor`: what on this host would keep the farm from working, each finding with what fixes it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import doctor_host
from farm.cli.context import JsonFlag, call, connect, print_json, print_table, say, tell
from farm.core.doctor_findings import FAIL, OK, WARN, Finding, Verdict, judge_folder, of_error
from farm.core.errors import DaemonUnreachableError, ExitCode, FarmError
from farm.core.extras import pip_install

if TYPE_CHECKING:
    from farm.adb.program import AdbBinary
    from farm.bundle.abi import Abi
    from farm.config import FarmConfig
    from farm.control.address import Remote

# What a toolchain says of itself: the pair must match (docs/decisions.md, "Pin TVM and its FFI together").
_VERSIONS = (
    "from importlib.metadata import version as v; print('apache-tvm', v('apache-tvm') + ', ffi', v('apache-tvm-ffi'));"
    "import tvm; has = lambda name: tvm.get_global_func(name, allow_missing=True) is not None;"
    "print(*[kind for kind in ('llvm', 'opencl', 'vulkan') if has('target.build.' + kind)],"
    " *(['clml'] if has('relax.ext.openclml') else []))"
)
# What TVM calls code generators, and for which of the farm's targets each is needed (docs/packages.md).
_GENERATORS = {"llvm": "cpu", "opencl": "opencl, adreno", "vulkan": "vulkan", "clml": "adreno-clml"}
CUT_TIMEOUT_S = 300.0  # off, on, booted, identified, checked; a slow phone boots for two minutes


def doctor(
    config: Annotated[Path | None, typer.Option(help="TOML file; /etc/farm/farm.toml by default.")] = None,
    cut_power: Annotated[
        str, typer.Option(metavar="PHONE", help="Prove that its USB port can be cut: it goes, and comes back.")
    ] = "",
    json: JsonFlag = False,
) -> None:
    """Check this host: adb, USB, TVM, linkers, clock, ports, units, folders, database, bundles, the daemon.

    Exit code 1 when something must be fixed. It works without a daemon; with one, the daemon's own findings are told
    too. Nothing is changed, but by `--cut-power PHONE`: it is refused while somebody has the phone, or a neighbour on
    a hub that can only be cut as a whole.
    """
    from farm.config import load

    told = load(config)
    findings = current([finding for check in CHECKS for finding in check(told)])
    if cut_power:
        findings.append(_cut(cut_power))
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(("CHECK", "", "DETAIL"), ((f.check, f.verdict, f.detail) for f in findings))
        for finding in findings:
            if finding.fix:
                tell(f"fix {finding.check}: {finding.fix}")
    raise typer.Exit(ExitCode.FAILED if any(f.verdict is FAIL for f in findings) else ExitCode.OK)


def current(findings: Sequence[Finding]) -> list[Finding]:
    """Without what this shell's configuration says of a toolchain when a running daemon tells of its own."""
    last = {finding.check: finding for finding in findings if finding.check.startswith("toolchain ")}
    return [finding for finding in findings if last.get(finding.check, finding) is finding]


def _python(_config: FarmConfig) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", OK, f"{version} at {sys.executable}")


def _binary(config: FarmConfig) -> AdbBinary | None:
    from farm.adb.program import find_adb

    try:
        return find_adb(Path(config.adb.binary) if config.adb.binary else None)
    except FarmError:
        return None


def _adb(config: FarmConfig) -> Iterator[Finding]:
    from farm.adb.program import find_adb

    try:
        binary = find_adb(Path(config.adb.binary) if config.adb.binary else None)
        yield Finding("adb", OK, f"release {binary.release or '?'}, protocol {binary.version}, {binary.path}")
    except FarmError as error:
        yield of_error("adb", FAIL, error)


def _toolchains(config: FarmConfig) -> Iterator[Finding]:
    for name, toolchain in config.toolchain.items():
        command = [toolchain.python, "-c", _VERSIONS]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            said, failed = (done.stdout or done.stderr.strip().rpartition("\n")[2]).strip(), done.returncode != 0
        except (OSError, subprocess.TimeoutExpired) as error:
            said, failed = str(error), True
        fix = f"{pip_install('tvm', toolchain.python)}, or correct [toolchain.{name}] python" if failed else ""
        verdict = FAIL if failed else OK
        versions, _, generators = said.partition("\n")
        yield Finding(f"toolchain {name}", verdict, said if failed else f"{versions} in {toolchain.python}", fix)
        if not failed:
            yield _generators(name, generators.split())


def _generators(toolchain: str, there: Sequence[str]) -> Finding:
    able = ", ".join(targets for name, targets in _GENERATORS.items() if name in there)
    lacking = ", ".join(targets for name, targets in _GENERATORS.items() if name not in there)
    said = f"code for {able}" + (f"; not for {lacking}" if lacking else "")
    check = f"targets of {toolchain}"
    if "llvm" in there:
        return Finding(check, OK, said)
    return Finding(check, WARN, said, f"a TVM with LLVM, which the extra has: {pip_install('tvm')}")


def _linkers(_config: FarmConfig) -> Iterator[Finding]:
    from farm.bundle.abi import Abi, Platform
    from farm.compiler.link import linkers

    for name, abi, platform, must in (
        ("android arm64", Abi.ARM64, Platform.ANDROID, True),
        ("android armv7", Abi.ARMV7, Platform.ANDROID, True),
        ("linux arm64", Abi.ARM64, Platform.LINUX, False),
        ("linux armv7", Abi.ARMV7, Platform.LINUX, False),
        ("this host", _host_abi(), Platform.LINUX, True),
    ):
        found = linkers(abi, platform)
        if found:
            others = f" (also {', '.join(linker.name for linker in found[1:])})" if len(found) > 1 else ""
            yield Finding(f"linker for {name}", OK, f"{found[0].name}{others}")
        else:
            fix = "apt-get install lld, or pip install ziglang, or set ANDROID_NDK_HOME"
            verdict = FAIL if must else WARN
            yield Finding(f"linker for {name}", verdict, "compiled models cannot be linked for it", fix)


def _host_abi() -> Abi:
    import platform

    from farm.bundle.abi import Abi

    return Abi.ARM64 if platform.machine() in ("aarch64", "arm64") else Abi.X86_64


def _folders(config: FarmConfig) -> Iterator[Finding]:
    for name, path in (("state folder", config.state_dir), ("runtime folder", config.runtime_dir)):
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        yield judge_folder(name, path, shutil.disk_usage(existing).free)


def _daemon(config: FarmConfig) -> Iterator[Finding]:
    """The daemon that is meant. One elsewhere is its own host's business: only what it says of itself is told."""
    from farm.control.address import Remote, find

    if isinstance(where := find(), Remote):
        yield from (replace(finding, check=f"lab: {finding.check}") for finding in _daemon_elsewhere(where))
    else:
        yield from _daemon_here(config)


def _daemon_elsewhere(where: Remote) -> Iterator[Finding]:
    try:
        status = call("status")
    except DaemonUnreachableError as error:
        yield of_error("daemon", WARN, error)
        return
    yield Finding("host", OK, f"{where}: lines without `lab:` are about this host")
    yield from _told_by_daemon(status)


def _told_by_daemon(status: Mapping[str, Any]) -> Iterator[Finding]:
    yield from map(judge_toolchain, call("toolchain.list")["toolchains"])
    yield from _bundles_of_daemon()
    yield Finding("daemon", OK, f"pid {status['pid']}, version {status['version']}")
    for problem in status["problems"]:
        yield Finding("daemon", WARN, problem, 'journalctl -u farm; docs/operations.md, "When something breaks"')
    yield from (Finding(f["check"], Verdict(f["verdict"]), f["detail"], f["fix"]) for f in call("doctor")["findings"])


def _daemon_here(config: FarmConfig) -> Iterator[Finding]:
    socket = config.adb_socket
    try:
        status = call("status")
    except DaemonUnreachableError as error:
        yield of_error("daemon", WARN, error)
        yield from _folders(config)
        yield from doctor_host.sockets(config)
        yield from doctor_host.database(config)
        yield from doctor_host.bundles(config)
    else:
        socket = status["adb"]["socket"]
        yield from map(doctor_host.judge_door, doctor_host.doors_told(status))
        yield from doctor_host.listening(status["pid"])
        yield from _told_by_daemon(status)
    yield from doctor_host.adb_server(config, socket, _binary(config))
    yield from _other_adb(socket)


def judge_toolchain(row: Mapping[str, Any]) -> Finding:
    """`row`: of the verb `toolchain.list`."""
    check, versions = f"toolchain {row['name']}", row["versions"]
    if not row["up"]:
        fix = f"farm status says why; {pip_install('tvm', row['python'])}"
        return Finding(check, WARN, f"does not run (yet): {row['python']}", fix)
    said = f"apache-tvm {versions.get('apache-tvm', '?')}, ffi {versions.get('apache-tvm-ffi', '?')}"
    return Finding(check, OK, f"{said} in {row['python']}")


def _bundles_of_daemon() -> Iterator[Finding]:
    bundles = call("bundle.list")["bundles"]
    damages = [
        f"{bundle['hash'][:8]}: {difference}"
        for bundle in bundles
        for difference in call("bundle.verify", bundle=bundle["hash"])["differences"]
    ]
    yield doctor_host.judge_bundles([bundle["name"] for bundle in bundles], damages)


def _cut(phone: str) -> Finding:
    """Cut a phone's USB port and see it come back. What keeps it from that is a finding: the others are told too."""
    try:
        since = call("status")["seq"]
        name = call("device.power_cycle", device=phone, force=False)["name"]
        say(f"the power of {name}'s port is being cut; it takes a minute or two ...")
        with connect() as client:
            for event in client.stream("events", CUT_TIMEOUT_S, since=since):
                about, data = (event.get("kind"), event.get("subject")), event.get("data", {})
                if about == ("recovery.ended", name) and data["rung"] == "power-cycle":
                    return _judge_cut(name, data["outcome"], data["detail"])
        said, fix = "the daemon ended meanwhile", "farm status; then once more"
    except TimeoutError:
        said, fix = f"nothing is known of it after {CUT_TIMEOUT_S:.0f} s", f"farm explain device {phone}"
    except FarmError as error:
        said, fix = error.message, error.hint or f"farm explain device {phone}"
    return Finding("power cut", FAIL, f"{phone}: {said}", fix)


def _judge_cut(phone: str, outcome: str, detail: str) -> Finding:
    if outcome == "mended":
        return Finding("power cut", OK, f"{phone} went, and came back: its port can be cut")
    fix = f"farm explain device {phone}; uhubctl; a hub that really switches its ports (docs/recovery.md)"
    return Finding("power cut", FAIL, f"{phone}: {outcome}: {detail}", fix)


def _other_adb(socket: str) -> Iterator[Finding]:
    """Adb servers besides the farm's, which listens on `socket`, that may take USB phones: one finding for all."""
    from farm.adb.program import other_servers

    rivals = [server for server in other_servers(socket) if server.usb]
    if rivals:
        fix = "ask whoever runs them to stop; `farm lease acquire` gives them a phone for adb"
        yield Finding("other adb servers", WARN, f"may hold USB phones: {', '.join(map(str, rivals))}", fix)


def _host(config: FarmConfig) -> Iterator[Finding]:
    yield from doctor_host.clock()
    yield from doctor_host.usb(Path(config.usb.sysfs))
    yield from doctor_host.tools(config)
    yield from doctor_host.units()


CHECKS: tuple[Callable[[FarmConfig], Iterator[Finding]], ...] = (
    _python,
    _adb,
    _toolchains,
    _linkers,
    _host,
    _daemon,
)
