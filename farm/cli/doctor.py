"""`farm doctor`: what on this host would keep the farm from working, each finding with what fixes it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from farm.cli.context import JsonFlag, call, print_json, print_table
from farm.config import FarmConfig, load
from farm.core.errors import DaemonUnreachableError, ExitCode, FarmError


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing."""

    check: str
    verdict: Verdict
    detail: str
    fix: str = ""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    config: Annotated[Path | None, typer.Option(help="TOML file; /etc/farm/farm.toml by default.")] = None,
    json: JsonFlag = False,
) -> None:
    """Check this host: adb, TVM, linkers, folders, the daemon. Exit code 1 when something must be fixed."""
    findings = [finding for check in CHECKS for finding in check(load(config))]
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(("CHECK", "", "DETAIL"), ((f.check, f.verdict, f.detail) for f in findings))
        for finding in findings:
            if finding.fix:
                typer.echo(f"fix {finding.check}: {finding.fix}")
    raise typer.Exit(ExitCode.FAILED if any(f.verdict is Verdict.FAIL for f in findings) else ExitCode.OK)


def _python(_config: FarmConfig) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", Verdict.OK, f"{version} at {sys.executable}")


def _adb(config: FarmConfig) -> Iterator[Finding]:
    from farm.adb.server import binary_version, find_binary, foreign_servers

    try:
        binary = find_binary(config.adb.binary)
        yield Finding("adb", Verdict.OK, f"version {binary_version(binary)} at {binary}")
    except FarmError as error:
        yield Finding("adb", Verdict.FAIL, error.message, error.hint)
    for server in foreign_servers(config.adb_socket):
        yield Finding(
            "other adb server",
            Verdict.WARN,
            f"pid {server.pid} of user {server.user} listens on port {server.port} and may hold USB phones",
            f"stop it (kill {server.pid}), or let people use the farm's: export ADB_SERVER_SOCKET={config.adb_socket}",
        )


def _toolchains(config: FarmConfig) -> Iterator[Finding]:
    from farm.jobs.toolchain import toolchain_versions

    for name, toolchain in config.toolchain.items():
        try:
            versions = toolchain_versions(toolchain.python)
        except FarmError as error:
            yield Finding(f"toolchain {name}", Verdict.FAIL, error.message, error.hint)
        else:
            said = ", ".join(f"{package} {version}" for package, version in versions.items())
            yield Finding(f"toolchain {name}", Verdict.OK, f"{said} in {toolchain.python}")


def _linkers(_config: FarmConfig) -> Iterator[Finding]:
    found = [tool for tool in ("ld.lld", "clang", "g++", "ziglang") if shutil.which(tool)]
    if found:
        yield Finding("linkers", Verdict.OK, ", ".join(found))
    else:
        yield Finding(
            "linkers", Verdict.FAIL, "no linker for compiled models", "apt-get install lld, or pip install ziglang"
        )


def _folders(config: FarmConfig) -> Iterator[Finding]:
    for name, path in (("state folder", config.state_dir), ("runtime folder", config.runtime_dir)):
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        free_gb = shutil.disk_usage(existing).free / 1e9
        verdict = Verdict.OK if free_gb > 1 else Verdict.WARN  # a bundle and a day of artifacts are a few 100 MB
        yield Finding(
            name, verdict, f"{path}, {free_gb:.0f} GB free", "" if verdict is Verdict.OK else "free some space"
        )


def _daemon(_config: FarmConfig) -> Iterator[Finding]:
    try:
        status = call("status")
    except DaemonUnreachableError as error:
        yield Finding("daemon", Verdict.WARN, error.message, error.hint)
        return
    yield Finding("daemon", Verdict.OK, f"pid {status['pid']}, version {status['version']}")
    for problem in status["problems"]:
        yield Finding("daemon", Verdict.WARN, problem)


CHECKS: tuple[Callable[[FarmConfig], Iterator[Finding]], ...] = (
    _python,
    _adb,
    _toolchains,
    _linkers,
    _folders,
    _daemon,
)
