"""No words from outside become a command: the lines farm makes for shells, with hostile values, run by real ones.

A value that got out of its quotes would make the file PWNED in the working folder.
"""

from __future__ import annotations

import ast
import asyncio
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from farm.adb import push
from farm.adb.shell import ShellResult
from farm.bundle.model import Bundle, BundleFile
from farm.common.errors import FarmError
from farm.devices.agent import Agent
from farm.devices.quiesce import QuiesceController
from farm.devices.quiesce_policy import Level
from farm.devices.server.provision import installed_command
from farm.devices.server.rpc_server import RpcServer
from farm.kinds.lease import command as lease_command
from farm.programs.description import Places, ProgramDescription, command_line, report_line
from tests.support.waiting import HANG_S

FARM = Path(__file__).parents[2] / "farm"
SHELLS = [name for name in ("sh", "bash", "mksh") if shutil.which(name)]
HOSTILE = [
    "$(touch PWNED)",
    "`touch PWNED`",
    "; touch PWNED;",
    "x\ntouch PWNED\n",
    "'; touch PWNED; '",
    '"; touch PWNED; "',
    "&& touch PWNED #",
    "| touch PWNED",
    "-rf PWNED",
    "\\'; touch PWNED; \\'",
    "'$(touch PWNED)'",
    "x' \"$(touch PWNED)\" 'y",
    "${IFS}touch${IFS}PWNED",
    "> PWNED",
    "\u2028touch PWNED",
    "a b\tc*?[x]~!{1,2}",
]
# Where farm asks a phone's shell for something. A new place belongs here, and what it asks into the tests below: what
# is built from constants, hashes and numbers of our own needs none.
ASKING = {
    "farm/adb/push.py",
    "farm/adb/tools.py",  # constants, a name of our own
    "farm/adb/watch.py",  # true
    "farm/devices/battery_control.py",  # charge.sh and one of its own words
    "farm/devices/identity/identity.py",  # constant
    "farm/devices/health/probe_round.py",  # constant, true
    "farm/devices/server/program_files.py",  # constant
    "farm/devices/server/provision.py",
    "farm/devices/quiesce.py",
    "farm/devices/server/rpc_server.py",
    "farm/devices/server/session_cores.py",  # cores.sh and a number of our own
    "farm/devices/agent_work.py",  # constant
    "farm/kinds/energy/executor.py",  # gauge.sh and a number of our own; constants
    "farm/kinds/memory/executor.py",  # memory.sh and numbers of our own
    "farm/kinds/program/executor.py",  # command_line, report_line; constants
    "farm/kinds/untethered/executor.py",  # command_line, quoted; untethered.sh and numbers of our own
    "farm/kinds/shell/executor.py",  # a user's own line, for the phone they hold
}


