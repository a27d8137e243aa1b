"""Which releases of TVM and its FFI work with which: versions.tsv, builds.tsv (farm/bundle/data), docs/bundles.md.

Not part of all benchmarks: it downloads 1.5 GB of wheels (kept in ~/.cache/farm/versions) and takes an hour. Each pair
of a TVM and an FFI compiles a model (benchmarks/version_client.py), each that can is then a client of each RPC server,
and each pair's library is run where client and server are of another. Every cell is a process of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from benchmarks import version_tables
from benchmarks.harness import Context, Figure, until
from benchmarks.version_client import ARRAYS
from farm.bundle.elf import read_elf
from farm.bundle.model import SERVER_PROGRAM, Abi
from farm.bundle.versions import (
    BUILD_TITLES,
    BUILDS,
    FFI_PACKAGE,
    TITLES,
    TRIALS,
    TVM_PACKAGE,
    TrialKind,
    TrialResult,
    TvmVersions,
    VersionTrial,
)
from farm.common.errors import FarmError, HostError
from farm.common.files import hash_file
from farm.common.install import cache_home
from farm.runtime.packages import TvmWheel
from farm.runtime.server import compile_server, find_compiler
from tests.support.tvm import free_port

TVM_RELEASES = ("0.25.0", "0.25.0.post1", "0.26.0", "0.27.0", "0.27.0.post1")
FFI_RELEASES = (
    "0.1.12",
    "0.1.13.post2",
    "0.1.13.post3",
    "0.1.14.post0",
    "0.1.14.post1",
    "0.1.15.post1",
    "0.1.15.post2",
)
MACHINES = ("x86_64", "aarch64")
CLIENT = Path(__file__).with_name("version_client.py")
LIBRARIES = {
    TVM_PACKAGE: ("tvm/lib/libtvm_runtime.so", "tvm/lib/libtvm_runtime_extra.so"),
    FFI_PACKAGE: ("tvm_ffi/lib/libtvm_ffi.so",),
}
COMPILE_LIMIT_S, SESSION_LIMIT_S, START_LIMIT_S = 300.0, 120.0, 30.0
PIP_LIMIT_S = 1800.0
KEY = "versions"
_UNDEFINED = re.compile(r"undefined reference to `[^'(]+")
_PATH = re.compile(r"/\S*/")  # of this host: of no use to anybody else


@dataclass(frozen=True, slots=True)
class ClientEnd:
    """How a client ended."""

    output: str
    code: int | None  # None: it was still running at its limit
    errors: str = ""


Session = Callable[[Path, int], ClientEnd]  # takes the folder of a model, and a server's port


@dataclass(frozen=True, slots=True)
class Environment:
    """One TVM with one FFI, installed side by side."""

    versions: TvmVersions
    tvm: Path
    ffi: Path
    folder: Path  # its model, and its server

    @property
    def libraries(self) -> tuple[Path, ...]:
        """Those of a server."""
        of_tvm, of_ffi = (LIBRARIES[package] for package in (TVM_PACKAGE, FFI_PACKAGE))
        return (*(self.tvm / name for name in of_tvm), *(self.ffi / name for name in of_ffi))

    def start(self, *arguments: str, **streams: Any) -> subprocess.Popen[str]:
        """Start the client in it."""
        environment = {**os.environ, "PYTHONPATH": f"{self.tvm}{os.pathsep}{self.ffi}", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(CLIENT), *arguments]
        return subprocess.Popen(command, env=environment, cwd=self.folder, text=True, stdout=subprocess.PIPE, **streams)

    def compile(self) -> ClientEnd:
        """Let the client compile."""
        with self.start("compile", str(self.folder), stderr=subprocess.PIPE) as process:
            try:
                output, errors = process.communicate(timeout=COMPILE_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return ClientEnd(process.communicate()[0], None)
            return ClientEnd(output, process.returncode, errors)

    @contextmanager
    def sessions(self) -> Iterator[Session]:
        """A client that imported its TVM once, and runs a folder's model on a server in a fork."""
        output = self.folder / "session.out"
        with self.start("sessions", stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:

            def session(model: Path, port: int) -> ClientEnd:
                assert process.stdin is not None
                assert process.stdout is not None
                order = {"folder": str(model), "port": port, "key": KEY, "output": str(output)}
                process.stdin.write(json.dumps({**order, "limit_s": SESSION_LIMIT_S}) + "\n")
                process.stdin.flush()
                code = json.loads(process.stdout.readline())["code"]
                return ClientEnd(output.read_text("utf-8", "replace"), code)

            yield session


def result_of(end: ClientEnd, *, server_died: str = "") -> tuple[TrialResult, str]:
    """What came out, and the step with its error; "" where all went well."""
    said = [json.loads(line) for line in end.output.splitlines() if line.startswith("{")]
    step = next((each["step"] for each in reversed(said) if "step" in each), "start")
    last = said[-1] if said else {}
    if end.code is None:
        return TrialResult.HANG, step
    if end.code < 0:
        return TrialResult.CRASH, f"{step}: {signal.Signals(-end.code).name}"
    if "done" in last and end.code == 0:
        return TrialResult.WORKS, ""
    if server_died:
        return TrialResult.CRASH, f"{step}: the server died ({server_died})"
    if "wrong" in last:
        return TrialResult.WRONG, f"{step}: {last['wrong']}"
    lines = [line for line in end.errors.splitlines() if line.strip()]
    error = str(last.get("refused") or (lines or ["it ended"])[-1].strip())
    return TrialResult.REFUSED, f"{step}: {_PATH.sub('', error)[:200]}"


def run(context: Context) -> list[Figure]:
    """Measure all cells; write both tables."""
    root = cache_home() / "farm" / "versions"
    wheels = root / "wheels"
    installed = {
        (package, version): _install(root, wheels, package, version, context)
        for package, releases in ((TVM_PACKAGE, TVM_RELEASES), (FFI_PACKAGE, FFI_RELEASES))
        for version in releases
    }
    BUILDS.write_text(_builds_text(wheels, context), "utf-8")
    environments = []
    for tvm, ffi in itertools.product(TVM_RELEASES, FFI_RELEASES):
        folder = context.folder / f"{tvm}-{ffi}"
        folder.mkdir()
        places = installed[TVM_PACKAGE, tvm], installed[FFI_PACKAGE, ffi]
        environments.append(Environment(TvmVersions(tvm, ffi), *places, folder))
    trials: list[VersionTrial] = []

    def note(found: Iterable[VersionTrial]) -> None:
        for each in found:
            trials.append(each)
            context.say(each.line().replace("\t", "  "))
            _write(trials)

    note(map(_compiled, environments))
    able = [each for each in environments if (each.folder / ARRAYS).exists() and _pip_allows(each)]
    note(map(_served, filter(_pip_allows, environments)))
    served = {each.versions for each in trials if each.kind is TrialKind.SERVER and each.result is TrialResult.WORKS}
    groups = _same_libraries([each for each in environments if each.versions in served])
    for client in able:
        with client.sessions() as session:
            note(trial for server in groups for trial in _crossed(TrialKind.SESSION, session, client, server))
    for server in groups:
        with server[-1].sessions() as session:
            note(trial for made in able for trial in _crossed(TrialKind.PACKAGE, session, made, server))
    version_tables.write(trials)
    counts = {kind: [each for each in trials if each.kind is kind] for kind in TrialKind}
    return [
        Figure(f"{kind}: {result}", sum(each.result is result for each in counts[kind]), f"of {len(counts[kind])}")
        for kind in TrialKind
        for result in TrialResult
    ]


def _write(trials: Sequence[VersionTrial]) -> None:
    order = {kind: index for index, kind in enumerate(TrialKind)}
    rows = sorted(trials, key=lambda each: order[each.kind])
    head = "# Written by `python -m benchmarks versions` on x86_64. Environments that are missing were not tried."
    TRIALS.write_text("\n".join([head, "\t".join(TITLES), *(each.line() for each in rows), ""]), "utf-8")


def _compiled(environment: Environment) -> VersionTrial:
    result, detail = result_of(environment.compile())
    if not _pip_allows(environment):
        detail = f"{detail}; pip refuses the pair".removeprefix("; ")
    return VersionTrial(TrialKind.ENVIRONMENT, environment.versions, TvmVersions(), result, detail)


def _pip_allows(environment: Environment) -> bool:
    """Whether TVM's wheel admits that FFI, and the FFI says nothing of TVM."""
    metadata = next(environment.tvm.glob("apache_tvm-*.dist-info/METADATA")).read_text("utf-8")
    needed = [
        line.removeprefix("Requires-Dist: ") for line in metadata.splitlines() if line.startswith("Requires-Dist")
    ]
    return all(
        wanted.specifier.contains(environment.versions.ffi, prereleases=True)
        for wanted in map(Requirement, needed)
        if wanted.name == FFI_PACKAGE
    )


def _served(environment: Environment) -> VersionTrial:
    """Whether a server can be compiled and started."""
    result, detail = TrialResult.WORKS, ""
    try:
        _make_server(environment)
        with _server(environment):
            pass
    except FarmError as error:
        why = _UNDEFINED.search(error.evidence)
        result, detail = TrialResult.REFUSED, f"{error.message}: {why[0] if why else error.evidence[-100:]}"
    return VersionTrial(TrialKind.SERVER, environment.versions, TvmVersions(), result, detail)


def _make_server(environment: Environment) -> None:
    bundle = environment.folder / "bundle"
    if bundle.exists():
        return
    bundle.mkdir()
    libraries = environment.libraries
    includes = (environment.ffi / "tvm_ffi/include", environment.tvm / "tvm/include")
    for library in libraries:
        shutil.copyfile(library, bundle / library.name)
    compile_server(find_compiler(Abi.X86_64), TvmWheel(includes, libraries), bundle / SERVER_PROGRAM)
    (bundle / SERVER_PROGRAM).chmod(0o755)


@contextmanager
def _server(environment: Environment) -> Iterator[tuple[int, Path]]:
    """A server of its own for one session: its port, and its log."""
    log = environment.folder / "server.log"
    port = free_port()
    command = [str(environment.folder / "bundle" / SERVER_PROGRAM), "server", "--host=127.0.0.1", f"--port={port}"]
    command += [f"--port-end={port + 1}", f"--key={KEY}", f"--work-dir={environment.folder / 'work'}"]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        until(
            lambda: "Bind to" in log.read_text("utf-8", "replace") or process.poll() is not None,
            START_LIMIT_S,
            f"the server of {environment.versions} does not start",
        )
        if process.poll() is not None:
            raise HostError(f"the server of {environment.versions} ended: {log.read_text('utf-8', 'replace')[-300:]}")
        yield port, log
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _same_libraries(environments: Sequence[Environment]) -> list[list[Environment]]:
    """Environments whose servers are the same, byte by byte: what is measured of one is true of all."""
    groups: dict[tuple[str, ...], list[Environment]] = {}
    for each in environments:
        groups.setdefault(tuple(hash_file(path) for path in each.libraries), []).append(each)
    return list(groups.values())


def _crossed(
    kind: TrialKind, session: Session, each: Environment, servers: Sequence[Environment]
) -> Iterator[VersionTrial]:
    """What one environment compiled, run by its own client or another's on a server of several names."""
    with _server(servers[-1]) as (port, log):
        end = session(each.folder, port)
        result, detail = result_of(end, server_died=_death(log.read_text("utf-8", "replace")))
    for server in servers:
        yield VersionTrial(kind, each.versions, server.versions, result, detail)


def _death(log: str) -> str:
    """How the server's process of the session ended, if by a signal."""
    ends = [int(line.rpartition("=")[2]) for line in log.splitlines() if "exited, status =" in line]
    number = ends[-1] & 0x7F if ends else 0
    return signal.Signals(number).name if number else ""


def _install(root: Path, wheels: Path, package: str, version: str, context: Context) -> Path:
    """The wheel unpacked in a folder of its own."""
    place = root / f"{package}-{version}"
    if not place.exists():
        wheel = _download(wheels, package, version, MACHINES[0], context)
        temporary = place.with_name(f".{place.name}.{os.getpid()}")
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(temporary)
        temporary.rename(place)
    return place


def _download(wheels: Path, package: str, version: str, machine: str, context: Context) -> Path:
    folder = wheels / machine
    folder.mkdir(parents=True, exist_ok=True)
    name = package.replace("-", "_")
    if not (found := list(folder.glob(f"{name}-{version}-*.whl"))):
        context.say(f"downloading {package} {version} for {machine}")
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        for tag in ("manylinux_2_28", "manylinux_2_27", "manylinux2014"):
            command += ["--platform", f"{tag}_{machine}"]
        command += ["--python-version", python, "--dest", str(folder), f"{package}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_LIMIT_S, check=False)
        if done.returncode:
            raise HostError(f"{package} {version} could not be downloaded", evidence=done.stderr)
        found = list(folder.glob(f"{name}-{version}-*.whl"))
    return found[0]


def _builds_text(wheels: Path, context: Context) -> str:
    """data/builds.tsv: the build ids of the libraries that bundles have from wheels."""
    rows = []
    releases = [(TVM_PACKAGE, each) for each in TVM_RELEASES] + [(FFI_PACKAGE, each) for each in FFI_RELEASES]
    for (package, version), machine in itertools.product(releases, MACHINES):
        with zipfile.ZipFile(_download(wheels, package, version, machine, context)) as wheel:
            for name in LIBRARIES[package]:
                library = Path(wheel.extract(name, context.folder / "builds"))
                rows.append((read_elf(library).build_id, package, version, machine, library.name))
    head = "# Written by `python -m benchmarks versions`: GNU build ids of the libraries in wheels."
    return "\n".join([head, *map("\t".join, [BUILD_TITLES, *rows]), ""])
