"""Which files the service consists of, what stands in them, and what is done about those that are there."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from farm.cli.install_service import (
    CONFIG,
    SYSUSERS,
    UNIT_FOLDER,
    UNITS,
    files,
    hidden,
    install_steps,
    shipped,
    uninstall_steps,
    unwritable,
)
from farm.common.errors import ExitCode
from farm.config import load
from tests.support.needs import needs

SERVICES = [unit for unit in UNITS if unit.endswith(".service")]


def texts(python: str = "/opt/farm/bin/python", folders: tuple[str, ...] = ("/opt/farm", "/usr")) -> dict[str, str]:
    return {path.rpartition("/")[2]: text for path, text in files(shipped(), python, folders).items()}


def settings(unit: str, name: str) -> list[str]:
    return [line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{name}=")]


@pytest.mark.parametrize("unit", UNITS)
def test_nothing_is_left_to_fill_in(unit: str) -> None:
    assert not [word for word in texts()[unit].split() if word.startswith("@") and word.endswith("@")]


@pytest.mark.parametrize("unit", SERVICES)
def test_every_service_runs_this_interpreter_as_farm(unit: str) -> None:
    text = texts()[unit]
    (start,) = settings(text, "ExecStart")
    assert start.startswith("/opt/farm/bin/python -P -m farm")
    assert [settings(text, name) for name in ("User", "ProtectHome", "BindReadOnlyPaths")] == [["farm"], ["yes"], []]


def test_an_interpreter_at_home_is_let_in_and_nothing_else_of_home() -> None:
    text = texts("/home/a b/100%/x:y/bin/python", ("/home/a b/100%/x:y", "/usr"))["farm.service"]
    assert settings(text, "ProtectHome") == ["tmpfs"]
    assert settings(text, "BindReadOnlyPaths") == ['"/home/a b/100%%/x\\:y"']
    assert settings(text, "ExecStart")[0].startswith("/home/a\\x20b/100%%/x:y/bin/python -P -m farm serve")


BONDS = ("PartOf", "BindsTo", "Requisite")
TO_BECOME_FARM_JOB = ["CAP_SETUID CAP_SETGID"]


@pytest.mark.parametrize(
    ("unit", "name", "value"),
    [
        # Only the daemon has capabilities, and only those to become farm-job.
        ("farm.service", "CapabilityBoundingSet", TO_BECOME_FARM_JOB),
        ("farm.service", "AmbientCapabilities", TO_BECOME_FARM_JOB),
        *((f"farm-{each}.service", "CapabilityBoundingSet", [""]) for each in ("adb", "gate", "head")),
        # A restart of the daemon takes neither adb nor the gate along.
        *((unit, bond, []) for unit in ("farm-adb.service", "farm-gate.service", "farm-gate.socket") for bond in BONDS),
        ("farm.service", "Requires", []),
        ("farm.service", "Wants", ["farm-adb.service farm-gate.socket"]),
        # Sessions have scheduler groups of their own: any weight makes systemd use the processor's cgroups.
        ("farm-adb.service", "CPUWeight", ["1000"]),
        ("farm-gate.service", "CPUWeight", ["1000"]),
        # A host is back after a power cut, whichever comes first: the port or its address.
        ("farm-gate.socket", "FreeBind", ["yes"]),
        # Restarted forever and as often as an operator likes, but not for a mistake in the configuration.
        *((unit, "StartLimitIntervalSec", ["0"]) for unit in SERVICES),
        *((unit, "StartLimitBurst", []) for unit in SERVICES),
        *((f"farm{each}.service", "RestartPreventExitStatus", [str(ExitCode.USAGE)]) for each in ("", "-head")),
    ],
)
def test_units_are_bound_and_allowed_as_little_as_can_be(unit: str, name: str, value: list[str]) -> None:
    assert settings(texts()[unit], name) == value


@pytest.mark.parametrize("unit", SERVICES)
def test_a_reload_needs_no_program_that_a_minimal_debian_lacks(unit: str) -> None:
    """And answers with what is refused, which a signal cannot."""
    programs = [shlex.split(command)[0] for command in settings(texts()[unit], "ExecReload")]
    assert set(programs) <= {"/opt/farm/bin/python", "/bin/sh"}
    assert programs[:1] in ([], ["/opt/farm/bin/python"])


def test_the_daemon_may_share_folders_with_its_workers() -> None:
    assert "m farm farm-job" in texts()["farm.conf"]


def test_the_daemons_environment_is_configuration(tmp_path: Path) -> None:
    words = " ".join(settings(texts()["farm.service"], "Environment")).split()
    environ = {name: value for name, _, value in (word.partition("=") for word in words) if name.startswith("FARM_")}
    config = load(_empty(tmp_path), environ=environ)
    assert config.adb.service is True
    assert config.web.read == "token"  # every user of the host reaches its port
    assert f"-P -m farm.daemon.adb_service --socket {config.adb.socket} " in texts()["farm-adb.service"]
    assert settings(texts()["farm-gate.socket"], "ListenSequentialPacket") == [config.tvm.gate]
    assert settings(texts()["farm-gate.socket"], "ListenStream") == [f"{config.tvm.host}:{config.tvm.port}"]


def _empty(tmp_path: Path) -> Path:
    path = tmp_path / "empty.toml"
    path.write_text("")
    return path


def test_the_example_is_all_comments_and_every_line_of_it_may_be_uncommented(tmp_path: Path) -> None:
    text = shipped()["farm.toml"]
    assert tomllib.loads(text) == {}
    lines = [
        line.removeprefix("#") if line.startswith("#") and line[1:2] != " " else line for line in text.splitlines()
    ]
    path = tmp_path / "farm.toml"
    path.write_text("\n".join(lines))
    config = load(path, environ={})
    assert (config.adopt[0].pool, config.quota.devices) == ("lab", 4)


def test_what_is_done_about_files_that_are_there() -> None:
    wanted = {"a": "1", "b": "1", "c": "1", CONFIG: "1"}
    there = {"b": "1", "c": "old", CONFIG: "mine"}
    steps = {step.path: step.doing for step in install_steps(wanted, there)}
    assert steps == {"a": "write", "b": "unchanged", "c": "replace", CONFIG: "keep"}
    assert [step.doing for step in install_steps({CONFIG: "1"}, {})] == ["write"]
    removed = {step.path: step.doing for step in uninstall_steps(wanted, there)}
    assert removed == {"b": "remove", "c": "remove", CONFIG: "keep"}
    assert [step.doing for step in uninstall_steps({CONFIG: "1"}, {CONFIG: "1"})] == ["remove"]


def test_a_service_does_not_run_from_where_everybody_writes() -> None:
    assert hidden(("/opt/farm", "/tmp/venv", "/var/tmp/x")) == ("/tmp/venv", "/var/tmp/x")


@pytest.mark.parametrize("path", ["/home/o'neil", '/opt/q"q', "/opt/back\\slash", "/opt/d$HOME", "/opt/a\nb"])
def test_paths_that_a_unit_cannot_name(path: str) -> None:
    assert unwritable(("/opt/farm", path)) == (path,)
    assert unwritable(("/opt/semi;colon", "/home/a b/100%/x:y")) == ()


@needs("systemd-analyze")
@pytest.mark.parametrize("folder", ["/home/my user/farm env", "/home/100%/x", "/home/a:b/env", "/home/semi;colon/e"])
def test_systemd_reads_paths_as_they_are(folder: str, tmp_path: Path) -> None:
    """What it cannot read it names, but for the interpreter, which is not there."""
    for name, text in texts(f"{folder}/bin/python", (folder,)).items():
        if name in UNITS:
            (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / "farm-gate.service")],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = [line for line in (done.stdout + done.stderr).splitlines() if "farm-gate" in line]
    assert said == [f"farm-gate.service: Command {folder}/bin/python is not executable: No such file or directory"]


def test_paths_are_where_systemd_looks() -> None:
    paths = set(files(shipped(), sys.executable, ()))
    assert {SYSUSERS, CONFIG} < paths
    assert {f"{UNIT_FOLDER}/{unit}" for unit in UNITS} < paths
    assert not any(os.path.isabs(path) for path in paths)  # noqa: PTH117 (a text, no path yet)