class RealShell:
    """Runs what a phone would be asked, in a folder of its own."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        self.program = program
        self.asked: list[str] = []

    def run(self, line: str) -> str:
        self.asked.append(line)
        done = subprocess.run(
            [self.program, "-c", line], cwd=self.folder, capture_output=True, text=True, timeout=HANG_S, check=False
        )
        return done.stdout

    async def shell(self, _serial: str, command: str, **_: object) -> Any:
        said = await asyncio.to_thread(self.run, command)
        return ShellResult(said.encode(errors="surrogateescape"), b"", 0)

    def unharmed(self) -> bool:
        return bool(self.asked) and not list(self.folder.rglob("PWNED"))


@pytest.fixture(params=SHELLS)
def phone(request: pytest.FixtureRequest, tmp_path: Path) -> RealShell:
    folder = tmp_path / "phone"
    folder.mkdir()
    return RealShell(folder, request.param)


@pytest.fixture(params=HOSTILE)
def value(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_would_show_a_hole_does(phone: RealShell) -> None:
    phone.run("echo $(touch PWNED)")
    assert not phone.unharmed()


def test_paths_of_a_push(phone: RealShell, value: str) -> None:
    path = f"{phone.folder}/{value}"
    phone.run(push.inspect([path, f"{path}2"]))
    for line in lines_of_a_push(path):
        phone.run(line)
    assert phone.unharmed()


def lines_of_a_push(path: str) -> list[str]:
    """Every other line that is made of paths."""
    moves = push.install([(push.temporary_name(path), path, 0o755)])
    return [*moves, *push.change_modes([(path, 0o644)]), push.remove(path)]


def test_names_in_a_bundle(phone: RealShell, value: str) -> None:
    files = (BundleFile(value, "0" * 64, 1, 0o755), BundleFile("tvm_rpc", "0" * 64, 1, 0o755))
    bundle = Bundle("one", "0" * 64, "arm64-v8a", files, Path("/absent"), "default", (), "0.27", False)
    phone.run(installed_command(bundle, None))
    assert phone.unharmed()


async def test_who_makes_a_phone_quiet(phone: RealShell, value: str) -> None:
    agent = cast(Agent, SimpleNamespace(name="pixel", serial="S1", device=None))
    quieting = QuiesceController(cast(Any, phone), lambda _: agent)
    with suppress(FarmError):
        await quieting.begin("pixel", Level.GENTLE, value, 10.0)
    with suppress(FarmError):
        await quieting.end("pixel", value)
    quieting.close()
    assert phone.unharmed()


async def test_the_bundle_of_a_server(phone: RealShell, value: str) -> None:
    with suppress(FarmError):
        await RpcServer(cast(Any, phone), "S1").start(value)
    assert phone.unharmed()


def test_the_call_of_a_program(phone: RealShell, value: str) -> None:
    work = phone.folder / "work"
    work.mkdir()
    described = ProgramDescription(
        name="one", command=("echo", value, "{word}", "{model}"), output="json-lines", report=("echo", value),
        environment={"VALUE": value, "FILLED": "{word}"}, settings={"word": ""},
    )  # fmt: skip
    places = Places(str(phone.folder), f"{phone.folder}/model.{value}", str(work))
    said = [phone.run(line(described, places, 1, {"word": value})) for line in (command_line, report_line)]
    assert said == [f"{value} {value} {places.model}\n", f"{value}\n"]
    assert phone.unharmed()


def test_what_a_lease_exports(phone: RealShell, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = SimpleNamespace(environment={"FARM_LEASE": value})
    monkeypatch.setattr(lease_command, "_to_its_end", lambda acquired: acquired.close() or held)
    monkeypatch.setattr(lease_command, "until", lambda _: "")
    app = typer.Typer()
    app.add_typer(lease_command.app, name="lease")
    said = CliRunner().invoke(app, ["lease", "acquire", "--on", "android", "--env"]).stdout
    assert said.startswith("export FARM_LEASE=")
    phone.run(f"eval {quoted(said)}; :")
    assert phone.unharmed()


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def test_no_program_is_started_through_a_shell() -> None:
    wrong = []
    for path in sorted(FARM.rglob("*.py")):
        text = path.read_text()
        if not re.search(r"\bshell=|\bsystem\b|popen|getoutput|getstatusoutput|create_subprocess_shell", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                by_shell = any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords)
                if name == "get_completion_script":  # typer's: `shell` is the name of one
                    continue
                if by_shell or re.search(
                    r"(^|\.)(os\.system|popen|getoutput|getstatusoutput|create_subprocess_shell)$", name
                ):
                    wrong.append(f"{path}:{node.lineno} {name}")
    assert wrong == []


def test_every_place_that_asks_a_phones_shell_is_known() -> None:
    asking = set()
    for path in sorted(FARM.rglob("*.py")):
        text = path.read_text()
        if "simulation" in path.parts or "shell(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if called and node.func.attr in ("shell", "open_shell"):  # type: ignore[attr-defined]
                asking.add(str(path.relative_to(FARM.parent)))
    assert asking == ASKING
